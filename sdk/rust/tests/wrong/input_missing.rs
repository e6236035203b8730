use counterfoil_sdk::prelude::*;

#[block]
fn echo() -> Result<Value, Failure> {
    Ok(Value::Null)
}

fn main() {}
