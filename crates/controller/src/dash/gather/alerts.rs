//! What needs somebody: what rules have found, and what nodes say of themselves.

use std::sync::Arc;

use tutti_model::{HealthAction, Link, Node, Time, WatchRule};
use tutti_web::alerts::{About, Alert, View};

use crate::api::{App, Problem};
use crate::clock;
use crate::core::World;
use crate::views;

/// Of what is wrong now, so much is on the page.
const NOW_MAX: usize = 200;
/// Of what is over.
const OVER_MAX: usize = 100;

pub async fn view(app: &App) -> Result<View, Problem> {
    let look = |world: &World| (now(world, NOW_MAX), Arc::clone(&world.engine.state().policy));
    let ((now, more), policy) = app.core.read(look).await?;
    let mut found = app.alerts.list(true, &policy.watch);
    let standing = found.alerts.iter().take_while(|alert| alert.ended_at.is_none()).count();
    found.alerts.truncate(standing + OVER_MAX);
    Ok(View { now, more, found })
}

/// Worst and newest first, at most so many, and how many more there are.
pub fn now(world: &World, most: usize) -> (Vec<Alert>, usize) {
    let state = world.engine.state();
    let mut alerts: Vec<Alert> =
        state.nodes.values().flat_map(|node| node_alerts(world, node)).collect();
    alerts.extend(stalled(world));
    alerts.extend(world.alerts.standing().into_iter().filter_map(watched));
    alerts.sort_by_key(|alert| (!alert.grave, std::cmp::Reverse(alert.since)));
    let more = alerts.len().saturating_sub(most);
    alerts.truncate(most);
    (alerts, more)
}

fn node_alerts(world: &World, node: &Node) -> Vec<Alert> {
    let about = || About::Node(node.facts.name.clone());
    let alert = |grave, text: String, since| Alert { grave, about: about(), text, since };
    let mut alerts: Vec<Alert> = node
        .findings
        .iter()
        .map(|found| {
            // The text names the GPU.
            alert(found.action >= HealthAction::FenceGpu, found.text.clone(), Some(found.since))
        })
        .collect();
    match node.link {
        Link::Lost { since } => alerts.push(alert(true, "is lost".to_owned(), Some(since))),
        Link::Away { since } => alerts.push(alert(true, "is away".to_owned(), Some(since))),
        Link::Up => {}
    }
    if let Some(drain) = node.drain.as_ref().filter(|drain| drain.finding.is_none()) {
        let reason =
            if drain.reason.is_empty() { String::new() } else { format!(": {}", drain.reason) };
        alerts.push(alert(
            drain.auto,
            format!("is drained by {}{reason}", drain.by),
            Some(drain.since),
        ));
    }
    alerts.extend(views::trouble(world, node, clock::now()).map(|text| alert(false, text, None)));
    alerts
}

/// What rules have found. That a job is stalled or a node lost is shown above from the first moment on.
fn watched(alert: tutti_model::Alert) -> Option<Alert> {
    if matches!(alert.rule, WatchRule::Stalled | WatchRule::NodeLost) {
        return None;
    }
    let about = About::from(&alert.subject);
    let grave = !matches!(alert.rule, WatchRule::Straggler | WatchRule::Budget);
    Some(Alert { grave, about, text: alert.text, since: Some(alert.since) })
}

/// Jobs that run and get nowhere.
fn stalled(world: &World) -> Vec<Alert> {
    let running = world.engine.state().index.active.iter();
    let stalled = running.filter_map(|task| {
        let stalled = world.engine.stalled(*task, clock::now())?;
        let since = Time(clock::now().0.saturating_sub(stalled.idle.0));
        let text = format!("did no step, usually one in {}", stalled.pace.fine());
        Some(Alert { grave: true, about: About::Job(*task), text, since: Some(since) })
    });
    stalled.collect()
}
