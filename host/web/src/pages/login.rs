//! Signing in and out.

use askama::Template;
use axum::Form;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use counterfoil_domain::code::Code;
use counterfoil_domain::key::ApiKey;
use serde::Deserialize;

use super::Page;
use crate::auth;
use crate::problem::Problem;
use crate::session::{self, Visitor, check_origin, local_path};
use crate::state::Shared;

#[derive(Debug, Template)]
#[template(path = "login.html")]
struct LoginPage {
    problem: Option<String>,
    next: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Next {
    #[serde(default)]
    next: String,
}

#[derive(Deserialize)]
pub(super) struct Login {
    key: String,
    #[serde(default)]
    next: String,
}

/// `GET /login`
pub(super) async fn form(Query(Next { next }): Query<Next>) -> Response {
    Page(LoginPage { problem: None, next }).into_response()
}

/// `POST /login`
pub(super) async fn sign_in(
    State(app): Shared,
    headers: HeaderMap,
    Form(Login { key, next }): Form<Login>,
) -> Result<Response, Problem> {
    check_origin(&headers)?;
    let key = key.trim();
    match auth::by_key(&app, key).await {
        Ok(_) => {
            let prefix = key.parse::<ApiKey>().map(|key| key.prefix().to_owned()).unwrap_or_default();
            Ok(signed_in(session::sign_in(&app, &prefix), &next))
        }
        Err(problem) if problem.code() == Code::Unauthenticated => {
            let problem = Some("No such key, or it has been revoked. Check that it was copied whole.".into());
            Ok((StatusCode::UNAUTHORIZED, Page(LoginPage { problem, next })).into_response())
        }
        Err(problem) => Err(problem),
    }
}

/// `GET /login/{token}`
pub(super) async fn by_link(State(app): Shared, Path(token): Path<String>) -> Response {
    if let Some(prefix) = app.login_links.take(&token, app.now()) {
        return signed_in(session::sign_in(&app, &prefix), "/");
    }
    let problem = Some("This link has been used, or is too old. Sign in with a key.".into());
    (StatusCode::UNAUTHORIZED, Page(LoginPage { problem, next: "/".into() })).into_response()
}

#[derive(Debug, Deserialize)]
pub(super) struct SignOut {
    #[serde(default)]
    form_token: String,
}

/// `POST /logout`
pub(super) async fn sign_out(
    State(app): Shared,
    visitor: Visitor,
    headers: HeaderMap,
    Form(SignOut { form_token }): Form<SignOut>,
) -> Result<Response, Problem> {
    check_origin(&headers)?;
    visitor.check_form(&form_token)?;
    Ok(([(header::SET_COOKIE, session::sign_out(&app))], Redirect::to("/login")).into_response())
}

fn signed_in(cookie: axum::http::HeaderValue, next: &str) -> Response {
    let next = local_path(next).unwrap_or("/");
    ([(header::SET_COOKIE, cookie)], Redirect::to(next)).into_response()
}
