//! A browser's session: who signed in, until when, signed; and what keeps another site from using it.
//!
//! The cookie names the key by its prefix and never holds the secret. Each request looks the key up again, so that
//! revoking a key ends its sessions.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::{HeaderMap, HeaderValue, header, request::Parts};
use axum::response::{IntoResponse, Redirect, Response};
use chrono::{DateTime, TimeDelta, Utc};
use counterfoil_domain::code::Code;
use counterfoil_domain::key::{self, Pepper, Scope};

use crate::auth::{self, Principal};
use crate::problem::Problem;
use crate::state::{App, WebState};

const COOKIE: &str = "cf_session";
/// A working day: long enough not to interrupt one, short enough to end by itself overnight.
const SESSION_HOURS: i64 = 12;

/// A person at a browser.
#[derive(Debug, Clone)]
pub(crate) struct Visitor {
    pub(crate) principal: Principal,
    /// What every form of this session carries.
    pub(crate) form_token: String,
}

impl Visitor {
    pub(crate) fn may(&self, scope: Scope) -> bool {
        self.principal.scope.allows(scope)
    }

    /// # Errors
    /// A refusal if `token` is not the one that this session's forms carry: the form was another site's, or is stale.
    pub(crate) fn check_form(&self, token: &str) -> Result<(), Problem> {
        if key::matches(token.as_bytes(), self.form_token.as_bytes()) {
            Ok(())
        } else {
            Err(Problem::new(Code::Forbidden, "this form belongs to another session; load the page again"))
        }
    }
}

/// Why a page is not shown.
pub(crate) enum NotShown {
    /// Nobody is signed in: to the form, and back afterwards.
    SignIn(Redirect),
    Problem(Problem),
}

impl IntoResponse for NotShown {
    fn into_response(self) -> Response {
        match self {
            Self::SignIn(redirect) => redirect.into_response(),
            Self::Problem(problem) => problem.into_response(),
        }
    }
}

impl FromRequestParts<Arc<App>> for Visitor {
    type Rejection = NotShown;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, NotShown> {
        match visitor(app, &parts.headers).await {
            Ok(visitor) => Ok(visitor),
            Err(problem) if problem.code() == Code::Unauthenticated => {
                let target = match local_path(parts.uri.path()) {
                    Some(path) => format!("/login?next={path}"),
                    None => "/login".into(),
                };
                Err(NotShown::SignIn(Redirect::to(&target)))
            }
            Err(problem) => Err(NotShown::Problem(problem)),
        }
    }
}

/// Whoever is signed in.
async fn visitor(app: &App, headers: &HeaderMap) -> Result<Visitor, Problem> {
    let cookie = session_cookie(headers);
    let prefix = cookie.and_then(|cookie| verified_prefix(&app.pepper, cookie, app.now()));
    let (Some(cookie), Some(prefix)) = (cookie, prefix) else {
        return Err(Problem::new(Code::Unauthenticated, "nobody is signed in"));
    };
    let principal = auth::by_prefix(app, prefix).await?;
    let form_token = code(&app.pepper, "form-v1", cookie);
    Ok(Visitor { principal, form_token })
}

/// Signs a browser in as the holder of the key with this prefix.
pub(crate) fn sign_in(web: &WebState, prefix: &str) -> HeaderValue {
    let until = (web.now() + TimeDelta::hours(SESSION_HOURS)).timestamp();
    let signed = format!("{prefix}.{until}");
    let code = code(&web.pepper, "session-v1", &signed);
    cookie(web, &format!("{signed}.{code}"), SESSION_HOURS * 3_600)
}

/// Signs a browser out.
pub(crate) fn sign_out(web: &WebState) -> HeaderValue {
    cookie(web, "", 0)
}

fn cookie(web: &WebState, value: &str, seconds: i64) -> HeaderValue {
    let secure = if web.cookies_secure { "; Secure" } else { "" };
    let text = format!("{COOKIE}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}");
    // A prefix and a code are hexadecimal, so this cannot fail.
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""))
}

fn session_cookie(headers: &HeaderMap) -> Option<&str> {
    headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(name, value)| *name == COOKIE && !value.is_empty())
        .map(|(_, value)| value)
}

