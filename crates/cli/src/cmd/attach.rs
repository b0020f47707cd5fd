//! `tutti attach`. Ctrl-C leaves; the job goes on.

use std::process::ExitCode;

use tutti_model::TaskId;
use tutti_wire::api::LogQuery;

use super::output::{Follow, Guard, forward_stdin};
use super::run::{conclude, say_why_it_waits};
use crate::fail::Fail;
use crate::{session, terminal};

#[derive(clap::Args)]
pub struct AttachArgs {
    /// A job: 12, or 12_3 for one task of an array
    id: TaskId,
    /// Start with the last N lines of each rank
    #[arg(long, short = 'n', value_name = "N", default_value = "10")]
    tail: u32,
    /// Leave standard input alone
    #[arg(long)]
    no_stdin: bool,
    /// Let the terminal obey every escape sequence of the job, not only colours
    #[arg(long)]
    raw: bool,
}

pub fn run(cluster: Option<&str>, args: AttachArgs) -> Result<ExitCode, Fail> {
    let client = session::open(cluster)?;
    let job = client.job(args.id)?;
    if job.row.state.is_final() {
        return Err(Fail::new(format!("job {} has ended", args.id))
            .hint(format!("tutti logs {} shows what it wrote", args.id)));
    }
    if job.spec.stdin && !args.no_stdin {
        forward_stdin(&client, args.id);
    }
    say_why_it_waits(&client, args.id);
    if terminal::stderr_is_terminal() {
        terminal::complain(&format!("attached to job {}; Ctrl-C leaves it running", args.id));
    }
    let query = LogQuery { follow: true, tail: Some(args.tail), ..LogQuery::default() };
    let guard = if args.raw { Guard::NONE } else { Guard::terminals() };
    let id = args.id;
    let follow = Follow { client: &client, id, query, timestamps: false, guard, patient: true };
    let end = follow.run()?;
    conclude(&client, args.id, &end)
}
