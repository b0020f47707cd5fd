//! Which nodes are measured. Pure.

use std::collections::BTreeMap;

use tutti_model::{GpuRequest, NodeState};
use tutti_wire::api::NodeRow;

use crate::fail::{Fail, IMPOSSIBLE};

/// Said of a node.
pub const SIMULATED: &str = "has simulated GPUs: there is nothing to measure";
/// Nodes that are named; the rest is counted.
const NAMED: usize = 8;

/// Nodes of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    pub gpus: GpuRequest,
    pub nodes: u32,
    /// One of them.
    pub first: String,
    /// Other kinds that could have been chosen.
    pub left_out: Vec<GpuRequest>,
}

/// There is nothing that could be measured.
fn refusal(message: impl Into<String>) -> Fail {
    Fail::new(message).exit(IMPOSSIBLE)
}

fn per_node(names: &[&str]) -> String {
    let mut lines: Vec<String> =
        names.iter().take(NAMED).map(|name| format!("{name} {SIMULATED}")).collect();
    if names.len() > NAMED {
        lines.push(format!("and so have {} more", names.len() - NAMED));
    }
    lines.join("\n")
}

/// All nodes of the kind that has most idle ones; or of the kind, or as many, as was asked for.
pub fn choose(
    nodes: &[NodeRow],
    asked: Option<&GpuRequest>,
    count: Option<u32>,
) -> Result<Choice, Fail> {
    let with_gpus: Vec<&NodeRow> =
        nodes.iter().filter(|n| n.facts.gpus > 0 && n.facts.gpu_model.is_some()).collect();
    if with_gpus.is_empty() {
        return Err(refusal("no node has a GPU: there is nothing to measure"));
    }
    let real: Vec<&NodeRow> = with_gpus.iter().filter(|n| !n.facts.simulated).copied().collect();
    if real.is_empty() {
        let names: Vec<&str> = with_gpus.iter().map(|n| n.name.as_str()).collect();
        return Err(refusal(per_node(&names)));
    }
    let mut kinds: BTreeMap<(&str, u32), Vec<&NodeRow>> = BTreeMap::new();
    for node in real {
        let model = node.facts.gpu_model.as_deref().unwrap_or_default();
        kinds.entry((model, node.facts.gpus)).or_default().push(node);
    }
    let wanted = asked.and_then(|asked| asked.model.as_deref());
    let fits = |model: &str| wanted.is_none_or(|wanted| wanted.split('|').any(|w| w == model));
    let idle = |nodes: &[&NodeRow]| nodes.iter().filter(|n| is_idle(n)).count();
    let best = kinds
        .iter()
        .filter(|((model, _), _)| fits(model))
        // The first by name of those that are alike.
        .min_by_key(|(_, nodes)| std::cmp::Reverse((idle(nodes), nodes.len())));
    let Some((&(model, gpus), nodes)) = best else {
        let there: Vec<&str> = kinds.keys().map(|(model, _)| *model).collect();
        let (wanted, there) = (wanted.unwrap_or_default(), there.join(", "));
        return Err(refusal(format!("no node has {wanted} GPUs: there are {there}")));
    };
    let request = |model: &str, count| GpuRequest { model: Some(model.to_owned()), count };
    let others = kinds.keys().filter(|kind| **kind != (model, gpus) && asked.is_none());
    Ok(Choice {
        gpus: request(model, asked.map_or(gpus, |asked| asked.count)),
        nodes: count.unwrap_or_else(|| u32::try_from(idle(nodes)).unwrap_or(u32::MAX).max(1)),
        first: nodes[0].name.clone(),
        left_out: others.map(|(model, gpus)| request(model, *gpus)).collect(),
    })
}

/// All of its GPUs could be had now.
fn is_idle(node: &NodeRow) -> bool {
    node.state == NodeState::Ready && node.gpus_used == 0 && node.fenced.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::nodes::tests::node;

    fn row(name: &str, model: &str, gpus: u32, used: u32) -> NodeRow {
        let mut row = NodeRow { name: name.into(), state: NodeState::Ready, ..node() };
        row.facts.gpu_model = Some(model.into());
        row.facts.gpus = gpus;
        row.facts.simulated = false;
        row.gpus_used = used;
        row
    }

    fn request(text: &str) -> GpuRequest {
        text.parse().unwrap()
    }

    #[test]
    fn all_idle_nodes_of_the_commonest_kind_unless_told_otherwise() {
        let nodes = [
            row("n1", "h100", 8, 0),
            row("n2", "h100", 8, 3),
            row("n3", "h100", 8, 0),
            row("n4", "a100", 4, 0),
        ];
        let choice = choose(&nodes, None, None).unwrap();
        assert_eq!((choice.gpus, choice.nodes), (request("h100:8"), 2));
        assert_eq!((choice.first.as_str(), choice.left_out), ("n1", vec![request("a100:4")]));
        assert_eq!(choose(&nodes, None, Some(3)).unwrap().nodes, 3);
        let asked = choose(&nodes, Some(&request("a100:2")), None).unwrap();
        assert_eq!((asked.gpus, asked.nodes), (request("a100:2"), 1));
        assert!(asked.left_out.is_empty());
        let number = choose(&nodes, Some(&request("1")), None).unwrap();
        assert_eq!(number.gpus, request("h100:1"), "not on a node of another kind");
        let busy = choose(&nodes[1..2], None, None).unwrap();
        assert_eq!(busy.nodes, 1, "it waits");
    }

    #[test]
    fn what_cannot_be_measured_is_refused_in_a_sentence() {
        let words = |nodes: &[NodeRow], asked: Option<&GpuRequest>| {
            let fail = choose(nodes, asked, None).unwrap_err();
            assert_eq!(fail.exit, IMPOSSIBLE);
            fail.message
        };
        assert_eq!(words(&[], None), "no node has a GPU: there is nothing to measure");
        let simulated = NodeRow { name: "n7".into(), ..node() };
        let one = [simulated.clone()];
        assert_eq!(words(&one, None), "n7 has simulated GPUs: there is nothing to measure");
        let many = words(&vec![simulated.clone(); 10], None);
        assert!(many.ends_with("\nand so have 2 more"), "{many}");
        let mixed = [simulated, row("n1", "h100", 8, 0)];
        assert_eq!(choose(&mixed, None, None).unwrap().first, "n1");
        let none = words(&mixed, Some(&request("b200:8")));
        assert_eq!(none, "no node has b200 GPUs: there are h100");
    }
}
