//! `counterfoil block inspect`: what an upload would find, without a host.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use async_trait::async_trait;
use counterfoil_domain::effect::{EffectCall, EffectReply};
use counterfoil_domain::id::LeaseId;
use counterfoil_domain::limits::StepLimits;
use counterfoil_domain::ports::{ComponentInspector as _, EffectPort, Inspection};
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::{component, local};
use crate::api::Api;
use crate::args::Global;
use crate::exit::Exit;
use crate::output::{Column, Output};
use crate::progress::Progress;

/// What to look at.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The crate's directory, which is built first, or the component's file.
    #[arg(default_value = ".")]
    path: PathBuf,
    /// The manifest that goes with the component, of a program without an SDK.
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
}

const LINES: &[Column] = &[
    Column::plain("name", "/descriptor/name"),
    Column::plain("digest", "/digest"),
    Column::plain("bytes", "/bytes_len"),
    Column::plain("compiled in ms", "/compile_ms"),
    Column::plain("imports", "/imports"),
    Column::plain("exports", "/exports"),
    Column::plain("summary", "/descriptor/summary"),
    Column::plain("credits", "/descriptor/credits"),
    Column::plain("effects", "/descriptor/effects"),
    Column::plain("input", "/descriptor/input"),
    Column::plain("output", "/descriptor/output"),
    Column::plain("memory, bytes", "/limits/memory_bytes_max"),
    Column::plain("cpu, ms", "/limits/cpu_ms_max"),
    Column::plain("wall, ms", "/limits/wall_ms_max"),
    Column::plain("output, bytes", "/limits/output_bytes_max"),
    Column::plain("log, bytes", "/limits/log_bytes_max"),
    Column::plain("table elements", "/limits/table_elements_max"),
];

pub(super) async fn run(args: Args, global: &Global, output: Output) -> anyhow::Result<Exit> {
    let read = || anyhow::Ok(component(&args.path, args.manifest.as_deref())?.bytes);
    // A file that is not there, or an address that does not answer, is told before the work.
    let file = if args.path.is_dir() { None } else { Some(read()?) };
    let (granted, grantor) = granted(global).await?;
    let bytes = file.map_or_else(read, Ok)?;
    let progress = Progress::new("checking and compiling the component");
    // Nothing is kept, so that the time to compile is that of an upload.
    let cache = tempfile::tempdir().context("cannot make a directory for what is compiled")?;
    let sandbox = local::sandbox(cache.path().to_owned(), Arc::new(NoEffects))?;
    let inspected = sandbox.inspect(bytes).await;
    drop(progress);
    match inspected {
        Ok(inspection) => {
            output.record(&record(&inspection, granted, &grantor), LINES)?;
            anstream::eprintln!("the limits are those of {grantor}, narrowed by the block's own");
            Ok(Exit::Ok)
        }
        Err(refused) => {
            let (record, failure) = local::refusal(&refused, args.manifest.as_deref());
            output.show(&record, String::new)?;
            Err(failure.into())
        }
    }
}

/// What is granted to a block before it narrows that, and by whom: the host that is named, to the key's tenant; or any host
/// whose operator set nothing.
async fn granted(global: &Global) -> anyhow::Result<(StepLimits, String)> {
    if global.url()?.is_none() {
        let nobody = "a host whose operator set none, for a tenant that has none (name a host with --url or COUNTERFOIL_URL)";
        return Ok((StepLimits::DEFAULT, nobody.into()));
    }
    let api = Api::new(global)?;
    let limits: Value = api.get(&["limits"], &[]).await?;
    let granted = StepLimits::deserialize(&limits["in_force"])
        .context("the host's limits are of another version than this program")?;
    Ok((granted, format!("{}, for the key's tenant", api.page(""))))
}

fn record(inspection: &Inspection, granted: StepLimits, grantor: &str) -> Value {
    let Inspection { digest, bytes_len, imports, exports, descriptor, compile_ms } = inspection;
    json!({
        "accepted": true,
        "digest": digest,
        "bytes_len": bytes_len,
        "compile_ms": compile_ms,
        "imports": imports,
        "exports": exports,
        "descriptor": descriptor,
        "limits": descriptor.limits.narrow(granted),
        "limits_of": grantor,
    })
}

/// Nothing is run here that may make a call.
struct NoEffects;

#[async_trait]
impl EffectPort for NoEffects {
    async fn perform(&self, _: LeaseId, _: EffectCall) -> EffectReply {
        EffectReply::Stop
    }
}
