//! Who had which GPU when.

use std::collections::BTreeMap;

use tutti_model::{GpuIndex, NodeId, Outcome, Span, State, Time};
use tutti_web::timeline::{Bar, End, View};

use super::overview::placed;
use crate::api::{App, Problem};
use crate::chronicle::{self, Stay};
use crate::clock::now;

const BACK: Span = Span::secs(7 * 24 * 3600);
/// Bars drawn, the newest ones: an attempt has one on each of its nodes.
const BARS_MAX: usize = 6000;
const HOUR: u64 = 3_600_000;

pub async fn view(app: &App) -> Result<View, Problem> {
    let from = Time(now().0.saturating_sub(BACK.0));
    let view = app.core.read(|world| {
        let state = world.engine.state();
        let nodes = placed(state);
        let places: BTreeMap<NodeId, usize> =
            nodes.iter().enumerate().map(|(i, (_, _, node))| (node.id, i)).collect();
        let stays = world.chronicle.stays_since(from, usize::MAX);
        let (bars, left_out) = newest(state, &places, stays, BARS_MAX);
        View {
            // In whole hours, so that nothing is sent again only because time passes.
            from: Time(from.0 / HOUR * HOUR),
            nodes: nodes
                .iter()
                .map(|(_, _, node)| (node.facts.name.clone(), node.facts.gpus.len() as u16))
                .collect(),
            bars,
            left_out,
            forgot: world.chronicle.forgot(),
        }
    });
    Ok(view.await?)
}

/// The last so many bars of these attempts, and how many come before them.
fn newest(
    state: &State,
    places: &BTreeMap<NodeId, usize>,
    stays: Vec<&Stay>,
    max: usize,
) -> (Vec<Bar>, usize) {
    let parts = stays
        .into_iter()
        .rev()
        .flat_map(|stay| stay.parts.iter().rev().map(move |(node, gpus)| (stay, node, gpus)));
    let mut there = parts.filter_map(|(stay, node, gpus)| Some((stay, *places.get(node)?, gpus)));
    let last = there.by_ref().take(max);
    let mut bars: Vec<Bar> = last.map(|(stay, node, gpus)| bar(state, stay, node, gpus)).collect();
    bars.reverse();
    (bars, there.count())
}

fn bar(state: &State, stay: &Stay, node: usize, gpus: &[GpuIndex]) -> Bar {
    let job = state.job(stay.task.job);
    Bar {
        task: stay.task,
        name: job.map_or_else(|| "forgotten".to_owned(), |job| job.spec.display_name().to_owned()),
        user: job.map_or_else(String::new, |job| job.user.clone()),
        node,
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tutti_model::{JobId, TaskId};

    fn stay(job: u64, nodes: &[u32]) -> Stay {
        Stay {
            task: TaskId::single(JobId(job)),
            attempt: 1,
            parts: nodes.iter().map(|node| (NodeId(*node), vec![GpuIndex(0)])).collect(),
            placed: Time(job),
            running: None,
            ended: None,
            naps: Vec::new(),
            stopped: None,
            end: chronicle::End::Open,
        }
    }

    #[test]
    fn the_newest_bars_are_drawn_and_others_counted() {
        let places = BTreeMap::from([(NodeId(1), 0), (NodeId(2), 1)]);
        // Node 7 is not there any more.
        let all = [stay(1, &[1, 2]), stay(2, &[7]), stay(3, &[1, 2]), stay(4, &[2])];
        let drawn = |max| {
            let (bars, left_out) = newest(&State::default(), &places, all.iter().collect(), max);
            let bars: Vec<_> = bars.iter().map(|bar| (bar.task.job.0, bar.node)).collect();
            (bars, left_out)
        };
        assert_eq!(drawn(2), (vec![(3, 1), (4, 1)], 3));
        assert_eq!(drawn(9), (vec![(1, 0), (1, 1), (3, 0), (3, 1), (4, 1)], 0));
    }
}
