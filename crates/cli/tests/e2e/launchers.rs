//! Unmodified programs of real frameworks, started across nodes. Frameworks listen wherever they
//! like, so each cluster here is in a network namespace with only loopback.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tutti_model::{Checkpoint, JobSpec, JobState, Launcher, Span, TaskId};
use tutti_testkit::{Cluster, ClusterOptions, Loopback, PATIENCE, is_root, wait_for, wait_until};
use tutti_wire::api::LogQuery;

use crate::TUTTI;

/// Importing a framework on a busy machine with two cores takes its time.
const LONG: Duration = Duration::from_secs(240);

struct Island {
    cluster: Cluster,
    _network: Loopback,
}

/// Two nodes with two GPUs each. None without root.
#[allow(clippy::print_stderr)]
fn island() -> Option<Island> {
    if !is_root() {
        eprintln!("SKIPPED: making network namespaces needs root");
        return None;
    }
    let network = Loopback::new(2);
    let machines = network.machines().to_vec();
    machines[0].enter();
    let options = ClusterOptions { gpus_per_node: 2, machines, ..ClusterOptions::default() };
    Some(Island { cluster: Cluster::with(TUTTI, options), _network: network })
}

/// Programs stand beside this file.
fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/launchers").join(name)
}

fn gang(launcher: Launcher, line: String) -> JobSpec {
    let gpus_per_node = Some("2".parse().expect("a number of GPUs"));
    JobSpec { nodes: Some(2), gpus_per_node, launcher, ..JobSpec::shell(line) }
}

impl Island {
    #[track_caller]
    fn ends(&self, id: TaskId, state: JobState) -> Vec<String> {
        let client = self.cluster.client();
        let row = wait_for(&format!("job {id} ends"), LONG, || {
            client.wait(id, 10).ok().filter(|row| row.state.is_final())
        });
        let lines = self.cluster.log_of(id, &LogQuery::default());
        let mut lines: Vec<String> = lines.into_iter().map(|l| l.text).collect();
        assert_eq!(row.state, state, "{}\n{}", row.note, lines.join("\n"));
        lines.sort();
        lines
    }

    /// What it prints, sorted, without what its framework says of itself.
    #[track_caller]
    fn prints(&self, spec: JobSpec, wanted: &[&str]) {
        let lines = self.ends(self.cluster.submit(spec), JobState::Completed);
        let own = lines.iter().filter(|l| l.contains(": sum "));
        let mut own: Vec<&str> = own.map(|line| without_prefix(line)).collect();
        own.sort_unstable();
        assert_eq!(own, wanted, "{}", lines.join("\n"));
    }
}

/// Some launchers put `[default0]:` before each line.
fn without_prefix(line: &str) -> &str {
    match line.split_once("]:") {
        Some((prefix, rest)) if prefix.starts_with('[') => rest,
        _ => line,
    }
}

const DDP: [&str; 4] = [
    "rank 0 of 4: sum 10, same weights True",
    "rank 1 of 4: sum 10, same weights True",
    "rank 2 of 4: sum 10, same weights True",
    "rank 3 of 4: sum 10, same weights True",
];

#[test]
fn pytorch_ddp_starts_unmodified() {
    let Some(island) = island() else { return };
    let line = format!("python3 {}", program("ddp.py").display());
    island.prints(gang(Launcher::Torch, line), &DDP);
}

fn compile(name: &str, to: &Path) -> String {
    let done = Command::new("mpicc").arg(program(name)).arg("-o").arg(to).output();
    let done = done.expect("mpicc runs; Debian: libopenmpi-dev");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    to.display().to_string()
}

#[test]
fn open_mpi_starts_through_the_agents() {
    let Some(island) = island() else { return };
    let cluster = &island.cluster;
    let binary = compile("allreduce.c", &cluster.scratch().join("allreduce"));
    let wanted = [
        "rank 0 of 4, 2 on n1: sum 10",
        "rank 1 of 4, 2 on n1: sum 10",
        "rank 2 of 4, 2 on n2: sum 10",
        "rank 3 of 4, 2 on n2: sum 10",
    ];
    island.prints(gang(Launcher::Mpi, binary.clone()), &wanted);
    // The user's own mpirun, flags and all.
    let line = format!("cd / && mpirun -n 2 --map-by node {binary}");
    let wanted = ["rank 0 of 2, 1 on n1: sum 3", "rank 1 of 2, 1 on n2: sum 3"];
    island.prints(gang(Launcher::Mpi, line), &wanted);

    let failing = cluster.submit(gang(Launcher::Mpi, format!("{binary} 3")));
    island.ends(failing, JobState::Failed);
    assert_eq!(cluster.job(failing).row.exit_code, Some(3));

    cancelled_mpi_may_save(&island);
}

/// Ranks on all nodes are asked to save, and have time for it.
fn cancelled_mpi_may_save(island: &Island) {
    let (cluster, dir) = (&island.cluster, island.cluster.scratch().join("saves"));
    std::fs::create_dir(&dir).expect("a directory");
    let mark = |what: &str| format!("touch {}/{what}.$TUTTI_NODE.$$", dir.display());
    let line = format!(
        "trap 'sleep 0.2; {}; exit 0' USR1; {}; while :; do sleep 0.1; done",
        mark("saved"),
        mark("up")
    );
    let mut spec = gang(Launcher::Mpi, line);
    spec.checkpoint = Some(Checkpoint {
        dir: dir.display().to_string(),
        signal: Some("USR1".into()),
        grace: Some(Span::secs(30)),
    });
    let id = cluster.submit(spec);
    let count = |start: &str| {
        let files = std::fs::read_dir(&dir).expect("it can be read");
        let names = files.map(|f| f.expect("an entry").file_name());
        names.filter(|name| name.to_string_lossy().starts_with(start)).count()
    };
    wait_until("ranks run on both nodes", LONG, || count("up.n1") == 2 && count("up.n2") == 2);
    cluster.client().cancel(id).expect("it is cancelled");
    for node in ["n1", "n2"] {
        wait_until("its processes are gone", PATIENCE, || cluster.processes_on(node).is_empty());
    }
    island.ends(id, JobState::Cancelled);
    assert_eq!((count("saved.n1"), count("saved.n2")), (2, 2));
}

