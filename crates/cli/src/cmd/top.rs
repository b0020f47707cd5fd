//! `tutti top`: the cluster in a terminal.
//!
//! The model (`app`) is changed by `update` alone and drawn by `draw` alone; both are pure. Around them
//! are threads that read keys, ask the controller for what is on the screen, and follow one log. The
//! screen never waits for the network.
//!
//! ```text
//!  keys ───────┐                       ┌─► draw ─► terminal, at most 4 times a second
//!  signals ────┼─► Msg ─► App::update ─┤
//!  fetch ──────┤                       └─► Effect, Wanted ─► fetch, logs
//!  logs ───────┘
//! ```

mod app;
mod cells;
mod data;
mod draw;
mod fetch;
mod filter;
mod follow;
mod keys;
mod list;
mod logs;
mod once;
mod ranks;
mod screen;
mod sort;
mod text;
mod theme;

use std::process::ExitCode;

use tutti_model::{Span, TaskId};

use crate::fail::Fail;
use crate::style::colour_wanted;
use crate::{session, terminal};
use app::{App, View};
use theme::Theme;

/// Nothing is legible on less.
pub const MIN: Size = Size { width: 80, height: 24 };
/// A frame for a pipe, which has no size.
const PIPE: Size = Size { width: 120, height: 40 };

#[derive(clap::Args)]
pub struct TopArgs {
    /// Open this job: 12, or 12_3 for one task of an array
    #[arg(value_name = "ID", conflicts_with = "view")]
    job: Option<TaskId>,
    /// What to show first
    #[arg(long, value_enum, default_value = "cluster")]
    view: FirstView,
    /// Only these jobs or nodes: part of the name, user:ada, team:vision, state:failed
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    filter: String,
    /// Ask this often, unless the answers take too long for that
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = every)]
    every: Span,
    /// Print one frame as plain text and end
    #[arg(long)]
    once: bool,
    /// How large that frame is [default: the terminal, or 120x40]
    #[arg(long, value_name = "WxH", requires = "once", value_parser = size)]
    size: Option<Size>,
    /// Print what the frame is made of as JSON and end
    #[arg(long, conflicts_with = "once")]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum FirstView {
    Cluster,
    Jobs,
    Nodes,
}

/// Of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub width: u16,
    pub height: u16,
}

fn size(text: &str) -> Result<Size, String> {
    let bad = || format!("'{text}' is no size: write columns and rows, such as 120x40");
    let (width, height) = text.split_once('x').ok_or_else(bad)?;
    let number = |text: &str| text.parse().ok().filter(|n| (1..=2000).contains(n)).ok_or_else(bad);
    let size = Size { width: number(width)?, height: number(height)? };
    if size.width < MIN.width || size.height < MIN.height {
        return Err(format!("{text} is too small: it takes {}x{}", MIN.width, MIN.height));
    }
    Ok(size)
}

fn every(text: &str) -> Result<Span, String> {
    let span: Span = text.parse().map_err(|e| format!("{e}"))?;
    match span.0 {
        250..=3_600_000 => Ok(span),
        _ => Err(format!("{text} is not between 250ms and 1h")),
    }
}

pub fn run(cluster: Option<&str>, args: TopArgs) -> Result<ExitCode, Fail> {
    let client = session::open(cluster)?;
    let terminal_size = screen::size();
    let plain = args.once || args.json;
    let theme = Theme { colour: !plain && colour_wanted() };
    let size = args.size.or(terminal_size.filter(|_| terminal::stdout_is_terminal()));
    let mut app = App::new(theme, size.unwrap_or(PIPE), args.every);
    match (args.job, args.view) {
        (Some(id), _) => app.open_job(id),
        (None, FirstView::Cluster) => app.view = View::Cluster,
        (None, FirstView::Jobs) => app.view = View::Jobs,
        (None, FirstView::Nodes) => app.view = View::Nodes,
    }
    app.filter(&args.filter);
    if plain {
        return once::run(&client, app, args.json);
    }
    if !terminal::stdout_is_terminal() || std::env::var_os("TERM").is_some_and(|t| t == "dumb") {
        return Err(Fail::usage("tutti top needs a terminal, and this is none")
            .hint("--once prints one frame as text, --json what it is made of"));
    }
    screen::run(&client, app)
}

#[cfg(test)]
mod tests;
