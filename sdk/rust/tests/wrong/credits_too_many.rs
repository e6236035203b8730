use counterfoil_sdk::prelude::*;

#[block(credits = 4294967296)]
fn echo(input: Value) -> Result<Value, Failure> {
    Ok(input)
}

fn main() {}
