use counterfoil_sdk::prelude::*;

#[block]
async fn echo(input: Value) -> Result<Value, Failure> {
    Ok(input)
}

fn main() {}
