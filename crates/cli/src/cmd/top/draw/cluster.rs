//! The cluster at a glance: how much of it works, what waits, what is wrong, and every GPU.

use ratatui::text::{Line, Span};
use tutti_model::HealthAction;
use tutti_wire::api::{ClusterInfo, GpuCell, NodeLoad, NodeRow};

use super::super::app::{App, Mode};
use super::super::cells::{self, CellLine, GPUS_MAX, Shape};
use super::super::data::activity;
use super::super::text::{bar, clip, left, level, memory, percent, power, right};
use super::super::theme::{busy_ink, node_mark};
use super::word;
use crate::show::{count, thousands};
use crate::style::{Ink, of_node};

/// A GPU that nobody has but that works more than this is somebody's all the same.
const STRAY: u8 = 5;
/// From here on it is hot.
const HOT: i16 = 80;

pub fn lines(app: &App) -> Vec<Line<'static>> {
    let Some(info) = &app.data.cluster else { return Vec::new() };
    let mut lines = panel(app, info);
    lines.extend(findings(app));
    let all = cells::lines(app);
    let height = cells::height(app);
    lines.push(legend(app, all.len() > height));
    if app.data.nodes.is_empty() {
        lines.push(Line::raw(format!("  {}", crate::show::nodes::NONE)));
    }
    let shape = cells::shape(app);
    for line in all.iter().skip(app.cells_offset).take(height) {
        lines.push(match line {
            CellLine::Head(place) => {
                Line::from(word(app, Ink::Bold, format!(" {}", clip(place, 60))))
            }
            CellLine::Nodes(nodes) => {
                let nodes = nodes.iter().filter_map(|i| app.data.nodes.get(*i));
                let spans = nodes.flat_map(|node| self::node(app, node, shape));
                Line::from_iter(std::iter::once(Span::raw(" ")).chain(spans))
            }
        });
    }
    lines
}

/// Bars on the left, counts on the right.
fn panel(app: &App, info: &ClusterInfo) -> Vec<Line<'static>> {
    let load = &app.data.load.cluster;
    let half = usize::from(app.size.width / 2);
    let share = |part: f64, all: f64| if all > 0.0 { (part / all) as f32 } else { 0.0 };
    let limit = load.power_limit;
    let watts = load.power.unwrap_or_default();
    let heat = load.temp.map_or_else(|| "-".to_owned(), |t| format!("{t}°C at most"));
    let bars = [
        (
            "allocated",
            share(info.gpus_used.into(), info.gpus.into()),
            format!("{} of {}", thousands(info.gpus_used.into()), thousands(info.gpus.into())),
        ),
        (
            "activity",
            activity(load).unwrap_or_default(),
            activity(load).map_or_else(|| "-".to_owned(), percent),
        ),
        (
            "memory",
            share(load.mem_used.0 as f64, load.mem.0 as f64),
            memory(load.mem_used.0, load.mem.0),
        ),
        ("power", share(watts.into(), limit.unwrap_or_default().into()), power(watts, limit)),
        ("heat", f32::from(load.temp.unwrap_or_default()) / 100.0, heat),
    ];
    let counts = counts(app, info);
    let room = half.saturating_sub(10 + 2 + 14 + 2).clamp(8, 40);
    let rows = bars.into_iter().zip(counts);
    rows.map(|((name, share, value), count)| {
        let ink = if name == "heat" { heat_ink(load.temp) } else { Ink::Cyan };
        let mut spans = vec![
            Span::raw(format!(" {} ", left(name, 9))),
            word(app, ink, bar(share, room)),
            Span::raw(format!(" {} ", left(&value, half.saturating_sub(room + 13)))),
        ];
        spans.extend(count);
        Line::from(spans)
    })
    .collect()
}

fn counts(app: &App, info: &ClusterInfo) -> [Vec<Span<'static>>; cells::PANEL] {
    let n = |state: &str| info.tasks.get(state).copied().unwrap_or_default();
    let named =
        |name: &str, text: String, ink: Ink| vec![Span::raw(left(name, 10)), word(app, ink, text)];
    let ready = format!("{} of {} ready", info.nodes_ready, info.nodes);
    let all_ready = info.nodes_ready == info.nodes;
    let between = match (n("starting"), n("stopping")) {
        (0, 0) => String::new(),
        (starting, stopping) => format!(", {starting} starting, {stopping} stopping"),
    };
    let heard = &app.data.load.cluster;
    let told = match (heard.heard == heard.gpus, heard.gpus) {
        (true, 1) => "1 GPU tells".to_owned(),
        (true, gpus) => format!("all {} tell", count(gpus.into(), "GPU")),
        (false, gpus) => format!("{} of {} tell", heard.heard, count(gpus.into(), "GPU")),
    };
    [
        named("nodes", ready, if all_ready { Ink::Green } else { Ink::Yellow }),
        named("running", format!("{}{between}", thousands(n("running"))), Ink::Green),
        named("pending", thousands(n("pending")), Ink::Yellow),
        named("suspended", thousands(n("suspended")), Ink::Plain),
        named("values", told, if heard.heard == heard.gpus { Ink::Plain } else { Ink::Yellow }),
    ]
}

