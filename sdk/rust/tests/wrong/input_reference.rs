use counterfoil_sdk::prelude::*;

#[block]
fn echo(input: &Value) -> Result<Value, Failure> {
    Ok(input.clone())
}

fn main() {}
