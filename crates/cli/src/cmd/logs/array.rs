//! What the tasks of an array wrote: one after the other, or side by side while they run.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tutti_model::TaskId;
use tutti_wire::api::{JobQuery, JobRow};
use tutti_wire::client::Client;

use super::LogsArgs;
use crate::cmd::ps::tasks_of;
use crate::fail::Fail;
use crate::show::{count, thousands};
use crate::terminal;

/// Tasks whose output is shown without being asked for one by one.
const TASKS_MAX: usize = 100;
/// Tasks that are followed at the same time: each is a stream and a thread.
const FOLLOWED_MAX: usize = 32;
/// Of one array, at a time.
const LOOKED_AT: u32 = 10_000;
const LOOK_AGAIN: Duration = Duration::from_secs(1);

pub fn run(client: &Client, args: &LogsArgs) -> Result<(), Fail> {
    // Of one that has ended nothing more comes: its tasks are better read one after the other.
    let over = || client.job(args.id).is_ok_and(|job| job.row.state.is_final());
    if args.follow && !over() { follow(client, args) } else { one_by_one(client, args) }
}

/// Those that started, by index.
fn started(client: &Client, id: TaskId) -> Result<Vec<TaskId>, Fail> {
    let page = tasks_of(client, id.job, JobQuery::default(), LOOKED_AT)?;
    let has_run = |row: &&JobRow| row.id.index.is_some() && row.started_at.is_some();
    let mut ids: Vec<TaskId> = page.jobs.iter().filter(has_run).map(|row| row.id).collect();
    ids.sort_by_key(|id| id.index);
    Ok(ids)
}

fn one_by_one(client: &Client, args: &LogsArgs) -> Result<(), Fail> {
    let tasks = started(client, args.id)?;
    if tasks.is_empty() {
        let row = client.job(args.id)?.row;
        let why = if row.note.is_empty() { row.state.as_str().to_owned() } else { row.note };
        terminal::complain(&format!("tutti: no task of {} has run: {why}", args.id));
        return Ok(());
    }
    for id in tasks.iter().take(TASKS_MAX) {
        args.of(client, *id).run_as(id.index)?;
    }
    if let Some(next) = tasks.get(TASKS_MAX) {
        terminal::complain(&left_out(tasks.len(), *next));
    }
    Ok(())
}

fn left_out(all: usize, next: TaskId) -> String {
    format!(
        "tutti: these are the first {TASKS_MAX} of {} that ran: `tutti logs {next}` shows the next one",
        count(all as u64, "task")
    )
}

/// Each in a thread, as it starts. Ends with the array.
fn follow(client: &Client, args: &LogsArgs) -> Result<(), Fail> {
    let running = AtomicUsize::new(0);
    let mut seen = BTreeSet::new();
    let mut told = false;
    std::thread::scope(|scope| {
        loop {
            // Before the look at the tasks, so that none that started before the end is missed.
            let over = match client.job(args.id) {
                Ok(job) => job.row.state.is_final(),
                Err(e) if e.is_unreachable() => false,
                Err(e) => return Err(e.into()),
            };
            let tasks = match started(client, args.id) {
                Err(fail) if fail.exit == crate::fail::UNREACHABLE => Vec::new(),
                tasks => tasks?,
            };
            let mut waiting = 0;
            for id in tasks.into_iter().filter(|id| !seen.contains(id)).collect::<Vec<_>>() {
                if running.load(Ordering::Relaxed) >= FOLLOWED_MAX {
                    waiting += 1;
                    continue;
                }
                seen.insert(id);
                running.fetch_add(1, Ordering::Relaxed);
                let (client, running) = (client.another(), &running);
                scope.spawn(move || {
                    let ended = args.of(&client, id).run_as(id.index);
                    if let Err(fail) = ended {
                        terminal::complain(&format!("tutti: {id}: {}", fail.message));
                    }
                    running.fetch_sub(1, Ordering::Relaxed);
                });
            }
            if waiting > 0 && !told {
                told = true;
                terminal::complain(&format!(
                    "tutti: {FOLLOWED_MAX} tasks are followed at a time; {} more wait for one of them to end",
                    thousands(waiting)
                ));
            }
            if over && waiting == 0 {
                return Ok(());
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_said_with_the_way_to_it() {
        let said = left_out(1_234, "12_100".parse().unwrap());
        let want = "tutti: these are the first 100 of 1,234 tasks that ran: `tutti logs 12_100` shows the next one";
        assert_eq!(said, want);
    }
}