/// The prefix that a cookie names, if the cookie is ours and still holds.
fn verified_prefix<'a>(pepper: &Pepper, cookie: &'a str, now: DateTime<Utc>) -> Option<&'a str> {
    let (signed, given) = cookie.rsplit_once('.')?;
    let (prefix, until) = signed.split_once('.')?;
    let expected = code(pepper, "session-v1", signed);
    let until = DateTime::from_timestamp(until.parse().ok()?, 0)?;
    (key::matches(given.as_bytes(), expected.as_bytes()) && now < until).then_some(prefix)
}

fn code(pepper: &Pepper, purpose: &str, text: &str) -> String {
    hex::encode(pepper.mac(purpose, text.as_bytes()))
}

/// `path`, if it is one of this site's own, so that nobody is sent elsewhere after signing in.
pub(crate) fn local_path(path: &str) -> Option<&str> {
    let plain = |sign: char| sign.is_ascii_alphanumeric() || matches!(sign, '/' | '_' | '-');
    (path.starts_with('/') && !path.starts_with("//") && path.chars().all(plain)).then_some(path)
}

/// # Errors
/// A refusal if the browser says that the form it sends is another site's.
pub(crate) fn check_origin(headers: &HeaderMap) -> Result<(), Problem> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let foreign = match (text("sec-fetch-site"), text("origin"), text("host")) {
        (Some(site), _, _) => !matches!(site, "same-origin" | "none"),
        (None, Some(origin), Some(host)) => origin.split_once("://").is_none_or(|(_, from)| from != host),
        (None, _, _) => false,
    };
    if foreign { Err(Problem::new(Code::Forbidden, "this form was sent from another site")) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_untouched_cookie_that_has_not_run_out_holds() {
        let pepper = Pepper::new([7; 32]);
        let at = |seconds| DateTime::from_timestamp(seconds, 0).expect("a time");
        let signed = "0a.100";
        let good = format!("{signed}.{}", code(&pepper, "session-v1", signed));
        let other_pepper = format!("{signed}.{}", code(&Pepper::new([8; 32]), "session-v1", signed));
        let other_purpose = format!("{signed}.{}", code(&pepper, "form-v1", signed));
        for (name, cookie, now, expected) in [
            ("as it was signed", good.as_str(), 99, Some("0a")),
            ("run out", good.as_str(), 100, None),
            ("another prefix", &good.replace("0a.", "0b."), 99, None),
            ("a later end", &good.replace(".100.", ".900."), 99, None),
            ("another pepper", other_pepper.as_str(), 99, None),
            ("a code made for something else", other_purpose.as_str(), 99, None),
            ("no code", signed, 99, None),
            ("nothing", "", 99, None),
        ] {
            assert_eq!(verified_prefix(&pepper, cookie, at(now)), expected, "{name}");
        }
    }

    #[test]
    fn nobody_is_sent_to_another_site() {
        for (path, local) in [
            ("/", true),
            ("/runs/run_01", true),
            ("", false),
            ("runs", false),
            ("//evil.example", false),
            ("/\\evil.example", false),
            ("https://evil.example", false),
            ("/runs?x=1", false),
            ("/runs\r\nset-cookie: x", false),
        ] {
            assert_eq!(local_path(path).is_some(), local, "{path:?}");
        }
    }

    #[test]
    fn a_form_of_another_site_is_refused() {
        for (headers, allowed) in [
            (&[("sec-fetch-site", "same-origin")][..], true),
            (&[("sec-fetch-site", "none")], true),
            (&[("sec-fetch-site", "same-site")], false),
            (&[("sec-fetch-site", "cross-site"), ("origin", "http://here"), ("host", "here")], false),
            (&[("origin", "http://here:80"), ("host", "here:80")], true),
            (&[("origin", "http://elsewhere"), ("host", "here")], false),
            (&[("origin", "null"), ("host", "here")], false),
            (&[("host", "here")], true),
        ] {
            let map = headers
                .iter()
                .map(|(name, value)| (header::HeaderName::from_static(name), HeaderValue::from_static(value)))
                .collect();
            assert_eq!(check_origin(&map).is_ok(), allowed, "{headers:?}");
        }
    }
}
