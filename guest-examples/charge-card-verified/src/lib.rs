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

/// Charges a card once, and can find out whether it did.
#[block(
    effects(http(connection = "payments", safety = "at-most-once")),
    credits = 1,
    verify = find_charge,
)]
fn charge_card_verified(input: Charge) -> Result<Charged, Failure> {
    let charge = http::post("/charges").connection("payments").key("charge").json(&input)?;
    Ok(charge.send()?.json()?)
}

/// Looks for the charge under the key that it was sent with.
fn find_charge(charge: &UnknownEffect) -> Result<Verdict, Failure> {
    let Some(key) = &charge.idempotency_key else {
        return Ok(Verdict::inconclusive("a charge without a key cannot be found"));
    };
    match http::get(format!("/charges?key={key}")).connection("payments").send() {
        // The provider shows a charge as it answers when it makes one.
        Ok(found) => Ok(Verdict::applied(found)),
        Err(EffectError::Rejected(answer)) if answer.status() == 404 => Ok(Verdict::NotApplied),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use counterfoil_sdk::testing::*;

    use super::*;

    #[test]
    fn a_charge_whose_answer_is_lost_is_found_at_the_provider() {
        let mut step = Step::<charge_card_verified>::new(json!({ "order": "o-1", "cents": 1200 }));
        step.answer("charge", Reply::lost());
        step.answer(("GET", "/charges?key=*"), (200, json!({ "id": "ch_1" })));
        assert!(step.run().is_blocked());

        step.verify("charge");
        assert_eq!(step.receipt("charge").state, State::Verified);
        assert_eq!(step.run().output(), json!({ "id": "ch_1" }));
    }
}
