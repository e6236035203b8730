use std::fmt::Write as _;

use axum::body::Body;
use axum::http::Request;
use counterfoil_domain::key::Scope;

use crate::world::{Answer, World, clock};

/// A browser: it keeps its cookie and sends forms.
pub(crate) struct Browser<'a> {
    pub(crate) world: &'a World,
    pub(crate) cookie: String,
}

impl<'a> Browser<'a> {
    pub(crate) fn new(world: &'a World) -> Self {
        Self { world, cookie: String::new() }
    }

    /// Signed in with the key of this scope.
    pub(crate) async fn signed_in(world: &'a World, scope: Scope) -> Self {
        let mut browser = Self::new(world);
        let answer = browser.post("/login", &[("key", world.key(scope))]).await;
        assert_eq!(answer.status, 303, "{}", answer.text);
        browser.keep_cookie(&answer);
        browser
    }

    pub(crate) fn keep_cookie(&mut self, answer: &Answer) {
        self.cookie = answer.header("set-cookie").split(';').next().unwrap_or_default().into();
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        let request = Request::get(path).header("cookie", &self.cookie);
        self.world.send(request.body(Body::empty()).expect("a request")).await
    }

    /// Sends a form with exactly these fields.
    pub(crate) async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Answer {
        self.post_from(path, fields, "same-origin").await
    }

    pub(crate) async fn post_from(&self, path: &str, fields: &[(&str, &str)], site: &str) -> Answer {
        let body: Vec<String> =
            fields.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
        let request = Request::post(path)
            .header("cookie", &self.cookie)
            .header("content-type", "application/x-www-form-urlencoded")
            .header("sec-fetch-site", site);
        self.world.send(request.body(Body::from(body.join("&"))).expect("a request")).await
    }

    /// Sends a form with the token that the page at `path` carries.
    pub(crate) async fn submit(&self, page: &str, path: &str, fields: &[(&str, &str)]) -> Answer {
        let page = self.get(page).await;
        let token = page.text.split_once("name=\"form_token\" value=\"").expect("a token").1;
        let token = token.split_once('"').expect("ends").0;
        let fields: Vec<(&str, &str)> =
            [("form_token", token)].into_iter().chain(fields.iter().copied()).collect();
        self.post(path, &fields).await
    }
}

fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut encoded, byte| {
        if byte.is_ascii_alphanumeric() {
            encoded.push(byte.into());
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
        encoded
    })
}

#[tokio::test]
async fn nobody_sees_a_page_without_signing_in_and_comes_back_to_it_after() {
    let world = World::new().await;
    let browser = Browser::new(&world);
    for path in ["/", "/runs", "/effects", "/workflows", "/blocks", "/runs/run_01h455vb4pex5vsknk084sn02q"] {
        let answer = browser.get(path).await;
        assert_eq!(
            (answer.status.as_u16(), answer.header("location")),
            (303, format!("/login?next={path}").as_str())
        );
    }
    let key = world.key(Scope::Viewer);
    for (next, expected) in
        [("/runs", "/runs"), ("", "/"), ("//evil.example", "/"), ("https://evil.example", "/")]
    {
        let answer = browser.post("/login", &[("key", key), ("next", next)]).await;
        assert_eq!(answer.header("location"), expected, "{next}");
    }
    let refused = browser.post("/login", &[("key", "cf_wrong")]).await;
    assert_eq!(refused.status, 401);
    assert!(refused.header("set-cookie").is_empty());
    let foreign = browser.post_from("/login", &[("key", key)], "cross-site").await;
    assert_eq!(foreign.status, 403);
}

#[tokio::test]
async fn a_session_holds_no_secret_and_ends_with_its_key() {
    let world = World::new().await;
    let mut browser = Browser::new(&world);
    let key = world.key(Scope::Viewer);
    let answer = browser.post("/login", &[("key", key)]).await;
    let cookie = answer.header("set-cookie");
    assert!(cookie.contains("; HttpOnly; SameSite=Strict"), "{cookie}");
    let secret = key.split('_').nth(2).expect("a secret");
    assert!(!cookie.contains(secret));
    browser.keep_cookie(&answer);
    assert_eq!(browser.get("/runs").await.status, 200);
    // A session is for pages: the API takes keys.
    assert_eq!(browser.get("/v1/runs").await.status, 401);

    let keys = world.get("/v1/keys").await.with(200);
    let prefix = key.split('_').nth(1).expect("a prefix");
    let row =
        keys["items"].as_array().expect("a list").iter().find(|row| row["prefix"] == prefix).expect("ours");
    let path = format!("/v1/keys/{}", row["id"].as_str().expect("an id"));
    assert_eq!(world.call("DELETE", &path, serde_json::Value::Null).await.status, 204);
    assert_eq!(browser.get("/runs").await.status, 303);
}

#[tokio::test]
async fn a_link_signs_in_once() {
    let world = World::new().await;
    let prefix = world.key(Scope::Admin).split('_').nth(1).expect("a prefix");
    let path = world.web.login_links.open(prefix, [3; 32], clock());
    let mut browser = Browser::new(&world);
    let answer = browser.get(&path).await;
    assert_eq!(answer.status, 303);
    browser.keep_cookie(&answer);
    assert_eq!(browser.get("/").await.status, 200);
    assert_eq!(browser.get(&path).await.status, 401);
}

#[tokio::test]
async fn a_form_needs_its_token_its_origin_and_the_scope() {
    let world = World::new().await;
    world.set_up().await;
    let (run, _) = world.blocked().await;
    let (page, cancel) = (format!("/runs/{run}"), format!("/runs/{run}/cancel"));
    let operator = Browser::signed_in(&world, Scope::Operator).await;
    assert_eq!(operator.post(&cancel, &[]).await.status, 403, "no token");
    assert_eq!(operator.post(&cancel, &[("form_token", "00")]).await.status, 403, "a wrong token");
    let viewer = Browser::signed_in(&world, Scope::Viewer).await;
    assert_eq!(viewer.submit(&page, &cancel, &[]).await.status, 403, "a viewer");
    assert!(!viewer.get(&page).await.text.contains(&cancel), "a viewer is not offered it");
    assert_eq!(operator.submit(&page, &cancel, &[]).await.status, 303);
    assert!(operator.get(&page).await.text.contains("cancelled"));
    let out = operator.submit("/runs", "/logout", &[]).await;
    assert!(out.header("set-cookie").starts_with("cf_session=; "), "{:?}", out.headers);
}
