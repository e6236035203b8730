use counterfoil_sdk::prelude::*;

#[block]
fn eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee(input: Value) -> Result<Value, Failure> {
    Ok(input)
}

fn main() {}
