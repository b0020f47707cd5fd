//! `tutti wait`: until jobs have ended.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use tutti_model::{Span, TaskId};
use tutti_wire::api::JobRow;
use tutti_wire::client::Client;

use super::submit::exit_code;
use crate::fail::{Fail, job_exit};
use crate::show::harmless;
use crate::{session, terminal};

/// As of timeout(1).
const TIMED_OUT: u8 = 124;
/// One job is asked for in a question that is answered when it ends, several in turn.
const LONG: u32 = 15;
const EVERY: Duration = Duration::from_secs(1);

#[derive(clap::Args)]
#[command(
    after_help = "Exits with the job's own code; of several with the first that is not 0, in the order in which \
    they are named; with\n--any with the code of the job that ended first; with 124 if the time is over before."
)]
pub struct WaitArgs {
    /// Jobs: 12, or 12_3 for one task of an array
    #[arg(required = true, value_name = "ID")]
    ids: Vec<TaskId>,
    /// Only until one of them has ended
    #[arg(long)]
    any: bool,
    /// Not longer than this [default: as long as it takes]
    #[arg(long, value_name = "TIME")]
    timeout: Option<Span>,
    /// Print what became of each as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(cluster: Option<&str>, args: WaitArgs) -> Result<ExitCode, Fail> {
    let client = session::open(cluster)?;
    let deadline = args.timeout.map(|span| Instant::now() + Duration::from_millis(span.0));
    let mut ended: Vec<JobRow> = Vec::new();
    let mut open = args.ids.clone();
    // A wrong id is said before anybody waits for the others.
    for &id in &args.ids {
        look(&client, id, 0)?;
    }
    while !open.is_empty() {
        let mut left = Vec::new();
        for &id in &open {
            let seconds = if open.len() == 1 { seconds_left(deadline) } else { 0 };
            match look(&client, id, seconds)? {
                Some(row) => {
                    if !args.json {
                        terminal::say(&words(&row));
                    }
                    ended.push(row);
                    if args.any {
                        return finish(&args, &ended);
                    }
                }
                None => left.push(id),
            }
        }
        open = left;
        if deadline.is_some_and(|at| Instant::now() >= at) && !open.is_empty() {
            return over(&args, &open, &ended);
        }
        if open.len() > 1 {
            let pause = deadline.map_or(EVERY, |at| EVERY.min(at - Instant::now().min(at)));
            std::thread::sleep(pause);
        }
    }
    finish(&args, &ended)
}

/// How long the controller may hold its answer back.
fn seconds_left(deadline: Option<Instant>) -> u32 {
    let Some(at) = deadline else { return LONG };
    let left = at.saturating_duration_since(Instant::now()).as_secs_f64().ceil();
    (left as u32).min(LONG)
}

/// The row of a job that has ended. A controller that is away is waited for: jobs run on without it.
fn look(client: &Client, id: TaskId, seconds: u32) -> Result<Option<JobRow>, Fail> {
    match client.wait(id, seconds) {
        Ok(row) => Ok(Some(row).filter(|row| row.state.is_final())),
        Err(e) if e.is_unreachable() => {
            std::thread::sleep(EVERY);
            Ok(None)
        }
        Err(e) => Err(e.into()),
    }
}

/// `12 failed (exit 3): rank 0 exited with 3`.
fn words(row: &JobRow) -> String {
    let code = row.exit_code.map_or_else(String::new, |code| format!(" (exit {code})"));
    let note =
        if row.note.is_empty() { String::new() } else { format!(": {}", harmless(&row.note)) };
    format!("{} {}{code}{note}", row.id, row.state.as_str())
}

/// In the order in which they were named.
fn finish(args: &WaitArgs, ended: &[JobRow]) -> Result<ExitCode, Fail> {
    let rows: Vec<&JobRow> =
        args.ids.iter().filter_map(|id| ended.iter().find(|row| row.id == *id)).collect();
    if args.json {
        terminal::json(&rows)?;
    }
    let code = rows.iter().map(|row| exit_code(row)).find(|code| *code != 0);
    Ok(job_exit(code.unwrap_or(0)))
}

fn over(args: &WaitArgs, open: &[TaskId], ended: &[JobRow]) -> Result<ExitCode, Fail> {
    if args.json {
        terminal::json(&ended)?;
    }
    let open: Vec<String> = open.iter().map(ToString::to_string).collect();
    let span = args.timeout.unwrap_or_default();
    let have = if open.len() == 1 { "has" } else { "have" };
    terminal::complain(&format!("tutti: {} {have} not ended within {span}", open.join(", ")));
    Ok(ExitCode::from(TIMED_OUT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::jobs::tests::row;
    use tutti_model::JobState;

    #[test]
    fn the_first_bad_code_in_the_order_of_the_names_counts() {
        let args = |ids: &[&str]| WaitArgs {
            ids: ids.iter().map(|id| id.parse().unwrap()).collect(),
            any: false,
            timeout: None,
            json: false,
        };
        let ended = |id: &str, code| JobRow { exit_code: Some(code), ..row(id, JobState::Failed) };
        let fine = JobRow { exit_code: Some(0), ..row("3", JobState::Completed) };
        let all = [ended("2", 9), ended("1", 7), fine.clone()];
        let code = |args: &WaitArgs, rows: &[JobRow]| format!("{:?}", finish(args, rows).unwrap());
        assert_eq!(code(&args(&["3", "1", "2"]), &all), format!("{:?}", ExitCode::from(7)));
        assert_eq!(code(&args(&["3"]), &[fine]), format!("{:?}", ExitCode::SUCCESS));
        assert_eq!(words(&ended("2", 9)), "2 failed (exit 9)");
    }
}
