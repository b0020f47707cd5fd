//! `tutti logs`.

use std::process::ExitCode;

use tutti_model::TaskId;
use tutti_wire::api::LogQuery;

use super::output::Follow;
use crate::fail::Fail;
use crate::session;

#[derive(clap::Args)]
pub struct LogsArgs {
    /// A job: 12, or 12_3 for one task of an array
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
}

pub fn run(cluster: Option<&str>, args: LogsArgs) -> Result<ExitCode, Fail> {
    let client = session::open(cluster)?;
    let query =
        LogQuery { rank: args.rank, attempt: args.attempt, follow: args.follow, tail: args.tail };
    let follow = Follow {
        client: &client,
        id: args.id,
        query,
        timestamps: args.timestamps,
        patient: args.follow,
    };
    follow.run()?;
    Ok(ExitCode::SUCCESS)
}
