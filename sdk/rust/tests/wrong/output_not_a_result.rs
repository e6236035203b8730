use counterfoil_sdk::prelude::*;

#[block]
fn echo(input: Value) -> Option<Value> {
    Some(input)
}

fn main() {}
