use counterfoil_sdk::prelude::*;

#[block]
fn echo(input: Value, more: Value) -> Result<Value, Failure> {
    Ok(input)
}

fn main() {}
