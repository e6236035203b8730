//! What goes wrong, and when: a pure function of the seed. (How the processes' own threads interleave is not.)

use counterfoil_domain::ports::Site;
use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::provider::Act;
use crate::random::Random;

/// Acts of a provider before they begin anew: more than most runs make calls.
const ACTS: u64 = 4_096;
/// Tenants that share the hosts.
pub const TENANTS: [&str; 2] = ["acme", "globex"];

/// How often each kind of fault comes. All are drawn by weight, or once in so many kills.
#[derive(Debug, Clone)]
pub struct Mix {
    /// Hosts that kill themselves at a named site.
    pub site: u32,
    /// Hosts that are killed from outside, wherever they are.
    pub outside: u32,
    /// Hosts that are frozen past their leases, thawed, and killed a while later.
    pub freeze: u32,
    /// The database is ended at once and started again, once in so many kills; 0 for never.
    pub restart_every: u64,
    /// Connections of hosts are terminated.
    pub terminate_every: u64,
    /// A commit and its answer are cut apart.
    pub cut_every: u64,
    /// Where the wire is cut then.
    pub severed: &'static [Severed],
    /// Calls of a hundred that the provider does not answer as it should.
    pub misbehaved_percent: u64,
}

impl Mix {
    /// Everything, as it is run.
    pub const ALL: Self = Self {
        site: 72,
        outside: 20,
        freeze: 8,
        restart_every: 100,
        terminate_every: 15,
        cut_every: 2,
        severed: &[Severed::Answer, Severed::Answer, Severed::Blind, Severed::Before],
        misbehaved_percent: 22,
    };
}

/// How one host ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// By itself, when it passes the site for the nth time.
    Site {
        /// Where, by name.
        #[serde(serialize_with = "by_name")]
        site: Site,
        /// Counted from 1.
        nth: u32,
    },
    /// By SIGKILL, so long after it serves.
    Outside {
        /// Milliseconds.
        after_ms: u64,
    },
    /// By SIGKILL, after it was stopped for longer than its leases last and went on.
    Freeze {
        /// Milliseconds until it is stopped.
        after_ms: u64,
        /// Milliseconds until it goes on.
        for_ms: u64,
    },
}

/// `serialize_with` hands over a reference.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
fn by_name<S: serde::Serializer>(site: &Site, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(site.name())
}

impl std::fmt::Display for Fate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Site { site, nth } => write!(f, "at {}:{nth}", site.name()),
            Self::Outside { after_ms } => write!(f, "from outside after {after_ms} ms"),
            Self::Freeze { after_ms, for_ms } => write!(f, "frozen after {after_ms} ms for {for_ms} ms"),
        }
    }
}

/// What is done to the database, or to the connections to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatabaseFault {
    /// Ended at once, and started again.
    Restart,
    /// So many connections of hosts are terminated.
    Terminate(u32),
    /// A commit and its answer are cut apart.
    Cut(Cut),
}

/// Which commit is cut off from its host, and on which side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// What commits.
    pub what: Committing,
    /// Whether it reaches the database.
    pub how: Severed,
}

/// What commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Committing {
    /// A transaction.
    Transaction,
    /// The statement that makes a receipt durable.
    Dispatch,
    /// The statement that claims steps.
    Claim,
}

/// Where the wire is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severed {
    /// It is committed, and the answer does not come back.
    Answer,
    /// It is on its way; whether it commits, the database decides.
    Blind,
    /// It never arrives.
    Before,
}

/// A run to start.
#[derive(Debug, Clone, PartialEq)]
pub struct Start {
    /// Its number, from 0.
    pub number: u64,
    /// Index of its tenant.
    pub tenant: usize,
    /// Its workflow.
    pub workflow: &'static str,
    /// Its input.
    pub input: Value,
    /// Whether it is asked for again after it was accepted.
    pub again: bool,
}

/// The schedule of one run of the harness.
#[derive(Debug, Clone)]
pub struct Plan {
    seed: u64,
    mix: Mix,
    lease_ms: u64,
}

impl Plan {
    /// The schedule that `seed` gives.
    pub fn new(seed: u64, mix: Mix, lease_ms: u64) -> Self {
        Self { seed, mix, lease_ms }
    }

    /// The random numbers of the nth of something.
    pub fn draw(&self, what: &str, n: u64) -> Random {
        let mut hash = Sha256::new();
        hash.update(self.seed.to_be_bytes());
        hash.update(what.as_bytes());
        hash.update(n.to_be_bytes());
        let digest = hash.finalize();
        let mut first = [0; 8];
        first.copy_from_slice(&digest[..8]);
        Random::new(u64::from_be_bytes(first))
    }

