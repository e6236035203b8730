use counterfoil_sdk::prelude::*;

#[derive(Deserialize, JsonSchema)]
struct Lead {
    domain: String,
}

#[derive(Deserialize, Serialize, JsonSchema)]
struct Company {
    domain: String,
    tier: String,
    employees: u32,
}

/// Looks a lead's company up by its domain.
#[block(effects(http(connection = "crm", safety = "read-only")), credits = 1)]
fn enrich_lead(input: Lead) -> Result<Company, Failure> {
    let company = http::get(format!("/companies/{}", input.domain)).connection("crm");
    Ok(company.send()?.json()?)
}

#[cfg(test)]
mod tests {
    use counterfoil_sdk::testing::*;

    use super::*;

    #[test]
    fn a_look_whose_answer_is_lost_is_taken_again() {
        let company = json!({ "domain": "a.example", "tier": "gold", "employees": 7 });
        let mut step = Step::<enrich_lead>::new(json!({ "domain": "a.example" }));
        step.answer(("GET", "/companies/a.example"), (200, company.clone()));
        step.drop_answer(1);
        assert_eq!(step.run().output(), company);
        assert_eq!(step.sent().len(), 2);
    }
}
