//! The guards that keep an effect from being sent twice, and how each is taken out of a running product: from its
//! statements as they pass, from its tables, or by the one switch that it has. A harness that stays green without a guard
//! must be able to say which other one covers it.

mod cases;

use std::str::FromStr;

pub use self::cases::{Judged, run_all, table};

use super::proxy::Rewrite;

/// What can be taken out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    /// The receipt that is written before the call.
    Receipt,
    /// A receipt moves only from where it stands.
    Swap,
    /// Dispatches and ends of executions are their lease's.
    Fence,
    /// Of the receipts that guard one content, one may have happened.
    Index,
    /// The look into the journal before a call.
    Journal,
    /// One row for one receipt id.
    Identity,
    /// One run for one start key.
    StartKey,
    /// The look for a run of the start key before it is admitted.
    StartLookup,
}

/// Guards that are off.
#[derive(Debug, Clone, Default)]
pub struct Guards(pub Vec<Guard>);

impl Guard {
    const ALL: [(Self, &'static str); 8] = [
        (Self::Receipt, "receipt"),
        (Self::Swap, "swap"),
        (Self::Fence, "fence"),
        (Self::Index, "index"),
        (Self::Journal, "journal"),
        (Self::Identity, "identity"),
        (Self::StartKey, "start-key"),
        (Self::StartLookup, "start-lookup"),
    ];

    /// What `--guard-off` calls it.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(guard, _)| *guard == self).map_or("", |(_, name)| name)
    }

    /// Parts of statements, and what they become. Those for many at once are met only where there is much to do.
    fn rewrites(self) -> Vec<Rewrite> {
        match self {
            Self::Swap => vec![
                Rewrite::new(
                    "AND id = $2 AND state = $3 RETURNING guarded",
                    "AND id = $2 AND $3::text IS NOT NULL RETURNING guarded",
                ),
                Rewrite::new("AND r.state = 'dispatched' RETURNING r.id", "RETURNING r.id"),
                Rewrite::new("AND r.state = 'dispatched' RETURNING want.n", "RETURNING want.n").if_met(),
            ],
            Self::Fence => fence(),
            Self::Journal => vec![Rewrite::new(
                "SELECT * FROM receipts WHERE tenant_id = $1 AND lineage = $2 AND node = $3 AND iteration = $4",
                "SELECT * FROM receipts WHERE tenant_id = $1 AND lineage = $2 AND node = $3 AND iteration = $4 AND false",
            )],
            Self::StartLookup => {
                // Where the unique key is off as well, nothing leads to either.
                vec![
                    Rewrite::new("AND start_key = $3) AS run", "AND start_key = $3 AND false) AS run")
                        .if_met(),
                    Rewrite::new("AND start_key = w.key) AS run", "AND start_key = w.key AND false) AS run")
                        .if_met(),
                ]
            }
            Self::Receipt | Self::Index | Self::Identity | Self::StartKey => vec![],
        }
    }

    /// What is done to the tables.
    fn statement(self) -> Option<&'static str> {
        match self {
            Self::Index => Some("DROP INDEX receipts_guard"),
            Self::Identity => Some("ALTER TABLE receipts DROP CONSTRAINT receipts_pkey"),
            Self::StartKey => {
                Some("ALTER TABLE runs DROP CONSTRAINT runs_tenant_id_workflow_id_start_key_key")
            }
            _ => None,
        }
    }
}

impl FromStr for Guard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(|(_, name)| name).join(", ");
        let found = Self::ALL.iter().find(|(_, name)| *name == text);
        found.map(|(guard, _)| *guard).ok_or_else(|| format!("`{text}` is no guard; there are {}", names()))
    }
}

impl Guards {
    /// What `--guard-off` calls those that are off.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|guard| guard.name())
    }

    pub(super) fn rewrites(&self) -> Vec<Rewrite> {
        self.0.iter().flat_map(|guard| guard.rewrites()).collect()
    }

    pub(super) fn statements(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().filter_map(|guard| guard.statement())
    }

    pub(super) fn environment(&self) -> Option<(String, String)> {
        self.0.contains(&Guard::Receipt).then(|| ("COUNTERFOIL_UNSAFE_NO_RECEIPTS".into(), "1".into()))
    }
}

fn fence() -> Vec<Rewrite> {
    vec![
        // The dispatch, under whatever lease it has.
        Rewrite::new(
            "SELECT lease_id FROM open_steps WHERE tenant_id = $1 AND id = $5 AND lease_id = $2 AND vt > now()",
            "SELECT $2::uuid AS lease_id FROM open_steps WHERE tenant_id = $1 AND id = $5",
        ),
        Rewrite::new(
            "SELECT s.tenant_id, s.id, s.lease_id FROM want
             JOIN open_steps s ON s.tenant_id = want.tenant_id AND s.id = want.step_id AND s.lease_id = want.lease_id
             WHERE s.vt > now()",
            "SELECT s.tenant_id, s.id, want.lease_id FROM want
             JOIN open_steps s ON s.tenant_id = want.tenant_id AND s.id = want.step_id",
        )
        .if_met(),
        Rewrite::new("AND id = $2 AND lease_id = $3 AND vt > now()", "AND id = $2 AND $3::uuid IS NOT NULL"),
        // The ends of an execution.
        Rewrite::new("AND s.id = $3 AND s.lease_id = $4", "AND s.id = $3 AND $4::uuid IS NOT NULL"),
        Rewrite::new(
            "AND s.id = want.id AND s.lease_id = want.lease_id WHERE NOT want.is_end",
            "AND s.id = want.id WHERE NOT want.is_end",
        )
        .if_met(),
        Rewrite::new(
            "AND id = $2 AND lease_id = $3 FOR UPDATE",
            "AND id = $2 AND $3::uuid IS NOT NULL FOR UPDATE",
        ),
    ]
}
