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
