use counterfoil_sdk::prelude::*;

#[block(credits = "one")]
fn echo(input: Value) -> Result<Value, Failure> {
    Ok(input)
}

fn main() {}
