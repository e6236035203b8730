//! Answers of steps that go on computing, many in one statement.
//!
//! Only those that say that an effect took place go together. Whatever does not come out as hoped is written by itself,
//! where its case is told.

use std::collections::HashSet;
use std::pin::Pin;

use counterfoil_domain::receipt::Transition;
use sqlx::PgPool;
use uuid::Uuid;

use super::Swap;
use super::hold::PlainCommit;
use crate::StoreError;
use crate::receipt::{AnswerColumns, apply};
use crate::value;

/// What came of an answer among others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answered {
    /// This.
    Swapped(Swap),
    /// It did not move here, and must be written by itself.
    Alone,
    /// It may or may not be durable.
    Unsure,
}

/// Writes answers as they come.
pub(crate) fn flush_answers(
    pool: PgPool,
) -> impl Fn(Vec<Transition>) -> Pin<Box<dyn Future<Output = Vec<Answered>> + Send>> + Clone + Send + 'static
{
    move |answers| {
        let pool = pool.clone();
        Box::pin(async move {
            flush(&pool, &answers).await.unwrap_or_else(|error| {
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    "answers were not written together"
                );
                let came_of = if error.is_transient() { Answered::Unsure } else { Answered::Alone };
                vec![came_of; answers.len()]
            })
        })
    }
}

async fn flush(pool: &PgPool, answers: &[Transition]) -> Result<Vec<Answered>, StoreError> {
    let mut connection = pool.acquire().await?;
    if let [alone] = answers {
        return Ok(vec![Answered::Swapped(apply(&mut connection, alone).await?)]);
    }
    let mut columns = AnswerArrays::default();
    let (mut tenants, mut receipts) = (vec![], vec![]);
    for answer in answers {
        tenants.push(answer.tenant().0);
        receipts.push(answer.receipt().0);
        columns.push(PlainCommit::of(answer));
    }
    let moved = sqlx::query!(
        r#"UPDATE receipts r SET state = 'committed', answered_at = now(), answer_kind = want.answer_kind,
             answer_status = want.answer_status, answer_headers = want.answer_headers::json,
             answer_body = want.answer_body, answer_truncated = want.answer_truncated, reason = want.reason,
             provider_receipt_id = want.provider_receipt_id
         FROM UNNEST(
             $1::uuid[], $2::uuid[], $3::text[], $4::int[], $5::text[], $6::bytea[], $7::bool[], $8::text[], $9::text[]
         ) AS want (tenant_id, id, answer_kind, answer_status, answer_headers, answer_body, answer_truncated,
             reason, provider_receipt_id)
         WHERE r.tenant_id = want.tenant_id AND r.id = want.id AND r.state = 'dispatched'
         RETURNING r.tenant_id, r.id"#,
        &tenants,
        &receipts,
        &columns.kinds as &[Option<&str>],
        &columns.statuses as &[Option<i32>],
        &columns.headers as &[Option<String>],
        &columns.bodies as &[Option<&[u8]>],
        &columns.truncated as &[Option<bool>],
        &columns.reasons as &[Option<&str>],
        &columns.provider_ids as &[Option<&str>],
    )
    .fetch_all(&mut *connection)
    .await?;
    let mut moved: HashSet<(Uuid, Uuid)> = moved.into_iter().map(|row| (row.tenant_id, row.id)).collect();
    let came_of = |wanted: (Uuid, Uuid)| {
        // Of two answers to the same receipt, one moved it.
        if moved.remove(&wanted) { Answered::Swapped(Swap::Moved) } else { Answered::Alone }
    };
    Ok(tenants.into_iter().zip(receipts).map(came_of).collect())
}

/// Answers as one array a column; a row that has none has nothing in any of them.
#[derive(Default)]
pub(super) struct AnswerArrays<'a> {
    pub(super) kinds: Vec<Option<&'static str>>,
    pub(super) statuses: Vec<Option<i32>>,
    pub(super) headers: Vec<Option<String>>,
    pub(super) bodies: Vec<Option<&'a [u8]>>,
    pub(super) truncated: Vec<Option<bool>>,
    pub(super) reasons: Vec<Option<&'a str>>,
    pub(super) provider_ids: Vec<Option<&'a str>>,
}

impl<'a> AnswerArrays<'a> {
    pub(super) fn push(&mut self, commit: Option<PlainCommit<'a>>) {
        let answer = commit.map(|commit| AnswerColumns::new(commit.recorded)).unwrap_or_default();
        self.kinds.push(answer.kind);
        self.statuses.push(answer.status);
        self.headers.push(value::json_text(answer.headers.as_ref()));
        self.bodies.push(answer.body);
        self.truncated.push(answer.truncated);
        self.reasons.push(commit.map(|commit| commit.reason));
        self.provider_ids.push(commit.and_then(|commit| commit.provider_receipt_id));
    }
}
