use tutti_model::NodeState;
use tutti_testkit::{Cli, LiveCli, Machine, Network, PATIENCE, is_root, wait_until};
use tutti_wire::api::NodeRow;

use crate::TUTTI;
use crate::up::Place;

fn nodes(place: &Place, at: &Machine) -> Vec<NodeRow> {
    let said = place.ask(&["nodes", "--json"]).on(at).ok();
    serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"))
}

/// As the guide says: a token from the first machine, pasted on the other.
fn join(place: &Place, first: &Machine, at: &Machine, name: &str, more: &[&str]) -> LiveCli {
    let token = place.ask(&["token", "create", "--join"]).on(first).ok();
    let (dir, to) = (place.path().join(name), format!("{}:7171", first.address));
    let args = ["agent", "--controller", &to, "--join-file", "-", "--name", name];
    let own = ["--gpus-per-node", "1", "--data-dir", dir.to_str().unwrap()];
    let args = [&args[..], &own[..], more].concat();
    let live = Cli::new(std::path::Path::new(TUTTI), &args).stdin(token.as_bytes()).on(at).spawn();
    wait_until("it is ready", PATIENCE, || {
        nodes(place, first).iter().any(|n| n.name == name && n.state == NodeState::Ready)
    });
    live
}

/// Two machines by the guide: ranks reach each other, and where they would not, nothing starts.
#[test]
#[allow(clippy::print_stderr)]
fn a_gang_spans_only_nodes_that_reach_each_other() {
    if !is_root() {
        eprintln!("SKIPPED: making network namespaces needs root");
        return;
    }
    let network = Network::new(2);
    let (first, second) = (&network.machines()[0], &network.machines()[1]);
    let place = Place::new();
    let at = format!("{}:7171", first.address);
    let up = ["up", "--nodes", "1", "--gpus-per-node", "1", "--simulate", "--no-router", "-d"];
    let up = place.tutti(&[&up[..], &["--listen", &at]].concat()).on(first).call();
    up.exited(0).says(&[&format!("https://{at}")]);
    assert!(!up.err.contains(&format!("http://{at}")), "only https answers there: {up}");
    let _far = join(&place, first, second, "far", &[]);
    let mut addresses: Vec<String> =
        nodes(&place, first).into_iter().map(|n| n.facts.address).collect();
    addresses.sort();
    assert_eq!(addresses, [first.address.clone(), second.address.clone()]);
    let ranks = place.ask(&["run", "-N", "2", "--", "sh", "-c", "echo at $MASTER_ADDR"]).on(first);
    let said = ranks.ok();
    assert_eq!(said.lines().filter(|l| l.contains("at 10.77.0.")).count(), 2, "{said}");
    let well = place.ask(&["doctor"]).on(first).ok();
    assert!(!well.contains("loopback"), "{well}");

    // One that says of itself that only its own machine reaches it.
    let _alone = join(&place, first, second, "alone", &["--address", "127.0.0.1"]);
    let three = ["run", "-N", "3", "--", "true"];
    place.ask(&three).on(first).call().exited(5).says(&["nodes that reach each other"]);
    place.ask(&["run", "-N", "2", "--", "true"]).on(first).ok();
    let doctor = place.ask(&["doctor"]).on(first).call().out;
    assert!(
        doctor.contains("alone") && doctor.contains("which no other machine reaches"),
        "{doctor}"
    );

    // With the other node busy there is room for two, but not together.
    place.ask(&["drain", "far", "--reason", "test"]).on(first).ok();
    let job = place.ask(&["submit", "-N", "2", "--wrap", "true"]).on(first).ok();
    let why = place.ask(&["why", job.trim()]).on(first).call().out;
    assert!(why.contains("not reached from the others"), "{why}");
    place.tutti(&["down"]).on(first).ok();
}
