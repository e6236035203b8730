use counterfoil_sdk::prelude::*;

#[block]
fn echo(input: impl Into<Value>) -> Result<Value, Failure> {
    Ok(input.into())
}

fn main() {}
