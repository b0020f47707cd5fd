//! What of a page is live, and what has to be sent when it changes. Made once for all readers of
//! a page, however many there are.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Serialize;

use crate::gantt::Gantt;
use crate::grid::Grid;

/// Everything live on a page, as a reader has it.
#[derive(Clone, Debug, Default)]
pub struct Shown {
    /// Markup by the id of the element it is in.
    pub regions: BTreeMap<&'static str, String>,
    /// Rows by the id of their table.
    pub tables: BTreeMap<&'static str, Vec<Row>>,
    /// JSON by the id of the chart that draws it.
    pub series: BTreeMap<&'static str, String>,
    pub grid: Option<Grid>,
    pub gantt: Option<Gantt>,
}

/// A row of a table, with a key that stays its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub key: String,
    pub html: String,
}

/// A server-sent event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub name: &'static str,
    pub data: String,
}

impl Event {
    pub(crate) fn json(name: &'static str, data: &impl Serialize) -> Event {
        Event { name, data: serde_json::to_string(data).expect("our own types become JSON") }
    }
}

#[derive(Serialize)]
struct Rows<'a> {
    table: &'a str,
    /// Rows that are new, or another in more than what cells say.
    set: Vec<(&'a str, &'a str)>,
    /// Of other rows, the cells that say something else.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cells: Vec<(&'a str, Vec<Said<'a>>)>,
    gone: Vec<&'a str>,
    /// All keys, where their order is another.
    #[serde(skip_serializing_if = "Option::is_none")]
    order: Option<Vec<&'a str>>,
}

impl Shown {
    pub fn region(mut self, id: &'static str, markup: maud::Markup) -> Shown {
        self.regions.insert(id, markup.into_string());
        self
    }

    pub fn table(mut self, id: &'static str, rows: Vec<Row>) -> Shown {
        self.tables.insert(id, rows);
        self
    }

    pub fn chart(mut self, id: &'static str, series: &impl Serialize) -> Shown {
        let json = serde_json::to_string(series).expect("our own types become JSON");
        self.series.insert(id, json);
        self
    }

    /// What a reader needs who has `before`; everything for one who has nothing.
    pub fn changes(&self, before: Option<&Shown>) -> Vec<Event> {
        let mut events = Vec::new();
        let changed = |(id, html): &(&&'static str, &String)| {
            before.is_none_or(|before| before.regions.get(**id) != Some(html))
        };
        let regions: BTreeMap<&str, &str> =
            self.regions.iter().filter(changed).map(|(id, html)| (*id, html.as_str())).collect();
        if !regions.is_empty() {
            events.push(Event::json("html", &regions));
        }
        for (id, rows) in &self.tables {
            let old = before.and_then(|before| before.tables.get(id)).map(Vec::as_slice);
            events.extend(changed_rows(id, rows, old));
        }
        for (chart, json) in &self.series {
            if before.is_none_or(|before| before.series.get(chart) != Some(json)) {
                let data = format!("{{\"chart\":\"{chart}\",\"series\":{json}}}");
                events.push(Event { name: "series", data });
            }
        }
        if let Some(grid) = &self.grid {
            events.extend(grid.changes(before.and_then(|before| before.grid.as_ref())));
        }
        if let Some(gantt) = &self.gantt {
            events.extend(gantt.changes(before.and_then(|before| before.gantt.as_ref())));
        }
        events
    }
}

fn changed_rows(table: &str, rows: &[Row], old: Option<&[Row]>) -> Option<Event> {
    let had: HashMap<&str, &str> =
        old.unwrap_or_default().iter().map(|row| (row.key.as_str(), row.html.as_str())).collect();
    let (mut set, mut cells, mut stay) = (Vec::new(), Vec::new(), 0);
    for row in rows {
        let (key, html) = (row.key.as_str(), row.html.as_str());
        let was = had.get(key).copied();
        stay += usize::from(was.is_some());
        match was.map(|was| changed_cells(was, html)) {
            Some(Some(said)) if said.is_empty() => {}
            Some(Some(said)) => cells.push((key, said)),
            Some(None) | None => set.push((key, html)),
        }
    }
    let gone = if stay == had.len() { Vec::new() } else { gone(old.unwrap_or_default(), rows) };
    let moved = old.is_none_or(|old| !keys(old).eq(keys(rows)));
    if set.is_empty() && cells.is_empty() && !moved {
        return None;
    }
    let order = moved.then(|| keys(rows).collect());
    Some(Event::json("rows", &Rows { table, set, cells, gone, order }))
}

fn keys(rows: &[Row]) -> impl Iterator<Item = &str> {
    rows.iter().map(|row| row.key.as_str())
}

fn gone<'a>(old: &'a [Row], rows: &[Row]) -> Vec<&'a str> {
    let has: HashSet<&str> = keys(rows).collect();
    keys(old).filter(|key| !has.contains(key)).collect()
}

/// A cell's place in its row, what is in it now, and its new number if it is sorted by one.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
enum Said<'a> {
    Plain(usize, &'a str),
    Valued(usize, &'a str, &'a str),
}

