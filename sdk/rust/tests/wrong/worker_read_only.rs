use counterfoil_sdk::prelude::*;

#[block(effects(worker(safety = "read-only")))]
fn echo(input: Value) -> Result<Value, Failure> {
    Ok(input)
}

fn main() {}
