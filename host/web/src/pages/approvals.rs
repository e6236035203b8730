//! Approvals: what runs ask, and the form in which a person decides.

use askama::Template;
use axum::Form;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Redirect, Response};
use counterfoil_domain::id::ApprovalId;
use counterfoil_domain::key::Scope;
use serde::Deserialize;

use super::{Chrome, Page, show};
use crate::api::approvals::{Approval, Decision, approvals, decide_as, find};
use crate::extract::{Named, Params};
use crate::list::{ListParams, Listed};
use crate::problem::Problem;
use crate::session::{Visitor, check_origin};
use crate::state::{App, Shared};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Search {
    after: Option<String>,
}

#[derive(Debug, Template)]
#[template(path = "approvals.html")]
pub(super) struct ApprovalsPage {
    chrome: Chrome,
    open: Vec<Approval>,
    next: Option<String>,
}

/// `GET /approvals`
pub(super) async fn list(
    State(app): Shared,
    visitor: Visitor,
    Params(search): Params<Search>,
) -> Result<Page<ApprovalsPage>, Problem> {
    let params = ListParams { limit: None, after: search.after };
    let Listed { items, next } = approvals(&app, &visitor.principal, true, params).await?;
    Ok(Page(ApprovalsPage { chrome: Chrome::of(&visitor), open: items, next }))
}

#[derive(Debug, Template)]
#[template(path = "approval.html")]
pub(super) struct ApprovalPage {
    chrome: Chrome,
    may_decide: bool,
    approval: Approval,
    detail: String,
    form: Option<String>,
    given: String,
    answered: Option<String>,
    problem: Option<String>,
}

impl ApprovalPage {
    async fn of(
        app: &App,
        visitor: &Visitor,
        id: ApprovalId,
        given: String,
        problem: Option<String>,
    ) -> Result<Self, Problem> {
        let approval = find(app, &visitor.principal, id).await?;
        let pretty = |value| serde_json::to_string_pretty(value).unwrap_or_default();
        Ok(Self {
            chrome: Chrome::of(visitor),
            may_decide: visitor.may(Scope::Operator) && approval.outcome.is_none(),
            detail: pretty(&approval.detail),
            form: approval.form.as_ref().map(pretty),
            answered: approval.answer.as_ref().map(pretty),
            approval,
            given,
            problem,
        })
    }
}

/// `GET /approvals/{id}`
pub(super) async fn page(
    State(app): Shared,
    visitor: Visitor,
    Named(id): Named<ApprovalId>,
) -> Result<Page<ApprovalPage>, Problem> {
    ApprovalPage::of(&app, &visitor, id, "{}".into(), None).await.map(Page)
}

#[derive(Debug, Deserialize)]
pub(super) struct Act {
    #[serde(default)]
    form_token: String,
    decision: String,
    #[serde(default)]
    answer: String,
}

/// `POST /approvals/{id}`
pub(super) async fn decide(
    State(app): Shared,
    visitor: Visitor,
    headers: HeaderMap,
    Named(id): Named<ApprovalId>,
    Form(act): Form<Act>,
) -> Result<Response, Problem> {
    check_origin(&headers)?;
    visitor.check_form(&act.form_token)?;
    visitor.principal.needs(Scope::Operator)?;
    let answer = match act.answer.trim() {
        "" => Ok(None),
        text => serde_json::from_str(text).map(Some),
    };
    let decided = match answer {
        Err(error) => Err(format!("what was filled in is not JSON: {error}")),
        Ok(answer) => {
            let decision = Decision { approved: act.decision == "approve", answer };
            decide_as(&app, &visitor.principal, id, decision).await.map_err(|problem| problem.told())
        }
    };
    match decided {
        Ok(_) => Ok(Redirect::to(&format!("/approvals/{id}")).into_response()),
        Err(why) => {
            let page = ApprovalPage::of(&app, &visitor, id, act.answer, Some(why)).await?;
            Ok(Page(page).into_response())
        }
    }
}
