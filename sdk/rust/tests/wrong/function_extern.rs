use counterfoil_sdk::prelude::*;

#[block]
extern "C" fn echo(input: Value) -> Result<Value, Failure> {
    Ok(input)
}

fn main() {}
