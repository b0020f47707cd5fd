//! `tutti train`: one rank of the reference trainer. In a gang it finds the others by itself;
//! outside of one it is alone.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use tutti_checkpoint::{Keep, Writer};
use tutti_collectives::{Choice, Config, World};
use tutti_model::{Bytes, count};
use tutti_trainer::run::{SavedReport, Started, StepReport, Why};
use tutti_trainer::{
    CheckpointOptions, CopiesOptions, Device, Ended, Event, Layout, ModelConfig, OptimConfig,
    Precision, RunError, RunOptions, TrainConfig, device,
};

use crate::fail::{Fail, PEER_FAILED, USAGE, chain};

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Dtype {
    F32,
    /// Products in bf16; weights, moments and sums stay f32
    Bf16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Where {
    Cpu,
    Cuda,
}

#[derive(clap::Args)]
#[command(
    after_help = "Signals: USR1 and TERM save at the end of the step and leave, with 128 + the signal.\n\n\
    Examples:\n  tutti train --steps 100                          one rank, the built-in text\n  \
    tutti run -N 4 -G 2 -- tutti train --tp 2 --pp 2 --checkpoint /ckpt/a\n  \
    tutti train --data book.txt --checkpoint out --every 50 --json"
)]
pub struct TrainArgs {
    /// A text, learnt by bytes; - is standard input [default: a small one that is built in]
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    #[arg(long, default_value_t = 200)]
    steps: u64,
    /// Ranks that see different data [default: what --tp and --pp leave]
    #[arg(long)]
    dp: Option<usize>,
    /// Ranks that share each matrix; neighbours, best inside a node
    #[arg(long, default_value_t = 1)]
    tp: usize,
    /// Stages of the pipeline
    #[arg(long, default_value_t = 1)]
    pp: usize,
    /// Layers of each stage, if not even
    #[arg(long, value_name = "N,N,...", value_delimiter = ',')]
    stages: Option<Vec<usize>>,
    /// ZeRO-1: divide the optimiser's state between the data ranks
    #[arg(long)]
    zero: bool,
    #[arg(long, default_value_t = 4)]
    layers: usize,
    #[arg(long, default_value_t = 128)]
    dim: usize,
    #[arg(long, default_value_t = 4)]
    heads: usize,
    /// Heads of keys and values [default: as many as --heads]
    #[arg(long)]
    kv_heads: Option<usize>,
    /// Width of the MLP [default: three times --dim]
    #[arg(long)]
    ffn: Option<usize>,
    /// A head of its own, instead of the transposed embedding
    #[arg(long)]
    untied: bool,
    /// Tokens of a sequence
    #[arg(long, default_value_t = 128)]
    seq: usize,
    /// Sequences of a step, over all ranks
    #[arg(long, default_value_t = 8)]
    batch: usize,
    /// Sequences that a rank works on at a time [default: 1 in a pipeline, else all of its own]
    #[arg(long)]
    micro_batch: Option<usize>,
    #[arg(long, default_value_t = 3e-3)]
    lr: f64,
    /// Steps until the learning rate has its full height
    #[arg(long, default_value_t = 10)]
    warmup: u64,
    #[arg(long, default_value_t = 0.1)]
    weight_decay: f64,
    /// Largest norm of all gradients together; 0 does not clip
    #[arg(long, default_value_t = 1.0)]
    clip: f64,
    #[arg(long, default_value_t = 0)]
    seed: u64,
    #[arg(long, value_enum, default_value = "f32")]
    dtype: Dtype,
    #[arg(long, value_enum, default_value = "cpu")]
    device: Where,
    /// Keep less in memory: run each layer again for its gradients
    #[arg(long)]
    recompute: bool,
    /// Gradients are exchanged in pieces of about so many MiB
    #[arg(long, default_value_t = 25, value_name = "MIB")]
    bucket: usize,
    /// Where checkpoints are; goes on from the newest one
    #[arg(long, value_name = "DIR")]
    checkpoint: Option<String>,
    /// Steps between checkpoints; 0 saves at the end alone
    #[arg(long, default_value_t = 50, value_name = "K", requires = "checkpoint")]
    every: u64,
    /// Steps to go on with while a checkpoint is written: a failure may cost so many more
    #[arg(long, default_value_t = 0, value_name = "STEPS", requires = "checkpoint")]
    overlap: u64,
    /// How many of the newest checkpoints are kept; 0 keeps all
    #[arg(long, default_value_t = 3, value_name = "N", requires = "checkpoint")]
    keep: usize,
    /// DIR is a directory of each node's own: so many other nodes keep a copy of what a node saves
    #[arg(long, default_value_t = 0, value_name = "N", requires = "checkpoint")]
    copies: usize,
    /// A node takes copies until its DIR holds this much
    #[arg(long, default_value = "100GiB", value_name = "SIZE", requires = "copies")]
    copies_max: Bytes,
    /// Where the last checkpoint goes when the run ends or is asked to leave; a path that all nodes
    /// see, or a URL
    #[arg(long, value_name = "WHERE", requires = "copies")]
    durable: Option<String>,
    /// Save after this step and leave
    #[arg(long, value_name = "STEP")]
    stop_after: Option<u64>,
    /// Leave with 0 when a signal asks for it
    #[arg(long)]
    exit_on_signal: bool,
    /// Leave the first ten steps out of the figures, and print the speed alone
    #[arg(long)]
    bench: bool,
    /// Every rank prints its steps, not rank 0 alone
    #[arg(long)]
    all_ranks: bool,
    /// One JSON object per line
    #[arg(long)]
    json: bool,
}

