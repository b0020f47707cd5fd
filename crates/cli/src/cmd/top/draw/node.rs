//! One node: what is wrong with it, and what each of its GPUs does for whom.

use ratatui::text::{Line, Span};
use tutti_model::HealthAction;
use tutti_wire::api::{GpuCell, NodeRow};

use super::super::app::App;
use super::super::text::{bar, wrap};
use super::super::theme::busy_ink;
use super::table::{Column, Table, column, number};
use super::word;
use crate::show::nodes::{health, place};
use crate::show::table::{Field, plain};
use crate::show::{milli, time};
use crate::style::{Ink, of_node};

const GPUS: &[Column] = &[
    number("GPU", 4, 9),
    column("BUSY", 26, 9),
    number("MEM", 5, 9),
    number("POWER", 10, 8),
    number("HEAT", 5, 7),
    number("GIVEN", 6, 9),
    column("JOBS", 0, 9),
];

pub fn lines(app: &App) -> Vec<Line<'static>> {
    let Some(node) = app.open_node() else {
        let name = app.node.as_deref().unwrap_or("-");
        return vec![Line::raw(""), Line::raw(format!("  there is no node {name}"))];
    };
    let mut lines = facts(app, node);
    lines.extend(findings(app, node));
    lines.push(Line::raw(""));
    let Some(load) = app.data.node_load(&node.name) else { return lines };
    let table = Table {
        columns: GPUS,
        sorted: ("", false),
        rows: load.gpus.iter().map(gpu).collect(),
        selected: None,
    };
    lines.extend(table.lines(app.size.width, app.theme));
    if let Some(age) = load.age.filter(|_| load.load.heard == 0) {
        let text = format!("  no values for {}", time::short(age));
        lines.push(Line::from(word(app, Ink::Yellow, text)));
    }
    lines
}

fn facts(app: &App, node: &NodeRow) -> Vec<Line<'static>> {
    let f = &node.facts;
    let since = node
        .since
        .map_or_else(String::new, |at| format!(" for {}", time::short(app.there().since(at))));
    let mut lines = vec![Line::from(vec![
        word(app, Ink::Bold, format!(" {} ", node.name)),
        word(app, of_node(node.state), format!(" {}{since} ", node.state.as_str())),
        word(app, Ink::Magenta, if f.simulated { " simulated" } else { "" }),
    ])];
    let mut add = |key: &str, value: String| {
        if !value.is_empty() && value != "-" {
            lines.push(Line::raw(format!("  {key:<10}{}", crate::show::harmless(&value))));
        }
    };
    let model = f.gpu_model.as_deref().unwrap_or("-");
    let used = milli(node.gpu_milli_used);
    add("GPUs", format!("{used} of {} × {model} given", f.gpus));
    add("CPUs", format!("{} of {} given", node.cpus_used, f.cpus));
    add("memory", format!("{} of {} given", node.mem_used, f.mem));
    add("place", place(&node.place));
    add("address", f.address.clone());
    add("health", health(node).0);
    let by = node.drained_by.as_deref().unwrap_or("-");
    let drained = node.drain_reason.as_ref().map(|why| format!("by {by}: {why}"));
    add("drained", drained.unwrap_or_default());
    add("suspect", node.trouble.clone().unwrap_or_default());
    add("exclusive", node.exclusive.map_or_else(String::new, |job| format!("for job {job}")));
    let jobs: Vec<String> = node.jobs.iter().map(ToString::to_string).collect();
    add("jobs", jobs.join(" "));
    lines
}

fn findings(app: &App, node: &NodeRow) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    for finding in &node.findings {
        let bad = finding.action >= HealthAction::FenceGpu;
        let (mark, ink) = if bad { ("✗", Ink::Red) } else { ("!", Ink::Yellow) };
        let gpu = finding.gpu.map_or_else(String::new, |gpu| format!("GPU {gpu}: "));
        let drill = if finding.drill { " (drill)" } else { "" };
        let age = time::short(app.there().since(finding.since));
        let text = format!(
            "{gpu}{}{drill}: {}, since {age} ({})",
            finding.text,
            finding.in_words(),
            finding.key
        );
        let wide = usize::from(app.size.width).saturating_sub(5);
        for (i, piece) in wrap(&crate::show::harmless(&text), wide).into_iter().enumerate() {
            let mark = if i == 0 { mark } else { " " };
            lines.push(Line::from(vec![word(app, ink, format!("  {mark} ")), Span::raw(piece)]));
        }
    }
    lines
}

fn gpu(cell: &GpuCell) -> Vec<Field> {
    let dash = || plain("-");
    let busy = cell.sm.or(cell.util);
    let watts = match (cell.power, cell.power_limit) {
        (Some(now), Some(limit)) => plain(format!("{now}/{limit}W")),
        (Some(now), None) => plain(format!("{now}W")),
        (None, _) => dash(),
    };
    let jobs: Vec<String> = cell.jobs.iter().map(ToString::to_string).collect();
    let who = match (cell.fenced, jobs.is_empty()) {
        (true, _) => ("✗ fenced".to_owned(), Ink::Red),
        (false, true) => ("· free".to_owned(), Ink::Dim),
        (false, false) => plain(format!("job {}", jobs.join(", "))),
    };
    let ink = |percent: u8| if cell.milli > 0 { busy_ink(percent) } else { Ink::Dim };
    vec![
        plain(cell.gpu.to_string()),
        busy.map_or_else(dash, |percent| {
            (format!("{} {percent}%", bar(f32::from(percent) / 100.0, 20)), ink(percent))
        }),
        cell.mem.map_or_else(dash, |percent| plain(format!("{percent}%"))),
        watts,
        cell.temp.map_or_else(dash, |t| plain(format!("{t}°"))),
        plain(milli(cell.milli.into())),
        who,
    ]
}
