//! Resolving an unknown effect. The judgement is `domain`'s, taken inside the transaction; a dry run takes the same
//! judgement outside one.

use counterfoil_domain::code::Code;
use counterfoil_domain::effect::{Answer, HttpResponse};
use counterfoil_domain::id::{EffectId, RunId};
use counterfoil_domain::receipt::resolution::{self, Outcome, Resolution, Sequel, Unresolvable};
use counterfoil_domain::receipt::{Receipt, ReceiptState, Recorded};
use counterfoil_store::receipt::Resolved as StoreResolved;
use counterfoil_store::run::RunState;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::auth::Principal;
use crate::problem::Problem;
use crate::state::App;

/// Statuses of an answer that never has a body (RFC 9110).
const BODILESS: [u16; 3] = [204, 205, 304];

/// What somebody says of an unknown effect.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Resolve)]
pub(crate) struct ResolutionGiven {
    /// `committed` or `verified`: it took place; `abandoned`: it did not; `compensated`: it did, and has been undone.
    #[schema(value_type = String)]
    pub(crate) outcome: Outcome,
    /// How that is known.
    pub(crate) evidence: String,
    /// What the block is handed: required where it took place, refused elsewhere.
    pub(crate) answer: Option<AnswerGiven>,
    /// The receiver's own name for what it did.
    pub(crate) provider_receipt_id: Option<String>,
    /// Whether the blocked step goes on.
    #[serde(default = "yes")]
    pub(crate) resume: bool,
    /// Change nothing, and say what would happen.
    #[serde(default)]
    pub(crate) dry_run: bool,
}

fn yes() -> bool {
    true
}

/// An answer, as the receiver would have given it.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AnswerGiven {
    /// Status code, 200 to 599.
    #[schema(minimum = 200, maximum = 599)]
    pub(crate) status: u16,
    /// Pairs of name and value.
    #[serde(default)]
    pub(crate) headers: Vec<(String, String)>,
    /// The body as text, which may be empty; or `json`. One of them is required, unless the status has no body.
    pub(crate) body: Option<String>,
    /// The body as JSON, whose content type is then added.
    pub(crate) json: Option<Value>,
}

/// What a resolution comes to.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Resolved {
    #[schema(value_type = String)]
    pub(crate) effect: EffectId,
    #[schema(value_type = String)]
    pub(crate) run: RunId,
    /// Nothing was changed.
    pub(crate) dry_run: bool,
    #[schema(value_type = String)]
    pub(crate) from: ReceiptState,
    #[schema(value_type = String)]
    pub(crate) to: ReceiptState,
    /// Whether the blocked step goes on; in a dry run, whether that was asked for.
    pub(crate) resumed: bool,
    /// What happens then.
    pub(crate) consequence: &'static str,
}

/// Resolves an effect, or says what would come of it.
pub(crate) async fn resolve(
    app: &App,
    who: &Principal,
    id: EffectId,
    given: ResolutionGiven,
) -> Result<Resolved, Problem> {
    let ResolutionGiven { outcome, evidence, answer, provider_receipt_id, resume, dry_run } = given;
    for (pointer, text) in
        [("/evidence", Some(&evidence)), ("/provider_receipt_id", provider_receipt_id.as_ref())]
    {
        if text.is_some_and(|text| text.contains('\0')) {
            return Err(Problem::bad_field(pointer, "a NUL character cannot be kept"));
        }
    }
    let recorded = answer.map(recorded).transpose()?;
    let resolution = Resolution { outcome, evidence, recorded, provider_receipt_id };
    let decide = |receipt: &Receipt, now| resolution::resolve(receipt, resolution, who.actor(), now);
    let resolved = |run, resumed, sequel| Resolved {
        effect: id,
        run,
        dry_run,
        from: ReceiptState::Unknown,
        to: outcome.state(),
        resumed,
        consequence: outcome.consequence(sequel),
    };
    if dry_run {
        let seen = app.store.receipt(who.tenant, id).await?.ok_or_else(Problem::not_found)?;
        let now = app.store.ping().await?;
        decide(&seen.receipt, now).map_err(|why| refused(&why))?;
        let sequel = sequel(app, who, seen.receipt.run, resume).await?;
        return Ok(resolved(seen.receipt.run, resume && sequel == Sequel::Resumes, sequel));
    }
    match app.store.resolve(who.tenant, id, decide, resume, &who.actor()).await? {
        StoreResolved::Done { resumed, run } => {
            Ok(resolved(run, resumed, sequel(app, who, run, resume).await?))
        }
        StoreResolved::NotFound => Err(Problem::not_found()),
        StoreResolved::Refused(why) => Err(refused(&why)),
    }
}

/// What a resolution leads to for this run.
async fn sequel(app: &App, who: &Principal, run: RunId, resume: bool) -> Result<Sequel, Problem> {
    let run = app.store.run(who.tenant, run).await?.ok_or_else(Problem::not_found)?;
    Ok(match run.row.state {
        RunState::Succeeded | RunState::Failed | RunState::Cancelled => Sequel::RunEnded,
        _ if resume => Sequel::Resumes,
        _ => Sequel::Waits,
    })
}

fn recorded(answer: AnswerGiven) -> Result<Recorded, Problem> {
    let AnswerGiven { status, mut headers, body, json } = answer;
    if !(200..=599).contains(&status) {
        return Err(Problem::bad_field("/answer/status", "a status is 200 to 599"));
    }
    let is_field = |text: &String| text.chars().all(|sign| !sign.is_control());
    if !headers.iter().all(|(name, value)| !name.is_empty() && is_field(name) && is_field(value)) {
        return Err(Problem::bad_field(
            "/answer/headers",
            "a header field has a name, and no control characters",
        ));
    }
    let body = match (body, json) {
        (Some(_), Some(_)) => {
            return Err(Problem::bad_field("/answer", "give the body as `body` or as `json`, not both"));
        }
        (Some(text), None) => text,
        (None, Some(value)) => {
            if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type")) {
                headers.push(("content-type".into(), "application/json".into()));
            }
            value.to_string()
        }
        (None, None) if BODILESS.contains(&status) => String::new(),
        (None, None) => {
            return Err(Problem::bad_field(
                "/answer",
                "the block is handed this answer: give its body as `body` or as `json`; `\"body\": \"\"` says that it has none",
            ));
        }
    };
    Ok(Recorded::Answer(Answer::Http(HttpResponse {
        status,
        headers,
        body: body.into_bytes(),
        truncated: false,
    })))
}

fn refused(why: &Unresolvable) -> Problem {
    match why {
        Unresolvable::NotUnknown(_) => Problem::new(Code::NotUnknown, why.to_string()),
        Unresolvable::TooEarly(_) | Unresolvable::UnderWay => Problem::new(Code::TooEarly, why.to_string()),
        Unresolvable::NoEvidence => Problem::bad_field("/evidence", why.to_string()),
        Unresolvable::NoAnswer | Unresolvable::NeedlessAnswer => {
            Problem::bad_field("/answer", why.to_string())
        }
        Unresolvable::NotSuccess(_) => Problem::bad_field("/answer/status", why.to_string()),
        Unresolvable::NotJson(_) => Problem::bad_field("/answer/body", why.to_string()),
        Unresolvable::TooLarge => Problem::new(Code::TooLarge, why.to_string()),
    }
}
