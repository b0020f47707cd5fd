//! `tutti why`.

use std::process::ExitCode;

use tutti_model::{JobState, TaskId};
use tutti_wire::api::JobRow;

use crate::fail::Fail;
use crate::show::why;
use crate::style::Style;
use crate::{session, terminal};

#[derive(clap::Args)]
pub struct WhyArgs {
    /// A job: 12, or 12_3 for one task of an array
    id: TaskId,
    #[arg(long)]
    json: bool,
}

pub fn run(cluster: Option<&str>, args: WhyArgs) -> Result<ExitCode, Fail> {
    let client = session::open(cluster)?;
    if args.json {
        terminal::json(&client.why(args.id)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let row = client.job(args.id)?.row;
    let asleep = row.state == JobState::Suspended && row.verdict.is_some();
    let waits = asleep
        || row.state == JobState::Pending
        || row.array.as_ref().is_some_and(|a| a.pending > 0);
    if waits {
        let explanation = client.why(args.id)?;
        terminal::say(&why::explanation(&explanation, session::now(&client), Style::of_stdout()));
    } else {
        terminal::say(&not_waiting(&row));
    }
    Ok(ExitCode::SUCCESS)
}

fn not_waiting(row: &JobRow) -> String {
    let note = if row.note.is_empty() { String::new() } else { format!(": {}", row.note) };
    format!("job {} does not wait, it is {}{note}", row.id, row.state.as_str())
}
