//! The flags of `tutti ckpt`.

use std::path::PathBuf;
use std::str::FromStr;

use tutti_model::{Span, TaskId};

use super::whereabouts::Whereabouts;

#[derive(clap::Args)]
#[command(
    after_help = "WHERE is a directory, a URL (s3://bucket/run, gs://…, az://…) or a job: then its \
    [checkpoint] dir, and what it has reported as saved.\n\nExamples:\n  \
    tutti ckpt ls /ckpt/run\n  \
    tutti ckpt verify s3://bucket/run 1200\n  \
    tutti ckpt rm /ckpt/run --keep-last 3 --keep-every 1000\n  \
    tutti ckpt restore 12 --to /tmp/model.safetensors --single\n  \
    tutti ckpt register /ckpt/run/checkpoint-500 --step 500\n  \
    tutti ckpt register 12 /ckpt/run/checkpoint-500 --step 500"
)]
pub struct CkptArgs {
    #[command(subcommand)]
    pub verb: CkptVerb,
}

#[derive(clap::Subcommand)]
pub enum CkptVerb {
    /// List checkpoints
    Ls {
        #[command(flatten)]
        at: Whereabouts,
        #[arg(long)]
        json: bool,
    },
    /// What one consists of
    Show {
        #[command(flatten)]
        at: Whereabouts,
        /// A step, or `latest`
        #[arg(default_value = "latest")]
        step: Which,
        /// List its tensors
        #[arg(long)]
        tensors: bool,
        #[arg(long)]
        json: bool,
    },
    /// Read every byte of every copy again and compare
    Verify(VerifyArgs),
    /// Keep checkpoints, whatever retention says
    Pin {
        #[command(flatten)]
        at: Whereabouts,
        #[arg(required = true, value_name = "STEP")]
        steps: Vec<u64>,
        /// Shown to who wants to remove it
        #[arg(long, default_value = "pinned by hand")]
        why: String,
    },
    /// Let retention have them again
    Unpin {
        #[command(flatten)]
        at: Whereabouts,
        #[arg(required = true, value_name = "STEP")]
        steps: Vec<u64>,
    },
    /// Remove checkpoints, and what dead attempts left behind
    Rm(RmArgs),
    /// Copy one out, every byte checked
    Restore(RestoreArgs),
    /// Make a directory that another framework wrote a checkpoint
    Register(RegisterArgs),
    /// How often a job should save
    Advise(AdviseArgs),
}

#[derive(clap::Args)]
pub struct VerifyArgs {
    #[command(flatten)]
    pub at: Whereabouts,
    /// [default: all of them]
    #[arg(value_name = "STEP")]
    pub steps: Vec<u64>,
    /// Write bad copies again from good ones
    #[arg(long)]
    pub mend: bool,
    #[arg(long)]
    pub json: bool,
}

#[derive(clap::Args)]
pub struct RmArgs {
    #[command(flatten)]
    pub at: Whereabouts,
    #[arg(value_name = "STEP", required_unless_present = "keep_last")]
    pub steps: Vec<u64>,
    /// Remove all but so many of the newest, and the pinned
    #[arg(long, value_name = "K", conflicts_with = "steps")]
    pub keep_last: Option<usize>,
    /// And but every step that is a multiple of this
    #[arg(long, value_name = "N", requires = "keep_last")]
    pub keep_every: Option<u64>,
    /// Also the newest one
    #[arg(long)]
    pub force: bool,
}

#[derive(clap::Args)]
pub struct RestoreArgs {
    #[command(flatten)]
    pub at: Whereabouts,
    /// A step, or `latest`: the newest that is whole
    #[arg(default_value = "latest")]
    pub step: Which,
    /// A directory or URL; with --single a file
    #[arg(long, value_name = "TO")]
    pub to: String,
    /// All tensors, whole, in one safetensors file
    #[arg(long)]
    pub single: bool,
}

#[derive(clap::Args)]
pub struct RegisterArgs {
    /// What the framework wrote, a directory or a file; before it, the job that shall go on from it
    #[arg(value_names = ["JOB", "DIR"], num_args = 1..=2, required = true)]
    pub what: Vec<String>,
    #[arg(long)]
    pub step: u64,
    /// Tell the job of it without looking: it can't be seen from here
    #[arg(long, conflicts_with = "location")]
    pub by_name: bool,
    /// Where the manifest goes, somewhere above the directory [default: right above it]
    #[arg(long = "in", value_name = "DIR")]
    pub location: Option<PathBuf>,
    #[arg(long)]
    pub json: bool,
}

#[derive(clap::Args)]
pub struct AdviseArgs {
    /// Its GPUs, save time and failures are used
    #[arg(value_name = "JOB", required_unless_present_all = ["save_time", "mtbf"])]
    pub job: Option<TaskId>,
    /// How long a save holds up the work
    #[arg(long, value_name = "TIME")]
    pub save_time: Option<Span>,
    /// Time between two failures of the job
    #[arg(long, value_name = "TIME")]
    pub mtbf: Option<Span>,
    /// From a failure until the work goes on
    #[arg(long, value_name = "TIME")]
    pub restart_time: Option<Span>,
    /// How often it saves now
    #[arg(long, value_name = "TIME")]
    pub every: Option<Span>,
    /// [default: the job's, else 1]
    #[arg(long)]
    pub gpus: Option<u32>,
    #[arg(long)]
    pub json: bool,
}

/// One checkpoint of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    Latest,
    Step(u64),
}

impl FromStr for Which {
    type Err = String;

    fn from_str(text: &str) -> Result<Which, String> {
        match text {
            "latest" => Ok(Which::Latest),
            _ => text.parse().map(Which::Step).map_err(|_| "a step, or latest".to_owned()),
        }
    }
}