/// The cells of a row that differ from what they were; none if the rows differ in more than that.
fn changed_cells<'a>(was: &str, is: &'a str) -> Option<Vec<Said<'a>>> {
    if was == is {
        return Some(Vec::new());
    }
    let (mut old, mut new) = (was.split(CELL), is.split(CELL));
    if old.next() != new.next() {
        return None;
    }
    let mut said = Vec::new();
    for at in 0.. {
        match (old.next(), new.next()) {
            (None, None) => break,
            (Some(was), Some(is)) if was == is => {}
            (Some(was), Some(is)) => {
                let (was, is) = (Cell::of(was)?, Cell::of(is)?);
                if was.frame() != is.frame() {
                    return None;
                }
                said.push(match is.value.filter(|value| was.value != Some(*value)) {
                    Some(value) => Said::Valued(at, is.inner, value),
                    None => Said::Plain(at, is.inner),
                });
            }
            _ => return None,
        }
    }
    Some(said)
}

/// How every cell of a row begins. In text and in values of attributes `<` and `>` are written otherwise.
const CELL: &str = "<td";
const VALUE: &str = " data-v=\"";

/// `class="n" data-v="7" role="cell">inner</td>`: what of it may change without a new element, and the rest.
struct Cell<'a> {
    before: &'a str,
    value: Option<&'a str>,
    after: &'a str,
    inner: &'a str,
}

impl Cell<'_> {
    fn of(text: &str) -> Option<Cell<'_>> {
        let (start, rest) = text.split_once('>')?;
        let (inner, _) = rest.rsplit_once("</td>")?;
        let Some((before, rest)) = start.split_once(VALUE) else {
            return Some(Cell { before: start, value: None, after: "", inner });
        };
        let (value, after) = rest.split_once('"')?;
        Some(Cell { before, value: Some(value), after, inner })
    }

    /// What only another element can have.
    fn frame(&self) -> (&str, bool, &str) {
        (self.before, self.value.is_some(), self.after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use maud::html;
    use serde_json::{Value, json};

    fn row(key: &str, html: &str) -> Row {
        Row { key: key.to_owned(), html: html.to_owned() }
    }

    fn data(events: &[Event]) -> Vec<(&str, Value)> {
        events.iter().map(|e| (e.name, serde_json::from_str(&e.data).unwrap())).collect()
    }

    #[test]
    fn a_new_reader_gets_everything() {
        let shown = Shown::default()
            .region("kpis", html! { b { "<1>" } })
            .table("queue", vec![row("1", "<tr>a</tr>")])
            .chart("pulse", &json!({ "t": [1] }));
        let all = json!([
            { "kpis": "<b>&lt;1&gt;</b>" },
            { "table": "queue", "set": [["1", "<tr>a</tr>"]], "gone": [], "order": ["1"] },
            { "chart": "pulse", "series": { "t": [1] } },
        ]);
        let events = shown.changes(None);
        let sent: Vec<Value> = data(&events).into_iter().map(|(_, v)| v).collect();
        assert_eq!(Value::Array(sent), all);
        assert_eq!(shown.changes(Some(&shown)), [], "nothing has changed");
    }

    #[test]
    fn only_what_is_new_is_sent() {
        let before = Shown::default()
            .region("a", html! { "1" })
            .region("b", html! { "1" })
            .table("t", vec![row("1", "x"), row("2", "y"), row("3", "z")]);
        let after = Shown::default()
            .region("a", html! { "1" })
            .region("b", html! { "2" })
            .table("t", vec![row("3", "z"), row("1", "X")]);
        let events = after.changes(Some(&before));
        let rows = json!({ "table": "t", "set": [["1", "X"]], "gone": ["2"], "order": ["3", "1"] });
        assert_eq!(data(&events), [("html", json!({ "b": "2" })), ("rows", rows)]);
    }

    /// One row of a table, with a class that changes, a number to sort by, and words.
    fn cells(class: &str, value: u32, words: &str) -> Shown {
        let html = html! {
            tr data-key="1" {
                td class=(class) role="cell" { "a" }
                td role="cell" data-v=(value) { (value / 10) b { "<td>" } }
                td { (words) }
            }
        };
        Shown::default().table("t", vec![row("1", &html.into_string()), row("2", "<tr></tr>")])
    }

    fn told(before: &Shown, after: &Shown) -> Value {
        let events = after.changes(Some(before));
        assert_eq!(events.len(), 1, "{events:?}");
        data(&events).remove(0).1
    }

    #[test]
    fn of_a_row_that_changes_only_cells_that_do_are_sent() {
        let before = cells("n", 70, "x");
        let words =
            json!({ "table": "t", "set": [], "cells": [["1", [[2, "&gt; y"]]]], "gone": [] });
        assert_eq!(told(&before, &cells("n", 70, "> y")), words);
        let value = told(&before, &cells("n", 71, "x"));
        assert_eq!(value["cells"], json!([["1", [[1, "7<b>&lt;td&gt;</b>", "71"]]]]));
        let both = told(&before, &cells("n", 80, ""));
        assert_eq!(both["cells"], json!([["1", [[1, "8<b>&lt;td&gt;</b>", "80"], [2, ""]]]]));
        assert_eq!((both.get("order"), &both["gone"]), (None, &json!([])), "no row moves");
    }

    #[test]
    fn a_row_that_is_another_is_sent_whole() {
        let (before, after) = (cells("n", 70, "x"), cells("n bad", 70, "x"));
        let rows = told(&before, &after);
        assert_eq!(rows["set"], json!([["1", after.tables["t"][0].html]]));
        assert_eq!(rows.get("cells"), None);
        let fewer = Shown::default().table("t", vec![row("1", "<tr data-key=\"1\"></tr>")]);
        assert_eq!(told(&before, &fewer)["gone"], json!(["2"]));
    }
}
