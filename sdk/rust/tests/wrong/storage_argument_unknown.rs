use counterfoil_sdk::prelude::*;

#[block(effects(storage(key = "a")))]
fn echo(input: Value) -> Result<Value, Failure> {
    Ok(input)
}

fn main() {}
