//! One job: how it stands, its ranks with the slowest marked, why it waits, and everything else.

use ratatui::text::{Line, Span};
use tutti_model::TaskId;

use super::super::app::App;
use super::super::data::{Found, FoundJob};
use super::super::ranks::{RankLine, ranks};
use super::super::text::{bar, left, level, power, ranges, wrap};
use super::super::theme::{busy_ink, job_mark};
use super::table::{Column, Table, column, growing, number};
use super::word;
use crate::show::table::{Field, plain};
use crate::show::{count, harmless, job, thousands, time, why};
use crate::style::{Ink, Style, of_job};

const RANKS: &[Column] = &[
    number("RANK", 5, 9),
    growing("NODE", 8, 8, 8),
    column("GPUS", 8, 5),
    column("BUSY", 17, 9),
    number("MEM", 4, 6),
    number("POWER", 6, 4),
    number("STEP", 9, 9),
    number("PACE", 7, 7),
    number("AGO", 5, 3),
    column("", 0, 9),
];
/// Characters for what GPUs do.
const PICTURE: usize = 12;
/// As wide as keys get.
const KEY: usize = 13;

pub fn lines(app: &App) -> Vec<Line<'static>> {
    let Some(id) = app.job else { return vec![Line::raw("  no job is open")] };
    match app.data.job(id) {
        None => vec![Line::raw(""), Line::raw(format!("  asking for job {id} …"))],
        Some(Found::Not { error }) => {
            vec![Line::raw(""), Line::from(word(app, Ink::Red, format!("  ! {}", harmless(error))))]
        }
        Some(Found::Job(found)) => whole(app, id, found),
    }
}

fn whole(app: &App, id: TaskId, found: &FoundJob) -> Vec<Line<'static>> {
    let mut lines = vec![title(app, found)];
    let facts = job::facts(&found.detail, &found.progress.history, app.there());
    // How it stands comes first, then its ranks, then what does not change.
    let first = |key: &str| matches!(key, "note" | "tasks" | "progress" | "last step" | "loss");
    let fact = |(key, value): &(&'static str, String)| self::fact(app, key, value);
    lines.extend(facts.iter().filter(|(key, _)| first(key)).flat_map(fact));
    if let Some(load) = app.data.job_load(id) {
        let now = super::super::data::activity(load)
            .map_or_else(String::new, |share| format!("{:.0}% busy, ", share * 100.0));
        let watts = load.power.map_or_else(String::new, |watts| power(watts, load.power_limit));
        let memory = super::super::text::memory(load.mem_used.0, load.mem.0);
        let several = count(load.gpus.into(), "GPU");
        lines.extend(self::fact(app, "now", &format!("{several}: {now}{memory}, {watts}")));
    }
    lines.extend(why_lines(app, found));
    lines.extend(rank_lines(app, found));
    lines.push(Line::raw(""));
    lines.extend(facts.iter().filter(|(key, _)| !first(key)).flat_map(fact));
    lines
}

fn title(app: &App, found: &FoundJob) -> Line<'static> {
    let row = &found.detail.row;
    let state = format!(" {} {} ", job_mark(row.state), row.state.as_str());
    Line::from(vec![
        word(app, Ink::Bold, format!(" job {}  {} ", row.id, harmless(&row.name))),
        word(app, of_job(row.state), state),
        Span::raw(format!(" {} of {}", count(row.gpus.into(), "GPU"), harmless(&row.user))),
    ])
}

fn fact(app: &App, key: &str, value: &str) -> Vec<Line<'static>> {
    let wide = usize::from(app.size.width).saturating_sub(KEY + 1);
    let mut lines = Vec::new();
    for (i, piece) in wrap(value, wide).into_iter().enumerate() {
        let key = left(if i == 0 { key } else { "" }, KEY - 2);
        lines.push(Line::from(vec![word(app, Ink::Dim, format!("  {key}")), Span::raw(piece)]));
    }
    lines
}

fn why_lines(app: &App, found: &FoundJob) -> Vec<Line<'static>> {
    let Some(explained) = &found.why else { return Vec::new() };
    let mut lines = vec![Line::raw("")];
    let wide = usize::from(app.size.width).saturating_sub(6);
    let text = why::explanation(explained, app.there(), Style::PLAIN);
    for line in text.lines() {
        // What is below a sentence stays below it.
        let indent = line.len() - line.trim_start().len();
        let pieces = wrap(line.trim_start(), wide.saturating_sub(indent));
        let blanks = " ".repeat(indent + 2);
        lines.extend(pieces.into_iter().map(|piece| Line::raw(format!("{blanks}{piece}"))));
    }
    lines
}

fn rank_lines(app: &App, found: &FoundJob) -> Vec<Line<'static>> {
    let ranks = ranks(&found.detail, &found.progress, &app.data.load.nodes);
    if ranks.is_empty() {
        return Vec::new();
    }
    let table = Table {
        columns: RANKS,
        sorted: ("", false),
        rows: ranks.iter().map(row).collect(),
        selected: None,
    };
    let mut lines = vec![Line::raw("")];
    lines.extend(table.lines(app.size.width, app.theme));
    lines
}

/// Of one GPU a bar; of several, each of them.
fn picture(rank: &RankLine, percent: u8) -> String {
    match rank.each.len() {
        2..=PICTURE => {
            let cells = rank.each.iter().map(|busy| busy.map_or('?', level)).collect::<String>();
            left(&cells, PICTURE)
        }
        _ => bar(f32::from(percent) / 100.0, PICTURE),
    }
}

fn row(rank: &RankLine) -> Vec<Field> {
    let dash = || plain("-");
    let last = match (&rank.exit, rank.mark) {
        (Some(exit), _) => plain(format!("exited: {exit}")),
        (None, Some(mark)) => (mark.to_owned(), Ink::Red),
        (None, None) => plain(""),
    };
    vec![
        plain(rank.rank.to_string()),
        plain(rank.node.clone()),
        if rank.gpus.is_empty() { dash() } else { plain(ranges(&rank.gpus)) },
        rank.busy.map_or_else(dash, |percent| {
            (format!("{} {percent}%", picture(rank, percent)), busy_ink(percent))
        }),
        rank.mem.map_or_else(dash, |percent| plain(format!("{percent}%"))),
        rank.power.map_or_else(dash, |watts| plain(power(watts as f32, None))),
        rank.step.map_or_else(dash, |step| plain(thousands(step))),
        rank.pace.map_or_else(dash, |pace| plain(pace.fine().to_string())),
        rank.age.map_or_else(dash, |age| plain(time::short(age))),
        last,
    ]
}
