use counterfoil_sdk::prelude::*;

#[block]
fn echo(input: Value) {
    drop(input);
}

fn main() {}
