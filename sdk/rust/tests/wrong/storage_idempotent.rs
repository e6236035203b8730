use counterfoil_sdk::prelude::*;

#[block(effects(storage(safety = "idempotent")))]
fn echo(input: Value) -> Result<Value, Failure> {
    Ok(input)
}

fn main() {}
