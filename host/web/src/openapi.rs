//! The description of the API, from the code that serves it.

use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{ContentBuilder, OpenApi, Ref, RefOr, ResponseBuilder};
use utoipa::{OpenApi as _, ToSchema};

use crate::api;
use crate::problem::{FieldError, ProblemBody};

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Counterfoil",
        description = "Durable runs of sandboxed blocks, each effect sent at most once. Errors are problem details \
                       (RFC 9457) whose `type` leads to a page of advice.",
        license(name = "Apache-2.0 OR MIT", identifier = "Apache-2.0 OR MIT"),
    ),
    components(schemas(ProblemBody, FieldError)),
    tags(
        (name = "blocks", description = "WebAssembly components, uploaded under a name"),
        (name = "workflows", description = "Named graphs of steps, in immutable versions"),
        (name = "events", description = "Facts that may start runs"),
        (name = "runs", description = "Executions of a workflow version"),
        (name = "effects", description = "Calls that left a sandbox, each with its receipt"),
        (name = "workers", description = "Programs outside the host that fetch work from queues"),
        (name = "connections", description = "Named ways to reach a system"),
        (name = "keys", description = "Who may do what"),
        (name = "limits", description = "What one execution of a block may use"),
        (name = "operations", description = "For those who run the host; no key needed"),
    ),
)]
struct Description;

/// The `OpenAPI` 3.1 description of everything under `/v1`, and of what operators ask.
pub fn document() -> OpenApi {
    let (_, mut document) = utoipa_axum::router::OpenApiRouter::with_openapi(Description::openapi())
        .merge(api::routes())
        .split_for_parts();
    let key = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .bearer_format("cf_<prefix>_<secret>_<checksum>")
        .description(Some("The scope that a call needs is listed with it."))
        .build();
    let components = document.components.get_or_insert_default();
    components.add_security_scheme("key", SecurityScheme::Http(key));
    for item in document.paths.paths.values_mut() {
        let operations = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete];
        for operation in operations.into_iter().flatten() {
            operation.responses.responses.insert("default".into(), problem());
            name(operation);
        }
    }
    document
}

/// Puts the noun before the verb: what is a function's name within its file is an id here.
fn name(operation: &mut Operation) {
    let noun = operation.tags.as_ref().and_then(|tags| tags.first());
    if let (Some(noun), Some(verb)) = (noun, &operation.operation_id) {
        operation.operation_id = Some(format!("{noun}.{verb}"));
    }
}

/// What every call may answer instead.
fn problem() -> RefOr<utoipa::openapi::Response> {
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name(ProblemBody::name()))).build();
    ResponseBuilder::new()
        .description("What went wrong")
        .content("application/problem+json", content)
        .build()
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMITTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
    /// Set to write the description anew instead of comparing it.
    const UPDATE: &str = "COUNTERFOIL_UPDATE_OPENAPI";

    #[test]
    fn the_committed_description_is_what_the_code_says() {
        let mut text = document().to_pretty_json().expect("a description is JSON");
        text.push('\n');
        if std::env::var_os(UPDATE).is_some() {
            std::fs::write(COMMITTED, &text).expect("docs/openapi.json can be written");
        }
        let committed = std::fs::read_to_string(COMMITTED).unwrap_or_default();
        assert!(committed == text, "docs/openapi.json is out of date: run this test with {UPDATE}=1");
    }

    #[test]
    fn every_operation_says_what_it_needs_and_has_one_id() {
        let document = document();
        let mut ids = std::collections::BTreeSet::new();
        for (path, item) in &document.paths.paths {
            for operation in [&item.get, &item.put, &item.post, &item.delete].into_iter().flatten() {
                let id = operation.operation_id.clone().expect("an id");
                assert!(ids.insert(id.clone()), "{id} is the id of two operations");
                assert_eq!(operation.security.is_some(), path.starts_with("/v1/"), "{id}");
                assert!(operation.summary.is_some(), "{id} has no summary");
            }
        }
    }
}
