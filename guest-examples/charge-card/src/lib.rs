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

#[cfg(test)]
mod tests {
    use counterfoil_sdk::testing::*;

    use super::*;

    #[test]
    fn a_charge_whose_answer_is_lost_is_not_sent_again() {
        let mut step = Step::<charge_card>::new(json!({ "order": "o-1", "cents": 1200 }));
        step.answer("charge", (201, json!({ "id": "ch_1" })));
        step.crash_before_answer(1);
        assert!(step.run().is_blocked());
        assert_eq!(step.receipt("charge").state, State::Unknown);

        let seen = Resolution::committed((201, json!({ "id": "ch_1" })), "the provider lists it");
        step.resolve("charge", seen);
        assert_eq!(step.run().output(), json!({ "id": "ch_1" }));
        assert_eq!(step.sent().len(), 1);
    }
}
