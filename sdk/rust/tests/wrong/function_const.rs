use counterfoil_sdk::prelude::*;

#[block]
const fn echo(input: Value) -> Result<Value, Failure> {
    Ok(input)
}

fn main() {}
