use counterfoil_sdk::prelude::*;

#[block]
fn echo(input: Value) -> Result<impl Serialize, Failure> {
    Ok(input)
}

fn main() {}
