//! What a step is given, once its expressions are evaluated.

use serde_json::Value;

use super::plan::{NodeKind, Plan, PlanApproval, PlanHttp, PlanListen, compiled};
use crate::effect::Safety;
use crate::expression::{Compiled, RenderError, Scope, Template, text};

/// The call of an `http` node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedHttp {
    /// Method.
    pub method: String,
    /// Absolute, or a path where a connection is named.
    pub url: String,
    /// Header fields, by name.
    pub headers: Vec<(String, String)>,
    /// Body bytes.
    pub body: Vec<u8>,
    /// The connection that it goes through.
    pub connection: Option<String>,
    /// What was declared.
    pub safety: Option<Safety>,
    /// What the receiver recognises a repeat by, if that was declared.
    pub idempotency_key: Option<String>,
    /// Total time for the call.
    pub timeout_ms: Option<u32>,
}

/// The work of a `worker` node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedTask {
    /// The queue that workers fetch it from.
    pub queue: String,
    /// What the worker is given.
    pub input: Value,
    /// What was declared.
    pub safety: Option<Safety>,
    /// How long it may lie in the queue, in milliseconds.
    pub claim_within_ms: u64,
    /// How long a worker may be at it, in milliseconds.
    pub timeout_ms: u64,
}

/// The event of an `emit` node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedEvent {
    /// Its type.
    pub event_type: String,
    /// The record that it is about.
    pub record: Option<String>,
    /// What it says.
    pub data: Value,
}

impl Plan {
    /// The input of the `block` or `workflow` node with this path.
    ///
    /// # Errors
    /// If an expression fails, the input is too large, or there is no such node.
    pub fn render_input(&self, path: &str, scope: &Scope<'_>) -> Result<Value, RenderError> {
        match self.node(path).map(|node| &node.kind) {
            Some(NodeKind::Block { input, .. } | NodeKind::Workflow { input, .. }) => render(input, scope),
            _ => Err(RenderError::NotInPlan { node: path.to_owned() }),
        }
    }

    /// The event of the `emit` node with this path.
    ///
    /// # Errors
    /// If an expression fails, the event is too large, or there is no such node.
    pub fn render_event(&self, path: &str, scope: &Scope<'_>) -> Result<RenderedEvent, RenderError> {
        match self.node(path).map(|node| &node.kind) {
            Some(NodeKind::Emit { event, record, data }) => Ok(RenderedEvent {
                event_type: event.clone(),
                record: match record.as_ref().map(|record| render(record, scope)).transpose()? {
                    None | Some(Value::Null) => None,
                    Some(record) => Some(text(record, "record")?),
                },
                data: render(data, scope)?,
            }),
            _ => Err(RenderError::NotInPlan { node: path.to_owned() }),
        }
    }

    /// The work of the `worker` node with this path.
    ///
    /// # Errors
    /// If an expression fails, the input is too large, or there is no such node.
    pub fn render_task(&self, path: &str, scope: &Scope<'_>) -> Result<RenderedTask, RenderError> {
        match self.node(path).map(|node| &node.kind) {
            Some(NodeKind::Worker { task, .. }) => Ok(RenderedTask {
                queue: task.queue.clone(),
                input: render(&task.input, scope)?,
                safety: task.safety,
                claim_within_ms: task.claim_within_ms,
                timeout_ms: task.timeout_ms,
            }),
            _ => Err(RenderError::NotInPlan { node: path.to_owned() }),
        }
    }

    /// The call of the `http` node with this path.
    ///
    /// # Errors
    /// If an expression fails or comes to something else than a text where only a text makes sense, a part is too large,
    /// or there is no such node.
    pub fn render_http(&self, path: &str, scope: &Scope<'_>) -> Result<RenderedHttp, RenderError> {
        match self.node(path).map(|node| &node.kind) {
            Some(NodeKind::Http { call, .. }) => http(call, scope),
            _ => Err(RenderError::NotInPlan { node: path.to_owned() }),
        }
    }
}

impl PlanListen {
    /// The record that an event has to be about.
    ///
    /// # Errors
    /// If its expression fails.
    pub fn record(&self, scope: &Scope<'_>) -> Result<Option<String>, RenderError> {
        let Some(record) = &self.record else { return Ok(None) };
        text(render(record, scope)?, "record").map(Some)
    }

    /// Whether it is what is waited for. A condition that cannot be asked about it does not hold.
    pub fn takes(&self, scope: &Scope<'_>, signal: &Value) -> bool {
        let Some(matches) = &self.matches else { return true };
        let mut scope = scope.clone();
        scope.set_signal(signal.clone());
        compiled(matches).and_then(|matches| matches.holds(&scope)).unwrap_or(false)
    }
}

impl PlanApproval {
    /// What is asked, and what there is to know about it.
    ///
    /// # Errors
    /// If an expression fails.
    pub fn render(&self, scope: &Scope<'_>) -> Result<(String, Value), RenderError> {
        let title = text(render(&self.title, scope)?, "title")?;
        let detail = self.detail.as_ref().map(|detail| render(detail, scope)).transpose()?;
        Ok((title, detail.unwrap_or(Value::Null)))
    }
}

/// Fills in a stored template.
pub(super) fn render(template: &Compiled<Template>, scope: &Scope<'_>) -> Result<Value, RenderError> {
    template.get().map_err(RenderError::Refused)?.render(scope)
}

fn http(call: &PlanHttp, scope: &Scope<'_>) -> Result<RenderedHttp, RenderError> {
    let text_of = |template: &Compiled<Template>, place| text(render(template, scope)?, place);
    let mut headers = Vec::new();
    if let Value::Object(fields) = render(&call.headers, scope)? {
        for (name, value) in fields {
            let value = text(value, &name)?;
            headers.push((name, value));
        }
    }
    let (body, content_type) = match call.body.as_ref().map(|body| render(body, scope)).transpose()? {
        None => (vec![], None),
        Some(Value::String(text)) => (text.into_bytes(), Some("text/plain; charset=utf-8")),
        Some(json) => (json.to_string().into_bytes(), Some("application/json")),
    };
    let is_declared = headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type"));
    if let (Some(content_type), false) = (content_type, is_declared) {
        headers.push(("content-type".to_owned(), content_type.to_owned()));
    }
    Ok(RenderedHttp {
        method: call.method.clone(),
        url: text_of(&call.url, "url")?,
        headers,
        body,
        connection: call.connection.clone(),
        safety: call.safety,
        idempotency_key: call
            .idempotency_key
            .as_ref()
            .map(|key| text_of(key, "idempotency_key"))
            .transpose()?,
        timeout_ms: call.timeout_ms,
    })
}
