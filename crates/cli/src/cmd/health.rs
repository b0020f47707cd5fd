//! `tutti nodes inject` and `tutti nodes resolve`.

use std::process::ExitCode;

use tutti_gpu::active::judge::not_passed;
use tutti_model::{Finding, HealthAction};
use tutti_wire::api::{Board, InjectRequest, ResolveRequest};

use crate::fail::Fail;
use crate::show::harmless;
use crate::{session, terminal};

#[derive(clap::Args)]
#[command(override_usage = "tutti nodes inject NODE --gpu N --xid XID [--real] [--json]\n       \
    tutti nodes inject NODE --check NAME [--action ACTION] [--text TEXT] [--gpu N] [--real] [--json]")]
#[command(group(clap::ArgGroup::new("what").required(true).args(["xid", "check"])))]
#[command(after_help = "Examples:\n  tutti nodes inject n1 --gpu 3 --xid 79\n  \
    tutti nodes inject n1 --check fan --action drain_node --text 'fan 2 stands still'\n\n\
    Everything happens as if it were real: jobs are stopped and started again elsewhere.\n\
    `tutti nodes resolve` ends it.")]
pub struct InjectArgs {
    #[arg(value_name = "NODE")]
    node: String,
    /// Which GPU of the node
    #[arg(long, value_name = "N")]
    gpu: Option<u16>,
    /// The error number that the NVIDIA driver would write to the kernel's log. Its action is that of
    /// the table in docs/guide/health.md
    #[arg(long, requires = "gpu")]
    xid: Option<u32>,
    /// The name of a check that would find something
    #[arg(long, value_name = "NAME")]
    check: Option<String>,
    /// What the check asks for: note, restart_job, fence_gpu, reset_gpu, drain_node, reboot_node
    /// [default: note]
    #[arg(long, conflicts_with = "xid")]
    action: Option<HealthAction>,
    /// What the check says
    #[arg(long, conflicts_with = "xid")]
    text: Option<String>,
    /// On real devices, too
    #[arg(long)]
    real: bool,
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub struct ResolveArgs {
    #[arg(value_name = "NODE")]
    node: String,
    /// Only what was found on this GPU
    #[arg(long, value_name = "N")]
    gpu: Option<u16>,
    /// Only the finding with this key
    #[arg(long)]
    key: Option<String>,
    /// Lift fences without checking the GPUs first
    #[arg(long)]
    unchecked: bool,
    #[arg(long)]
    json: bool,
}

pub fn inject(cluster: Option<&str>, args: InjectArgs) -> Result<ExitCode, Fail> {
    let request = InjectRequest {
        gpu: args.gpu,
        xid: args.xid,
        action: args.action,
        check: args.check,
        text: args.text,
        real: args.real,
    };
    let board = session::open(cluster)?.inject(&args.node, &request)?;
    told(&board, args.json, |f| format!("{}: {} ({})", args.node, harmless(&f.text), f.in_words()))
}

pub fn resolve(cluster: Option<&str>, args: ResolveArgs) -> Result<ExitCode, Fail> {
    let request = ResolveRequest { gpu: args.gpu, key: args.key, unchecked: args.unchecked };
    let board = session::open(cluster)?.resolve(&args.node, &request)?;
    if board.touched.is_empty() && board.active.is_none() && !args.json {
        terminal::complain(&format!("{}: {}", args.node, nothing(&board.findings)));
    }
    told(&board, args.json, |f| format!("{}: resolved: {}", args.node, harmless(&f.text)))?;
    let stays = board.active.as_deref().map(not_passed).unwrap_or_default();
    for why in stays.values() {
        terminal::complain(&format!("{}: stays fenced: {}", args.node, harmless(why)));
    }
    if stays.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    terminal::complain(&format!(
        "`tutti nodes resolve {} --unchecked` lifts a fence without a check",
        args.node
    ));
    Ok(ExitCode::FAILURE)
}

/// What stands although something was to be resolved.
fn nothing(findings: &[Finding]) -> String {
    let keys: Vec<String> = findings.iter().map(|f| harmless(&f.key)).collect();
    match keys.as_slice() {
        [] => "there was nothing to resolve".to_owned(),
        keys => format!("nothing was resolved; there are: {}", keys.join(", ")),
    }
}

fn told(board: &Board, json: bool, words: impl Fn(&Finding) -> String) -> Result<ExitCode, Fail> {
    if json {
        terminal::json(board)?;
    } else {
        board.touched.iter().for_each(|f| terminal::complain(&words(f)));
    }
    Ok(ExitCode::SUCCESS)
}
