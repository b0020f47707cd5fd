//! `tutti cancel`: jobs by their ids, or all that a filter finds; with a signal instead, or at once.

use std::io::{BufRead, Write};
use std::process::ExitCode;

use tutti_model::{JobState, Role, TaskId};
use tutti_wire::api::{JobQuery, JobRow};
use tutti_wire::client::{Client, ClientError};

use super::ps::{pages, states, tasks_of};
use crate::fail::Fail;
use crate::show::{count, harmless, thousands};
use crate::{session, terminal};

/// Rows of the list that is shown before it is done.
const LISTED: usize = 20;
const FOUND_MAX: u32 = 100_000;

#[derive(clap::Args)]
#[command(override_usage = "tutti cancel [OPTIONS] ID...\n       \
    tutti cancel [OPTIONS] --user USER|--name TEXT|--state STATES|--team TEAM")]
#[command(group = clap::ArgGroup::new("which").multiple(true).required(true)
    .args(["ids", "user", "name", "state", "team"]))]
pub struct CancelArgs {
    /// Jobs: 12, or 12_3 for one task of an array
    #[arg(value_name = "ID", conflicts_with_all = ["user", "name", "state", "team"])]
    ids: Vec<TaskId>,
    /// All of this user's that have not ended; filters are as in tutti ps, and all of them must fit
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Those with this in their name
    #[arg(long, value_name = "TEXT")]
    name: Option<String>,
    /// Those in these states, comma separated
    #[arg(long, value_name = "STATES", value_parser = states)]
    state: Option<String>,
    #[arg(long, value_name = "TEAM", help = "Those of this team")]
    team: Option<String>,
    /// Only send this signal (USR1, TERM, ...); the job goes on unless it ends of it
    #[arg(long, short = 's', value_name = "SIG", conflicts_with = "now")]
    signal: Option<String>,
    /// Kill at once: no SIGTERM, no grace, nothing is saved
    #[arg(long)]
    now: bool,
    /// Do not ask, however many there are
    #[arg(long, short = 'y')]
    yes: bool,
}

/// What is done to each.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Deed {
    Cancel,
    Kill,
    Signal(String),
}

impl Deed {
    fn of(args: &CancelArgs) -> Deed {
        match &args.signal {
            Some(signal) => Deed::Signal(signal.clone()),
            None if args.now => Deed::Kill,
            None => Deed::Cancel,
        }
    }

    fn run(&self, client: &Client, id: TaskId) -> Result<(), ClientError> {
        match self {
            Deed::Cancel => client.cancel(id).map(drop),
            Deed::Kill => client.kill(id).map(drop),
            Deed::Signal(signal) => client.signal(id, signal).map(drop),
        }
    }

    /// `cancelled 12`.
    fn done(&self, what: &str) -> String {
        match self {
            Deed::Cancel => format!("cancelled {what}"),
            Deed::Kill => format!("killed {what}"),
            Deed::Signal(signal) => format!("sent {} to {what}", harmless(signal)),
        }
    }

    fn ask(&self, jobs: &str) -> String {
        match self {
            Deed::Cancel => format!("cancel these {jobs}?"),
            Deed::Kill => format!("kill these {jobs} at once?"),
            Deed::Signal(signal) => format!("send {} to these {jobs}?", harmless(signal)),
        }
    }
}

/// Every job is tried; the first failure decides the exit code.
pub fn run(cluster: Option<&str>, args: CancelArgs) -> Result<ExitCode, Fail> {
    let client = session::open(cluster)?;
    let deed = Deed::of(&args);
    if !args.ids.is_empty() {
        // Who named them knows them: what was done is no list for programs.
        let named = args.ids.iter().map(|&id| (id, id.to_string()));
        return Ok(each(&client, &deed, named, terminal::complain));
    }
    let found = find(&client, &args)?;
    if found.is_empty() {
        terminal::complain("tutti: no job fits");
        return Ok(ExitCode::SUCCESS);
    }
    if found.len() > 1 && !args.yes && terminal::stdin_is_terminal() && !agreed(&deed, &found)? {
        terminal::complain("nothing was done");
        return Ok(ExitCode::FAILURE);
    }
    let named = found.iter().map(|row| (row.id, words(row)));
    Ok(each(&client, &deed, named, terminal::say))
}

fn each(
    client: &Client,
    deed: &Deed,
    jobs: impl Iterator<Item = (TaskId, String)>,
    tell: impl Fn(&str),
) -> ExitCode {
    let mut worst = None;
    for (id, what) in jobs {
        match deed.run(client, id) {
            Ok(()) => tell(&deed.done(&what)),
            Err(error) => {
                let code = Fail::from(error).report();
                worst = worst.or(Some(code));
            }
        }
    }
    worst.unwrap_or(ExitCode::SUCCESS)
}

