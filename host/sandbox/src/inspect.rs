//! Checks an upload: scan, compile, and one run of `describe` that can do nothing but describe.

use std::sync::Arc;

use async_trait::async_trait;
use counterfoil_domain::id::Digest;
use counterfoil_domain::ports::{ComponentInspector, Inspection, Refused};
use tokio::time::Instant;

use crate::report::unready;
use crate::sandbox::Sandbox;
use crate::scan::{self, Extern};
use crate::{descriptor, imports};

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
        let (digest, outline) = scanning.await.map_err(|panic| unready(&panic.to_string()))??;
        let bytes_len = bytes.len() as u64;
        let started = Instant::now();
        let code = self.blocks.prepare(digest, bytes).await.map_err(|error| error.refusal())?;
        let compile_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let descriptor = descriptor::parse(&self.executor.describe(digest, &code).await?)?;
        let names = |externs: Vec<Extern>| externs.into_iter().map(|outer| outer.name).collect();
        let (imports, exports) = (names(outline.imports), names(outline.exports));
        Ok(Inspection { digest, bytes_len, imports, exports, descriptor, compile_ms })
    }
}
