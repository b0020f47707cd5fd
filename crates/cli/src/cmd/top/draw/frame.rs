//! What is around every view: who and where, which view, what is wrong, which keys.

use ratatui::text::{Line, Span};
use tutti_wire::api::ClusterInfo;

use super::super::app::{App, Prompt, Trouble, View};
use super::super::data::activity;
use super::super::filter::JobFilter;
use super::super::text::{clip, left, percent, width};
use super::{sides, word};
use crate::show::{count, harmless, thousands, time};
use crate::style::Ink;

pub fn head(app: &App) -> Line<'static> {
    let mut left_side = vec![word(app, Ink::Bold, " tutti top ")];
    let who = app.data.cluster.as_ref().map(|info| format!("{} ({}) at ", info.user, info.role));
    let place = format!("{}{}", who.unwrap_or_default(), app.place);
    let age = app.age().map(|age| format!("{} old ", time::short(age)));
    let room = usize::from(app.size.width).saturating_sub(46 + age.as_ref().map_or(0, String::len));
    left_side.push(Span::raw(format!(" {}", clip(&place, room))));
    let mut right_side = Vec::new();
    if app.data.cluster.as_ref().is_some_and(|info| info.simulated) {
        right_side.push(word(app, Ink::Magenta, "simulated GPUs "));
    }
    if app.old().is_some() {
        right_side.push(Span::styled(" OLD ", app.theme.alarm()));
    }
    let alerts = app.data.alerts.len() as u64;
    if alerts > 0 {
        right_side.push(word(app, Ink::Yellow, format!(" {} ", count(alerts, "alert"))));
    }
    right_side.push(Span::raw(format!(" {} ", hour(app.now))));
    right_side.extend(age.map(|age| word(app, Ink::Yellow, age)));
    sides(left_side, right_side, app.size.width)
}

/// The time of day alone.
pub fn hour(at: tutti_model::Time) -> String {
    let clock = time::clock(at);
    clock.rsplit(' ').next().unwrap_or(&clock).to_owned()
}

pub fn tabs(app: &App) -> Line<'static> {
    let job = app.job.map_or_else(|| "job".to_owned(), |id| format!("job {id}"));
    let names = [
        (View::Cluster, "cluster".to_owned()),
        (View::Jobs, "jobs".to_owned()),
        (View::Nodes, "nodes".to_owned()),
        (View::Job, job),
    ];
    let mut spans = Vec::new();
    for (place, (view, name)) in names.into_iter().enumerate() {
        let below = matches!((view, app.view), (View::Nodes, View::Node) | (View::Job, View::Logs));
        let text = format!("{} {name}", place + 1);
        spans.push(if view == app.view || below {
            Span::styled(format!("[{text}]"), app.theme.selected())
        } else {
            Span::raw(format!(" {text} "))
        });
    }
    match (app.view, &app.node) {
        (View::Node, Some(name)) => spans.push(Span::raw(format!(" › {}", clip(name, 20)))),
        (View::Logs, _) => spans.push(Span::raw(" › logs")),
        _ => {}
    }
    let summary = app.data.cluster.as_ref().map(|info| summary(app, info));
    sides(spans, vec![Span::raw(summary.unwrap_or_default())], app.size.width)
}

fn summary(app: &App, info: &ClusterInfo) -> String {
    let tasks = |state: &str| thousands(info.tasks.get(state).copied().unwrap_or_default());
    let busy = activity(&app.data.load.cluster).map(|share| format!(" {} busy", percent(share)));
    let used = format!("{}/{} GPUs", info.gpus_used, info.gpus);
    let jobs = format!("{} running {} pending", tasks("running"), tasks("pending"));
    let whole = format!("{used}{} · {jobs} ", busy.unwrap_or_default());
    // Where the tabs leave too little room for it.
    if app.size.width >= 100 { whole } else { format!("{jobs} ") }
}

pub fn banner(app: &App) -> Line<'static> {
    let shown = match (app.heard, app.old()) {
        (Some(at), Some(age)) => format!("shown is {}, {} old", hour(at), time::short(age)),
        _ => match app.unheard() {
            Some(waited) => format!("nothing was heard for {}", time::short(waited)),
            None => "nothing was heard yet".to_owned(),
        },
    };
    let wide = usize::from(app.size.width);
    let text = match &app.trouble {
        Some(trouble) => away(trouble, &shown, app.old(), wide),
        None => format!("! the controller does not answer · {shown} · waiting"),
    };
    Line::styled(left(&text, wide), app.theme.alarm())
}

/// Why it is away is what matters: where there is little room, all that is around the cause goes first.
fn away(trouble: &Trouble, shown: &str, old: Option<tutti_model::Span>, wide: usize) -> String {
    let head = format!("! since {}: ", hour(trouble.since));
    let whole = harmless(&trouble.text);
    let cause = whole.rsplit(": ").next().unwrap_or(&whole);
    let tail = old.map_or_else(String::new, |age| format!(" · {} old", time::short(age)));
    let words = [
        format!("{head}{whole} · {shown} · trying again"),
        format!("{head}{whole}{tail}"),
        format!("{head}{cause}{tail}"),
    ];
    let room = wide.saturating_sub(width(&head) + width(&tail));
    let cut = || format!("{head}{}{tail}", clip(cause, room));
    words.into_iter().find(|words| width(words) <= wide).unwrap_or_else(cut)
}

pub fn foot(app: &App) -> Line<'static> {
    let wide = usize::from(app.size.width);
    if let Some(prompt) = &app.prompt {
        let (text, alarm) = match prompt {
            Prompt::Filter { text, .. } => match unknown_state(app) {
                Some(word) => (format!("filter: {text}▏ no such state: {word}"), false),
                None => (format!("filter: {text}▏ (enter keeps it, esc not)"), false),
            },
            Prompt::Search { text } => (format!("search: {text}▏"), false),
            Prompt::Ranks { text } => (format!("ranks, such as 0-3,7, or all: {text}▏"), false),
            Prompt::Cancel { id, what } => (format!("cancel job {id}{what}? y or n"), true),
        };
        let style = if alarm { app.theme.alarm() } else { app.theme.of(Ink::Bold) };
        return Line::styled(left(&text, wide), style);
    }
    if let Some(said) = &app.said {
        let style = if said.bad { app.theme.alarm() } else { app.theme.of(Ink::Green) };
        let mark = if said.bad { "! " } else { "" };
        return Line::styled(left(&format!("{mark}{}", said.text), wide), style);
    }
    Line::styled(left(keys(app), wide), app.theme.of(Ink::Dim))
}

/// Of jobs; nodes are filtered by what is in their rows.
fn unknown_state(app: &App) -> Option<String> {
    JobFilter::parse(&app.jobs.filter).unknown_state.filter(|_| app.view == View::Jobs)
}

fn keys(app: &App) -> &'static str {
    match app.view {
        View::Cluster => " ↑↓ scroll  c cells  / filter nodes  tab next view  ? help  q quit",
        View::Jobs => " enter open  l logs  k kill  / filter  s sort  a ended  ? help  q quit",
        View::Nodes => " enter open  / filter  s sort  S reverse  tab next view  ? help  q quit",
        View::Job => " l logs  k kill  ↑↓ scroll  esc back  ? help  q quit",
        View::Node => " ↑↓ scroll  esc back  ? help  q quit",
        View::Logs => {
            " / search  n N next  F follow  r ranks  ↑↓←→ scroll  esc back  ? help  q quit"
        }
    }
}
