//! A bare agent for the tests: `agent-for-tests DATA_DIR CONTROLLER NODE TOKEN [option...]`, with
//! the options `kill-jobs` and `cgroups`.

use std::path::PathBuf;

use tutti_agent::{AgentConfig, CgroupMode, Controller, LogLimits, Zygote, run};
use tutti_model::{Bytes, Gpu, GpuIndex, Span};

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
    let config = AgentConfig {
        join_token: Some(token.parse().expect("a join token")),
        gpus: (0..8).map(gpu).collect(),
        simulated: true,
        cgroups: if has("cgroups") { CgroupMode::On } else { CgroupMode::Auto },
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
