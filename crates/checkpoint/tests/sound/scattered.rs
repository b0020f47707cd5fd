//! Nodes that share no directory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::common::{load_and_check, options, quick_dir, save_with, text};
use tutti_checkpoint::peer::Server;
use tutti_checkpoint::tier::{Bounded, Dir};
use tutti_checkpoint::{Attempt, Dtype, Error, Keep, Options, Selector, Store, Tensor};

const KEY: [u8; 32] = [7; 32];

/// Three nodes, each with its directory and its door.
struct Nodes {
    dirs: Vec<PathBuf>,
    doors: Vec<Server>,
}

impl Nodes {
    fn new(root: &Path, max: u64) -> Nodes {
        let dirs: Vec<PathBuf> = (0..3).map(|n| root.join(format!("n{n}"))).collect();
        let serve = |dir: &PathBuf| {
            let tier = Arc::new(Bounded::new(Dir::new(dir), max));
            Server::bind("127.0.0.1:0".parse().unwrap(), KEY, tier).unwrap()
        };
        let doors = dirs.iter().map(serve).collect();
        Nodes { dirs, doors }
    }

    /// The store of the rank on a node, whose copies go to the next.
    fn open(&self, node: usize, generation: u64) -> Result<Store, Error> {
        let (next, other) = ((node + 1) % 3, (node + 2) % 3);
        let own = options(node as u32, 3, generation);
        let places = Options {
            scattered: true,
            replicas: vec![self.doors[next].url()],
            fellows: vec![self.doors[other].url()],
            key: Some(KEY),
            ..own
        };
        Store::open(text(&self.dirs[node]), places)
    }

    fn save(&self, step: u64, generation: u64) -> Vec<String> {
        let open = |rank: u32| self.open(rank as usize, generation);
        save_with(open, 3, step, 3000).unwrap().warnings
    }

    fn steps(&self, node: usize) -> Vec<u64> {
        self.open(node, 9).unwrap().list().unwrap().iter().map(|l| l.step).collect()
    }
}

#[test]
fn any_one_node_may_be_lost() {
    for lost in 0..3 {
        let root = quick_dir();
        let nodes = Nodes::new(root.path(), 1 << 30);
        assert_eq!(nodes.save(10, 1), Vec::<String>::new());
        std::fs::remove_dir_all(&nodes.dirs[lost]).unwrap();
        for node in 0..3 {
            let store = nodes.open(node, 2).unwrap();
            assert_eq!(load_and_check(&store, Selector::Latest).unwrap(), 10, "seen from {node}");
        }
        // The node that lost everything saves again, and everybody sees it.
        assert_eq!(nodes.save(20, 2), Vec::<String>::new());
        assert_eq!(nodes.steps(0), [10, 20]);
        let store = nodes.open(lost, 3).unwrap();
        assert_eq!(load_and_check(&store, Selector::Latest).unwrap(), 20);
    }
}

#[test]
fn two_lost_nodes_are_too_many_and_nothing_half_is_loaded() {
    let root = quick_dir();
    let nodes = Nodes::new(root.path(), 1 << 30);
    nodes.save(10, 1);
    for lost in [0, 1] {
        std::fs::remove_dir_all(&nodes.dirs[lost]).unwrap();
    }
    let found = nodes.open(2, 2).unwrap().load(Selector::Latest);
    assert!(matches!(found, Err(Error::NothingLoads { .. })));
}

#[test]
fn of_two_attempts_the_newer_counts_wherever_the_older_is_left() {
    let root = quick_dir();
    let nodes = Nodes::new(root.path(), 1 << 30);
    nodes.save(10, 1);
    let manifest = "step-000000000010/manifest-0000.json";
    let old = std::fs::read(nodes.dirs[2].join(manifest)).unwrap();
    nodes.save(10, 2);
    // A node that was away comes back with what it had.
    std::fs::write(nodes.dirs[2].join(manifest), old).unwrap();
    std::fs::remove_file(nodes.dirs[2].join("step-000000000010/manifest-0001.json")).unwrap();
    let loaded = nodes.open(2, 3).unwrap().load(Selector::Latest).unwrap();
    assert_eq!(loaded.manifest().attempt.generation, 2);
}

