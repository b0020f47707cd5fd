//! The list of nodes.

use ratatui::text::{Line, Span};
use tutti_wire::api::NodeRow;

use super::super::app::App;
use super::super::data::activity;
use super::super::sort::NodeSort;
use super::super::text::{bar, clip, memory, percent, power};
use super::super::theme::node_mark;
use super::table::{Column, Table, column, growing, number};
use super::word;
use crate::show::nodes::{NONE, health, note, place};
use crate::show::table::{Field, plain};
use crate::show::{milli, thousands};
use crate::style::{Ink, of_node};

const COLUMNS: &[Column] = &[
    growing("NODE", 10, 9, 10),
    column("STATE", 10, 9),
    column("PLACE", 10, 2),
    column("HEALTH", 15, 8),
    column("GPUS", 10, 4),
    number("USED", 5, 9),
    column("BUSY", 12, 7),
    number("MEM", 11, 3),
    number("POWER", 11, 5),
    number("HEAT", 5, 1),
    number("CPU", 5, 1),
    number("JOBS", 4, 2),
    column("NOTE", 0, 9),
];

pub fn lines(app: &App) -> Vec<Line<'static>> {
    let nodes = &app.nodes;
    let (shown, all) = (nodes.order.len(), app.data.nodes.len());
    let place = if shown == 0 { 0 } else { nodes.list.cursor + 1 };
    let mut about =
        vec![Span::raw(format!(" {} of {}", thousands(place as u64), thousands(shown as u64)))];
    if nodes.sort != NodeSort::Name || nodes.reverse {
        let order = if nodes.reverse { ", reversed" } else { "" };
        let by = nodes.sort.column().to_lowercase();
        about.push(word(app, Ink::Cyan, format!(" · by {by}{order}")));
    }
    if !nodes.filter.is_empty() {
        let text = format!(" · filter: {} (of {all})", clip(&nodes.filter, 40));
        about.push(word(app, Ink::Cyan, text));
    }
    let mut lines = vec![Line::from(about)];
    let rows = app.node_rows().skip(nodes.list.offset).take(app.list_height());
    let table = Table {
        columns: COLUMNS,
        sorted: (nodes.sort.column(), nodes.reverse),
        rows: rows.map(|node| row(app, node)).collect(),
        selected: nodes.list.cursor.checked_sub(nodes.list.offset),
    };
    lines.extend(table.lines(app.size.width, app.theme));
    if shown == 0 {
        let none = if all == 0 { NONE } else { "no node is like that (esc takes the filter away)" };
        lines.push(Line::raw(format!("  {none}")));
    }
    lines
}

fn row(app: &App, node: &NodeRow) -> Vec<Field> {
    let load = app.data.node_load(&node.name);
    let gpus = match &node.facts.gpu_model {
        Some(model) => format!("{}×{model}", node.facts.gpus),
        None => "-".to_owned(),
    };
    let dash = || plain("-");
    let busy = load.and_then(|load| activity(&load.load));
    let heard = load.map(|load| &load.load).filter(|load| load.heard > 0);
    let (words, ink) = health(node);
    // Where nothing is wrong nothing is said in colour.
    let health = if ink == Ink::Green { plain(words) } else { (format!("! {words}"), ink) };
    vec![
        plain(node.name.clone()),
        (format!("{} {}", node_mark(node.state), node.state.as_str()), of_node(node.state)),
        plain(place(&node.place)),
        health,
        plain(gpus),
        plain(milli(node.gpu_milli_used)),
        busy.map_or_else(dash, |share| {
            (format!("{} {}", bar(share, 7), percent(share)), Ink::Cyan)
        }),
        heard.map_or_else(dash, |load| plain(memory(load.mem_used.0, load.mem.0))),
        heard
            .and_then(|load| load.power.map(|watts| power(watts, load.power_limit)))
            .map_or_else(dash, plain),
        heard.and_then(|load| load.temp).map_or_else(dash, |t| plain(format!("{t}°"))),
        load.and_then(|load| load.cpu).map_or_else(dash, |share| plain(percent(share))),
        plain(node.jobs.len().to_string()),
        note(node),
    ]
}
