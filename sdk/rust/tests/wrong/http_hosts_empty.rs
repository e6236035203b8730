use counterfoil_sdk::prelude::*;

#[block(effects(http(hosts = [])))]
fn echo(input: Value) -> Result<Value, Failure> {
    Ok(input)
}

fn main() {}
