//! Log messages, to the standard error.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::{LogConfig, LogFormat};

/// Sends every message of this process where the operator asked for it.
///
/// # Errors
/// Somebody has done so before.
pub(crate) fn install(config: &LogConfig) -> anyhow::Result<()> {
    let filter = EnvFilter::builder().parse(&config.filter)?;
    let registry = tracing_subscriber::registry().with(filter);
    let to_stderr = fmt::layer().with_writer(std::io::stderr);
    match config.format {
        LogFormat::Json => registry.with(to_stderr.json().flatten_event(true)).try_init()?,
        LogFormat::Text => {
            let colours = anstream::AutoStream::choice(&std::io::stderr()) != anstream::ColorChoice::Never;
            registry.with(to_stderr.with_ansi(colours)).try_init()?;
        }
    }
    Ok(())
}
