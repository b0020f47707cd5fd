//! `tutti plan`: from a model and a cluster to a layout, a time and a price.
//!
//! ```text
//! model, --on ─► input, place ─┬─► train ─► show::plan, JSON, --write
//!                              ├─► serve (--task inference)
//!                              └─► which (--deadline, --budget)
//! job file ─► check ◄─ submit            predict ─► CSV
//! ```

pub mod check;
mod flags;
mod input;
mod list;
mod place;
mod predict;
mod serve;
#[cfg(test)]
mod tests;
mod train;
mod which;

use std::path::PathBuf;
use std::process::ExitCode;

use tutti_model::Span;
use tutti_planner::{NoPlan, Pins, Precision, Recompute, Sharding};

use super::job_args::word;
use crate::fail::{Fail, IMPOSSIBLE, USAGE};
use flags::Mode;

#[derive(clap::Args)]
#[command(override_usage = "tutti plan MODEL [--on CLUSTER] [OPTIONS]\n       \
    tutti plan MODEL --task inference [--on CLUSTER] [OPTIONS]\n       \
    tutti plan MODEL --tokens N --deadline TIME | --budget MONEY [OPTIONS]\n       \
    tutti plan --check FILE | --predict FILE | --list WHAT")]
#[command(
    after_help = "MODEL is a name (--list models), the path of a config.json, or left out for --layers, --hidden and so on.\n\
    CLUSTER is 16xdgx-h100, 128xh100 (--list clusters, --list gpus) or a TOML file; without it the running cluster.\n\nExamples:\n  \
    tutti plan llama-3.1-70b --on 16xdgx-h100 --tokens 2T --explain\n  \
    tutti plan llama-3.1-70b --task lora --on 8xa100 --batch 16 --write job --out job.toml\n  \
    tutti plan llama-3.1-8b --task inference --on 2xl40s --ttft 500ms --rps 20\n  \
    tutti plan llama-3.1-8b --tokens 1T --deadline 7d\n  \
    tutti plan --check job.toml"
)]
pub struct PlanArgs {
    /// A name, or the path of a config.json
    #[arg(value_name = "MODEL")]
    model: Option<String>,
    /// On what: 16xdgx-h100, 128xh100 or a TOML file [default: the running cluster]
    #[arg(long, value_name = "CLUSTER|FILE", allow_hyphen_values = true)]
    on: Option<String>,
    /// What is done with the model [default: pretrain]
    #[arg(long, value_enum)]
    task: Option<TaskArg>,
    /// Of the adapters of --task lora [default: 16]
    #[arg(
        long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536),
        allow_negative_numbers = true
    )]
    lora_rank: Option<u32>,
    /// Tokens of one sequence [default: 4096]
    #[arg(long, value_name = "TOKENS", value_parser = input::whole, allow_negative_numbers = true)]
    seq: Option<u64>,
    /// Sequences of one step, all GPUs together [default: 4 M tokens for pretrain, else 64 sequences, as the GPUs divide it]
    #[arg(
        long, value_name = "SEQUENCES", value_parser = input::whole, allow_negative_numbers = true
    )]
    batch: Option<u64>,
    /// fp16 bf16 fp8 mxfp8 nvfp4 [default: bf16]
    #[arg(long, value_name = "WORD", value_parser = word::<Precision>)]
    precision: Option<Precision>,
    /// Of the whole run: 300B, 2T, 1.5e12
    #[arg(long, value_name = "N", value_parser = input::amount, allow_hyphen_values = true)]
    tokens: Option<f64>,
    /// What the best layout is best at [default: time]
    #[arg(long, value_enum)]
    goal: Option<GoalArg>,
    /// Of one GPU for an hour [default: the list price, or the running cluster's]
    #[arg(long, value_name = "MONEY", value_parser = input::money, allow_negative_numbers = true)]
    price: Option<f64>,
    /// May leave GPUs idle if fewer do as well
    #[arg(long)]
    fewer: bool,
    /// Which cluster is done in this time: 7d
    #[arg(long, value_name = "TIME", value_parser = input::deadline, allow_hyphen_values = true)]
    deadline: Option<Span>,
    /// Which cluster is done first for this money: 50000
    #[arg(long, value_name = "MONEY", value_parser = input::budget, allow_negative_numbers = true)]
    budget: Option<f64>,
    /// Where time and memory go, which layouts lose and why, and what would change it
    #[arg(long)]
    explain: bool,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
    /// Print the plan for a program instead
    #[arg(long, value_enum, value_name = "PROGRAM")]
    write: Option<Program>,
    /// Into this file instead of stdout
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Time and memory of the runs in this CSV, as CSV
    #[arg(long, value_name = "RUNS.csv")]
    predict: Option<PathBuf>,
    /// Whether a job file's [plan] fits the GPUs that it asks for
    #[arg(long, value_name = "JOB.toml")]
    check: Option<PathBuf>,
    /// What can be named
    #[arg(long, value_enum, value_name = "WHAT")]
    list: Option<Listed>,
    /// Figures of these GPUs from tutti bench gpu --out
    #[arg(long, value_name = "FILE.json")]
    measured: Option<PathBuf>,
    // Last: their headings hold for all that comes after.
    #[command(flatten)]
    numbers: NumberArgs,
    #[command(flatten)]
    pins: PinArgs,
    #[command(flatten)]
    serving: ServingArgs,
}

