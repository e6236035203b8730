use counterfoil_sdk::prelude::*;

#[block(effects(mail(connection = "post", safety = "idempotent")))]
fn echo(input: Value) -> Result<Value, Failure> {
    Ok(input)
}

fn main() {}
