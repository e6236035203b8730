use counterfoil_sdk::prelude::*;

#[derive(Deserialize, Serialize, JsonSchema)]
struct Charge {
    order: String,
    cents: u64,
}

#[derive(Deserialize, Serialize, JsonSchema)]
struct Charged {
    id: String,
}

/// Charges a card once.
#[block(effects(http(connection = "payments", safety = "at-most-once")), credits = 1)]
fn charge_card(input: Charge) -> Result<Charged, Failure> {
    let charge = http::post("/charges").connection("payments").key("charge").json(&input)?;
    Ok(charge.send()?.json()?)
}
