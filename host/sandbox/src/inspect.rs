//! Checks an upload: scan, compile, and one run of `describe` that can do nothing but describe.

use std::sync::Arc;

use async_trait::async_trait;
use counterfoil_domain::code::Code;
use counterfoil_domain::id::Digest;
use counterfoil_domain::ports::{ComponentInspector, Inspection, Refused};
use tokio::time::Instant;

use crate::refusal::refused;
use crate::report::unready;
use crate::sandbox::Sandbox;
use crate::scan::{self, Extern, Outline};
use crate::{descriptor, imports};

#[async_trait]
impl ComponentInspector for Sandbox {
    async fn inspect(&self, bytes: Vec<u8>) -> Result<Inspection, Refused> {
        let bytes: Arc<[u8]> = bytes.into();
        let (limits, scanned) = (self.limits, Arc::clone(&bytes));
        let scanning = tokio::task::spawn_blocking(move || {
            let outline = scan::scan(&scanned, &limits)?;
            imports::check_names(&outline)?;
            check_manifest(&outline)?;
            Ok::<_, Refused>((Digest::of(&scanned), outline))
        });
        let (digest, outline) = scanning.await.map_err(|panic| unready(&panic.to_string()))??;
        let bytes_len = bytes.len() as u64;
        let started = Instant::now();
        let code = self.blocks.prepare(digest, bytes).await.map_err(|error| error.refusal())?;
        let compile_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        // A program that cannot be asked is brought into being all the same, and its export looked at.
        let said = self.executor.describe(digest, &code).await?;
        let manifest = outline.manifest;
        // Schemas take a while to be read.
        let reading = tokio::task::spawn_blocking(move || match manifest {
            None => descriptor::parse(said.as_bytes(), "what `describe` returned"),
            Some(manifest) => descriptor::parse(&manifest, "the manifest"),
        });
        let descriptor = reading.await.map_err(|panic| unready(&panic.to_string()))??;
        let names = |externs: Vec<Extern>| externs.into_iter().map(|outer| outer.name).collect();
        let (imports, exports) = (names(outline.imports), names(outline.exports));
        Ok(Inspection { digest, bytes_len, imports, exports, descriptor, compile_ms })
    }
}

/// Says what it is either itself or by a manifest.
fn check_manifest(outline: &Outline) -> Result<(), Refused> {
    match (imports::is_step(outline), &outline.manifest) {
        (true, None) | (false, Some(_)) => Ok(()),
        (true, Some(_)) => Err(refused(
            Code::ManifestNeedless,
            "the block describes itself, and has a manifest as well: leave out the manifest",
        )),
        (false, None) => Err(refused(
            Code::ManifestMissing,
            "the component is a program that cannot be asked what it is, and came without a manifest: send its \
             descriptor as JSON beside it (`counterfoil block push --manifest FILE`, or the header `Counterfoil-Manifest`).",
        )),
    }
}
