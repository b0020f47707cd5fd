//! The cluster as a whole: tasks, nodes, GPUs, the scheduler, the journal.

use tutti_journal::Stats;
use tutti_model::{GpuMicros, NodeState, TimeClass};

use super::text::{Kind, Labels, Text};
use super::{ClusterScene, Scene, node_states};

pub fn render(cluster: &ClusterScene, scene: &Scene, journal: Option<&Stats>, text: &mut Text<'_>) {
    let version = Labels::default().with("version", env!("CARGO_PKG_VERSION")).text();
    let help = "Which tutti this is; always 1.";
    text.family(("tutti_build_info", Kind::Gauge, help), [(version, 1.0)].into_iter());
    let tasks = cluster.tasks.iter().map(|(state, n)| (state_label(state), *n as f64));
    text.family(("tutti_tasks", Kind::Gauge, "Tasks by state."), tasks);
    let pending = cluster.tasks.get("pending").copied().unwrap_or(0) as f64;
    one(text, "tutti_queue_length", Kind::Gauge, "Tasks that wait.", pending);
    let nodes = node_states(&scene.nodes).into_iter();
    let nodes = nodes.map(|(state, n)| (state_label(state.as_str()), n as f64));
    text.family(("tutti_nodes", Kind::Gauge, "Nodes by state."), nodes);
    let gpus = gpus(scene).into_iter().map(|(state, n)| (state_label(state), n as f64));
    let help = "GPUs by state: used by a job in whole or part, free for new ones, or on a node that \
                takes none.";
    text.family(("tutti_gpus", Kind::Gauge, help), gpus);
    // All classes, also those that have nothing: a series that begins late has no past.
    let label = |class: TimeClass| Labels::default().with("class", class.as_str()).text();
    let spent = TimeClass::ALL.into_iter();
    let spent = spent.map(|class| (label(class), seconds(cluster.sums.by_class.of(class))));
    let help = "GPU-seconds by what they were, once that is known for good.";
    text.family(("tutti_gpu_seconds_total", Kind::Counter, help), spent);
    let help = "GPU-seconds of work that no checkpoint and no good end has made safe yet.";
    one(text, "tutti_gpu_seconds_unsaved", Kind::Gauge, help, seconds(cluster.sums.unsaved));
    let alerts = cluster.alerts.iter();
    let alerts =
        alerts.map(|(rule, n)| (Labels::default().with("rule", rule.as_str()).text(), *n as f64));
    text.family(("tutti_alerts", Kind::Gauge, "Alerts that stand, by rule."), alerts);
    let passes = cluster.passes;
    let name = "tutti_scheduler_passes_total";
    one(text, name, Kind::Counter, "Scheduling passes since the start.", passes.count as f64);
    let name = "tutti_scheduler_pass_seconds_total";
    one(text, name, Kind::Counter, "Time spent in them.", passes.total.as_secs_f64());
    let name = "tutti_scheduler_last_pass_seconds";
    one(text, name, Kind::Gauge, "What the last pass took.", passes.last.as_secs_f64());
    let name = "tutti_journal_records_total";
    one(text, name, Kind::Counter, "Records ever written.", cluster.seq as f64);
    if let Some(journal) = journal {
        let name = "tutti_journal_bytes";
        one(text, name, Kind::Gauge, "What batches and snapshots take.", journal.bytes as f64);
        let name = "tutti_journal_disk_bytes";
        one(text, name, Kind::Gauge, "The journal's size on disk.", journal.disk_bytes as f64);
        let name = "tutti_journal_batches";
        one(text, name, Kind::Gauge, "Batches since the last snapshot.", journal.entries as f64);
    }
}

/// Of one GPU.
fn seconds(amount: GpuMicros) -> f64 {
    amount as f64 / 1e6
}

fn one(text: &mut Text<'_>, name: &str, kind: Kind, help: &str, value: f64) {
    text.family((name, kind, help), [("", value)].into_iter());
}

fn state_label(state: &str) -> String {
    Labels::default().with("state", state).text()
}

fn gpus(scene: &Scene) -> [(&'static str, usize); 3] {
    let used: usize = scene.nodes.iter().map(|node| node.gpus_used).sum();
    let ready = scene.nodes.iter().filter(|node| node.state == NodeState::Ready);
    let free: usize = ready.map(|node| node.gpus_free).sum();
    let all: usize = scene.nodes.iter().map(|node| node.gpus.len()).sum();
    [("used", used), ("free", free), ("unavailable", all.saturating_sub(used + free))]
}
