use counterfoil_sdk::prelude::*;

struct Echo;

impl Echo {
    #[block]
    fn echo(&self, input: Value) -> Result<Value, Failure> {
        Ok(input)
    }
}

fn main() {}
