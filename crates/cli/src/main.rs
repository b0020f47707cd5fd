//! `tutti`: controller, agent and command line in one binary.
//!
//! One file per verb under `cmd/`; what it prints is made by pure functions under `show/`; the
//! cluster is found and spoken to through `session`; processes of `tutti up` are in `local`. No
//! verb decides anything about jobs: that is the controller's engine.
//!
//! ```text
//! args ─► cmd::* ─► session ─► controller        cmd::up ─► local ─► tutti controller, agent, router
//!            └────► show ─► stdout                cmd::{controller,agent,router} ─► their crates
//! ```

mod args;
mod cmd;
mod fail;
mod file;
mod local;
mod session;
mod show;
mod style;
mod terminal;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Verb};

fn main() -> ExitCode {
    let cli = Cli::try_parse().unwrap_or_else(|error| cmd::hints::exit(&error));
    let cluster = match std::env::var("TUTTI_CLUSTER") {
        Ok(named) => cli.cluster(Some(named)),
        Err(std::env::VarError::NotPresent) => cli.cluster(None),
        // Not some other cluster instead.
        Err(error) => return fail::Fail::usage(format!("TUTTI_CLUSTER: {error}")).report(),
    };
    // `wait` has a limit of its own, which is for the jobs.
    let timeout = cli.timeout.filter(|_| !matches!(cli.verb, Verb::Wait(_)));
    if let Err(fail) = session::set_timeout(timeout) {
        return fail.report();
    }
    // The agent forks its zygote before anything else, while the process has a single thread.
    let result = match cli.verb {
        Verb::Agent(args) => cmd::agent::run(cluster, args),
        Verb::Controller(args) => cmd::controller::run(cluster.as_deref(), args),
        Verb::Router(args) => cmd::router::run(cluster.as_deref(), args),
        verb => {
            terminal::die_quietly_on_closed_pipe();
            client(cluster.as_deref(), verb)
        }
    };
    match result {
        Ok(code) => code,
        Err(fail) => fail.report(),
    }
}

fn client(cluster: Option<&str>, verb: Verb) -> Result<ExitCode, fail::Fail> {
    match verb {
        Verb::Up(args) => cmd::up::run(cluster, args),
        Verb::Down(args) => cmd::down::run(cluster, args),
        Verb::Restore(args) => cmd::restore::run(cluster, args),
        Verb::Submit(args) => cmd::submit::run(cluster, args),
        Verb::Serve(args) => cmd::serve::run(cluster, args),
        Verb::Endpoints(args) => cmd::endpoints::run(cluster, args),
        Verb::Run(args) => cmd::run::run(cluster, args),
        Verb::Ps(args) => cmd::ps::run(cluster, args),
        Verb::Show(args) => cmd::show::run(cluster, args),
        Verb::Progress(args) => cmd::progress::run(args),
        Verb::Why(args) => cmd::why::run(cluster, args),
        Verb::Logs(args) => cmd::logs::run(cluster, args),
        Verb::Attach(args) => cmd::attach::run(cluster, args),
        Verb::Exec(args) => cmd::exec::run(cluster, args),
        Verb::Cancel(args) => cmd::cancel::run(cluster, args),
        Verb::Update(args) => cmd::update::run(cluster, args),
        Verb::Wait(args) => cmd::wait::run(cluster, args),
        Verb::Hold(args) => cmd::change::run(cluster, cmd::change::Change::Hold, args),
        Verb::Release(args) => cmd::change::run(cluster, cmd::change::Change::Release, args),
        Verb::Nodes(args) => cmd::nodes::run(cluster, args),
        Verb::Top(args) => cmd::top::run(cluster, args),
        Verb::Drain(args) => cmd::drain::drain(cluster, args),
        Verb::Suspend(args) => cmd::change::run(cluster, cmd::change::Change::Suspend, args),
        Verb::Resume(args) => cmd::drain::resume(cluster, args),
        Verb::Alerts(args) => cmd::alerts::run(cluster, args),
        Verb::Quota(args) => cmd::quota::run(cluster, args),
        Verb::Report(args) => cmd::report::run(cluster, args),
        Verb::Reservations(args) => cmd::reservations::run(cluster, args),
        Verb::Plan(args) => cmd::plan::run(cluster, *args),
        Verb::Policy(args) => cmd::policy::run(cluster, args),
        Verb::Token(args) => cmd::token::run(cluster, args),
        Verb::Doctor(args) => cmd::doctor::run(cluster, args),
        Verb::Ckpt(args) => cmd::ckpt::run(cluster, args),
        Verb::Sim(args) => cmd::sim::run(cluster, args),
        Verb::Train(args) => cmd::train::run(*args),
        Verb::Infer(args) => cmd::infer::run(*args),
        Verb::Bench(args) => cmd::bench::run(cluster, args),
        Verb::BenchRank(args) => cmd::bench::rank::run(args),
        Verb::BenchGpuRank => cmd::bench::gpu::rank::run(),
        Verb::Demo(args) => cmd::demo::run(args),
        Verb::Launch(args) => cmd::helper::launch(args),
        Verb::Cuda(args) => cmd::cuda::run(args),
        Verb::Rsh(args) => cmd::helper::rsh(args),
        Verb::Completions(args) => cmd::generate::completions(args),
        Verb::Man(args) => cmd::generate::man(args),
        Verb::Agent(_) | Verb::Controller(_) | Verb::Router(_) => unreachable!("handled in main"),
    }
}
