//! Pages: the same data as the API, drawn for people. No script runs on them.

use std::sync::Arc;

use askama::Template;
use axum::Router;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use counterfoil_domain::key::Scope;

use crate::session::Visitor;
use crate::state::App;

pub(crate) mod advice;
mod approvals;
mod attention;
mod blocks;
mod drawing;
mod effects;
mod events;
mod login;
pub(crate) mod problem;
mod runs;
mod show;
mod timeline;
mod workflows;

/// A page, rendered as the answer.
#[derive(Debug)]
pub(crate) struct Page<T>(pub(crate) T);

impl<T: Template> IntoResponse for Page<T> {
    fn into_response(self) -> Response {
        match self.0.render() {
            Ok(html) => Html(html).into_response(),
            Err(error) => {
                tracing::error!(error = &error as &dyn std::error::Error, "a page could not be rendered");
                // Not as a problem, whose page might fail in the same way.
                (StatusCode::INTERNAL_SERVER_ERROR, "the page cannot be shown; the host's log has the cause")
                    .into_response()
            }
        }
    }
}

/// What stands around every page of somebody who is signed in.
#[derive(Debug)]
pub(crate) struct Chrome {
    /// Who is signed in.
    label: String,
    scope: Scope,
    form_token: String,
}

impl Chrome {
    fn of(visitor: &Visitor) -> Self {
        Self {
            label: visitor.principal.label.clone(),
            scope: visitor.principal.scope,
            form_token: visitor.form_token.clone(),
        }
    }
}

pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/", get(attention::page))
        .route("/login", get(login::form).post(login::sign_in))
        .route("/login/{token}", get(login::by_link))
        .route("/logout", post(login::sign_out))
        .route("/runs", get(runs::page))
        .route("/runs/{id}", get(timeline::page))
        .route("/runs/{id}/cancel", post(timeline::cancel))
        .route("/runs/{id}/resume", post(timeline::resume))
        .route("/effects", get(effects::list))
        .route("/effects/{id}", get(effects::page))
        .route("/effects/{id}/resolve", post(effects::resolve))
        .route("/events/{id}", get(events::page))
        .route("/approvals", get(approvals::list))
        .route("/approvals/{id}", get(approvals::page).post(approvals::decide))
        .route("/workflows", get(workflows::list))
        .route("/workflows/{name}", get(workflows::page))
        .route("/blocks", get(blocks::list))
        .route("/blocks/{name}", get(blocks::page))
        .route("/assets/style.css", get(async || asset("text/css; charset=utf-8", STYLE)))
        .route("/assets/icon.svg", get(async || asset("image/svg+xml", ICON)))
}

const STYLE: &str = include_str!("../assets/style.css");
const ICON: &str = include_str!("../assets/icon.svg");

/// A file of ours. It changes with the program, so a browser asks again each hour.
fn asset(kind: &'static str, text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CACHE_CONTROL, HeaderValue::from_static("max-age=3600")),
    ];
    (headers, text).into_response()
}
