//! Proxy variables are not read.

use std::process::Command;

use counterfoil_testkit::provider::{Provider, ProviderConfig};

use super::listener::Listener;
use super::{Came, exchange, post};

/// Set in the process that a test starts, where the variables are.
const INNER: &str = "COUNTERFOIL_TEST_BEHIND_A_PROXY";

#[tokio::test]
async fn proxy_variables_are_not_read() {
    let provider = Provider::start(ProviderConfig::default()).await.expect("a provider starts");
    if std::env::var_os(INNER).is_some() {
        let came = exchange(post(&format!("{}/charges", provider.url()))).await;
        assert_eq!(Came::from(&came), Came::Answered(201));
        assert_eq!(provider.calls().len(), 1);
        return;
    }
    let proxy = Listener::bind().await;
    let mut inner = Command::new(std::env::current_exe().expect("this test"));
    inner.args(["--exact", "client::proxy::proxy_variables_are_not_read"]).env(INNER, "1");
    for name in ["http_proxy", "https_proxy", "all_proxy"] {
        inner.env(name, proxy.url()).env(name.to_uppercase(), proxy.url());
    }
    inner.env_remove("no_proxy").env_remove("NO_PROXY");
    let ended = tokio::task::spawn_blocking(move || inner.output()).await.expect("it is waited for");
    let output = ended.expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "the inner test ran");
    assert!(proxy.is_untouched().await);
}
