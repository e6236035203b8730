use counterfoil_sdk::prelude::*;

#[block(effects(ftp(connection = "files")))]
fn echo(input: Value) -> Result<Value, Failure> {
    Ok(input)
}

fn main() {}
