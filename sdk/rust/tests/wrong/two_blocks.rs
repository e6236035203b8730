use counterfoil_sdk::prelude::*;

#[block]
fn echo(input: Value) -> Result<Value, Failure> {
    Ok(input)
}

#[block]
fn echo_again(input: Value) -> Result<Value, Failure> {
    Ok(input)
}

fn main() {}