// No comments of the form that clap takes for the help of the verb.
// A model without a name; what is left out is as in the Llama family.
#[derive(clap::Args, Default)]
#[command(next_help_heading = "A model by its numbers")]
pub struct NumberArgs {
    /// Transformer layers
    #[arg(long, value_name = "N", value_parser = input::degree, allow_negative_numbers = true)]
    layers: Option<u32>,
    /// Width of the residual stream
    #[arg(long, value_name = "N", value_parser = input::whole, allow_negative_numbers = true)]
    hidden: Option<u64>,
    /// Heads of attention [default: one for each 128 of --hidden]
    #[arg(long, value_name = "N", value_parser = input::degree, allow_negative_numbers = true)]
    heads: Option<u32>,
    /// Heads of keys and values [default: as many as --heads]
    #[arg(long, value_name = "N", value_parser = input::degree, allow_negative_numbers = true)]
    kv_heads: Option<u32>,
    /// Width of a head [default: --hidden over --heads]
    #[arg(long, value_name = "N", value_parser = input::whole, allow_negative_numbers = true)]
    head_dim: Option<u64>,
    /// Inner width of the MLP [default: 8/3 of --hidden]
    #[arg(long, value_name = "N", value_parser = input::whole, allow_negative_numbers = true)]
    ffn: Option<u64>,
    /// Tokens of the vocabulary [default: 128256]
    #[arg(long, value_name = "N", value_parser = input::whole, allow_negative_numbers = true)]
    vocab: Option<u64>,
}

impl NumberArgs {
    fn given(&self) -> bool {
        let small = [self.layers, self.heads, self.kv_heads].iter().any(Option::is_some);
        small || [self.hidden, self.head_dim, self.ffn, self.vocab].iter().any(Option::is_some)
    }
}

