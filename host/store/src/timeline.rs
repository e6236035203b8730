//! Everything that a run's timeline is drawn from.

use std::collections::{BTreeMap, HashMap};
use std::str::FromStr as _;

use chrono::{DateTime, Utc};
use counterfoil_domain::id::{HostId, LeaseId, RunId, StepId, TenantId};
use counterfoil_domain::timeline::Ended;
use serde_json::Value;
use uuid::Uuid;

use crate::audit::AuditRow;
use crate::error::Row;
use crate::page::Page;
use crate::receipt::{ReceiptRow, ReceiptView};
use crate::run::RunView;
use crate::settle::SettledState;
use crate::step::Wait;
use crate::value;
use crate::{Store, StoreError};

/// A run, and what says in which order its steps are told.
#[derive(Debug, Clone, PartialEq)]
pub struct TimelineHead {
    /// The run.
    pub run: RunView,
    /// The compiled plan of its version.
    pub plan: Value,
}

/// A page of a run's rows.
#[derive(Debug, Clone, PartialEq)]
pub struct TimelineRows {
    /// Whose they are.
    pub head: TimelineHead,
    /// Steps that have settled, in the order of the page.
    pub settled: Vec<SettledRow>,
    /// Steps that have not.
    pub open: Vec<OpenRow>,
    /// Executions that did not settle their step, of the steps above, in order.
    pub attempts: Vec<AttemptRow>,
    /// Receipts that the run wrote for the steps above, without history, in order of call.
    pub effects: Vec<ReceiptView>,
    /// What operators did to the run, in order.
    pub audit: Vec<AuditRow>,
    /// Where the next page begins; none at the end.
    pub next: Option<String>,
}

/// A step that has settled.
#[derive(Debug, Clone, PartialEq)]
pub struct SettledRow {
    /// Which one.
    pub step: StepId,
    /// Its node.
    pub node: String,
    /// Its iteration path.
    pub iteration: Vec<u32>,
    /// How it ended.
    pub state: SettledState,
    /// In which attempt.
    pub attempt: u32,
    /// Hosts lost in a row before it ended.
    pub losses: u32,
    /// What came of it.
    pub output: Option<Value>,
    /// Why it failed.
    pub error: Option<Value>,
    /// The branch that it chose.
    pub choice: Option<String>,
    /// What the guest logged in its last execution.
    pub logs: Option<Value>,
    /// When it became part of the run.
    pub queued_at: DateTime<Utc>,
    /// When its last execution began.
    pub started_at: Option<DateTime<Utc>>,
    /// When it ended.
    pub settled_at: DateTime<Utc>,
}

/// A step that has not settled.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenRow {
    /// Which one.
    pub step: StepId,
    /// Its node.
    pub node: String,
    /// Its iteration path.
    pub iteration: Vec<u32>,
    /// In which attempt it is.
    pub attempt: u32,
    /// What it waits for, or waited for before it was claimed.
    pub wait: Wait,
    /// Hosts lost in a row.
    pub losses: u32,
    /// When it is due, or its lease runs out; none if only a person or an answer can move it.
    pub due_at: Option<DateTime<Utc>>,
    /// The execution that holds it.
    pub lease: Option<LeaseId>,
    /// The host that does.
    pub host: Option<HostId>,
    /// When it became part of the run.
    pub queued_at: DateTime<Utc>,
    /// When any execution of it first began.
    pub first_started_at: Option<DateTime<Utc>>,
    /// When its last execution began.
    pub started_at: Option<DateTime<Utc>>,
    /// Why its last execution did not settle it.
    pub error: Option<Value>,
}

/// An execution that did not settle its step.
#[derive(Debug, Clone, PartialEq)]
pub struct AttemptRow {
    /// Which step.
    pub step: StepId,
    /// Which execution.
    pub lease: LeaseId,
    /// In which attempt.
    pub attempt: u32,
    /// On which host.
    pub host: HostId,
    /// When it began.
    pub started_at: DateTime<Utc>,
    /// When it ended, or was found lost.
    pub ended_at: DateTime<Utc>,
    /// How.
    pub ended: Ended,
    /// Why.
    pub error: Option<Value>,
    /// What the guest logged.
    pub logs: Option<Value>,
}

