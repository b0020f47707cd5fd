//! One frame as text, or what it is made of as JSON.

use std::process::ExitCode;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use tutti_wire::client::Client;

use super::app::{App, Msg};
use super::data::Found;
use super::fetch::Fetcher;
use super::{draw, screen};
use crate::fail::Fail;
use crate::show::time;
use crate::terminal;

/// Answers lead to further questions: which nodes there are, then what those in sight do.
const ROUNDS: usize = 4;

pub fn run(client: &Client, mut app: App, json: bool) -> Result<ExitCode, Fail> {
    app.place = screen::place(client);
    let mut fetcher = Fetcher::new(client);
    for _ in 0..ROUNDS {
        let wanted = app.wanted();
        app.update(Msg::Tick(time::now()));
        app.update(Msg::News(Box::new(fetcher.round(&wanted)?)));
        if app.wanted() == wanted {
            break;
        }
    }
    if let Some(Found::Not { error }) = app.job.and_then(|id| app.data.job(id)) {
        return Err(Fail::new(error.clone()).exit(crate::fail::NOT_FOUND));
    }
    if let Some(why) = &app.data.jobs.refused {
        return Err(Fail::new(why.clone()).exit(crate::fail::NOT_FOUND));
    }
    if json {
        terminal::json(&app.data)?;
    } else {
        terminal::say(&frame(&app)?);
    }
    Ok(ExitCode::SUCCESS)
}

/// Without blanks at the ends of lines, and without empty lines at the end.
pub fn frame(app: &App) -> Result<String, Fail> {
    let backend = TestBackend::new(app.size.width, app.size.height);
    let bad = |e: std::convert::Infallible| Fail::new(format!("can't draw: {e}"));
    let mut terminal = Terminal::new(backend).map_err(bad)?;
    terminal.draw(|frame| draw::draw(app, frame)).map_err(bad)?;
    let buffer = terminal.backend().buffer();
    let lines = buffer.content().chunks(usize::from(app.size.width)).map(|cells| {
        let mut line = String::new();
        let mut covered = 0;
        for cell in cells {
            // A wide character covers the cell behind it.
            if covered > 0 {
                covered -= 1;
                continue;
            }
            line.push_str(cell.symbol());
            covered = super::text::width(cell.symbol()).saturating_sub(1);
        }
        line.trim_end().to_owned()
    });
    Ok(lines.collect::<Vec<_>>().join("\n").trim_end().to_owned())
}