#[test]
fn every_rank_finds_the_host_file_and_the_key() {
    let cluster = crate::cluster(2);
    let line = "echo host $(cat $TUTTI_HOSTFILE); echo cross $CROSS_RANK/$CROSS_SIZE; \
                echo key $TUTTI_GANG_KEY";
    let lines = || {
        let id = cluster.submit(gang(Launcher::Deepspeed, line.into()));
        assert_eq!(cluster.wait_end(id).state, JobState::Completed);
        let lines = cluster.log_of(id, &LogQuery::default());
        lines.into_iter().map(|l| (l.rank, l.text)).collect::<Vec<_>>()
    };
    let starting = |lines: &[(u32, String)], word: &str| {
        let own = lines.iter().filter_map(|(rank, l)| Some((*rank, l.strip_prefix(word)?)));
        own.map(|(rank, rest)| (rank, rest.trim().to_owned())).collect::<Vec<_>>()
    };
    let (first, second) = (lines(), lines());
    let hosts = starting(&first, "host");
    assert_eq!(hosts.len(), 4, "{first:?}");
    assert!(hosts.iter().all(|(_, text)| text == "n1 slots=2 n2 slots=2"), "{hosts:?}");
    let cross = starting(&first, "cross").into_iter().map(|(_, text)| text).collect::<Vec<_>>();
    assert_eq!(cross, ["0/2", "0/2", "1/2", "1/2"]);

    let keys = [starting(&first, "key"), starting(&second, "key")];
    for of_job in &keys {
        assert_eq!(of_job.len(), 4);
        assert!(of_job.iter().all(|(_, key)| key.len() == 64 && *key == of_job[0].1), "{of_job:?}");
    }
    assert_ne!(keys[0][0].1, keys[1][0].1);
    let journal = std::fs::read(cluster.dir().join("journal.redb")).expect("the journal");
    let raw: Vec<u8> = hex(&keys[0][0].1);
    let holds = |what: &[u8]| journal.windows(what.len()).any(|piece| piece == what);
    assert!(!holds(&raw) && !holds(keys[0][0].1.as_bytes()), "the journal knows the key");
}

fn hex(text: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hex digits");
    (0..text.len()).step_by(2).map(byte).collect()
}

#[test]
#[ignore = "slow: scripts/test --all"]
fn torchrun_starts_unmodified() {
    let Some(island) = island() else { return };
    let program = program("ddp.py");
    // Debian 12 has a torch that is older than its Python: without these its torchrun fails.
    let torchrun = "torchrun --redirects 1 --tee 1";
    island.prints(gang(Launcher::Torchrun, format!("{torchrun} {}", program.display())), &DDP);
    // Who is which rank is up to this backend.
    let line = format!("{torchrun} --rdzv_backend=c10d {}", program.display());
    island.prints(gang(Launcher::Torchrun, line), &DDP);
}

/// A gang of a framework that Debian does not have.
fn from_pypi(launcher: Launcher, name: &str) -> JobSpec {
    let venv =
        std::env::var_os("TUTTI_TEST_VENV").expect("TUTTI_TEST_VENV: scripts/test --all sets it");
    let bin = PathBuf::from(venv).join("bin").canonicalize().expect("a virtual environment");
    let mut spec = gang(launcher, format!("python3 {}", program(name).display()));
    spec.env.insert("PATH".into(), format!("{}:/usr/bin:/bin", bin.display()));
    spec
}

#[test]
#[ignore = "needs PyPI packages: scripts/test --all"]
fn jax_starts_unmodified() {
    let Some(island) = island() else { return };
    let mut spec = from_pypi(Launcher::Jax, "jax_sum.py");
    // The GPUs are imagined.
    spec.env.insert("JAX_PLATFORMS".into(), "cpu".into());
    island.prints(spec.clone(), &["process 0 of 2: sum 3", "process 1 of 2: sum 3"]);
    spec.ranks_per_node = Some(2);
    let wanted = [0, 1, 2, 3].map(|n| format!("process {n} of 4: sum 10"));
    island.prints(spec, &wanted.each_ref().map(String::as_str));
}

#[test]
#[ignore = "needs PyPI packages: scripts/test --all"]
fn tensorflow_starts_unmodified() {
    let Some(island) = island() else { return };
    let spec = from_pypi(Launcher::Tf, "tf_sum.py");
    island.prints(spec, &["worker 0 of 2: sum 3", "worker 1 of 2: sum 3"]);
}

#[test]
#[ignore = "needs PyPI packages: scripts/test --all"]
fn ray_starts_unmodified() {
    let Some(island) = island() else { return };
    island.prints(from_pypi(Launcher::Ray, "ray_sum.py"), &["2 nodes, 4 GPUs: sum 10"]);
    for node in ["n1", "n2"] {
        wait_until("nothing of Ray is left", PATIENCE, || {
            island.cluster.processes_on(node).is_empty()
        });
    }
}
