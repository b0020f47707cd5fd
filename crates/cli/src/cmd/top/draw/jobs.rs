//! The list of jobs.

use ratatui::text::{Line, Span};
use tutti_model::JobState;
use tutti_wire::api::JobRow;

use super::super::app::App;
use super::super::data::activity;
use super::super::filter::JobFilter;
use super::super::sort::JobSort;
use super::super::text::{clip, percent};
use super::super::theme::{busy_ink, job_mark};
use super::table::{Column, Table, column, growing, number};
use super::word;
use crate::show::jobs::{how_long, nodes, note, team};
use crate::show::table::{Field, plain};
use crate::show::{harmless, milli, progress, thousands, time};
use crate::style::{Ink, of_job};

const COLUMNS: &[Column] = &[
    number("ID", 7, 9),
    growing("NAME", 13, 9, 20),
    growing("USER", 8, 8, 4),
    column("TEAM", 9, 3),
    column("STATE", 11, 9),
    number("NODES", 5, 2),
    number("GPUS", 6, 7),
    number("TIME", 6, 6),
    number("BUSY", 5, 5),
    number("POWER", 7, 1),
    column("PROGRESS", 24, 1),
    column("NOTE", 0, 9),
];

pub fn lines(app: &App) -> Vec<Line<'static>> {
    let mut lines = vec![about(app)];
    let jobs = &app.jobs;
    let shown = app.job_rows().skip(jobs.list.offset).take(app.list_height());
    let rows: Vec<Vec<Field>> = shown.map(|job| row(app, job)).collect();
    let empty = rows.is_empty();
    let table = Table {
        columns: COLUMNS,
        sorted: (jobs.sort.column(), jobs.reverse),
        rows,
        selected: jobs.list.cursor.checked_sub(jobs.list.offset),
    };
    lines.extend(table.lines(app.size.width, app.theme));
    if empty {
        let hint = match (&app.data.jobs.refused, jobs.filter.is_empty(), jobs.ended) {
            (Some(why), ..) => why.as_str(),
            (None, false, _) => "no job is like that (esc takes the filter away)",
            (None, true, false) => "no jobs (a shows ended ones)",
            (None, true, true) => "no jobs",
        };
        lines.push(Line::raw(format!("  {}", harmless(hint))));
    }
    lines
}

/// How many there are, how they are sorted, what they are filtered by.
fn about(app: &App) -> Line<'static> {
    let jobs = &app.jobs;
    let known = app.data.jobs.rows.len();
    let place = if known == 0 { 0 } else { jobs.list.cursor + 1 };
    let more = if app.data.jobs.more { " and more" } else { "" };
    let mut spans = vec![Span::raw(format!(
        " {} of {}{more}",
        thousands(place as u64),
        thousands(known as u64)
    ))];
    if jobs.sort != JobSort::Usual || jobs.reverse {
        let order = if jobs.reverse { ", reversed" } else { "" };
        let by = match jobs.sort {
            JobSort::Usual => "as usual".to_owned(),
            sort => format!("by {}", sort.column().to_lowercase()),
        };
        let some = if app.data.jobs.more { " (of these)" } else { "" };
        spans.push(word(app, Ink::Cyan, format!(" · {by}{order}{some}")));
    }
    if !jobs.filter.is_empty() {
        spans.push(word(app, Ink::Cyan, format!(" · filter: {}", clip(&jobs.filter, 40))));
        let unknown = JobFilter::parse(&jobs.filter).unknown_state;
        spans.extend(unknown.map(|state| {
            word(app, Ink::Yellow, format!(" · no such state: {}", clip(&state, 20)))
        }));
    }
    spans.extend(jobs.ended.then(|| Span::raw(" · ended ones too")));
    spans.extend(jobs.tasks.then(|| Span::raw(" · each task")));
    Line::from(spans)
}

fn row(app: &App, job: &JobRow) -> Vec<Field> {
    let load = app.data.job_load(job.id);
    let busy = load.and_then(activity).map(|share| {
        let percent_of = (share * 100.0).round().clamp(0.0, 100.0) as u8;
        (percent(share), busy_ink(percent_of))
    });
    let dash = || plain("-");
    let watts = load.and_then(|load| load.power);
    let gpus = milli(u64::from(job.gpus) * u64::from(job.share.0));
    let far = job.progress.as_ref().map_or_else(|| "-".to_owned(), progress::short);
    let stalled = job.progress.as_ref().is_some_and(|p| p.stalled);
    let (text, ink) = note(job);
    let ink = if job.state == JobState::Pending || stalled { Ink::Yellow } else { ink };
    vec![
        plain(job.id.to_string()),
        plain(job.name.clone()),
        plain(job.user.clone()),
        plain(team(job)),
        (format!("{} {}", job_mark(job.state), job.state.as_str()), of_job(job.state)),
        plain(nodes(job)),
        plain(gpus),
        plain(time::short(how_long(job, app.there()))),
        busy.unwrap_or_else(dash),
        watts.map_or_else(dash, |watts| plain(super::super::text::power(watts, None))),
        (far, if stalled { Ink::Red } else { Ink::Plain }),
        (text, ink),
    ]
}
