//! Two pages to a resolution: the form, and what will happen, which is then confirmed.

use askama::Template;
use axum::Form;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Redirect, Response};
use chrono::{DateTime, Utc};
use counterfoil_domain::id::EffectId;
use counterfoil_domain::key::Scope;
use counterfoil_domain::receipt::resolution::Outcome;
use serde::Deserialize;
use serde_json::Value;

use super::shown;
use crate::api::effects::{self as api, AnswerGiven, Resolution, ResolutionGiven};
use crate::extract::Named;
use crate::pages::{Chrome, Page, show};
use crate::problem::Problem;
use crate::session::{Visitor, check_origin};
use crate::state::{App, Shared};

/// What was typed, as it was typed.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Given {
    pub(super) outcome: String,
    pub(super) evidence: String,
    pub(super) status: String,
    pub(super) body: String,
    pub(super) content_type: String,
    pub(super) provider_receipt_id: String,
    /// `yes`, or nothing: a browser leaves out a box that is not ticked.
    pub(super) resume: String,
}

impl Given {
    /// A form that nobody has filled in.
    pub(super) fn blank() -> Self {
        Self {
            status: "200".into(),
            content_type: "application/json".into(),
            resume: "yes".into(),
            ..Self::default()
        }
    }

    fn outcome(&self) -> Result<Outcome, Problem> {
        serde_json::from_value(Value::String(self.outcome.clone()))
            .map_err(|_| Problem::bad_field("/outcome", "say what became of it"))
    }

    /// What it says, for the API's own judgement. An answer is only part of it where one is handed over.
    fn resolution(&self, dry_run: bool) -> Result<ResolutionGiven, Problem> {
        let outcome = self.outcome()?;
        let answer = if outcome.needs_answer() { Some(self.answer()?) } else { None };
        Ok(ResolutionGiven {
            outcome,
            evidence: self.evidence.trim().into(),
            answer,
            provider_receipt_id: Some(self.provider_receipt_id.trim().to_owned()).filter(|id| !id.is_empty()),
            resume: self.resume == "yes",
            dry_run,
        })
    }

    fn answer(&self) -> Result<AnswerGiven, Problem> {
        let status = self
            .status
            .trim()
            .parse()
            .map_err(|_| Problem::bad_field("/answer/status", "a status is 200 to 599"))?;
        let content_type = self.content_type.trim();
        let headers = match content_type {
            "" => Vec::new(),
            kind => vec![("content-type".to_owned(), kind.to_owned())],
        };
        Ok(AnswerGiven { status, headers, body: Some(self.body.clone()), json: None })
    }
}

/// The form of an effect's page.
#[derive(Debug)]
pub(super) struct ResolveForm {
    pub(super) choices: Vec<Choice>,
    pub(super) given: Given,
    /// Why it was not accepted.
    pub(super) problem: Option<String>,
}

/// One thing that may be said.
#[derive(Debug)]
pub(super) struct Choice {
    pub(super) name: String,
    pub(super) meaning: &'static str,
    pub(super) consequence: &'static str,
    pub(super) allowed_from: Option<DateTime<Utc>>,
}

impl ResolveForm {
    pub(super) fn new(resolutions: &[Resolution], given: Given, problem: Option<String>) -> Self {
        let choice = |resolution: &Resolution| Choice {
            name: resolution.outcome.state().name().into(),
            meaning: meaning(resolution.outcome),
            consequence: resolution.consequence,
            allowed_from: resolution.allowed_from,
        };
        Self { choices: resolutions.iter().map(choice).collect(), given, problem }
    }
}

const fn meaning(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Verified => "it took place, as the receiver's own records show.",
        Outcome::Committed => "it took place, and this is the answer that the receiver gave.",
        Outcome::Abandoned => "it did not take place.",
        Outcome::Compensated => "it took place, and has been undone.",
    }
}

#[derive(Debug, Template)]
#[template(path = "resolve_confirm.html")]
struct ConfirmPage {
    chrome: Chrome,
    id: EffectId,
    summary: String,
    to: &'static str,
    consequence: &'static str,
    goes_on: bool,
    has_answer: bool,
    given: Given,
}

#[derive(Debug, Deserialize)]
pub(in crate::pages) struct Sent {
    #[serde(default)]
    form_token: String,
    /// `preview`, `edit` or `confirm`.
    #[serde(default)]
    step: String,
    #[serde(flatten)]
    given: Given,
}

/// `POST /effects/{id}/resolve`
pub(in crate::pages) async fn resolve(
    State(app): Shared,
    visitor: Visitor,
    headers: HeaderMap,
    Named(id): Named<EffectId>,
    Form(sent): Form<Sent>,
) -> Result<Response, Problem> {
    check_origin(&headers)?;
    visitor.check_form(&sent.form_token)?;
    visitor.principal.needs(Scope::Operator)?;
    let Sent { step, given, .. } = sent;
    let answered = match step.as_str() {
        "confirm" => confirm(&app, &visitor, id, &given).await,
        "edit" => return shown(&app, &visitor, id, given, None).await,
        _ => preview(&app, &visitor, id, given.clone()).await,
    };
    match answered {
        // What was typed is not lost over a mistake in it.
        Err(problem) if problem.status().is_client_error() => {
            let status = problem.status();
            let page = shown(&app, &visitor, id, given, Some(problem.detail().into())).await?;
            Ok((status, page).into_response())
        }
        answered => answered,
    }
}

async fn preview(app: &App, visitor: &Visitor, id: EffectId, given: Given) -> Result<Response, Problem> {
    let resolved = api::resolve_effect(app, &visitor.principal, id, given.resolution(true)?).await?;
    let receipt = app.store.receipt(visitor.principal.tenant, id).await?.ok_or_else(Problem::not_found)?;
    let request = &receipt.receipt.request;
    let page = ConfirmPage {
        chrome: Chrome::of(visitor),
        id,
        summary: api::summary(&request.kind, &request.preview),
        to: resolved.to.name(),
        consequence: resolved.consequence,
        goes_on: resolved.resumed,
        has_answer: given.outcome()?.needs_answer(),
        given,
    };
    Ok(Page(page).into_response())
}

async fn confirm(app: &App, visitor: &Visitor, id: EffectId, given: &Given) -> Result<Response, Problem> {
    let resolved = api::resolve_effect(app, &visitor.principal, id, given.resolution(false)?).await?;
    Ok(Redirect::to(&format!("/runs/{}", resolved.run)).into_response())
}
