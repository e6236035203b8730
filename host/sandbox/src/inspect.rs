//! Checks an upload: scan, compile, and one run of `describe` that can do nothing but describe.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_domain::block::Descriptor;
use counterfoil_domain::code::Code;
use counterfoil_domain::id::{Digest, LineageId, Place};
use counterfoil_domain::limits::{PAYLOAD_BYTES_MAX, StepLimits};
use counterfoil_domain::ports::{ComponentInspector, Inspection, Refused};
use tokio::time::Instant;
use uuid::Uuid;

use crate::blocks::{NotReady, ReadyBlock};
use crate::execution::{Describe, execute};
use crate::host::HostState;
use crate::refusal::{refused, shown};
use crate::sandbox::Sandbox;
use crate::scan::{self, Extern};
use crate::trap::{self, Ended, Phase, Verdict};
use crate::{descriptor, imports};

/// A description is a constant in most blocks; a scripting runtime must start first.
const DESCRIBE_CPU_MS_MAX: u64 = 500;
/// Nothing in `describe` waits, so this only bounds a machine that is far behind.
const DESCRIBE_WALL_MS_MAX: u64 = 10_000;

#[async_trait]
impl ComponentInspector for Sandbox {
    async fn inspect(&self, bytes: Vec<u8>) -> Result<Inspection, Refused> {
        let bytes: Arc<[u8]> = bytes.into();
        let (limits, scanned) = (self.limits, Arc::clone(&bytes));
        let scanning = tokio::task::spawn_blocking(move || {
            let outline = scan::scan(&scanned, &limits)?;
            imports::check_names(&outline)?;
            Ok::<_, Refused>((Digest::of(&scanned), outline))
        });
        let (digest, outline) = scanning.await.map_err(|panic| unavailable(&panic.to_string()))??;
        let bytes_len = bytes.len() as u64;
        let started = Instant::now();
        let block = self.blocks.prepare(digest, bytes).await.map_err(|error| match &*error {
            NotReady::Refused(refused) | NotReady::TooCostly(refused) => refused.clone(),
            error => unavailable(&error.to_string()),
        })?;
        let compile_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let descriptor = {
            // Not held while it is compiled: that has turns of its own.
            let slot = self.inspections.acquire().await;
            let _slot = slot.map_err(|closed| unavailable(&closed.to_string()))?;
            self.describe(&block).await?
        };
        let names = |externs: Vec<Extern>| externs.into_iter().map(|outer| outer.name).collect();
        let (imports, exports) = (names(outline.imports), names(outline.exports));
        Ok(Inspection { digest, bytes_len, imports, exports, descriptor, compile_ms })
    }
}

impl Sandbox {
    async fn describe(&self, block: &ReadyBlock) -> Result<Descriptor, Refused> {
        let limits = StepLimits {
            cpu_ms_max: self.limits.cpu_ms_max.min(DESCRIBE_CPU_MS_MAX),
            wall_ms_max: DESCRIBE_WALL_MS_MAX,
            output_bytes_max: PAYLOAD_BYTES_MAX,
            log_lines_max: 0,
            ..self.limits
        };
        let deadline = Instant::now() + Duration::from_millis(limits.wall_ms_max);
        // The same for every upload, so that a description says the same everywhere.
        let nowhere = Place { lineage: LineageId(Uuid::nil()), node: String::new(), iteration: Vec::new() };
        let state = HostState::new(None, nowhere, 0, [0; 32], &limits);
        let finished = execute(&self.engine, &self.ticker, block, Describe, state, &limits, deadline).await;
        let verdict = match finished.result {
            Ok(text) if text.len() as u64 <= limits.output_bytes_max => return descriptor::parse(&text),
            Ok(_) => trap::output_too_large(&limits),
            Err(Ended::Error { phase: Phase::Linking, error }) => return Err(wrong_export(&error)),
            Err(ended) => trap::judge(&ended, &finished.state.limiter, &limits),
        };
        let refusal = |code: Code, message: &str| {
            let once = "It runs once at upload and may only describe.";
            refused(Code::DescriptorInvalid, format!("`describe` did not return ({code}): {message}. {once}"))
        };
        Err(match verdict {
            Verdict::Trapped { code, message } => refusal(code, &message),
            Verdict::Stopped => refusal(Code::Stopped, "it asked for an effect"),
            Verdict::Unavailable { message } => unavailable(&message),
        })
    }
}

fn wrong_export(error: &wasmtime::Error) -> Refused {
    let reason = shown(&format!("{error:#}"));
    refused(
        Code::ExportMissing,
        format!(
            "a function that the host would call has other parameters or results than the contract says: {reason}"
        ),
    )
}

fn unavailable(reason: &str) -> Refused {
    refused(Code::Unavailable, format!("this host cannot check the component now: {reason}. Try again."))
}
