//! The address of a database.

/// Whether it is one of a Postgres.
pub(super) fn is_postgres(url: &str) -> bool {
    url::Url::parse(url).is_ok_and(|url| matches!(url.scheme(), "postgres" | "postgresql"))
}

/// As it may be shown.
pub(crate) fn without_password(url: &str) -> String {
    match url::Url::parse(url) {
        Ok(mut url) if url.password().is_some() => {
            // It has a password already, so it can have another.
            let _ = url.set_password(Some("***"));
            url.to_string()
        }
        _ => url.to_owned(),
    }
}
