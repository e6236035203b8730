use counterfoil_sdk::prelude::*;

#[block(effects(http(connection = "crm", method = "GET")))]
fn echo(input: Value) -> Result<Value, Failure> {
    Ok(input)
}

fn main() {}
