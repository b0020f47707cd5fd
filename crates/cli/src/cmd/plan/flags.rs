//! Which flags go with what is asked. A flag that would do nothing is refused: an answer to another question than was
//! asked is worse than none.

use super::{PlanArgs, Program, TaskArg};
use crate::cmd::sim::flags::explicit;
use crate::fail::Fail;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Train,
    Serve,
    Which,
    Predict,
    Check,
    List,
}

use Mode::{Check, List, Predict, Serve, Train, Which};

impl Mode {
    fn of(args: &PlanArgs) -> Mode {
        match args {
            _ if args.list.is_some() => List,
            _ if args.predict.is_some() => Predict,
            _ if args.check.is_some() => Check,
            _ if args.deadline.is_some() || args.budget.is_some() => Which,
            _ if args.task == Some(TaskArg::Inference) => Serve,
            _ => Train,
        }
    }

    /// What makes it this one.
    fn words(self) -> &'static str {
        match self {
            Train => "the plan of a training",
            Serve => "--task inference",
            Which => "--deadline and --budget",
            Predict => "--predict",
            Check => "--check",
            List => "--list",
        }
    }
}

type Flag = (&'static str, bool, &'static [Mode]);

const PLANS: &[Mode] = &[Train, Serve, Which];

fn flags(cluster: bool, args: &PlanArgs) -> [Flag; 37] {
    let (p, n) = (&args.pins, &args.numbers);
    [
        ("MODEL", args.model.is_some(), PLANS),
        ("a model by its numbers", n.given(), PLANS),
        ("--cluster", cluster, &[Train, Serve, Check]),
        ("--on", args.on.is_some(), &[Train, Serve, Check]),
        ("--task", args.task.is_some(), PLANS),
        ("--lora-rank", args.lora_rank.is_some(), &[Train, Which]),
        ("--seq", args.seq.is_some(), &[Train, Which]),
        ("--batch", args.batch.is_some(), &[Train, Which]),
        ("--precision", args.precision.is_some(), PLANS),
        ("--tokens", args.tokens.is_some(), &[Train, Which]),
        ("--goal", args.goal.is_some(), &[Train]),
        ("--price", args.price.is_some(), &[Train, Serve]),
        ("--tp", p.tp.is_some(), &[Train, Serve]),
        ("--pp", p.pp.is_some(), &[Train, Serve]),
        ("--vp", p.vp.is_some(), &[Train]),
        ("--cp", p.cp.is_some(), &[Train]),
        ("--ep", p.ep.is_some(), &[Train]),
        ("--dp", p.dp.is_some(), &[Train]),
        ("--micro-batch", p.micro_batch.is_some(), &[Train]),
        ("--zero", p.zero.is_some(), &[Train]),
        ("--recompute", p.recompute.is_some(), &[Train]),
        ("--sequence-parallel", p.sequence_parallel.is_some(), &[Train]),
        ("--fewer", args.fewer, &[Train]),
        ("--deadline", args.deadline.is_some(), &[Which]),
        ("--budget", args.budget.is_some(), &[Which]),
        ("--explain", args.explain, &[Train]),
        ("--json", args.json, &[Train, Serve, Which, Check, List]),
        ("--write", args.write.is_some(), &[Train, Serve]),
        ("--out", args.out.is_some(), &[Train, Serve, Predict]),
        ("--predict", args.predict.is_some(), &[Predict]),
        ("--check", args.check.is_some(), &[Check]),
        ("--measured", args.measured.is_some(), &[Train, Serve]),
        ("--prompt", args.serving.prompt.is_some(), &[Serve]),
        ("--output", args.serving.output.is_some(), &[Serve]),
        ("--ttft", args.serving.ttft.is_some(), &[Serve]),
        ("--tpot", args.serving.tpot.is_some(), &[Serve]),
        ("--rps", args.serving.rps.is_some(), &[Serve]),
    ]
}

