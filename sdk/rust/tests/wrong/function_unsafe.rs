use counterfoil_sdk::prelude::*;

#[block]
unsafe fn echo(input: Value) -> Result<Value, Failure> {
    Ok(input)
}

fn main() {}
