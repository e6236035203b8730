//! The router, and the server that answers with it.

use std::sync::Arc;

use axum::Router;
use axum::http::header;
use axum::middleware::from_fn_with_state;
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;
use utoipa_axum::router::OpenApiRouter;

use crate::state::{App, WebState};
use crate::{advice, api, layers, openapi, pages};

/// Everything that is answered: the API under `/v1`, the pages, advice, and what operators ask.
pub fn router(web: WebState) -> Router {
    router_of(Arc::new(App::new(web)))
}

fn router_of(app: Arc<App>) -> Router {
    let (api, _) = OpenApiRouter::new().merge(api::routes()).split_for_parts();
    let description = Arc::<str>::from(openapi::document().to_pretty_json().unwrap_or_default());
    api.merge(pages::routes())
        .route("/advice", get(advice::index))
        .route("/advice/{code}", get(advice::page))
        .route(
            "/openapi.json",
            get(async move || {
                ([(header::CONTENT_TYPE, "application/json")], description.to_string()).into_response()
            }),
        )
        .fallback(layers::no_route)
        .method_not_allowed_fallback(layers::no_method)
        .layer(from_fn_with_state(app.clone(), layers::observe))
        .with_state(app)
}

/// Serves until `shutdown` resolves; requests that are being answered then are answered to their end.
///
/// # Errors
/// If the listener fails.
pub async fn serve(
    listener: TcpListener,
    web: WebState,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let app = Arc::new(App::new(web));
    let told = {
        let app = Arc::clone(&app);
        async move {
            shutdown.await;
            app.stopping.send_replace(true);
        }
    };
    axum::serve(listener, router_of(app)).with_graceful_shutdown(told).await
}
