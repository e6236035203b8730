//! What stands in the parentheses of `#[block(…)]`.

use syn::parse::{Parse, ParseBuffer, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Ident, LitInt, LitStr, Path, Token, bracketed, parenthesized, token};

/// `effects(…), credits = 1, verify = find`
pub(crate) struct Arguments {
    pub(crate) effects: Vec<Grant>,
    pub(crate) credits: u32,
    /// The function that says what became of an unknown effect.
    pub(crate) verify: Option<Path>,
}

/// `http(connection = "payments", safety = "at-most-once")`, `emit`, `storage(safety = "read-only")`
pub(crate) struct Grant {
    pub(crate) kind: &'static str,
    pub(crate) safety: &'static str,
    pub(crate) connections: Vec<LitStr>,
    pub(crate) hosts: Vec<LitStr>,
}

impl Parse for Arguments {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut effects = None;
        let mut credits = None;
        let mut verify = None;
        entries(input, |key, input| match key.to_string().as_str() {
            "effects" => once(key, &mut effects, parse_effects(key, input)?),
            "credits" => once(key, &mut credits, parse_credits(input)?),
            "verify" => once(key, &mut verify, equals(input, parse_function)?),
            _ => Err(unknown(key, "a block", "`effects(…)`, `credits = …`, `verify = …`")),
        })?;
        Ok(Self { effects: effects.unwrap_or_default(), credits: credits.unwrap_or_default(), verify })
    }
}

fn parse_effects(key: &Ident, input: ParseStream<'_>) -> syn::Result<Vec<Grant>> {
    let content = in_parentheses(key, input)?;
    let mut grants = Vec::new();
    entries(&content, |kind, input| {
        grants.push(match kind.to_string().as_str() {
            "http" => parse_http(kind, input)?,
            "emit" => parse_emit(kind, input)?,
            "mail" => parse_mail(kind, input)?,
            "storage" => parse_storage(kind, input)?,
            "worker" => parse_worker(kind, input)?,
            _ => {
                return Err(unknown(kind, "an effect", "`http(…)`, `mail(…)`, `emit`, `storage`, `worker`"));
            }
        });
        Ok(())
    })?;
    if grants.is_empty() {
        return Err(syn::Error::new(
            key.span(),
            "name an effect, as in `effects(http(connection = \"payments\"))`, or leave `effects` out",
        ));
    }
    Ok(grants)
}

fn parse_http(kind: &Ident, input: ParseStream<'_>) -> syn::Result<Grant> {
    let content = in_parentheses(kind, input)?;
    let (mut connection, mut hosts, mut safety) = (None, None, None);
    entries(&content, |key, input| match key.to_string().as_str() {
        "connection" => once(key, &mut connection, equals(input, parse_name)?),
        "hosts" => once(key, &mut hosts, equals(input, parse_names)?),
        "safety" => once(key, &mut safety, equals(input, parse_safety)?),
        _ => Err(unknown(key, "an http effect", "`connection`, `hosts`, `safety`")),
    })?;
    if connection.is_none() && hosts.is_none() {
        return Err(syn::Error::new(
            kind.span(),
            "say where it may go: `connection = \"…\"` or `hosts = [\"…\"]`",
        ));
    }
    Ok(Grant {
        kind: "http",
        safety: safety.unwrap_or("at-most-once"),
        connections: connection.into_iter().collect(),
        hosts: hosts.unwrap_or_default(),
    })
}

fn parse_mail(kind: &Ident, input: ParseStream<'_>) -> syn::Result<Grant> {
    let content = in_parentheses(kind, input)?;
    let mut connection = None;
    entries(&content, |key, input| match key.to_string().as_str() {
        "connection" => once(key, &mut connection, equals(input, parse_name)?),
        _ => Err(unknown(key, "a mail effect", "`connection`")),
    })?;
    let Some(connection) = connection else {
        return Err(syn::Error::new(kind.span(), "say through which server: `connection = \"…\"`"));
    };
    Ok(Grant { kind: "mail", safety: "at-most-once", connections: vec![connection], hosts: vec![] })
}

fn parse_emit(kind: &Ident, input: ParseStream<'_>) -> syn::Result<Grant> {
    if input.peek(token::Paren) {
        let content = in_parentheses(kind, input)?;
        if !content.is_empty() {
            return Err(content.error("an event goes into the tenant's own outbox: write `emit` alone"));
        }
    }
    Ok(Grant { kind: "emit", safety: "at-most-once", connections: vec![], hosts: vec![] })
}

fn parse_storage(kind: &Ident, input: ParseStream<'_>) -> syn::Result<Grant> {
    let mut safety = None;
    if input.peek(token::Paren) {
        let content = in_parentheses(kind, input)?;
        entries(&content, |key, input| match key.to_string().as_str() {
            "safety" => once(key, &mut safety, equals(input, parse_read_only)?),
            _ => Err(unknown(key, "a storage effect", "`safety`")),
        })?;
    }
    Ok(Grant {
        kind: "storage",
        safety: safety.unwrap_or("at-most-once"),
        connections: vec![],
        hosts: vec![],
    })
}

