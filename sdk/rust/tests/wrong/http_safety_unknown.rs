use counterfoil_sdk::prelude::*;

#[block(effects(http(connection = "crm", safety = "exactly-once")))]
fn echo(input: Value) -> Result<Value, Failure> {
    Ok(input)
}

fn main() {}
