use counterfoil_sdk::prelude::*;

#[block(effects(http(connection = "crm")) credits = 1)]
fn echo(input: Value) -> Result<Value, Failure> {
    Ok(input)
}

fn main() {}