fn parse_worker(kind: &Ident, input: ParseStream<'_>) -> syn::Result<Grant> {
    let mut safety = None;
    if input.peek(token::Paren) {
        let content = in_parentheses(kind, input)?;
        entries(&content, |key, input| match key.to_string().as_str() {
            "safety" => once(key, &mut safety, equals(input, parse_acting)?),
            _ => Err(unknown(key, "a worker effect", "`safety`")),
        })?;
    }
    Ok(Grant { kind: "worker", safety: safety.unwrap_or("at-most-once"), connections: vec![], hosts: vec![] })
}

/// Work is done, not looked at.
fn parse_acting(input: ParseStream<'_>) -> syn::Result<&'static str> {
    const KNOWN: [&str; 2] = ["at-most-once", "idempotent"];
    let given: LitStr = input.parse()?;
    KNOWN.into_iter().find(|known| *known == given.value()).ok_or_else(|| {
        syn::Error::new(given.span(), "work for a worker is \"at-most-once\" or \"idempotent\"")
    })
}

/// What is written commits with the step: there is nothing to say of it, but that there is none.
fn parse_read_only(input: ParseStream<'_>) -> syn::Result<&'static str> {
    const READ_ONLY: &str = "read-only";
    let given: LitStr = input.parse()?;
    if given.value() != READ_ONLY {
        return Err(syn::Error::new(
            given.span(),
            "write `storage(safety = \"read-only\")` to read, and `storage` to write as well",
        ));
    }
    Ok(READ_ONLY)
}

fn parse_credits(input: ParseStream<'_>) -> syn::Result<u32> {
    equals(input, |input| {
        let span = input.span();
        let number = input.parse::<LitInt>().and_then(|number| number.base10_parse());
        number.map_err(|_| syn::Error::new(span, format!("credits is 0 to {}", u32::MAX)))
    })
}

fn parse_function(input: ParseStream<'_>) -> syn::Result<Path> {
    let span = input.span();
    input.parse().map_err(|_| {
        syn::Error::new(span, "verify names a function: `fn name(effect: &UnknownEffect) -> Verdict`")
    })
}

fn parse_safety(input: ParseStream<'_>) -> syn::Result<&'static str> {
    const KNOWN: [&str; 3] = ["at-most-once", "idempotent", "read-only"];
    let given: LitStr = input.parse()?;
    KNOWN.into_iter().find(|known| *known == given.value()).ok_or_else(|| {
        syn::Error::new(given.span(), "safety is \"at-most-once\", \"idempotent\" or \"read-only\"")
    })
}

fn parse_name(input: ParseStream<'_>) -> syn::Result<LitStr> {
    let name: LitStr = input.parse()?;
    if name.value().trim().is_empty() {
        return Err(syn::Error::new(name.span(), "the name is empty"));
    }
    Ok(name)
}

fn parse_names(input: ParseStream<'_>) -> syn::Result<Vec<LitStr>> {
    let content;
    let brackets = bracketed!(content in input);
    let names = Punctuated::<_, Token![,]>::parse_terminated_with(&content, parse_name)?;
    if names.is_empty() {
        return Err(syn::Error::new(brackets.span.join(), "an empty list allows nothing"));
    }
    Ok(names.into_iter().collect())
}

/// Reads `key …, key …` to the end, each entry by `read`.
fn entries(
    input: ParseStream<'_>,
    mut read: impl FnMut(&Ident, ParseStream<'_>) -> syn::Result<()>,
) -> syn::Result<()> {
    while !input.is_empty() {
        let key: Ident = input.parse()?;
        read(&key, input)?;
        if !input.is_empty() {
            input.parse::<Token![,]>()?;
        }
    }
    Ok(())
}

fn equals<T>(
    input: ParseStream<'_>,
    value: impl FnOnce(ParseStream<'_>) -> syn::Result<T>,
) -> syn::Result<T> {
    input.parse::<Token![=]>()?;
    value(input)
}

fn in_parentheses<'a>(key: &Ident, input: ParseStream<'a>) -> syn::Result<ParseBuffer<'a>> {
    if !input.peek(token::Paren) {
        return Err(syn::Error::new(key.span(), format!("write `{key}(…)`")));
    }
    let content;
    parenthesized!(content in input);
    Ok(content)
}

fn once<T>(key: &Ident, slot: &mut Option<T>, value: T) -> syn::Result<()> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(syn::Error::new(key.span(), format!("`{key}` stands here twice"))),
    }
}

fn unknown(key: &Ident, what: &str, known: &str) -> syn::Error {
    syn::Error::new(key.span(), format!("{what} has no `{key}`: known here is {known}"))
}
