use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tutti_model::{JobState, NodeState};
use tutti_testkit::{Cli, Cluster, ClusterOptions, Network, PATIENCE, is_root, wait_until};

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

/// From another machine the command line works with an address and a token, and nothing but TLS
/// is answered.
#[test]
#[allow(clippy::print_stderr)]
fn beyond_loopback_only_tls_is_spoken() {
    if !is_root() {
        eprintln!("SKIPPED: making network namespaces needs root");
        return;
    }
    let network = Network::new(3);
    let machines = network.machines().to_vec();
    machines[0].enter();
    let listen = "0.0.0.0:0".to_owned();
    let controller_args = vec!["--name".to_owned(), machines[0].address.clone()];
    let elsewhere = machines[2].clone();
    let options =
        ClusterOptions { nodes: 0, listen, machines, controller_args, ..ClusterOptions::default() };
    let address = options.machines[0].address.clone();
    let mut cluster = Cluster::with(TUTTI, options);
    let port = cluster.client().endpoint().port;
    let address = format!("{address}:{port}");
    cluster.start_agent_at("n1", &address);
    cluster.wait_node("n1", NodeState::Ready);

    let token = fs::read_to_string(cluster.dir().join("admin.token")).unwrap();
    let user = tutti_testkit::me();
    let new = tutti_wire::api::NewToken {
        grant: tutti_model::Grant::Access { user, role: tutti_model::Role::User },
        expires_in: None,
    };
    let own = cluster.client().create_token(&new).unwrap().secret;
    let remote = |args: &[&str], token: &str| {
        let cli = Cli::new(cluster.binary(), args).env("TUTTI_CLUSTER", &address).on(&elsewhere);
        cli.dir(cluster.scratch()).env("TUTTI_TOKEN", token)
    };
    assert_eq!(remote(&["run", "--", "cat"], &own).stdin(b"over TLS").ok(), "over TLS");
    remote(&["nodes"], token.trim()).ok();
    let plain = format!("http://{address}");
    let cli = remote(&["ps"], &own).env("TUTTI_CLUSTER", &plain).call();
    cli.exited(2).says(&["https://"]);
    // A server of another cluster is not even told the token.
    let other = own.replacen(&own[8..24], "0123456789abcdef", 1);
    remote(&["ps"], &other).call().exited(4).says(&["nothing was sent"]);

    let (sent, answer) = std::thread::spawn(move || {
        elsewhere.enter();
        let mut socket = TcpStream::connect(&address).unwrap();
        let request = format!("GET /api/v1/cluster HTTP/1.1\r\nHost: {address}\r\n\r\n");
        let sent = socket.write_all(request.as_bytes());
        let mut answer = Vec::new();
        // Hung up on, gently or not.
        let _ = socket.read_to_end(&mut answer);
        (sent, answer)
    })
    .join()
    .unwrap();
    sent.unwrap();
    let answer = String::from_utf8_lossy(&answer);
    assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(!answer.contains("version"), "{answer}");
}
