//! `tutti nodes`.

use tutti_wire::api::NodeRow;

use super::count;
use super::table::{Grid, plain};
use crate::style::{Ink, Style, of_node};

pub fn table(nodes: &[NodeRow], style: Style, width: Option<u16>) -> String {
    if nodes.is_empty() {
        return "no nodes: tutti token create --join makes a token for tutti agent".to_owned();
    }
    let head =
        ["NAME", "STATE", "GPUS", ">USED", ">CPUS", ">USED", ">MEM", ">USED", ">JOBS", "NOTE"];
    let mut grid = Grid::new(&head, style);
    for n in nodes {
        let f = &n.facts;
        let gpus = match &f.gpu_model {
            Some(model) => format!("{} × {model}", f.gpus),
            None => "-".to_owned(),
        };
        grid.row([
            plain(n.name.clone()),
            (n.state.as_str().to_owned(), of_node(n.state)),
            plain(gpus),
            plain(n.gpus_used.to_string()),
            plain(f.cpus.to_string()),
            plain(n.cpus_used.to_string()),
            plain(gib(f.mem)),
            plain(gib(n.mem_used)),
            plain(n.jobs.len().to_string()),
            note(n),
        ]);
    }
    let sum = |f: fn(&NodeRow) -> u32| nodes.iter().map(|n| u64::from(f(n))).sum::<u64>();
    let simulated = if nodes.iter().any(|n| n.facts.simulated) { " (simulated)" } else { "" };
    format!(
        "{}\n{}, {} of {}{simulated} in use",
        grid.render(width),
        count(nodes.len() as u64, "node"),
        sum(|n| n.gpus_used),
        count(sum(|n| n.facts.gpus), "GPU")
    )
}

fn note(n: &NodeRow) -> (String, Ink) {
    let mut parts = Vec::new();
    if n.facts.simulated {
        parts.push("simulated".to_owned());
    }
    if let Some(reason) = n.drain_reason.as_ref().filter(|r| !r.is_empty()) {
        parts.push(reason.clone());
    }
    (parts.join("; "), Ink::Dim)
}

fn gib(bytes: tutti_model::Bytes) -> String {
    format!("{}G", bytes.0 >> 30)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tutti_model::{Bytes, NodeState};
    use tutti_wire::api::NodeFactsRow;

    #[test]
    fn simulated_nodes_say_so() {
        let node = NodeRow {
            name: "n1".into(),
            state: NodeState::Draining,
            facts: NodeFactsRow {
                address: "127.0.1.1".into(),
                gpu_model: Some("h100".into()),
                gpus: 8,
                cpus: 64,
                mem: Bytes::gib(512),
                simulated: true,
                isolation: "cgroup2".into(),
                agent_version: "0.1.0".into(),
                labels: Default::default(),
            },
            gpus_used: 2,
            cpus_used: 4,
            mem_used: Bytes::gib(3),
            jobs: vec!["7".parse().unwrap()],
            drain_reason: Some("fan".into()),
            since: None,
        };
        assert_eq!(
            table(&[node], Style::PLAIN, None),
            "NAME  STATE     GPUS      USED  CPUS  USED   MEM  USED  JOBS  NOTE
n1    draining  8 × h100     2    64     4  512G    3G     1  simulated; fan
1 node, 2 of 8 GPUs (simulated) in use"
        );
        assert!(table(&[], Style::PLAIN, None).contains("token create --join"));
    }
}