/// Nodes that one statement looks at: few where the first has many steps, and about those of a page where most have one.
const NODES_MAX: usize = 64;

/// A step's place in the order of its run's plan: of its node, and its iteration.
type Key = (usize, Vec<u32>);

impl Store {
    /// A run, and its plan.
    pub async fn timeline_head(
        &self,
        tenant: TenantId,
        run: RunId,
    ) -> Result<Option<TimelineHead>, StoreError> {
        let Some(view) = self.run(tenant, run).await? else { return Ok(None) };
        let plan = sqlx::query_scalar!(
            "SELECT v.plan FROM runs r
             JOIN workflow_versions v ON v.tenant_id = r.tenant_id AND v.id = r.version_id
             WHERE r.tenant_id = $1 AND r.id = $2",
            tenant.0,
            run.0,
        )
        .fetch_optional(self.reads())
        .await?;
        Ok(plan.map(|plan| TimelineHead { run: view, plan }))
    }

    /// A page of everything that a run's timeline is drawn from: of its steps in the order of `nodes`, which are all of its
    /// plan, and of the iterations of each.
    pub async fn timeline(
        &self,
        tenant: TenantId,
        head: TimelineHead,
        nodes: &[String],
        page: &Page,
    ) -> Result<TimelineRows, StoreError> {
        let run = head.run.row.id;
        let after = after(nodes, page)?;
        // What is open is read before what has settled: a step that settles meanwhile is in both lists, and is taken out
        // of the first, instead of being in neither.
        let open = self.open_rows(tenant, run).await?;
        let settled = self.settled_rows(tenant, run, nodes, after.as_ref(), page).await?;
        let ranks: HashMap<&str, usize> =
            nodes.iter().enumerate().map(|(rank, node)| (node.as_str(), rank)).collect();
        let key = |node: &str, iteration: &[u32]| Some((*ranks.get(node)?, iteration.to_vec()));
        let mut steps: BTreeMap<Key, Either> = BTreeMap::new();
        for row in open {
            let key =
                key(&row.node, &row.iteration).filter(|key| after.as_ref().is_none_or(|after| key > after));
            steps.extend(key.map(|key| (key, Either::Open(row))));
        }
        for row in settled {
            steps.extend(key(&row.node, &row.iteration).map(|key| (key, Either::Settled(row))));
        }
        let limit = page.limit as usize;
        let next = (steps.len() >= limit)
            .then(|| steps.keys().nth(limit - 1).map(|(rank, iteration)| cursor(&nodes[*rank], iteration)))
            .flatten();
        let (mut settled, mut open) = (vec![], vec![]);
        for step in steps.into_values().take(limit) {
            match step {
                Either::Settled(row) => settled.push(row),
                Either::Open(row) => open.push(row),
            }
        }
        let shown = Shown::new(&settled, &open);
        Ok(TimelineRows {
            attempts: self.attempt_rows(tenant, run, &shown).await?,
            effects: self.effect_views(tenant, &head.run, &shown).await?,
            audit: self.audit_rows(tenant, run).await?,
            head,
            settled,
            open,
            next,
        })
    }

    /// Steps that have settled, from the one behind `after` on, as many as a page holds.
    async fn settled_rows(
        &self,
        tenant: TenantId,
        run: RunId,
        nodes: &[String],
        after: Option<&Key>,
        page: &Page,
    ) -> Result<Vec<SettledRow>, StoreError> {
        let limit = page.limit as usize;
        let first = after.map_or(0, |(rank, _)| *rank);
        // What is longer comes after what it goes on from, and before everything else that does.
        let mut from =
            after.map_or_else(Vec::new, |(_, iteration)| [value::path_out(iteration), vec![0]].concat());
        let mut settled = vec![];
        let (mut nodes, mut width) = (&nodes[first..], 1);
        while !nodes.is_empty() && settled.len() < limit {
            let (these, others) = nodes.split_at(width.min(nodes.len()));
            let left = page.limit() - i64::try_from(settled.len()).unwrap_or(i64::MAX);
            settled.extend(self.settled_of(tenant, run, these, &from, left).await?);
            from.clear();
            (nodes, width) = (others, NODES_MAX.min(4 * width));
        }
        Ok(settled)
    }

