//! What of a page is live, and what has to be sent when it changes. Made once for all readers of
//! a page, however many there are.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

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
    set: Vec<(&'a str, &'a str)>,
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
        events
    }
}

fn changed_rows(table: &str, rows: &[Row], old: Option<&[Row]>) -> Option<Event> {
    let had: BTreeMap<&str, &str> =
        old.unwrap_or_default().iter().map(|row| (row.key.as_str(), row.html.as_str())).collect();
    let has: BTreeSet<&str> = rows.iter().map(|row| row.key.as_str()).collect();
    let set: Vec<_> = rows
        .iter()
        .filter(|row| had.get(row.key.as_str()) != Some(&row.html.as_str()))
        .map(|row| (row.key.as_str(), row.html.as_str()))
        .collect();
    let gone: Vec<_> = had.keys().copied().filter(|key| !has.contains(key)).collect();
    let keys = |rows: &[Row]| rows.iter().map(|row| row.key.clone()).collect::<Vec<_>>();
    let moved = old.is_none_or(|old| keys(old) != keys(rows));
    if old.is_some() && set.is_empty() && gone.is_empty() && !moved {
        return None;
    }
    let order = moved.then(|| rows.iter().map(|row| row.key.as_str()).collect());
    Some(Event::json("rows", &Rows { table, set, gone, order }))
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

    #[test]
    fn a_changed_cell_moves_no_row() {
        let before = Shown::default().table("t", vec![row("1", "x"), row("2", "y")]);
        let after = Shown::default().table("t", vec![row("1", "x"), row("2", "Y")]);
        let rows = json!({ "table": "t", "set": [["2", "Y"]], "gone": [] });
        assert_eq!(data(&after.changes(Some(&before))), [("rows", rows)]);
    }
}
