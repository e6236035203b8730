use counterfoil_sdk::prelude::*;

#[block(credits = -1)]
fn echo(input: Value) -> Result<Value, Failure> {
    Ok(input)
}

fn main() {}