/// Set by the handler of signals, read between steps.
static ASKED: AtomicBool = AtomicBool::new(false);
static SIGNAL: AtomicI32 = AtomicI32::new(0);

pub fn run(args: TrainArgs) -> Result<ExitCode, Fail> {
    super::log_to_stderr("warn");
    let mut peers = Config::from_env().map_err(|e| Fail::usage(e.to_string()))?;
    // A run that was disturbed must end with the very numbers of one that was not.
    peers.choice.get_or_insert(Choice::Fixed);
    let (config, layout) = plan(&args, peers.world)?;
    let kind = if args.device == Where::Cuda { Device::Cuda } else { Device::Cpu };
    let device = device::open(kind, peers.local_rank, config.precision)
        .map_err(|e| Fail::usage(e.to_string()))?;
    listen_to_signals()?;
    let options = RunOptions {
        data: args.data.clone().map(standard_input),
        checkpoint: checkpoint(&args, &peers)?,
        stop_after: args.stop_after,
        unmeasured: if args.bench { 10 } else { 1 },
        asked: &ASKED,
    };
    let mut show = Show { args: &args, rank: peers.rank, steps: config.steps };
    let world = World::connect(peers).map_err(|e| failed(&RunError::Peer(e)))?;
    let ended =
        tutti_trainer::run(config, layout, &world, device, &options, &mut |e| show.event(&e));
    match ended {
        Ok(ended) => Ok(exit(&ended, args.exit_on_signal)),
        Err(error) => Err(failed(&error)),
    }
}

fn checkpoint(args: &TrainArgs, peers: &Config) -> Result<Option<CheckpointOptions>, Fail> {
    if args.copies == 0 && args.durable.is_some() {
        return Err(Fail::usage("--durable is for checkpoints on the nodes, and needs --copies")
            .hint("a --checkpoint that all nodes share is durable already"));
    }
    let Some(location) = args.checkpoint.clone() else { return Ok(None) };
    let number = |name: &str| std::env::var(name).ok()?.parse().ok();
    Ok(Some(CheckpointOptions {
        copies: if args.copies > 0 { Some(copies(args, &location, peers)?) } else { None },
        location,
        every: args.every,
        overlap: args.overlap,
        keep: (args.keep > 0).then_some(Keep { last: args.keep, every: None }),
        writer: Writer::from_env(),
        durable: args.durable.clone(),
        known_step: number("TUTTI_RESUME_STEP"),
    }))
}

fn copies(args: &TrainArgs, location: &str, peers: &Config) -> Result<CopiesOptions, Fail> {
    if location.contains("://") {
        return Err(Fail::usage(format!(
            "--copies needs a directory of each node, not {location}"
        ))
        .hint("what is in an object store needs no copies"));
    }
    let key = peers.key.ok_or_else(|| {
        Fail::usage("--copies needs TUTTI_GANG_KEY, by which nodes know each other")
            .hint("tutti gives it to its jobs: tutti run -N 2 -- tutti train …")
    })?;
    let racks = std::env::var("TUTTI_RACKS").unwrap_or_default();
    Ok(CopiesOptions {
        count: args.copies,
        max_bytes: args.copies_max.0,
        bind: peers.bind,
        key,
        node: peers.node.clone(),
        node_rank: peers.node_rank,
        local_rank: peers.local_rank,
        racks: racks.split(',').map(str::to_owned).collect(),
    })
}

fn plan(args: &TrainArgs, world: usize) -> Result<(TrainConfig, Layout), Fail> {
    let usage = |e: &dyn std::fmt::Display| Fail::usage(e.to_string());
    let model = ModelConfig {
        layers: args.layers,
        dim: args.dim,
        heads: args.heads,
        kv_heads: args.kv_heads.unwrap_or(args.heads),
        ffn: args.ffn.unwrap_or(3 * args.dim),
        tied: !args.untied,
    };
    let dp = args.dp.unwrap_or(world / (args.tp * args.pp).max(1)).max(1);
    let own = (args.batch / dp).max(1);
    let config = TrainConfig {
        model,
        optim: OptimConfig {
            lr: args.lr,
            warmup: args.warmup,
            weight_decay: args.weight_decay,
            clip: args.clip,
            ..OptimConfig::default()
        },
        steps: args.steps,
        batch: args.batch,
        micro_batch: args.micro_batch.unwrap_or(if args.pp > 1 { 1 } else { own }),
        seq: args.seq,
        seed: args.seed,
        precision: if args.dtype == Dtype::Bf16 { Precision::Bf16 } else { Precision::F32 },
        recompute: args.recompute,
        bucket_bytes: args.bucket << 20,
    };
    config.check().map_err(|e| usage(&e))?;
    let sizes = (args.dp, args.tp, args.pp);
    let layout = Layout::new(world, sizes, args.zero, args.stages.clone(), &config);
    Ok((config, layout.map_err(|e| usage(&e))?))
}

