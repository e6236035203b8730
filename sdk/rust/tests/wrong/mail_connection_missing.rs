use counterfoil_sdk::prelude::*;

#[block(effects(mail()))]
fn echo(input: Value) -> Result<Value, Failure> {
    Ok(input)
}

fn main() {}
