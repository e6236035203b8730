//! What may break a rule, and why.

use crate::{Finding, finding};

/// A finding that is let pass.
pub(crate) struct Exception {
    /// Of the finding.
    pub(crate) subject: &'static str,
    /// What the finding's words begin with, so that one subject's exception covers one rule.
    pub(crate) says: &'static str,
    /// Why it is right here.
    pub(crate) reason: &'static str,
}

pub(crate) const EXCEPTIONS: &[Exception] = &[
    Exception {
        subject: "host/sandbox/src/machine_code.rs",
        says: "`unsafe`",
        reason: "deserializes machine code that this host has compiled and authenticated",
    },
    Exception {
        subject: "host/store/src/admission.rs",
        says: "`insert`",
        reason: "one statement, with an argument for each column",
    },
    Exception {
        subject: "host/store/src/receipt/dispatch/many.rs",
        says: "`flush`",
        reason: "one statement over arrays, with an argument for each column",
    },
    Exception {
        subject: "host/store/src/settle/together.rs",
        says: "`finish`",
        reason: "one statement over arrays, with an argument for each column",
    },
    Exception {
        subject: "sdk/rust-macros/src/expansion.rs",
        says: "`allow` without a reason",
        reason: "what it writes is compiled in the author's crate, where it need not be met",
    },
];

/// What is left of `found`, and each exception that nothing needs any more.
pub(crate) fn apply(exceptions: &[Exception], found: Vec<Finding>) -> Vec<Finding> {
    let covers = |exception: &Exception, finding: &Finding| {
        finding.subject == exception.subject && finding.says.starts_with(exception.says)
    };
    let stale = exceptions
        .iter()
        .filter(|exception| !found.iter().any(|found| covers(exception, found)))
        .map(|exception| {
            finding(exception.subject, format!("needs no exception any more ({})", exception.reason))
        });
    let mut left: Vec<Finding> = stale.collect();
    left.extend(
        found.into_iter().filter(|found| !exceptions.iter().any(|exception| covers(exception, found))),
    );
    left.sort();
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exception_covers_its_finding_alone_and_ends_with_it() {
        let exceptions = [Exception { subject: "a.rs", says: "`unsafe`", reason: "it must" }];
        let needed = finding("a.rs", "`unsafe`: write it otherwise");
        let (other_rule, other_file) = (finding("a.rs", "too long"), finding("b.rs", "`unsafe`: no"));
        assert_eq!(
            apply(&exceptions, vec![needed, other_rule.clone(), other_file.clone()]),
            [other_rule, other_file]
        );
        assert_eq!(
            apply(&exceptions, Vec::new()),
            [finding("a.rs", "needs no exception any more (it must)")]
        );
    }
}
