//! `tutti reservations`.

use std::process::ExitCode;

use tutti_model::{ReservationRow, ReservationState};

use crate::fail::Fail;
use crate::show::reservations;
use crate::show::table::terminal_width;
use crate::style::Style;
use crate::{session, terminal};

#[derive(clap::Args)]
pub struct ReservationsArgs {
    /// Those that are over as well
    #[arg(short, long)]
    all: bool,
    #[arg(long)]
    json: bool,
    /// Show again every second
    #[arg(long, conflicts_with = "json")]
    watch: bool,
}

pub fn run(cluster: Option<&str>, args: ReservationsArgs) -> Result<ExitCode, Fail> {
    let client = session::open(cluster)?;
    let rows = || -> Result<Vec<ReservationRow>, Fail> {
        let mut rows = client.reservations()?;
        rows.retain(|row| args.all || row.state != ReservationState::Over);
        Ok(rows)
    };
    if args.json {
        terminal::json(&rows()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let style = Style::of_stdout();
    let text = || Ok(reservations::table(&rows()?, session::now(&client), style, terminal_width()));
    if args.watch {
        return terminal::watch(text);
    }
    terminal::say(&text()?);
    Ok(ExitCode::SUCCESS)
}