    /// At most `limit` of the settled steps of these nodes, in their order; of the first, only iterations from `from` on.
    async fn settled_of(
        &self,
        tenant: TenantId,
        run: RunId,
        nodes: &[String],
        from: &[i32],
        limit: i64,
    ) -> Result<Vec<SettledRow>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT s.id AS "id!", s.node AS "node!", s.iteration AS "iteration!", s.state AS "state!",
                 s.attempt AS "attempt!", s.losses AS "losses!", s.output, s.error, s.choice, s.logs,
                 s.queued_at AS "queued_at!", s.started_at, s.settled_at AS "settled_at!"
             FROM UNNEST($3::text[]) WITH ORDINALITY AS n (node, rank)
             CROSS JOIN LATERAL (
                 SELECT * FROM settled_steps s
                 WHERE s.tenant_id = $1 AND s.run_id = $2 AND s.node = n.node
                   AND s.iteration >= CASE n.rank WHEN 1 THEN $4::int[] ELSE '{}' END
                 ORDER BY s.iteration LIMIT $5
             ) s
             ORDER BY n.rank, s.iteration LIMIT $5"#,
            tenant.0,
            run.0,
            nodes,
            from,
            limit,
        )
        .fetch_all(self.reads())
        .await?;
        rows.into_iter()
            .map(|columns| {
                let row = Row { table: "settled_steps", id: StepId(columns.id) };
                Ok(SettledRow {
                    step: row.id,
                    node: columns.node,
                    iteration: value::path_in(&columns.iteration),
                    state: row.need("state", SettledState::from_name(&columns.state))?,
                    attempt: value::count(&row, "attempt", columns.attempt)?,
                    losses: value::count(&row, "losses", columns.losses)?,
                    output: columns.output,
                    error: columns.error,
                    choice: columns.choice,
                    logs: columns.logs,
                    queued_at: columns.queued_at,
                    started_at: columns.started_at,
                    settled_at: columns.settled_at,
                })
            })
            .collect()
    }

    async fn open_rows(&self, tenant: TenantId, run: RunId) -> Result<Vec<OpenRow>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT id, node, iteration, attempt, wait, losses, NULLIF(vt, 'infinity') AS due_at, lease_id, host_id,
                 queued_at, first_started_at, started_at, error
             FROM open_steps WHERE tenant_id = $1 AND run_id = $2"#,
            tenant.0,
            run.0,
        )
        .fetch_all(self.reads())
        .await?;
        rows.into_iter()
            .map(|columns| {
                let row = Row { table: "open_steps", id: StepId(columns.id) };
                Ok(OpenRow {
                    step: row.id,
                    node: columns.node,
                    iteration: value::path_in(&columns.iteration),
                    attempt: value::count(&row, "attempt", columns.attempt)?,
                    wait: row.need("wait", Wait::from_name(&columns.wait))?,
                    losses: value::count(&row, "losses", columns.losses)?,
                    due_at: columns.due_at,
                    lease: columns.lease_id.map(LeaseId),
                    host: columns.host_id.map(HostId),
                    queued_at: columns.queued_at,
                    first_started_at: columns.first_started_at,
                    started_at: columns.started_at,
                    error: columns.error,
                })
            })
            .collect()
    }

    async fn attempt_rows(
        &self,
        tenant: TenantId,
        run: RunId,
        shown: &Shown,
    ) -> Result<Vec<AttemptRow>, StoreError> {
        let rows = sqlx::query!(
            "SELECT step_id, lease_id, attempt, host_id, started_at, ended_at, ended, error, logs
             FROM step_attempts WHERE tenant_id = $1 AND run_id = $2 AND step_id = ANY ($3)
             ORDER BY started_at, step_id",
            tenant.0,
            run.0,
            &shown.steps,
        )
        .fetch_all(self.reads())
        .await?;
        rows.into_iter()
            .map(|columns| {
                let row = Row { table: "step_attempts of", id: StepId(columns.step_id) };
                Ok(AttemptRow {
                    step: row.id,
                    lease: columns.lease_id.into(),
                    attempt: value::count(&row, "attempt", columns.attempt)?,
                    host: columns.host_id.into(),
                    started_at: columns.started_at,
                    ended_at: columns.ended_at,
                    ended: row.need("ended", Ended::from_name(&columns.ended))?,
                    error: columns.error,
                    logs: columns.logs,
                })
            })
            .collect()
    }

    async fn effect_views(
        &self,
        tenant: TenantId,
        run: &RunView,
        shown: &Shown,
    ) -> Result<Vec<ReceiptView>, StoreError> {
        let rows = sqlx::query_as!(
            ReceiptRow,
            "SELECT e.* FROM UNNEST($4::text[], $5::text[]) AS s (node, iteration)
             JOIN receipts e ON e.tenant_id = $1 AND e.lineage = $2 AND e.node = s.node AND e.iteration = s.iteration::int[]
             WHERE e.run_id = $3
             ORDER BY e.node, e.iteration, e.position, e.dispatch_number",
            tenant.0,
            run.lineage.0,
            run.row.id.0,
            &shown.nodes,
            &shown.iterations,
        )
        .fetch_all(self.reads())
        .await?;
        let workflow = &run.row.workflow_name;
        let mut views: Vec<ReceiptView> =
            rows.into_iter().map(|row| row.view(workflow.clone())).collect::<Result<_, _>>()?;
        let ends =
            views.iter().map(|view| (view.receipt.id, view.answered_at, view.receipt.standing.state()));
        let resolved = self.resolved_at(tenant, ends).await?;
        for view in &mut views {
            view.resolved_at = resolved.get(&view.receipt.id.0).copied();
        }
        Ok(views)
    }

    async fn audit_rows(&self, tenant: TenantId, run: RunId) -> Result<Vec<AuditRow>, StoreError> {
        let rows = sqlx::query!(
            "SELECT id, at, actor, action, subject, detail FROM audit
             WHERE tenant_id = $1 AND run_id = $2 ORDER BY at",
            tenant.0,
            run.0,
        )
        .fetch_all(self.reads())
        .await?;
        let audit = rows.into_iter().map(|row| AuditRow {
            id: row.id,
            at: row.at,
            actor: row.actor,
            action: row.action,
            subject: row.subject,
            run: Some(run),
            detail: row.detail,
        });
        Ok(audit.collect())
    }
}