/// `cluster` is the value of `--cluster` or its variable.
pub fn check(cluster: Option<&str>, args: &PlanArgs) -> Result<Mode, Fail> {
    one_question(args)?;
    let mode = Mode::of(args);
    let named = explicit(cluster).is_some();
    for (flag, given, modes) in flags(named, args) {
        if given && !modes.contains(&mode) {
            return Err(foreign(flag, mode, modes));
        }
    }
    pairs(named, args)?;
    model(mode, args)?;
    written(mode, args)?;
    if mode == Which && args.task == Some(TaskArg::Inference) {
        return Err(Fail::usage("--deadline and --budget are for trainings, not for inference")
            .hint("--rps says how much a server must do"));
    }
    if mode == Which && args.tokens.is_none() {
        return Err(Fail::usage("how long a run takes and costs depends on --tokens")
            .hint("say how many tokens it is trained on: --tokens 1T"));
    }
    if args.lora_rank.is_some() && args.task != Some(TaskArg::Lora) {
        return Err(Fail::usage("--lora-rank does nothing without --task lora"));
    }
    if args.pins.sequence_parallel == Some(true) && args.pins.tp == Some(1) {
        return Err(Fail::usage("--sequence-parallel true does nothing with --tp 1")
            .hint("it cuts activations between tensor-parallel ranks: --tp 2 or more"));
    }
    Ok(mode)
}

/// Each of these asks for something else than the plan of a training.
fn one_question(args: &PlanArgs) -> Result<(), Fail> {
    let which = if args.deadline.is_some() { "--deadline" } else { "--budget" };
    let questions = [
        ("--check", args.check.is_some()),
        ("--predict", args.predict.is_some()),
        ("--list", args.list.is_some()),
        (which, args.deadline.is_some() || args.budget.is_some()),
    ];
    let mut asked = questions.iter().filter(|(_, given)| *given).map(|(flag, _)| flag);
    match (asked.next(), asked.next()) {
        (Some(one), Some(other)) => {
            Err(Fail::usage(format!("{one} and {other} are questions of their own"))
                .hint("ask one at a time"))
        }
        _ => Ok(()),
    }
}

fn foreign(flag: &str, mode: Mode, modes: &[Mode]) -> Fail {
    let takes: Vec<&str> = modes.iter().map(|m| m.words()).collect();
    Fail::usage(format!("{flag} does nothing with {}", mode.words()))
        .hint(format!("it is for {}", takes.join(", ")))
}

/// Of which one says what the other says, or all that it says.
fn pairs(cluster: bool, args: &PlanArgs) -> Result<(), Fail> {
    let numbers = args.numbers.given();
    let found = [
        ("MODEL", args.model.is_some(), "a model by its numbers", numbers, "leave out one of them"),
        (
            "--on",
            args.on.is_some(),
            "--cluster",
            cluster,
            "--cluster is a running cluster, --on need not run",
        ),
        (
            "--deadline",
            args.deadline.is_some(),
            "--budget",
            args.budget.is_some(),
            "give one of them",
        ),
        ("--json", args.json, "--write", args.write.is_some(), "--write has a form of its own"),
        ("--explain", args.explain, "--json", args.json, "--json has all of it"),
        (
            "--explain",
            args.explain,
            "--write",
            args.write.is_some(),
            "--write prints the plan alone",
        ),
    ];
    match found.into_iter().find(|(_, one, _, other, _)| *one && *other) {
        Some((one, _, other, _, hint)) => {
            Err(Fail::usage(format!("{one} and {other} do not go together")).hint(hint))
        }
        None => Ok(()),
    }
}

fn model(mode: Mode, args: &PlanArgs) -> Result<(), Fail> {
    let none = args.model.is_none() && !args.numbers.given();
    if none && PLANS.contains(&mode) {
        return Err(Fail::usage("which model?").hint(
            "tutti plan llama-3.1-8b, tutti plan path/config.json, or --layers 32 --hidden 4096; \
             --list models names those that are known",
        ));
    }
    Ok(())
}

fn written(mode: Mode, args: &PlanArgs) -> Result<(), Fail> {
    let wrong = |what: &str, hint: &str| Err(Fail::usage(what).hint(hint));
    match (mode, args.write) {
        (Train, Some(Program::Vllm)) => {
            wrong("--write vllm is for --task inference", "vLLM does not train")
        }
        (Serve, Some(Program::Vllm)) | (Train, Some(_)) => Ok(()),
        (Serve, Some(_)) => wrong("only --write vllm serves a model", "the others train"),
        (Predict, None) => Ok(()),
        _ if args.out.is_some() => {
            wrong("--out does nothing without --write or --predict", "shell: tutti plan … > FILE")
        }
        _ => Ok(()),
    }
}