fn standard_input(path: PathBuf) -> PathBuf {
    if path.as_os_str() == "-" { PathBuf::from("/dev/stdin") } else { path }
}

extern "C" fn on_signal(signal: i32) {
    SIGNAL.store(signal, Ordering::Relaxed);
    ASKED.store(true, Ordering::Relaxed);
}

fn listen_to_signals() -> Result<(), Fail> {
    let action =
        SigAction::new(SigHandler::Handler(on_signal), SaFlags::SA_RESTART, SigSet::empty());
    for signal in [Signal::SIGUSR1, Signal::SIGTERM] {
        // SAFETY: the handler stores two numbers and does nothing else.
        unsafe { sigaction(signal, &action) }
            .map_err(|e| Fail::new(format!("can't listen to {signal}: {e}")))?;
    }
    Ok(())
}

fn exit(ended: &Ended, zero: bool) -> ExitCode {
    if ended.why != Why::Asked || zero {
        return ExitCode::SUCCESS;
    }
    // Another rank may have been asked: then this one leaves as if it had been terminated.
    let signal = match SIGNAL.load(Ordering::Relaxed) {
        0 => Signal::SIGTERM as i32,
        signal => signal,
    };
    ExitCode::from(u8::try_from(128 + signal).unwrap_or(143))
}

fn failed(error: &RunError) -> Fail {
    let fail = Fail::new(chain(error));
    match error {
        RunError::Peer(peer) if peer.accused().is_some() => fail.exit(PEER_FAILED),
        RunError::Data(_) => fail.exit(USAGE),
        _ => fail,
    }
}

/// Prints what the run tells.
struct Show<'a> {
    args: &'a TrainArgs,
    rank: usize,
    steps: u64,
}

impl Show<'_> {
    fn event(&mut self, event: &Event) {
        if self.rank == 0 && matches!(event, Event::Started(_)) && self.args.device == Where::Cuda {
            note("the first step compiles and tries kernels: minutes, unless done here before");
        }
        if let (0, Event::Started(started)) = (self.rank, event) {
            started.warnings.iter().for_each(|line| note(&format!("warning: {line}")));
        }
        let silent = self.rank != 0 && !self.args.all_ranks;
        if silent || (self.args.bench && !matches!(event, Event::Ended(_))) {
            return;
        }
        if self.args.json {
            self.json(event);
            return;
        }
        match event {
            Event::Started(started) => note(&started_line(started)),
            Event::Step(report) => self.line(&step_line(report, self.steps)),
            Event::Saved(saved) => note(&saved_line(saved)),
            Event::Ended(ended) => self.ended(ended),
        }
    }

    fn json(&self, event: &Event) {
        let mut value = serde_json::to_value(event).expect("plain data becomes JSON");
        if let Some(object) = value.as_object_mut() {
            object.insert("rank".into(), self.rank.into());
        }
        self.line(&value.to_string());
    }

    fn ended(&self, ended: &Ended) {
        if self.args.bench {
            self.line(&format!("{:.0} tokens/s", ended.tokens_per_s));
            return;
        }
        for rank in &ended.ranks {
            let all = (rank.compute_s + rank.comm_s + rank.bubble_s).max(f64::MIN_POSITIVE);
            note(&format!(
                "rank {}: compute {:.0} %, communication {:.0} %, bubble {:.0} %",
                rank.rank,
                100.0 * rank.compute_s / all,
                100.0 * rank.comm_s / all,
                100.0 * rank.bubble_s / all,
            ));
        }
        note(&format!("{:.0} tokens/s", ended.tokens_per_s));
    }

    /// A reader that went away is not worth a run.
    fn line(&self, text: &str) {
        let _ = writeln!(std::io::stdout(), "{text}");
    }
}

fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn started_line(started: &Started) -> String {
    let Started { world, layout, parameters, step, steps, .. } = started;
    let from = if *step > 0 { format!(", going on after step {step}") } else { String::new() };
    let (ranks, steps) = (count(*world as u64, "rank"), count(*steps, "step"));
    format!("{parameters} parameters on {ranks}: {layout}; {steps}{from}")
}

fn step_line(report: &StepReport, steps: u64) -> String {
    format!(
        "step {}/{steps}  loss {:.4}  {:.0} tokens/s  {:.1} ms (compute {:.1}, communication {:.1}, bubble {:.1})",
        report.step,
        report.loss,
        report.tokens_per_s,
        report.step_ms,
        report.compute_ms,
        report.comm_ms,
        report.bubble_ms
    )
}

fn saved_line(saved: &SavedReport) -> String {
    let SavedReport { step, location, failed, warnings, .. } = saved;
    let mut text = match failed {
        None => format!("step {step} is saved in {location}"),
        Some(why) => format!("warning: step {step} was NOT saved: {why}"),
    };
    for warning in warnings {
        text.push_str(&format!("\n  {warning}"));
    }
    text
}

#[cfg(test)]
mod tests;
