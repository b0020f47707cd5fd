//! `tutti logs`: of a job, of one task of an array, or of all of its tasks.

mod array;

use std::process::ExitCode;

use tutti_model::TaskId;
use tutti_wire::api::LogQuery;
use tutti_wire::client::Client;

use super::output::{Follow, Guard};
use super::run::say_why_it_waits;
use crate::fail::Fail;
use crate::session;

#[derive(clap::Args)]
pub struct LogsArgs {
    /// A job: 12, or 12_3 for one task of an array; of an array, what all of its tasks wrote
    id: TaskId,
    /// Only these ranks: 0 or 0-3,7
    #[arg(long, value_name = "RANKS")]
    rank: Option<String>,
    /// Go on until the job has ended
    #[arg(long, short = 'f')]
    follow: bool,
    /// Only the last N lines of each rank
    #[arg(long, short = 'n', value_name = "N")]
    tail: Option<u32>,
    /// Which attempt, counted from 1 [default: the newest]
    #[arg(long, value_name = "N")]
    attempt: Option<u32>,
    /// Put the time before each line
    #[arg(long, short = 't')]
    timestamps: bool,
    /// Let the terminal obey every escape sequence of the job, not only colours; pipes get every byte
    /// as it is, always
    #[arg(long)]
    raw: bool,
}

impl LogsArgs {
    fn of<'c>(&self, client: &'c Client, id: TaskId) -> Follow<'c> {
        let query = LogQuery {
            rank: self.rank.clone(),
            attempt: self.attempt,
            follow: self.follow,
            tail: self.tail,
        };
        Follow {
            client,
            id,
            query,
            timestamps: self.timestamps,
            guard: if self.raw { Guard::NONE } else { Guard::terminals() },
            patient: self.follow,
        }
    }
}

pub fn run(cluster: Option<&str>, args: LogsArgs) -> Result<ExitCode, Fail> {
    let client = session::open(cluster)?;
    let is_array = args.id.index.is_none() && is_array(&client, &args)?;
    if args.follow {
        say_why_it_waits(&client, args.id);
    }
    if is_array {
        array::run(&client, &args)?;
    } else {
        args.of(&client, args.id).run()?;
    }
    Ok(ExitCode::SUCCESS)
}

fn is_array(client: &Client, args: &LogsArgs) -> Result<bool, Fail> {
    match client.job(args.id) {
        Ok(job) => Ok(job.row.array.is_some()),
        // Who follows waits for it.
        Err(e) if e.is_unreachable() && args.follow => Ok(false),
        Err(e) => Err(e.into()),
    }
}
