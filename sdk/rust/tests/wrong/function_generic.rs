use counterfoil_sdk::prelude::*;

#[block]
fn echo<T>(input: T) -> Result<T, Failure> {
    Ok(input)
}

fn main() {}
