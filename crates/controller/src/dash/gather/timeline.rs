//! Who had which GPU when.

use std::collections::BTreeMap;

use tutti_model::{NodeId, Outcome, Span, State, Time};
use tutti_web::timeline::{Bar, End, View};

use super::overview::placed;
use crate::api::{App, Problem};
use crate::chronicle::{self, Stay};
use crate::clock::now;

const BACK: Span = Span::secs(7 * 24 * 3600);
/// Attempts drawn, the newest ones.
const STAYS_MAX: usize = 4000;

pub async fn view(app: &App) -> Result<View, Problem> {
    let view = app.core.read(|world| {
        let state = world.engine.state();
        let (from, until) = (Time(now().0.saturating_sub(BACK.0)), now());
        let nodes = placed(state);
        let places: BTreeMap<NodeId, usize> =
            nodes.iter().enumerate().map(|(i, (_, _, node))| (node.id, i)).collect();
        let stays = world.chronicle.stays_since(from, STAYS_MAX);
        let more = world.chronicle.forgot() || stays.len() >= STAYS_MAX;
        View {
            from,
            // In whole minutes, so that nothing is sent again only because time passes.
            until: Time(until.0.div_ceil(60_000) * 60_000),
            nodes: nodes
                .iter()
                .map(|(_, _, node)| (node.facts.name.clone(), node.facts.gpus.len() as u16))
                .collect(),
            bars: stays.into_iter().flat_map(|stay| bars(state, &places, stay)).collect(),
            more,
        }
    });
    let mut view = view.await?;
    view.from = Time(view.from.0 / 3_600_000 * 3_600_000);
    Ok(view)
}

fn bars(state: &State, places: &BTreeMap<NodeId, usize>, stay: &Stay) -> Vec<Bar> {
    let job = state.job(stay.task.job);
    let bar = |(node, gpus): &(NodeId, Vec<tutti_model::GpuIndex>)| {
        Some(Bar {
            task: stay.task,
            name: job
                .map_or_else(|| "forgotten".to_owned(), |job| job.spec.display_name().to_owned()),
            user: job.map_or_else(String::new, |job| job.user.clone()),
            node: *places.get(node)?,
            gpus: gpus.iter().map(|gpu| gpu.0).collect(),
            from: stay.placed,
            until: stay.ended,
            end: match &stay.end {
                chronicle::End::Open => End::Open,
                chronicle::End::Requeued(_) => End::Requeued,
                chronicle::End::Ended(ended) => match ended.outcome {
                    Outcome::Completed => End::Completed,
                    Outcome::Failed => End::Failed,
                    Outcome::Cancelled => End::Cancelled,
                },
            },
        })
    };
    stay.parts.iter().filter_map(bar).collect()
}
