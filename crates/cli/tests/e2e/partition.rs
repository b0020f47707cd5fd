use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tutti_model::{JobState, NodeState};
use tutti_testkit::{Cluster, ClusterOptions, Network, PATIENCE, is_root, wait_until};

use crate::{TUTTI, gang};

/// Each rank adds to a file named after its node and generation.
fn beating(dir: &Path) -> String {
    let file = format!("{}/beat.$TUTTI_NODE.$TUTTI_GENERATION", dir.display());
    format!("while :; do echo beat >> {file}; sleep 0.1; done")
}

fn beats(dir: &Path, node: &str, generation: u64) -> u64 {
    let file: PathBuf = dir.join(format!("beat.{node}.{generation}"));
    fs::metadata(file).map_or(0, |m| m.len())
}

/// Machines of their own, joined by TLS over a network that is then cut.
#[test]
#[allow(clippy::print_stderr)]
fn a_node_cut_off_is_replaced_and_cleans_up_when_it_is_back() {
    if !is_root() {
        eprintln!("SKIPPED: making network namespaces needs root");
        return;
    }
    let network = Network::new(4);
    let machines = network.machines().to_vec();
    machines[0].enter();
    let listen = format!("{}:0", machines[0].address);
    let options = ClusterOptions { nodes: 3, listen, machines, ..ClusterOptions::default() };
    let cluster = Cluster::with(TUTTI, options);
    let (client, dir) = (cluster.client(), cluster.scratch().to_owned());
    assert!(client.endpoint().tls, "beyond loopback nothing is plain text");

    let id = cluster.submit(gang(2, beating(&dir)));
    let first = cluster.wait_state(id, JobState::Running);
    let old = first.generation.unwrap();
    let lost = first.parts[1].node.clone();
    wait_until("both ranks beat", PATIENCE, || {
        first.parts.iter().all(|p| beats(&dir, &p.node, old) > 0)
    });
    let machine: usize = lost[1..].parse().unwrap();
    network.cut(machine);

    // At every moment there is one attempt, and none that mixes two generations.
    wait_until("the gang runs elsewhere", PATIENCE, || {
        let job = client.job(id).unwrap();
        let again = job.attempt == Some(2);
        if again {
            assert!(job.generation > Some(old), "{job:?}");
            assert!(job.parts.iter().all(|p| p.node != lost), "{:?}", job.parts);
        } else if job.attempt.is_some() {
            assert_eq!(job.generation, Some(old));
        }
        again && job.row.state == JobState::Running
    });
    let new = cluster.job(id).generation.unwrap();
    let nodes: Vec<String> = cluster.job(id).parts.into_iter().map(|p| p.node).collect();
    wait_until("the new ranks beat", PATIENCE, || nodes.iter().all(|n| beats(&dir, n, new) > 0));
    assert_eq!(cluster.client().node(&lost).unwrap().state, NodeState::Lost);
    let survivor = &first.parts[0].node;
    let stopped = beats(&dir, survivor, old);
    let cut_off = beats(&dir, &lost, old);
    wait_until("the cut-off rank goes on", PATIENCE, || beats(&dir, &lost, old) > cut_off + 50);
    assert_eq!(beats(&dir, survivor, old), stopped, "what could be reached was stopped before");

    network.mend(machine);
    let mended = Instant::now();
    wait_until("the cut-off rank is stopped", PATIENCE, || cluster.processes_on(&lost).is_empty());
    let took = mended.elapsed();
    assert!(took < Duration::from_secs(15), "it took {took:?}");
    cluster.wait_node(&lost, NodeState::Ready);
    let job = cluster.job(id);
    assert_eq!((job.row.state, job.generation), (JobState::Running, Some(new)));
    assert_eq!((job.row.restarts, beats(&dir, &lost, new)), (1, 0));
}
