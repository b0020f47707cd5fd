//! One line with every node and its GPUs, kept up to date by a thread of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::ProgressBar;
use tutti_model::NodeState;
use tutti_wire::api::NodeRow;
use tutti_wire::client::Client;

use super::template;
use crate::style::{Ink, Style, of_node};

const LOOK_EVERY: Duration = Duration::from_millis(120);

/// Gone from the screen when dropped.
pub struct NodeLine {
    bar: ProgressBar,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl NodeLine {
    pub fn watch(bar: ProgressBar, client: &Client, style: Style) -> NodeLine {
        bar.set_style(template("  simulated GPUs  {wide_msg}"));
        let over = Arc::new(AtomicBool::new(false));
        let (client, shown, end) = (client.another(), bar.clone(), over.clone());
        let thread = std::thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                let text = match client.nodes() {
                    Ok(nodes) => render(&nodes, style),
                    Err(_) => "the controller does not answer".to_owned(),
                };
                shown.set_message(text);
                std::thread::sleep(LOOK_EVERY);
            }
        });
        NodeLine { bar, over, thread: Some(thread) }
    }
}

impl Drop for NodeLine {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It only paints; if it panicked, a line is missing and nothing else.
            drop(thread.join());
        }
        self.bar.finish_and_clear();
    }
}

/// `n1 ■■■■□□□□  n2 lost`.
fn render(nodes: &[NodeRow], style: Style) -> String {
    let node = |n: &NodeRow| match n.state {
        NodeState::Ready => {
            let (used, all) = (n.gpus_used as usize, n.facts.gpus as usize);
            let busy = style.paint(Ink::Green, &"■".repeat(used));
            format!(
                "{} {busy}{}",
                n.name,
                style.paint(Ink::Dim, &"□".repeat(all.saturating_sub(used)))
            )
        }
        state => {
            let width = n.facts.gpus as usize;
            let padded = format!("{:<width$}", state.as_str());
            format!("{} {}", n.name, style.paint(of_node(state), &padded))
        }
    };
    nodes.iter().map(node).collect::<Vec<_>>().join("  ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_shown_by_their_gpus_or_their_state() {
        let node = |name: &str, state: &str, used: u32| -> NodeRow {
            serde_json::from_value(serde_json::json!({
                "name": name, "state": state, "address": "127.0.1.1", "gpu_model": "h100",
                "gpus": 4, "cpus": 1, "mem": "1GiB", "simulated": true, "isolation": "",
                "agent_version": "", "labels": {}, "gpus_used": used, "cpus_used": 0,
                "mem_used": "0B", "jobs": [], "drain_reason": null, "since": null,
            }))
            .unwrap()
        };
        let nodes = [node("n1", "ready", 3), node("n2", "ready", 0), node("n3", "away", 4)];
        assert_eq!(render(&nodes, Style::PLAIN), "n1 ■■■□  n2 □□□□  n3 away");
    }
}