/// `12 (train of ada, running)`.
fn words(row: &JobRow) -> String {
    let (name, user) = (harmless(&row.name), harmless(&row.user));
    format!("{} ({name} of {user}, {})", row.id, row.state.as_str())
}

/// All that fit. Who is no admin means their own.
fn find(client: &Client, args: &CancelArgs) -> Result<Vec<JobRow>, Fail> {
    let info = client.cluster_info()?;
    let own = (info.role < Role::Admin).then_some(info.user);
    let query = JobQuery {
        user: args.user.clone().or(own),
        team: args.team.clone(),
        name: args.name.clone(),
        state: Some(args.state.clone().unwrap_or_else(|| "active".to_owned())),
        ..JobQuery::default()
    };
    let page = pages(client, query, Some(FOUND_MAX))?;
    let mut found = Vec::new();
    for row in page.jobs.into_iter().filter(|row| !row.state.is_final()) {
        match (&row.array, &args.state) {
            (Some(_), Some(state)) if !fits_whole(&row, state) => {
                found.extend(tasks(client, &row, state)?);
            }
            _ => found.push(row),
        }
    }
    Ok(found)
}

/// Every task of the array that has not ended is in one of these states.
fn fits_whole(row: &JobRow, states: &str) -> bool {
    let wants = |state: JobState| states.split(',').any(|s| s == state.as_str() || s == "active");
    row.array.as_ref().is_none_or(|counts| {
        let live = [
            (counts.pending, wants(JobState::Pending)),
            (counts.running, wants(JobState::Running)),
            (counts.suspended, wants(JobState::Suspended)),
        ];
        live.iter().all(|(n, wanted)| *n == 0 || *wanted)
    })
}

/// The tasks of an array that are in these states, where others are not. Those that wait have no rows
/// of their own.
fn tasks(client: &Client, row: &JobRow, states: &str) -> Result<Vec<JobRow>, Fail> {
    let wanted = JobQuery { state: Some(states.to_owned()), ..JobQuery::default() };
    let (each, rest): (Vec<JobRow>, Vec<JobRow>) = tasks_of(client, row.id.job, wanted, FOUND_MAX)?
        .jobs
        .into_iter()
        .partition(|task| task.id.index.is_some());
    if !rest.is_empty() {
        terminal::warn(&format!(
            "the pending tasks of array {0} stay, since others of it run: `tutti cancel {0}` stops all of it",
            row.id
        ));
    }
    Ok(each)
}

fn agreed(deed: &Deed, found: &[JobRow]) -> Result<bool, Fail> {
    found.iter().take(LISTED).for_each(|row| terminal::complain(&format!("  {}", words(row))));
    if found.len() > LISTED {
        let more = thousands((found.len() - LISTED) as u64);
        terminal::complain(&format!("  and {more} more"));
    }
    let jobs = count(found.len() as u64, "job");
    let unreadable = |e: std::io::Error| Fail::new(format!("can't ask: {e}"));
    let mut stderr = std::io::stderr();
    write!(stderr, "{} [y/N] ", deed.ask(&jobs)).map_err(unreadable)?;
    stderr.flush().map_err(unreadable)?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).map_err(unreadable)?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::jobs::tests::row;
    use tutti_wire::api::ArrayCounts;

    #[test]
    fn an_array_goes_as_a_whole_only_if_all_of_it_is_meant() {
        let array = |pending, running| JobRow {
            array: Some(ArrayCounts { pending, running, failed: 3, ..ArrayCounts::default() }),
            ..row("12", JobState::Running)
        };
        assert!(fits_whole(&array(5, 0), "pending"));
        assert!(!fits_whole(&array(5, 1), "pending"));
        assert!(fits_whole(&array(5, 1), "pending,running"));
        assert!(fits_whole(&array(5, 1), "active"));
        assert!(fits_whole(&row("12", JobState::Running), "running"));
    }

    #[test]
    fn what_was_done_is_told() {
        let row = row("12", JobState::Running);
        assert_eq!(Deed::Cancel.done(&words(&row)), "cancelled 12 (train of ada, running)");
        assert_eq!(Deed::Kill.ask("7 jobs"), "kill these 7 jobs at once?");
        assert_eq!(Deed::Signal("USR1".into()).done("12"), "sent USR1 to 12");
    }
}
