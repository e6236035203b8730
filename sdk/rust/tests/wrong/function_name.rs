use counterfoil_sdk::prelude::*;

#[block]
fn echo_Ö(input: Value) -> Result<Value, Failure> {
    Ok(input)
}

fn main() {}
