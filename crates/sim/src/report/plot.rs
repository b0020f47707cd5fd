//! Plots as SVG, drawn by hand: a page needs nothing else to show them.

use std::fmt::Write as _;

use tutti_model::{Time, count};

use crate::replay::Run;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 180.0;
const LEFT: f64 = 64.0;
const BOTTOM: f64 = 24.0;
const TOP: f64 = 8.0;
/// Rows and bars of a Gantt plot; more than this nobody can read.
const NODES_MAX: usize = 40;
const BARS_MAX: usize = 6000;
const ROW: f64 = 18.0;
const COLOURS: usize = 8;

/// A line over time. `top` is the value at the upper edge.
pub(super) fn line(name: &str, values: &[f64], step_s: f64, top: f64, unit: &str) -> String {
    let (w, h) = (WIDTH - LEFT, HEIGHT - TOP - BOTTOM);
    let mut path = String::new();
    for (i, value) in values.iter().enumerate() {
        let x = LEFT + w * i as f64 / values.len() as f64;
        let next = LEFT + w * (i + 1) as f64 / values.len() as f64;
        let y = TOP + h * (1.0 - (value / top).clamp(0.0, 1.0));
        let verb = if i == 0 { 'M' } else { 'L' };
        push(&mut path, format_args!("{verb}{x:.1} {y:.1}L{next:.1} {y:.1}"));
    }
    let base = TOP + h;
    let mut out = svg(name, HEIGHT);
    for part in [0.0, 0.5, 1.0] {
        let y = TOP + h * (1.0 - part);
        let value = short(top * part);
        push(
            &mut out,
            format_args!(
                "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{WIDTH}\" y2=\"{y:.1}\"/>\
             <text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{value}{unit}</text>",
                LEFT - 6.0,
                y + 4.0
            ),
        );
    }
    if !path.is_empty() {
        push(
            &mut out,
            format_args!(
                "<path class=\"area\" d=\"{path}L{WIDTH} {base}L{LEFT} {base}Z\"/><path class=\"line\" d=\"{path}\"/>"
            ),
        );
    }
    axis(&mut out, HEIGHT, step_s * values.len() as f64);
    out.push_str("</svg>");
    out
}

/// Who was where: one row per node, as thick as the GPUs it took. The second value says what was
/// left out, if anything was.
pub(super) fn gantt(run: &Run) -> (String, Option<String>) {
    let rows = run.nodes.len().min(NODES_MAX);
    let height = TOP + ROW * rows as f64 + BOTTOM;
    let start = run.samples.first().map_or(0, |s| s.at.0);
    let end = run.jobs.iter().filter_map(|j| j.end).max().map_or(start + 1, |t| t.0.max(start + 1));
    let x =
        |t: Time| LEFT + (WIDTH - LEFT) * (t.0.saturating_sub(start)) as f64 / (end - start) as f64;
    let mut out = svg("Who ran where", height);
    for (i, (name, _)) in run.nodes.iter().take(rows).enumerate() {
        let y = TOP + ROW * (i as f64 + 0.7);
        let name: String = name.chars().take(10).collect();
        push(
            &mut out,
            format_args!(
                "<text x=\"{:.0}\" y=\"{y:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                escape(&name)
            ),
        );
    }
    let (bars, left_out) = bars(run, rows);
    for bar in &bars {
        let (from, until) = (x(bar.from), x(bar.until));
        let (tall, y) = (ROW * 0.92 * bar.part, TOP + ROW * (bar.row as f64 + 0.92 * bar.offset));
        push(
            &mut out,
            format_args!(
                "<rect class=\"c{}\" x=\"{from:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{tall:.1}\"><title>{}</title></rect>",
                bar.colour,
                (until - from).max(0.3),
                escape(&bar.title)
            ),
        );
    }
    axis(&mut out, height, (end - start) as f64 / 1000.0);
    out.push_str("</svg>");
    let hidden = run.nodes.len() - rows;
    let more = |n: usize| count(n as u64, "more node");
    let stays = |n: usize| count(n as u64, "shorter stay");
    let note = match (hidden, left_out) {
        (0, 0) => None,
        (0, bars) => Some(format!("Not drawn: {}.", stays(bars))),
        (nodes, 0) => Some(format!("Not drawn: {}.", more(nodes))),
        (nodes, bars) => Some(format!("Not drawn: {} and {}.", more(nodes), stays(bars))),
    };
    (out, note)
}

