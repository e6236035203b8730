use counterfoil_sdk::prelude::*;

#[derive(Deserialize, JsonSchema)]
struct Order {
    order: String,
    cents: u64,
    #[serde(default)]
    second: Second,
}

/// What becomes of the charge at a receiver that answers as its query asks.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum Second {
    #[default]
    Ok,
    /// Refused for good.
    Fail,
    /// Refused for now.
    Retry,
}

#[derive(Serialize, JsonSchema)]
struct Booked {
    reservation: Value,
    charge: Value,
}

/// Reserves, then charges.
#[block(effects(http(connection = "payments", safety = "at-most-once")), credits = 2)]
fn two_effects(input: Order) -> Result<Booked, Failure> {
    let body = json!({ "order": input.order, "cents": input.cents });
    let post = |path, key| http::post(path).connection("payments").key(key).json(&body);
    let charges = match input.second {
        Second::Ok => "/charges",
        Second::Fail => "/charges?status=402",
        Second::Retry => "/charges?status=429",
    };
    let reservation = post("/reservations", "reserve")?.send()?.json()?;
    let charge = post(charges, "charge")?.send()?.json()?;
    Ok(Booked { reservation, charge })
}

#[cfg(test)]
mod tests {
    use counterfoil_sdk::testing::*;

    use super::*;

    #[test]
    fn a_charge_that_is_refused_for_now_is_tried_again_and_its_reservation_is_not() {
        let mut step = Step::<two_effects>::new(json!({ "order": "o-1", "cents": 1200 }));
        step.answer("reserve", (201, json!({ "id": 1 })));
        step.answer("charge", (429, json!(null))).answer("charge", (201, json!({ "id": 2 })));
        let booked = json!({ "reservation": { "id": 1 }, "charge": { "id": 2 } });
        assert_eq!(step.run().output(), booked);
        let effects: Vec<String> = step.sent().into_iter().map(|sent| sent.effect).collect();
        assert_eq!(effects, ["reserve", "charge", "charge"]);
    }
}
