use counterfoil_sdk::prelude::*;

#[block(effects(emit(connection = "events")))]
fn echo(input: Value) -> Result<Value, Failure> {
    Ok(input)
}

fn main() {}
