//! `tutti hold`, `release` and `suspend`: one change to each of some jobs.

use std::process::ExitCode;

use tutti_model::{JobState, TaskId};

use crate::fail::Fail;
use crate::{session, terminal};

#[derive(clap::Args)]
pub struct ChangeArgs {
    /// Jobs: 12, or 12_3 for one task of an array
    #[arg(required = true, value_name = "ID")]
    ids: Vec<TaskId>,
}

#[derive(Clone, Copy)]
pub enum Change {
    Hold,
    Release,
    Suspend,
}

/// Every job is tried; the first failure decides the exit code.
pub fn run(cluster: Option<&str>, change: Change, args: ChangeArgs) -> Result<ExitCode, Fail> {
    let client = session::open(cluster)?;
    let mut worst = ExitCode::SUCCESS;
    let mut failed = false;
    for id in args.ids {
        let result = match change {
            Change::Hold => whole(id).and_then(|j| Ok(client.hold(j)?)),
            Change::Suspend => client.suspend(id).map_err(Fail::from),
            Change::Release => whole(id).and_then(|j| Ok(client.release(j)?)),
        };
        if let Err(fail) = result {
            let code = fail.report();
            if !failed {
                (worst, failed) = (code, true);
            }
            continue;
        }
        let done = match change {
            Change::Hold => held(id, client.job(id)?.row.state),
            Change::Release => format!("released {id}"),
            // Of one that lost its node, nothing is there any more but its place in the queue.
            Change::Suspend if client.job(id)?.row.state == JobState::Pending => {
                format!("{id} waits; `tutti resume {id}` lets it start")
            }
            Change::Suspend => format!("{id} leaves its GPUs; `tutti resume {id}` lets it go on"),
        };
        terminal::complain(&done);
    }
    Ok(worst)
}

/// A hold keeps a job from starting; it stops nothing.
fn held(id: TaskId, state: JobState) -> String {
    match state {
        JobState::Starting | JobState::Running => {
            format!("held {id}: it runs on, but would not start again by itself")
        }
        _ => format!("held {id}; `tutti release {id}` lets it start"),
    }
}

pub(super) fn whole(id: TaskId) -> Result<tutti_model::JobId, Fail> {
    match id.index {
        None => Ok(id.job),
        Some(_) => Err(Fail::usage(format!("{id} is one task; this takes whole jobs"))
            .hint(format!("write {}", id.job))),
    }
}