    /// How the nth host at a place ends, and what its environment says besides. Hosts at a steady place live long enough to
    /// get work done while those at the others die.
    pub fn fate(&self, place: usize, is_steady: bool, n: u64) -> (Fate, Vec<(String, String)>) {
        let mut random = self.draw(&format!("fate {place}"), n);
        let mut environment = vec![];
        // Most answers commit with their step's end; some must be written alone for the site after that to be passed.
        if random.percent(25) {
            environment.push(("COUNTERFOIL__EFFECTS__ANSWER_WAIT_MS".to_owned(), "0".to_owned()));
        }
        let (nth_max, lives_ms) = if is_steady { (40, (800, 2_500)) } else { (2, (20, 200)) };
        let Mix { site, outside, freeze, .. } = self.mix;
        let fate = match random.below(u64::from(site + outside + freeze)) {
            n if n < u64::from(site) => {
                let site = *random.pick(Site::ALL);
                Fate::Site { site, nth: u32::try_from(random.between(1, nth_max)).unwrap_or(1) }
            }
            n if n < u64::from(site + outside) => {
                Fate::Outside { after_ms: random.between(lives_ms.0, lives_ms.1) }
            }
            _ => Fate::Freeze {
                after_ms: random.between(20, 300),
                for_ms: self.lease_ms + random.between(100, 800),
            },
        };
        (fate, environment)
    }

    /// What is done to the database after the nth kill.
    pub fn database_faults(&self, n: u64) -> Vec<DatabaseFault> {
        let mut random = self.draw("database", n);
        let mut faults = vec![];
        if random.once_in(self.mix.restart_every) {
            faults.push(DatabaseFault::Restart);
        }
        if random.once_in(self.mix.terminate_every) {
            faults.push(DatabaseFault::Terminate(u32::try_from(random.between(1, 6)).unwrap_or(1)));
        }
        if random.once_in(self.mix.cut_every) {
            let what = *random.pick(&[
                Committing::Transaction,
                Committing::Dispatch,
                Committing::Dispatch,
                Committing::Claim,
            ]);
            let how = *random.pick(self.mix.severed);
            faults.push(DatabaseFault::Cut(Cut { what, how }));
        }
        faults
    }

    /// What the provider of one tenant does with its calls, in the order of their arrival.
    pub fn acts(&self, tenant: usize) -> Vec<Act> {
        let what = format!("acts {tenant}");
        (0..ACTS).map(|n| self.act(&mut self.draw(&what, n))).collect()
    }

    fn act(&self, random: &mut Random) -> Act {
        if !random.percent(self.mix.misbehaved_percent) {
            // An answer that takes its time gives the others a chance to go wrong meanwhile.
            let delay_ms = if random.percent(40) { random.between(1, 60) } else { 0 };
            return Act { delay_ms, ..Act::default() };
        }
        let past_the_lease = Act { delay_ms: self.lease_ms + random.between(50, 300), ..Act::default() };
        let cut = usize::try_from(random.below(160)).unwrap_or(0);
        let acts = [
            Act::dropped(),
            past_the_lease,
            Act { reset_at: Some(cut), ..Act::default() },
            Act { cut_at: Some(cut), ..Act::default() },
            Act::status(500),
            Act::status(503),
            Act::status(408),
            Act::status(402),
            Act { retry_after: Some(1), ..Act::status(429) },
            Act { retry_after: Some(1), ..Act::status(503) },
        ];
        random.pick(&acts).clone()
    }

    /// The nth run.
    pub fn start(&self, n: u64) -> Start {
        let mut random = self.draw("start", n);
        let tenant = usize::try_from(random.below(TENANTS.len() as u64)).unwrap_or(0);
        let workflow = *random.pick(super::work::WORKFLOWS);
        // Orders of `once` come back, so that its invariant has something to refuse.
        let order = if workflow == "once" { format!("again-{}", n / 24) } else { format!("order-{n}") };
        let second = *random.pick(&["ok", "ok", "ok", "fail", "retry"]);
        let input = json!({
            "order": order, "cents": 500, "domain": format!("company-{}.example", n % 50), "second": second,
        });
        Start { number: n, tenant, workflow, input, again: random.percent(10) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_schedule_with_everything_in_it() {
        let plan = |seed| Plan::new(seed, Mix::ALL, 1_000);
        let (one, same, other) = (plan(1), plan(1), plan(2));
        let fates = |plan: &Plan| (0..500).map(|n| plan.fate(0, false, n)).collect::<Vec<_>>();
        assert_eq!(fates(&one), fates(&same));
        assert_ne!(fates(&one), fates(&other));
        assert_eq!((one.acts(0), one.start(7)), (same.acts(0), same.start(7)));
        assert_ne!(one.acts(0), one.acts(1));
        for site in Site::ALL {
            let met = fates(&one)
                .iter()
                .any(|(fate, _)| matches!(fate, Fate::Site { site: met, .. } if met == site));
            assert!(met, "{}", site.name());
        }
        let faults: Vec<_> = (0..1_000).flat_map(|n| one.database_faults(n)).collect();
        assert!(faults.contains(&DatabaseFault::Restart));
        for how in [Severed::Answer, Severed::Blind, Severed::Before] {
            for what in [Committing::Transaction, Committing::Dispatch, Committing::Claim] {
                assert!(faults.contains(&DatabaseFault::Cut(Cut { what, how })), "{what:?} {how:?}");
            }
        }
    }
}