#[derive(clap::Args, Default)]
#[command(next_help_heading = "What the layout must have")]
pub struct PinArgs {
    /// Tensor parallelism
    #[arg(long, value_name = "N", value_parser = input::degree, allow_negative_numbers = true)]
    tp: Option<u32>,
    /// Pipeline stages
    #[arg(long, value_name = "N", value_parser = input::degree, allow_negative_numbers = true)]
    pp: Option<u32>,
    /// Model chunks on each stage
    #[arg(long, value_name = "N", value_parser = input::degree, allow_negative_numbers = true)]
    vp: Option<u32>,
    /// Context parallelism
    #[arg(long, value_name = "N", value_parser = input::degree, allow_negative_numbers = true)]
    cp: Option<u32>,
    /// Expert parallelism
    #[arg(long, value_name = "N", value_parser = input::degree, allow_negative_numbers = true)]
    ep: Option<u32>,
    /// Data parallelism
    #[arg(long, value_name = "N", value_parser = input::degree, allow_negative_numbers = true)]
    dp: Option<u32>,
    /// Sequences that pass a GPU at once
    #[arg(long, value_name = "N", value_parser = input::whole, allow_negative_numbers = true)]
    micro_batch: Option<u64>,
    /// Stage of ZeRO: 0 1 2 3
    #[arg(long, value_name = "STAGE", value_parser = input::zero, allow_negative_numbers = true)]
    zero: Option<Sharding>,
    /// What is computed again in the backward pass: none selective full
    #[arg(long, value_name = "WORD", value_parser = word::<Recompute>)]
    recompute: Option<Recompute>,
    /// Whether activations are cut along the sequence between tensor-parallel ranks
    #[arg(long, value_name = "BOOL")]
    sequence_parallel: Option<bool>,
}

#[derive(clap::Args, Default)]
#[command(next_help_heading = "With --task inference")]
pub struct ServingArgs {
    /// Tokens of a prompt [default: 1024]
    #[arg(long, value_name = "TOKENS", value_parser = input::whole, allow_negative_numbers = true)]
    prompt: Option<u64>,
    /// Tokens that are written for it [default: 256]
    #[arg(long, value_name = "TOKENS", value_parser = input::whole, allow_negative_numbers = true)]
    output: Option<u64>,
    /// The longest wait for the first token: 500ms
    #[arg(long, value_name = "TIME", value_parser = input::wait, allow_hyphen_values = true)]
    ttft: Option<Span>,
    /// The longest time of each further token: 50ms
    #[arg(long, value_name = "TIME", value_parser = input::wait, allow_hyphen_values = true)]
    tpot: Option<Span>,
    /// Requests that come in a second
    #[arg(long, value_name = "N", value_parser = input::money, allow_negative_numbers = true)]
    rps: Option<f64>,
}

impl PinArgs {
    fn pins(&self) -> Pins {
        Pins {
            tp: self.tp,
            pp: self.pp,
            vp: self.vp,
            cp: self.cp,
            ep: self.ep,
            dp: self.dp,
            micro_batch: self.micro_batch,
            sharding: self.zero,
            recompute: self.recompute,
            sequence_parallel: self.sequence_parallel,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum TaskArg {
    Pretrain,
    /// All weights are trained on
    Finetune,
    /// Adapters are trained, weights are frozen
    Lora,
    /// Serve it
    Inference,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum GoalArg {
    Time,
    Money,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Program {
    /// A job file for tutti submit
    Job,
    /// A TOML configuration
    Torchtitan,
    /// Options of Megatron-LM's pretrain_gpt.py
    Megatron,
    /// A JSON configuration
    Deepspeed,
    /// Options of vllm serve
    Vllm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Listed {
    Models,
    Clusters,
    Gpus,
}

pub fn run(cluster: Option<&str>, args: PlanArgs) -> Result<ExitCode, Fail> {
    match flags::check(cluster, &args)? {
        Mode::Train => train::run(cluster, &args)?,
        Mode::Serve => serve::run(cluster, &args)?,
        Mode::Which => which::run(&args)?,
        Mode::Predict => predict::run(&args)?,
        Mode::Check => check::run(cluster, &args)?,
        Mode::List => list::run(&args)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// What makes no sense is a mistake of whoever asks; what can't be had is not.
fn no_plan(why: &NoPlan) -> Fail {
    let exit = match why {
        NoPlan::Model(_) | NoPlan::Workload { .. } | NoPlan::Precision { .. } => USAGE,
        _ => IMPOSSIBLE,
    };
    Fail::new(why.to_string()).exit(exit)
}
