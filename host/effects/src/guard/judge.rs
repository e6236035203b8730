//! The judgement of a call: by the grants of its block and by its connection.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use counterfoil_domain::effect::{EffectCall, EffectFailure, EffectReply};
use counterfoil_domain::receipt::{Recorded, SlotKey, Standing};
use counterfoil_domain::step::Stop;

use super::connection::{By, Limits};
use super::{Begun, Inner, slot_of};
use crate::execution::{Execution, Placed, Purpose};
use crate::kind::{self, Ask, Prepared};
use crate::secrets::Opened;

/// A call, judged.
pub(super) struct Judged {
    pub(super) prepared: Prepared,
    pub(super) by: By,
    /// When the connection was set that it was judged by.
    pub(super) connection_set_at: Option<DateTime<Utc>>,
}

impl Inner {
    /// The effect, judged by its connection as it was read last, or as it is. None if it must be judged by the one that is
    /// there now.
    pub(super) async fn judged_by(
        self: &Arc<Self>,
        by: By,
        execution: &Arc<Execution>,
        placed: &Placed,
        call: &EffectCall,
    ) -> Result<Option<EffectReply>, Stop> {
        let (judged, limits) = match self.prepare(execution, call, &placed.slot, by).await? {
            Ok(judged) => judged,
            Err(message) => return Ok(Some(EffectReply::Failed(EffectFailure::Denied(message)))),
        };
        let prepared = &judged.prepared;
        if execution.purpose == Purpose::Verification {
            return self.look_up(execution, prepared, limits).await.map(Some);
        }
        let reply = match self.begin(execution, placed, &judged, limits).await? {
            Begun::JudgeAgain => return Ok(None),
            Begun::Reply(reply) => Ok(reply),
            Begun::Denied { number, message } => {
                let recorded = Recorded::Failure(EffectFailure::Denied(message));
                self.journal_unsent(
                    execution,
                    placed,
                    prepared,
                    number,
                    Standing::Rejected(recorded.clone()),
                )
                .await;
                Ok(recorded.into_reply())
            }
            Begun::ReadOnly { number, place } => {
                let reply = self.read(execution, placed, prepared, number).await;
                drop(place);
                reply
            }
            Begun::Send(sendable) => self.send(execution, *sendable, prepared).await,
        };
        reply.map(Some)
    }

    /// Judges a call and makes it ready; and says what limits the calls through its connection.
    async fn prepare<'a>(
        &self,
        execution: &Execution,
        call: &'a EffectCall,
        slot: &SlotKey,
        by: By,
    ) -> Result<Result<(Judged, Limits<'a>), String>, Stop> {
        let context = &execution.context;
        let through = match &call.connection {
            Some(name) => self.through(context.fence.tenant, name, by).await?,
            None => None,
        };
        let (known, secrets, by) =
            through.map_or((None, Opened::default(), By::Now), |it| (Some(it.known), it.secrets, it.by));
        let connection = known.as_ref().map(|known| &known.connection);
        let limits = Limits {
            rate: call.connection.as_deref().filter(|_| connection.is_some_and(|it| it.rate.is_some())),
            in_flight: call.connection.as_deref().zip(connection.and_then(|it| it.in_flight_max)),
        };
        let default_key = slot_of(context, slot).receipt_id(0).to_string();
        let progress = execution.progress();
        let prepared = kind::prepare(Ask {
            context,
            call,
            connection: known.as_deref(),
            secrets,
            default_key,
            policy: self.client.policy(),
            timeout: self.config.timeout,
            changes: &progress.changes,
        });
        let connection_set_at = connection.map(|connection| connection.updated_at);
        Ok(prepared.map(|prepared| (Judged { prepared, by, connection_set_at }, limits)))
    }
}
