use counterfoil_sdk::prelude::*;

#[block]
struct Echo {
    input: Value,
}

fn main() {}
