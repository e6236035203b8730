use counterfoil_sdk::prelude::*;

#[block(credits = 1, credits = 2)]
fn echo(input: Value) -> Result<Value, Failure> {
    Ok(input)
}

fn main() {}