fn findings(app: &App) -> Vec<Line<'static>> {
    let all = app.findings();
    let shown = cells::findings_shown(app, all.len());
    let wide = usize::from(app.size.width).saturating_sub(3);
    let mut lines: Vec<Line> = all
        .iter()
        .take(shown)
        .map(|(hard, text)| {
            let bad = *hard >= HealthAction::FenceGpu as u8;
            let (mark, ink) = if bad { ("✗", Ink::Red) } else { ("!", Ink::Yellow) };
            Line::from(vec![word(app, ink, format!(" {mark} ")), Span::raw(clip(text, wide))])
        })
        .collect();
    if all.len() > shown {
        let rest = all.len() - shown + 1;
        lines.pop();
        lines.push(Line::from(word(
            app,
            Ink::Yellow,
            format!(" ! and {rest} more: 3 lists nodes"),
        )));
    }
    lines
}

fn legend(app: &App, cut: bool) -> Line<'static> {
    let what = match app.mode {
        Mode::Activity => "activity ▁▂▃▄▅▆▇█",
        Mode::Allocation => "allocation █ whole ▄ part",
        Mode::Memory => "memory ▁▂▃▄▅▆▇█",
        Mode::Power => "power ▁▂▃▄▅▆▇█ of the limit",
        Mode::Heat => "heat ▁▂▃▄▅▆▇█ up to 100°C",
    };
    let nodes = count(app.nodes.order.len() as u64, "node");
    let cut = if cut { " (scroll)" } else { "" };
    let filter = match app.nodes.filter.as_str() {
        "" => String::new(),
        text => format!(" with '{}'", clip(text, 16)),
    };
    let text = format!(" GPUs of {nodes}{filter}{cut}: {what} · free ✗ fenced ? no values");
    Line::styled(left(&text, app.size.width.into()), app.theme.of(Ink::Bold))
}

fn node(app: &App, node: &NodeRow, shape: Shape) -> Vec<Span<'static>> {
    let load = app.data.node_load(&node.name);
    let mut spans = vec![
        word(app, of_node(node.state), left(&node.name, shape.name)),
        word(app, of_node(node.state), format!(" {} ", node_mark(node.state))),
    ];
    let gpus = (node.facts.gpus as usize).min(GPUS_MAX);
    let mut marks: Vec<(char, Ink)> = Vec::with_capacity(gpus);
    for place in 0..gpus {
        let cell = load.and_then(|load| load.gpus.get(place));
        marks.push(cell.map_or((' ', Ink::Plain), |cell| mark(app.mode, cell)));
    }
    for run in marks.chunk_by(|(_, a), (_, b)| a == b) {
        let text: String = run.iter().map(|(c, _)| *c).collect();
        spans.push(word(app, run[0].1, text));
    }
    spans.push(Span::raw(" ".repeat(shape.gpus - gpus)));
    spans.push(Span::raw(right(&number(app.mode, load), 6)));
    spans.push(Span::raw("   "));
    spans
}

/// What a GPU looks like.
pub fn mark(mode: Mode, cell: &GpuCell) -> (char, Ink) {
    if cell.fenced {
        return ('✗', Ink::Red);
    }
    let busy = cell.sm.or(cell.util);
    let held = cell.milli > 0;
    let percent = match mode {
        Mode::Allocation => {
            return match cell.milli {
                0 => ('·', Ink::Dim),
                1..1000 => ('▄', Ink::Cyan),
                _ => ('█', Ink::Cyan),
            };
        }
        Mode::Activity if !held => {
            return match busy {
                Some(stray @ STRAY..) => (level(stray), Ink::Magenta),
                Some(_) => ('·', Ink::Dim),
                None => ('?', Ink::Dim),
            };
        }
        Mode::Activity => busy,
        Mode::Memory => cell.mem,
        Mode::Power => cell
            .power
            .zip(cell.power_limit)
            .filter(|(_, limit)| *limit > 0)
            .map(|(now, limit)| (u32::from(now) * 100 / u32::from(limit)).min(100) as u8),
        Mode::Heat => cell.temp.map(|t| t.clamp(0, 100) as u8),
    };
    match (percent, mode) {
        (None, _) => ('?', if held { Ink::Yellow } else { Ink::Dim }),
        (Some(p), Mode::Activity) => (level(p), busy_ink(p)),
        (Some(p), Mode::Heat) => (level(p), heat_ink(cell.temp)),
        (Some(p), _) => (level(p), if held { Ink::Cyan } else { Ink::Dim }),
    }
}

fn heat_ink(temp: Option<i16>) -> Ink {
    match temp {
        Some(t) if t >= HOT => Ink::Red,
        Some(t) if t >= HOT - 10 => Ink::Yellow,
        _ => Ink::Green,
    }
}

fn number(mode: Mode, load: Option<&NodeLoad>) -> String {
    let Some(node) = load else { return String::new() };
    let load = &node.load;
    let dash = || "-".to_owned();
    match mode {
        Mode::Activity => activity(load).map_or_else(dash, percent),
        Mode::Allocation => format!("{}/{}", load.used, load.gpus),
        Mode::Memory if load.mem.0 > 0 => percent(load.mem_used.0 as f32 / load.mem.0 as f32),
        Mode::Memory => dash(),
        Mode::Power => load.power.map_or_else(dash, |watts| power(watts, None)),
        Mode::Heat => load.temp.map_or_else(dash, |t| format!("{t}°")),
    }
}