struct Bar {
    row: usize,
    /// Where in the row, and how much of it, from 0 to 1.
    offset: f64,
    part: f64,
    from: Time,
    until: Time,
    colour: usize,
    title: String,
}

/// Bars of the first `rows` nodes, the longest if there are too many.
fn bars(run: &Run, rows: usize) -> (Vec<Bar>, usize) {
    let mut stays: Vec<(Time, usize, usize, usize)> = Vec::new();
    for (j, job) in run.jobs.iter().enumerate() {
        for (s, stint) in job.stints.iter().enumerate().filter(|(_, s)| s.until > s.from) {
            let nodes = stint.nodes.iter().map(|n| (n.0 as usize).saturating_sub(1));
            stays.extend(nodes.filter(|row| *row < rows).map(|row| (stint.from, row, j, s)));
        }
    }
    let length =
        |&(from, _, j, s): &(Time, usize, usize, usize)| run.jobs[j].stints[s].until.since(from);
    let left_out = stays.len().saturating_sub(BARS_MAX);
    if left_out > 0 {
        stays.sort_by_key(|stay| std::cmp::Reverse(length(stay)));
        stays.truncate(BARS_MAX);
    }
    stays.sort();
    // When each GPU of a node is free again, so that bars of one node lie beside each other.
    let mut free: Vec<Vec<Time>> = run
        .nodes
        .iter()
        .take(rows)
        .map(|(_, gpus)| vec![Time(0); (*gpus).max(1) as usize])
        .collect();
    let teams: Vec<&str> = {
        let mut t: Vec<&str> = run.jobs.iter().map(|j| j.team.as_str()).collect();
        t.sort_unstable();
        t.dedup();
        t
    };
    let bar = |(from, row, j, s): (Time, usize, usize, usize)| {
        let (job, stint) = (&run.jobs[j], &run.jobs[j].stints[s]);
        let each = stint.milli as f64 / 1000.0 / stint.nodes.len() as f64;
        let slots = &mut free[row];
        let want = (each.ceil() as usize).clamp(1, slots.len());
        let fits = |i: &usize| slots[*i..*i + want].iter().all(|at| *at <= from);
        let at = (0..=slots.len() - want).find(fits).unwrap_or(0);
        slots[at..at + want].fill(stint.until);
        let all = slots.len() as f64;
        // One team says nothing by its colour; then jobs are told apart.
        let colour =
            if teams.len() > 1 { teams.binary_search(&job.team.as_str()).unwrap_or(0) } else { j };
        Bar {
            row,
            offset: at as f64 / all,
            part: (each / all).clamp(0.02, 1.0),
            from,
            until: stint.until,
            colour: colour % COLOURS,
            title: format!(
                "{} of {} ({}): {} × GPU on {}",
                job.name,
                job.user,
                job.team,
                stint.milli as f64 / 1000.0,
                count(stint.nodes.len() as u64, "node")
            ),
        }
    };
    (stays.into_iter().map(bar).collect(), left_out)
}

fn svg(name: &str, height: f64) -> String {
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"{}\">",
        escape(name)
    )
}

/// Five marks of time along the lower edge.
fn axis(out: &mut String, height: f64, seconds: f64) {
    for mark in 0..5 {
        let part = f64::from(mark) / 4.0;
        let x = LEFT + (WIDTH - LEFT) * part;
        let anchor = ["start", "middle", "middle", "middle", "end"][mark as usize];
        let label = duration(seconds * part);
        push(
            out,
            format_args!(
                "<text x=\"{x:.0}\" y=\"{:.0}\" text-anchor=\"{anchor}\">{label}</text>",
                height - 6.0
            ),
        );
    }
}

pub(super) fn duration(seconds: f64) -> String {
    match seconds {
        s if s >= 2.0 * 86_400.0 => format!("{:.1} d", s / 86_400.0),
        s if s >= 2.0 * 3600.0 => format!("{:.1} h", s / 3600.0),
        s if s >= 120.0 => format!("{:.1} min", s / 60.0),
        s => format!("{s:.1} s"),
    }
}

fn short(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.1}M", v / 1e6),
        v if v >= 1e4 => format!("{:.0}k", v / 1e3),
        v if v >= 10.0 || v == 0.0 => format!("{v:.0}"),
        v => format!("{v:.1}"),
    }
}

pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

pub(super) fn push(out: &mut String, text: std::fmt::Arguments<'_>) {
    let written = out.write_fmt(text);
    debug_assert!(written.is_ok(), "a String takes everything");
}
