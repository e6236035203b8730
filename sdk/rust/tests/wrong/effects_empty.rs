use counterfoil_sdk::prelude::*;

#[block(effects())]
fn echo(input: Value) -> Result<Value, Failure> {
    Ok(input)
}

fn main() {}
