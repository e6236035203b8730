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

#[cfg(test)]
mod tests {
    use counterfoil_sdk::testing::*;

    use super::*;

    #[test]
    fn a_reservation_is_sent_again_under_its_key_and_a_charge_is_not() {
        let input = json!({ "order": "o-1", "cents": 1200, "domain": "a.example" });
        let mut step = Step::<place_order>::new(input);
        step.otherwise((201, json!({ "tier": "gold" })));
        step.drop_answer(2);
        step.crash_after_answer(4);
        step.run().output();

        let sent = step.sent();
        let requests: Vec<&str> = sent.iter().map(|sent| sent.request.as_str()).collect();
        let [look, reserve, charge] = ["GET /companies/a.example", "POST /reservations", "POST /charges"];
        assert_eq!(requests, [look, reserve, reserve, charge]);
        assert_eq!(sent[1].idempotency_key, sent[2].idempotency_key);
    }
}
