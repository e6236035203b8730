use counterfoil_sdk::prelude::*;

#[block(verify = check)]
fn echo(input: Value) -> Result<Value, Failure> {
    Ok(input)
}

fn check(_effect: &UnknownEffect) -> bool {
    true
}

fn main() {}
