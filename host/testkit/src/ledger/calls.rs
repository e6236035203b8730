//! What the provider saw, against what the receipts say: key by key, since every dispatch of a slot goes under one key.

use std::collections::BTreeMap;

use counterfoil_domain::effect::{HttpRequest, Safety};
use counterfoil_domain::id::{EffectId, TenantId};
use counterfoil_domain::receipt::request::{Scope, http_facts};
use uuid::Uuid;

use super::{ReceiptRow, Reconciled};
use crate::provider::Call;

/// Clocks of one machine, read by two processes and kept in milliseconds.
const CLOCK_SLACK_MS: i64 = 2;

/// Header fields that the host gives to every request, and that no guest asked for.
const FRAME: [&str; 6] =
    ["host", "user-agent", "connection", "content-length", "transfer-encoding", "idempotency-key"];

/// Everything under one key.
#[derive(Debug, Default)]
struct Slot<'a> {
    /// By dispatch number.
    receipts: Vec<&'a ReceiptRow>,
    /// By arrival.
    calls: Vec<&'a Call>,
}

pub(super) fn judge(found: &mut Reconciled, receipts: &[ReceiptRow], calls: &[Call]) {
    let mut slots: BTreeMap<&str, Slot<'_>> = BTreeMap::new();
    for receipt in receipts.iter().filter(|receipt| receipt.kind == "http" && receipt.safety != "read-only") {
        slots.entry(&receipt.idempotency_key).or_default().receipts.push(receipt);
    }
    for call in calls.iter().filter(|call| !matches!(call.method.as_str(), "GET" | "HEAD")) {
        found.calls += 1;
        match call.idempotency_key() {
            Some(key) => slots.entry(key).or_default().calls.push(call),
            None => found.violation(format!("call {} to {} carries no key", call.seq, call.path)),
        }
    }
    for (key, slot) in &slots {
        if slot.receipts.is_empty() {
            found.lost += slot.calls.len();
            found.duplicates += slot.calls.len() - 1;
            found.violation(format!("{} calls under {key} have no receipt", slot.calls.len()));
            continue;
        }
        slot.judge_dispatches(found, key);
        slot.judge_outcome(found, key);
        slot.judge_unknown(found);
    }
}

impl Slot<'_> {
    fn is_idempotent(&self) -> bool {
        self.receipts.iter().any(|receipt| receipt.safety == "idempotent")
    }

    fn calls_that_took_place(&self) -> usize {
        self.calls.iter().filter(|call| call.took_place()).count()
    }

    fn receipts_that_took_place(&self) -> usize {
        self.receipts.iter().filter(|receipt| receipt.took_place()).count()
    }

    fn violation(&self, found: &mut Reconciled, what: String) {
        match self.receipts.first() {
            Some(receipt) => found.violation_of(receipt.step_id, what),
            None => found.violation(what),
        }
    }

    /// At most one call a receipt, after it was dispatched, for what it says was sent; and at most one that took place,
    /// unless the receiver recognises the key.
    fn judge_dispatches(&self, found: &mut Reconciled, key: &str) {
        let sent: Vec<&&ReceiptRow> =
            self.receipts.iter().filter(|receipt| receipt.may_be_called()).collect();
        let excess = self.calls.len().saturating_sub(sent.len());
        let took_place = self.calls_that_took_place();
        let twice = if self.is_idempotent() { 0 } else { took_place.saturating_sub(1) };
        if excess.max(twice) > 0 {
            found.duplicates += excess.max(twice);
            let calls = self.calls.len();
            self.violation(
                found,
                format!(
                    "{calls} calls under {key}, of which {took_place} took place, for {} dispatches",
                    sent.len()
                ),
            );
        }
        for (index, call) in self.calls.iter().enumerate() {
            let received_ms = i64::try_from(call.received_at_ms).unwrap_or(i64::MAX);
            let before = sent.iter().filter(|receipt| {
                receipt.dispatched_at.is_some_and(|at| at.timestamp_millis() <= received_ms + CLOCK_SLACK_MS)
            });
            if index < sent.len() && before.count() <= index {
                self.violation(
                    found,
                    format!("call {} came before its receipt {key} was dispatched", call.seq),
                );
            }
            if !self.receipts.iter().any(|receipt| is_what_was_asked_for(receipt, call)) {
                self.violation(found, format!("call {} is not what its receipt {key} says", call.seq));
            }
        }
    }

    /// What took place is committed or verified, and what is so marked took place. A slot that may be sent again counts once.
    fn judge_outcome(&self, found: &mut Reconciled, key: &str) {
        let (mut called, mut recorded) = (self.calls_that_took_place(), self.receipts_that_took_place());
        if self.is_idempotent() {
            (called, recorded) = (called.min(1), recorded.min(1));
        }
        if recorded > called {
            found.lost += recorded - called;
            self.violation(
                found,
                format!("{recorded} effects under {key} are recorded, {called} took place"),
            );
        }
        if called > recorded && !self.receipts.iter().any(|receipt| receipt.is_open()) {
            found.lost += called - recorded;
            self.violation(
                found,
                format!("{called} effects under {key} took place, {recorded} are recorded"),
            );
        }
    }

    /// Whatever was unknown has become what the log shows, or is still unknown with its reason.
    fn judge_unknown(&self, found: &mut Reconciled) {
        let (called, recorded) = (self.calls_that_took_place(), self.receipts_that_took_place());
        for receipt in self.receipts.iter().filter(|receipt| receipt.was_unknown) {
            found.were_unknown += 1;
            let fits = match receipt.state.as_str() {
                "committed" | "verified" | "compensated" => called > 0,
                "abandoned" => called == recorded || self.is_idempotent() && called.min(1) == recorded.min(1),
                // Refused; or never sent, by a host that learned of it late.
                "rejected" => {
                    self.calls.iter().any(|call| !call.took_place()) || self.calls.len() < self.receipts.len()
                }
                _ => receipt.is_open(),
            };
            let has_reason = receipt.reason.as_deref().is_some_and(|reason| !reason.is_empty());
            found.decided += usize::from(fits && has_reason);
            if !fits {
                let id = EffectId(receipt.id);
                self.violation(
                    found,
                    format!("{id} was unknown and is {}; {called} took place", receipt.state),
                );
            }
        }
    }
}

/// Whether the call is the request that the receipt names, by the hash over its canonical form.
fn is_what_was_asked_for(receipt: &ReceiptRow, call: &Call) -> bool {
    let headers = call.headers.iter().filter(|(name, _)| !FRAME.contains(&name.as_str())).cloned().collect();
    let url = if call.query.is_empty() { call.path.clone() } else { format!("{}?{}", call.path, call.query) };
    let request = HttpRequest {
        method: call.method.clone(),
        url: url.clone(),
        headers,
        body: call.body.clone().into_bytes(),
    };
    let facts = http_facts(
        &request,
        &url,
        receipt.connection.as_deref(),
        Safety::from_name(&receipt.safety).unwrap_or(Safety::AtMostOnce),
        receipt.idempotency_key.clone(),
        // The scope is no part of the hash.
        Scope::Tenant(TenantId(Uuid::nil())),
    );
    let is_shown =
        receipt.preview["body"] == call.body.as_str() && receipt.preview["method"] == call.method.as_str();
    is_shown && facts.request_hash[..] == receipt.request_hash[..]
}
