//! What Prometheus reads. No label holds an id or anybody's text.
//!
//! | metric | kind | meaning |
//! |---|---|---|
//! | `counterfoil_effects_unknown` | gauge | effects whose outcome is unknown, of all tenants |
//! | `counterfoil_effects_unknown_oldest_age_seconds` | gauge | age of the oldest of them; 0 without one |
//! | `counterfoil_steps_open{wait}` | gauge | steps that have not settled, by what they wait for |
//! | `counterfoil_events_pending` | gauge | events that are not published yet |
//! | `counterfoil_retention_lag_seconds` | gauge | how far behind the forgetting of what is past its time is; 0 where all is kept |
//! | `counterfoil_http_requests_total{method,route,status}` | counter | requests answered |
//! | `counterfoil_http_request_seconds{route}` | histogram | time to answer |

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use axum::http::Method;
use counterfoil_store::metrics::Counts;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    method: String,
    route: String,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Route {
    route: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WaitLabel {
    wait: &'static str,
}

/// The counters of this process.
#[derive(Debug)]
pub(crate) struct Metrics {
    requests: Family<Answered, Counter>,
    seconds: Family<Route, Histogram, fn() -> Histogram>,
}

/// From half a millisecond to sixteen seconds.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.000_5, 2.0, 16))
}

impl Metrics {
    pub(crate) fn new() -> Self {
        Self { requests: Family::default(), seconds: Family::new_with_constructor(seconds) }
    }

    pub(crate) fn count(&self, method: &Method, route: &str, status: u16, took: Duration) {
        // A method may be anybody's word.
        let method = match *method {
            Method::GET | Method::HEAD | Method::POST | Method::PUT | Method::DELETE => method.as_str(),
            _ => "other",
        };
        let answered = Answered { method: method.into(), route: route.into(), status };
        self.requests.get_or_create(&answered).inc();
        self.seconds.get_or_create(&Route { route: route.into() }).observe(took.as_secs_f64());
    }
}

/// The text that Prometheus reads.
pub(crate) fn exposition(metrics: &Metrics, counts: &Counts) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::with_prefix("counterfoil");
    let unknown: Gauge = gauge(counts.unknown);
    let oldest = Gauge::<f64, AtomicU64>::default();
    oldest.set(counts.unknown_oldest.unwrap_or_default().as_secs_f64());
    let pending: Gauge = gauge(counts.pending_events);
    let lag = Gauge::<f64, AtomicU64>::default();
    lag.set(counts.retention_lag.unwrap_or_default().as_secs_f64());
    let open = Family::<WaitLabel, Gauge>::default();
    for (wait, count) in &counts.open_steps {
        open.get_or_create(&WaitLabel { wait }).set(saturating(*count));
    }
    registry.register("effects_unknown", "Effects whose outcome is unknown", unknown);
    registry.register("effects_unknown_oldest_age_seconds", "Age of the oldest of them", oldest);
    registry.register("steps_open", "Steps that have not settled, by what they wait for", open);
    registry.register("events_pending", "Events that are not published yet", pending);
    registry.register("retention_lag_seconds", "How far behind the forgetting of finished runs is", lag);
    registry.register("http_requests", "Requests answered", metrics.requests.clone());
    registry.register("http_request_seconds", "Time to answer a request", metrics.seconds.clone());
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

fn gauge(count: u64) -> Gauge {
    let gauge = Gauge::default();
    gauge.set(saturating(count));
    gauge
}

fn saturating(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exposition_reads_as_documented() {
        let metrics = Metrics::new();
        metrics.count(&Method::GET, "/v1/runs/{id}", 404, Duration::from_millis(1));
        metrics.count(
            &Method::from_bytes(b"BREW").expect("a token"),
            "unmatched",
            404,
            Duration::from_millis(1),
        );
        let counts = Counts {
            unknown: 2,
            unknown_oldest: Some(Duration::from_millis(1_500)),
            open_steps: [("ready", 1), ("blocked", 2)].into(),
            pending_events: 3,
            retention_lag: Some(Duration::from_mins(10)),
        };
        let text = exposition(&metrics, &counts).expect("writes");
        // Of one metric, the series come in no order.
        let mut shown: Vec<&str> =
            text.lines().filter(|line| !line.contains("_bucket") && !line.starts_with("# T")).collect();
        shown.sort_unstable();
        insta::assert_snapshot!(shown.join("\n"), @r#"
        # EOF
        # HELP counterfoil_effects_unknown Effects whose outcome is unknown.
        # HELP counterfoil_effects_unknown_oldest_age_seconds Age of the oldest of them.
        # HELP counterfoil_events_pending Events that are not published yet.
        # HELP counterfoil_http_request_seconds Time to answer a request.
        # HELP counterfoil_http_requests Requests answered.
        # HELP counterfoil_retention_lag_seconds How far behind the forgetting of finished runs is.
        # HELP counterfoil_steps_open Steps that have not settled, by what they wait for.
        counterfoil_effects_unknown 2
        counterfoil_effects_unknown_oldest_age_seconds 1.5
        counterfoil_events_pending 3
        counterfoil_http_request_seconds_count{route="/v1/runs/{id}"} 1
        counterfoil_http_request_seconds_count{route="unmatched"} 1
        counterfoil_http_request_seconds_sum{route="/v1/runs/{id}"} 0.001
        counterfoil_http_request_seconds_sum{route="unmatched"} 0.001
        counterfoil_http_requests_total{method="GET",route="/v1/runs/{id}",status="404"} 1
        counterfoil_http_requests_total{method="other",route="unmatched",status="404"} 1
        counterfoil_retention_lag_seconds 600.0
        counterfoil_steps_open{wait="blocked"} 2
        counterfoil_steps_open{wait="ready"} 1
        "#);
    }
}