/// A step of a page.
enum Either {
    Settled(SettledRow),
    Open(OpenRow),
}

/// The steps of a page, column by column.
#[derive(Default)]
struct Shown {
    steps: Vec<Uuid>,
    nodes: Vec<String>,
    iterations: Vec<String>,
}

impl Shown {
    fn new(settled: &[SettledRow], open: &[OpenRow]) -> Self {
        let mut shown = Self::default();
        let settled = settled.iter().map(|row| (row.step, &row.node, &row.iteration));
        for (step, node, iteration) in
            settled.chain(open.iter().map(|row| (row.step, &row.node, &row.iteration)))
        {
            shown.steps.push(step.0);
            shown.nodes.push(node.clone());
            shown.iterations.push(value::path_text(iteration));
        }
        shown
    }
}

/// The place that a page's cursor names.
fn after(nodes: &[String], page: &Page) -> Result<Option<Key>, StoreError> {
    let Some(text) = &page.after else { return Ok(None) };
    let place = (|| {
        let (node, path) = text.split_once(':')?;
        let rank = nodes.iter().position(|known| known == node)?;
        let path: Option<Vec<u32>> =
            path.split_terminator('.').map(|index| i32::from_str(index).ok()?.try_into().ok()).collect();
        Some((rank, path?))
    })();
    place.map(Some).ok_or(StoreError::InvalidCursor)
}

/// The cursor of a step.
fn cursor(node: &str, iteration: &[u32]) -> String {
    let path: Vec<String> = iteration.iter().map(ToString::to_string).collect();
    format!("{node}:{}", path.join("."))
}
