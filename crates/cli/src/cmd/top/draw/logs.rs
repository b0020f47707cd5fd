//! A job's log.

use ratatui::text::{Line, Span};

use super::super::app::App;
use super::super::logs::LogLine;
use super::super::text::{clip, from_column};
use super::{sides, word};
use crate::show::{harmless, thousands};
use crate::style::{Ink, of_rank};
use crate::terminal::safe::without_colours;

pub fn lines(app: &App) -> Vec<Line<'static>> {
    let logs = &app.logs;
    let height = app.logs_height();
    let first = logs.first(height);
    let mut lines = vec![about(app, first, height)];
    for i in first..(first + height).min(logs.len()) {
        if let Some(line) = logs.get(i) {
            lines.push(self::line(app, i, &line));
        }
    }
    lines
}

fn about(app: &App, first: usize, height: usize) -> Line<'static> {
    let logs = &app.logs;
    let id = logs.id.map_or_else(|| "-".to_owned(), |id| id.to_string());
    let ranks = logs
        .ranks
        .as_ref()
        .map_or_else(|| "all ranks".to_owned(), |ranks| format!("ranks {}", clip(ranks, 20)));
    let mut left = vec![word(app, Ink::Bold, format!(" log of job {id}, {ranks}"))];
    if let Some(search) = &logs.search {
        left.push(word(app, Ink::Yellow, format!(" · '{}'", clip(search, 20))));
    }
    if !logs.status.is_empty() {
        let room = usize::from(app.size.width).saturating_sub(60).max(28);
        left.push(word(app, Ink::Yellow, format!(" · {}", clip(&logs.status, room))));
    }
    let last = (first + height).min(logs.len());
    let (dropped, all) = (logs.dropped, logs.len() as u64 + logs.dropped);
    let place =
        format!("{}–{} of {}", first as u64 + dropped + 1, last as u64 + dropped, thousands(all));
    let place = if logs.len() == 0 { "nothing yet".to_owned() } else { place };
    let follow = if logs.follow { " following" } else { "" };
    sides(left, vec![Span::raw(format!("{place}{follow} "))], app.size.width)
}

fn line(app: &App, i: usize, line: &LogLine) -> Line<'static> {
    let mut spans = Vec::new();
    if app.logs.several {
        spans.push(word(app, of_rank(line.rank), format!("[{}]", line.rank)));
    }
    // Where it was written to, without colour too.
    spans.push(word(app, Ink::Red, if line.err { "!" } else { " " }));
    let text = harmless(&without_colours(line.text.trim_end_matches('\r')).replace('\t', "    "));
    let text = from_column(&text, app.logs.left);
    if !app.logs.matches(&line.text) {
        spans.push(Span::raw(text.to_owned()));
        return Line::from(spans);
    }
    let needle = app.logs.search.as_deref().unwrap_or_default().to_lowercase();
    spans.extend(found(app, text, &needle));
    let mark = if app.logs.is_found(i) { "›" } else { " " };
    spans.insert(0, word(app, Ink::Bold, mark));
    Line::from(spans)
}

/// The text with what was looked for set apart.
fn found(app: &App, text: &str, needle: &str) -> Vec<Span<'static>> {
    let small = text.to_lowercase();
    // Where small letters are of other lengths, places differ: then the whole line is set apart.
    if small.len() != text.len() || needle.is_empty() {
        return vec![Span::styled(text.to_owned(), app.theme.found())];
    }
    let mut spans = Vec::new();
    let mut from = 0;
    for (at, _) in small.match_indices(needle) {
        let (Some(before), Some(hit)) = (text.get(from..at), text.get(at..at + needle.len()))
        else {
            return vec![Span::styled(text.to_owned(), app.theme.found())];
        };
        spans.push(Span::raw(before.to_owned()));
        spans.push(Span::styled(hit.to_owned(), app.theme.found()));
        from = at + needle.len();
    }
    spans.push(Span::raw(text.get(from..).unwrap_or_default().to_owned()));
    spans
}
