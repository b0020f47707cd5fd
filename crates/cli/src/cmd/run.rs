//! `tutti run`: as if the command ran here.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use tutti_model::{Command, JobSpec, JobState, TaskId};
use tutti_wire::api::{JobRow, LogQuery, Submit};
use tutti_wire::client::Client;
use tutti_wire::jobfile::Inherit;

use super::job_args::JobArgs;
use super::output::{End, Follow, Guard, forward_stdin};
use super::submit::exit_code;
use crate::fail::{Fail, job_exit};
use crate::show::harmless;
use crate::{session, terminal};

/// 128 + SIGINT.
pub(super) const INTERRUPTED: i32 = 130;

#[derive(clap::Args)]
#[command(override_usage = "tutti run [OPTIONS] -- CMD...")]
pub struct RunArgs {
    #[command(flatten)]
    job: JobArgs,
    /// Pass standard input on even from a terminal
    #[arg(long, short = 'i', conflicts_with = "no_stdin")]
    interactive: bool,
    /// Leave standard input alone
    #[arg(long)]
    no_stdin: bool,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

pub fn run(cluster: Option<&str>, args: RunArgs) -> Result<ExitCode, Fail> {
    let client = session::open(cluster)?;
    let mut spec = JobSpec::new(Command::Argv(args.command));
    args.job.apply(&mut spec, Inherit::Usual)?;
    spec.stdin = !args.no_stdin && (args.interactive || !terminal::stdin_is_terminal());
    let stdin = spec.stdin;

    let interrupts = Interrupts::watch(&client)?;
    let user = session::on_behalf(&client);
    let submit = Submit { spec, user, key: None };
    let submitted = client.submit(&submit).map_err(|e| session::perhaps_done(e, perhaps_runs))?;
    let id = submitted.id;
    submitted.warnings.iter().for_each(|w| terminal::warn(w));
    interrupts.of_job(id);
    if stdin {
        forward_stdin(&client, id);
    }
    if terminal::stderr_is_terminal() {
        say_why_it_waits(&client, id);
    }
    let query = LogQuery { follow: true, ..LogQuery::default() };
    // The command is the user's own, and its output as if it ran here.
    let guard = Guard::NONE;
    let follow = Follow { client: &client, id, query, timestamps: false, guard, patient: true };
    let end = follow.run()?;
    if end.exit_code.is_none() && interrupts.happened() {
        return Ok(job_exit(INTERRUPTED));
    }
    conclude(&client, id, &end)
}

/// Whose answer was lost: nobody would look at its output, or stop it.
pub(super) fn perhaps_runs() -> String {
    "the job may have been taken all the same: tutti ps shows it then, and tutti cancel ID ends it"
        .to_owned()
}

/// The job's code, and a word about an end that its own output does not explain.
pub fn conclude(client: &Client, id: TaskId, end: &End) -> Result<ExitCode, Fail> {
    if let (Some(JobState::Completed), Some(code)) = (end.state, end.exit_code) {
        return Ok(job_exit(code));
    }
    let row = client.job(id)?.row;
    let note =
        if row.note.is_empty() { String::new() } else { format!(": {}", harmless(&row.note)) };
    terminal::complain(&format!("tutti: job {id} {}{note}", row.state.as_str()));
    let exit_code = exit_code(&JobRow { exit_code: end.exit_code.or(row.exit_code), ..row });
    Ok(job_exit(exit_code))
}

/// The first Ctrl-C cancels the job, the second leaves at once.
pub(super) struct Interrupts {
    job: Arc<OnceLock<TaskId>>,
    happened: Arc<AtomicBool>,
}

impl Interrupts {
    /// Before any other thread exists, so that the signals stay blocked in all of them and only
    /// the watcher takes them.
    pub(super) fn watch(client: &Client) -> Result<Interrupts, Fail> {
        let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect();
        signals.thread_block().map_err(|e| Fail::new(format!("can't take over Ctrl-C: {e}")))?;
        let interrupts =
            Interrupts { job: Arc::default(), happened: Arc::new(AtomicBool::new(false)) };
        let (job, happened) = (interrupts.job.clone(), interrupts.happened.clone());
        let client = client.another();
        std::thread::spawn(move || {
            while signals.wait().is_ok() {
                let first = !happened.swap(true, Ordering::Relaxed);
                match job.get() {
                    Some(&id) if first => cancel(&client, id),
                    _ => std::process::exit(INTERRUPTED),
                }
            }
        });
        Ok(interrupts)
    }

    pub(super) fn of_job(&self, id: TaskId) {
        if self.job.set(id).is_err() {
            unreachable!("one job per run");
        }
    }

    pub(super) fn happened(&self) -> bool {
        self.happened.load(Ordering::Relaxed)
    }
}

fn cancel(client: &Client, id: TaskId) {
    terminal::complain(&format!("tutti: cancelling job {id}; Ctrl-C again leaves at once"));
    if let Err(e) = client.cancel(id) {
        terminal::complain(&Fail::from(e).to_string());
    }
}

/// Tells a person who waits what for; each reason once.
pub(super) fn say_why_it_waits(client: &Client, id: TaskId) {
    let client = client.another();
    std::thread::spawn(move || {
        let mut told = String::new();
        loop {
            // A job that starts at once waits for nothing.
            std::thread::sleep(Duration::from_secs(1));
            match client.job(id) {
                Ok(job) if job.row.state == JobState::Pending => {
                    if job.row.note != told {
                        told = job.row.note;
                        terminal::complain(&format!("tutti: job {id} waits: {}", harmless(&told)));
                    }
                }
                Ok(_) => return,
                Err(e) if e.is_unreachable() => {}
                Err(_) => return,
            }
        }
    });
}
