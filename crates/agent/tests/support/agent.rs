//! A bare agent for the tests: `agent-for-tests DATA_DIR CONTROLLER NODE TOKEN [option...]`, with
//! the options `kill-jobs` and `cgroups`, or `real` with files that stand for GPUs: `gpu=/dev/loop0`.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tutti_agent::active::{Measured, Measurer};
use tutti_agent::{ActiveChecks, AgentConfig, Controller, IsolationMode, LogLimits, Zygote, run};
use tutti_gpu::active::Asked;
use tutti_gpu::holdings::{Holding, HoldingError, Holdings};
use tutti_model::{ActiveFigures, ActiveOutcome, ActiveSum, Wrong};
use tutti_model::{Bytes, Gpu, GpuFacts, GpuIndex, Hardware, Span};

/// Answers as a file says: "right", "wrong" or "not run", or waits while it says "wait". Each check
/// leaves a mark beside it.
#[derive(Debug)]
struct Answers(PathBuf);

impl Measurer for Answers {
    fn measure(&self, gpus: &[Asked]) -> Measured {
        let names: Vec<String> = gpus.iter().map(|g| g.gpu.to_string()).collect();
        let mark = File::options().append(true).create(true).open(self.0.with_extension("asked"));
        mark.and_then(|mut f| writeln!(f, "{}", names.join(" "))).expect("a mark can be left");
        let text = loop {
            let text = std::fs::read_to_string(&self.0).expect("the test writes it first");
            if text.trim() != "wait" {
                break text;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let mut figures = ActiveFigures::default();
        if text.trim() == "wrong" {
            figures.matmul.wrong = Wrong { count: 1, first: "row 5 of the product".into() };
        }
        let outcome = match text.trim() {
            "not run" => ActiveOutcome::NotRun { why: "no driver".into() },
            _ => ActiveOutcome::Done(figures),
        };
        let outcomes = gpus.iter().map(|g| (g.gpu, outcome.clone())).collect();
        Measured { outcomes, sum: ActiveSum::default() }
    }
}

/// A GPU that holds as many MiB as a file says. Each look leaves a mark beside it.
#[derive(Debug)]
struct FromFile(PathBuf);

impl Holdings for FromFile {
    fn of(&self, _: GpuIndex) -> Result<Holding, HoldingError> {
        let text = std::fs::read_to_string(&self.0).expect("the test writes it first");
        let mark = File::options().append(true).create(true).open(self.0.with_extension("looks"));
        mark.and_then(|mut file| writeln!(file, "{}", text.trim())).expect("a mark can be left");
        let used = Bytes(text.trim().parse::<u64>().expect("a number") << 20);
        Ok(Holding { used, ..Holding::default() })
    }
}

#[allow(clippy::print_stderr)]
fn main() {
    let zygote = Zygote::fork().expect("the zygote is forked before any thread");
    let args: Vec<String> = std::env::args().collect();
    let [_, data_dir, controller, node, token, options @ ..] = args.as_slice() else {
        panic!("usage: agent-for-tests DATA_DIR CONTROLLER NODE TOKEN [option...]");
    };
    let has = |name: &str| options.iter().any(|o| o == name);
    let gpu = |i| Gpu {
        index: GpuIndex(i),
        model: "h100".into(),
        uuid: format!("SIM-{i}"),
        mem: Bytes::gib(80),
        island: None,
    };
    let files = options.iter().filter_map(|option| option.strip_prefix("gpu="));
    let facts = |(i, file): (usize, &str)| GpuFacts {
        index: GpuIndex(i as u16),
        device_files: vec![file.to_owned()],
        ..GpuFacts::default()
    };
    let hardware = Hardware { gpus: files.enumerate().map(facts).collect(), ..Hardware::default() };
    let config = AgentConfig {
        join_token: Some(token.parse().expect("a join token")),
        gpus: (0..if has("real") { hardware.gpus.len() as u16 } else { 8 }).map(gpu).collect(),
        simulated: !has("real"),
        hardware: has("real").then(|| Box::new(hardware)),
        isolation: match () {
            () if has("required") => IsolationMode::Required,
            () if has("cgroups") => IsolationMode::On,
            () => IsolationMode::Auto,
        },
        pids: options.iter().find_map(|o| o.strip_prefix("pids=")?.parse().ok()).unwrap_or(10_000),
        holdings: options.iter().find_map(|o| o.strip_prefix("held=")).map(|file| {
            let holdings: Arc<dyn Holdings> = Arc::new(FromFile(file.into()));
            holdings
        }),
        // Devices that are files compute nothing.
        active_checks: if has("real") { ActiveChecks::Off } else { ActiveChecks::Auto },
        measurer: options.iter().find_map(|o| o.strip_prefix("checks=")).map(|file| {
            let measurer: Arc<dyn Measurer> = Arc::new(Answers(file.into()));
            measurer
        }),
        files: options.iter().filter_map(|o| o.strip_prefix("files=")).map(String::from).collect(),
        log_limits: LogLimits { segment_bytes: 64 << 10, segments: 4 },
        kill_jobs_on_term: has("kill-jobs").then_some(Span::millis(300)),
        ..AgentConfig::new(
            PathBuf::from(data_dir),
            Controller::Address(controller.clone()),
            node,
            "127.0.0.1",
        )
    };
    if let Err(error) = run(config, zygote) {
        let mut text = error.to_string();
        let mut next = std::error::Error::source(&error);
        while let Some(cause) = next {
            text = format!("{text}: {cause}");
            next = cause.source();
        }
        eprintln!("agent: {text}");
        std::process::exit(1);
    }
}