#[test]
fn retention_reaches_every_node_and_the_end_clears_them() {
    let root = quick_dir();
    let nodes = Nodes::new(root.path(), 1 << 30);
    for step in [10, 20, 30] {
        nodes.save(step, 1);
    }
    let keep = Keep { last: 2, every: None };
    assert_eq!(nodes.open(0, 2).unwrap().retain(&keep).unwrap(), [10]);
    assert_eq!(nodes.steps(1), [20, 30]);
    assert!(!nodes.dirs[2].join("step-000000000010").exists());
    // Garbage of an attempt that is over.
    let dead = nodes.dirs[1].join("step-000000000030");
    let attempt = std::fs::read_dir(&dead).unwrap().find(|e| e.as_ref().unwrap().path().is_dir());
    let left = attempt.unwrap().unwrap().path().join("rank-00001-0-000000000000.safetensors");
    std::fs::write(&left, b"half").unwrap();
    nodes.open(0, 2).unwrap().retain(&keep).unwrap();
    assert!(!left.exists());
    assert_eq!(load_and_check(&nodes.open(1, 2).unwrap(), Selector::Latest).unwrap(), 30);
    nodes.open(0, 2).unwrap().clear_nodes();
    for dir in &nodes.dirs {
        assert_eq!(crate::common::files(dir), Vec::<String>::new());
    }
}

#[test]
fn a_node_that_may_take_no_more_costs_a_copy_and_no_checkpoint() {
    let root = quick_dir();
    let nodes = Nodes::new(root.path(), 100);
    let warnings = nodes.save(10, 1);
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    assert!(warnings.iter().all(|w| w.contains("is full")), "{warnings:?}");
    assert_eq!(load_and_check(&nodes.open(0, 2).unwrap(), Selector::Latest).unwrap(), 10);
}

#[test]
fn the_end_leaves_what_others_saved() {
    let root = quick_dir();
    let nodes = Nodes::new(root.path(), 1 << 30);
    nodes.save(10, 1);
    let theirs = Attempt { owner: "another".into(), generation: 1 };
    let open = |rank: u32| {
        let mut own = options(rank, 1, 1);
        own.writer.as_mut().unwrap().attempt = theirs.clone();
        let replicas = vec![nodes.doors[1].url()];
        let own = Options { scattered: true, replicas, key: Some(KEY), ..own };
        Store::open(text(&nodes.dirs[0]), own)
    };
    save_with(open, 1, 20, 64).unwrap();
    assert_eq!(nodes.open(0, 2).unwrap().clear_nodes(), [10]);
    assert_eq!(nodes.steps(1), [20]);
    assert_eq!(load_and_check(&nodes.open(0, 2).unwrap(), Selector::Latest).unwrap(), 20);
}

/// One rank's shard, and nothing that names it.
fn half(store: &Store, step: u64) {
    let mut save = store.save(step).unwrap();
    save.add(Tensor::whole("w", Dtype::U8, &[8], vec![1; 8])).unwrap();
    save.finish().wait().unwrap();
}

#[test]
fn shards_that_were_never_published_go_with_retention_unless_they_may_be_yet() {
    let root = quick_dir();
    let nodes = Nodes::new(root.path(), 1 << 30);
    // An attempt that died, and one that goes on: a step before its newest and one after.
    half(&nodes.open(1, 1).unwrap(), 15);
    let own = nodes.open(0, 2).unwrap();
    half(&own, 17);
    own.give_up(17);
    let open = |rank: u32| if rank == 0 { Ok(own.clone()) } else { nodes.open(rank as usize, 2) };
    save_with(open, 3, 20, 300).unwrap();
    half(&own, 25);
    half(&nodes.open(2, 2).unwrap(), 25);
    own.retain(&Keep { last: 2, every: None }).unwrap();
    let left = |node: usize, step: u64| nodes.dirs[node].join(format!("step-{step:012}")).exists();
    for node in 0..3 {
        assert!(!left(node, 15) && !left(node, 17), "node {node}");
        assert!(left(node, 20), "node {node}");
    }
    // Node 2 keeps its own, and its copy is on node 0, which has its own, too.
    assert!(left(0, 25) && left(2, 25), "a save that is under way is left alone");
    assert_eq!(load_and_check(&own, Selector::Latest).unwrap(), 20);
}
