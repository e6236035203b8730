use counterfoil_sdk::prelude::*;

#[block(price = 1)]
fn echo(input: Value) -> Result<Value, Failure> {
    Ok(input)
}

fn main() {}
