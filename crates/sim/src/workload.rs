//! Random jobs, and what becomes of each when it runs.

use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use tutti_model::{
    Command, DependOn, Dependency, ExitStatus, GpuRequest, JobId, JobSpec, Launcher, Priority,
    Retry, Span,
};

/// How a job behaves, written into its command so that any node can tell.
pub struct Fate {
    pub runs_for: Span,
    fails: u32,
    pub ignores_term: bool,
}

impl Fate {
    pub fn of(spec: &JobSpec) -> Fate {
        let Command::Argv(words) = &spec.run else {
            return Fate { runs_for: Span(0), fails: 0, ignores_term: false };
        };
        let number = |i: usize| words.get(i).and_then(|w| w.parse().ok()).unwrap_or(0);
        Fate { runs_for: Span(number(1)), fails: number(2) as u32, ignores_term: number(3) == 1 }
    }

    /// The first `fails` attempts fail.
    pub fn exit(&self, attempt: u32) -> ExitStatus {
        if attempt <= self.fails { ExitStatus::Code(3) } else { ExitStatus::Code(0) }
    }
}

/// A job that the simulated cluster could run, perhaps waiting for an older one.
pub fn random_spec(rng: &mut ChaCha8Rng, known: &[JobId], nodes: u32) -> JobSpec {
    let runs_for = rng.random_range(0..40_000u64);
    let fails = if rng.random_range(0..4) == 0 { rng.random_range(1..3u32) } else { 0 };
    let deaf = u32::from(rng.random_range(0..8) == 0);
    let words = ["sim".to_owned(), runs_for.to_string(), fails.to_string(), deaf.to_string()];
    let mut spec = JobSpec::new(Command::Argv(words.to_vec()));
    match rng.random_range(0..6) {
        0 => spec.gpus = Some(rng.random_range(1..=6)),
        1 => {}
        _ => {
            spec.nodes = Some(rng.random_range(1..=nodes.min(3)));
            let count = rng.random_range(0..=4);
            spec.gpus_per_node = Some(GpuRequest { model: None, count });
        }
    }
    if rng.random_range(0..3) == 0 {
        spec.launcher = Launcher::Torch;
    }
    if rng.random_range(0..5) == 0 {
        let last = rng.random_range(0..6);
        spec.array = format!("0-{last}%{}", rng.random_range(1..4)).parse().ok();
    }
    if rng.random_range(0..4) == 0 {
        spec.time = Some(Span::secs(rng.random_range(1..30)));
    }
    spec.priority = Priority(rng.random_range(-1..=1));
    spec.hold = rng.random_range(0..12) == 0;
    spec.retry = Retry {
        node_failure: [0, 1, 3, 1000][rng.random_range(0..4usize)],
        preemption: 10,
        job_failure: rng.random_range(0..3),
    };
    for _ in 0..rng.random_range(0..3usize) * usize::from(!known.is_empty()) {
        let job = known[rng.random_range(0..known.len())];
        let on = [DependOn::Ok, DependOn::Failed, DependOn::Any][rng.random_range(0..3usize)];
        spec.after.push(Dependency { job, on });
    }
    spec
}
