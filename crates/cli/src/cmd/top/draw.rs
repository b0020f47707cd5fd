//! From the model to a frame. Pure: the same model gives the same frame.

mod cluster;
mod frame;
mod job;
mod jobs;
mod logs;
mod node;
mod nodes;
mod table;

use std::borrow::Cow;

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use tutti_model::text::{harmless, is_deceptive};

use super::app::{App, View};
use super::keys::HELP;
use super::text::left;
use super::{MIN, Size};
use crate::style::Ink;

pub fn draw(app: &App, frame: &mut Frame) {
    let area = frame.area();
    let buffer = frame.buffer_mut();
    if app.is_too_small() || area.width < MIN.width || area.height < MIN.height {
        return too_small(buffer, Size { width: area.width, height: area.height });
    }
    put(buffer, 0, &frame::head(app));
    put(buffer, 1, &frame::tabs(app));
    let mut top = 2;
    if app.banner() {
        put(buffer, top, &frame::banner(app));
        top += 1;
    }
    let height = app.body_height();
    let lines = if app.help { help(app) } else { body(app) };
    for (row, line) in lines.iter().take(height).enumerate() {
        put(buffer, top + row, line);
    }
    if app.old().is_some() {
        // Beyond the mark in the head and the words of the banner.
        let rows = height.min(usize::from(area.height).saturating_sub(top));
        let body = ratatui::layout::Rect { y: top as u16, height: rows as u16, ..area };
        buffer.set_style(body, Style::new().add_modifier(Modifier::DIM));
    }
    put(buffer, usize::from(area.height) - 1, &frame::foot(app));
}

/// A line of the screen; what would be beyond it is not there.
fn put(buffer: &mut Buffer, row: usize, line: &Line) {
    let area = buffer.area;
    if row < usize::from(area.height) {
        buffer.set_line(0, row as u16, &shown(line), area.width);
    }
}

/// Whatever comes here was made harmless where it was put in; all lines pass here, so what was
/// forgotten does no harm either.
fn shown<'l>(line: &'l Line) -> Cow<'l, Line<'l>> {
    if !line.spans.iter().any(|span| span.content.chars().any(is_deceptive)) {
        return Cow::Borrowed(line);
    }
    let mut line = line.clone();
    for span in &mut line.spans {
        span.content = harmless(&span.content).into();
    }
    Cow::Owned(line)
}

fn too_small(buffer: &mut Buffer, size: Size) {
    let (w, h) = (size.width, size.height);
    let words = [
        format!("tutti top needs {}x{},", MIN.width, MIN.height),
        format!("this terminal has {w}x{h}."),
        "Make it larger, or q.".to_owned(),
    ];
    for (row, text) in words.into_iter().enumerate() {
        put(buffer, row, &Line::raw(text));
    }
}

fn body(app: &App) -> Vec<Line<'static>> {
    if app.data.cluster.is_none() {
        return vec![Line::raw(""), Line::raw("  asking the controller …")];
    }
    match app.view {
        View::Cluster => cluster::lines(app),
        View::Jobs => jobs::lines(app),
        View::Nodes => nodes::lines(app),
        View::Job => job::lines(app).into_iter().skip(app.scroll).collect(),
        View::Node => node::lines(app).into_iter().skip(app.scroll).collect(),
        View::Logs => logs::lines(app),
    }
}

/// How many lines there are to scroll through.
pub fn lines(app: &App) -> usize {
    match app.view {
        View::Job => job::lines(app).len(),
        View::Node => node::lines(app).len(),
        View::Cluster | View::Jobs | View::Nodes | View::Logs => 0,
    }
}

fn help(app: &App) -> Vec<Line<'static>> {
    let mut lines = vec![Line::raw("")];
    for (keys, what) in HELP {
        let keys = Span::styled(format!("  {}", left(keys, 10)), app.theme.of(Ink::Bold));
        lines.push(Line::from(vec![keys, Span::raw((*what).to_owned())]));
    }
    lines.push(Line::raw(""));
    lines.push(Line::raw("  any key goes back"));
    lines
}

/// A word, in its ink.
fn word(app: &App, ink: Ink, text: impl Into<String>) -> Span<'static> {
    Span::styled(text.into(), app.theme.of(ink))
}

/// Left and right of a line, as wide as the screen; the right side stays whole.
fn sides(
    left_side: Vec<Span<'static>>,
    right_side: Vec<Span<'static>>,
    wide: u16,
) -> Line<'static> {
    let used: usize = left_side.iter().chain(&right_side).map(Span::width).sum();
    let blanks = usize::from(wide).saturating_sub(used);
    let mut spans = left_side;
    spans.push(Span::raw(" ".repeat(blanks)));
    spans.extend(right_side);
    Line::from(spans)
}
