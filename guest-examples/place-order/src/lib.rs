use counterfoil_sdk::prelude::*;

#[derive(Deserialize, JsonSchema)]
struct Order {
    order: String,
    cents: u64,
    domain: String,
}

#[derive(Serialize, JsonSchema)]
struct Placed {
    tier: String,
    reservation: Value,
    charge: Value,
}

/// Looks the buyer's company up, reserves under a key that may be sent again, and charges once.
#[block(
    effects(
        http(connection = "crm", safety = "read-only"),
        http(connection = "payments", safety = "idempotent"),
        http(connection = "payments", safety = "at-most-once"),
    ),
    credits = 3
)]
fn place_order(input: Order) -> Result<Placed, Failure> {
    let company: Value =
        http::get(format!("/companies/{}", input.domain)).connection("crm").send()?.json()?;
    let tier = company["tier"].as_str().unwrap_or("none").to_owned();
    let body = json!({ "order": input.order, "cents": input.cents, "tier": tier });
    let reserve = http::post("/reservations").connection("payments").key("reserve").idempotent();
    let reservation = reserve.json(&body)?.send()?.json()?;
    let charge = http::post("/charges").connection("payments").key("charge").json(&body)?;
    Ok(Placed { tier, reservation, charge: charge.send()?.json()? })
}
