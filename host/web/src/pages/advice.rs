//! Pages of advice.

use askama::Template;

/// The advice on one code.
#[derive(Debug, Template)]
#[template(path = "advice.html")]
pub(crate) struct AdvicePage {
    pub(crate) code: &'static str,
    pub(crate) title: &'static str,
    /// Made from our own Markdown.
    pub(crate) html: String,
}

/// Every code.
#[derive(Debug, Template)]
#[template(path = "advice_index.html")]
pub(crate) struct AdviceIndex {
    pub(crate) pages: Vec<(&'static str, &'static str)>,
}
