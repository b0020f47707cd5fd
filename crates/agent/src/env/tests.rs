use std::collections::BTreeSet;
use std::sync::Arc;

use tutti_model::{
    ArraySpec, GangKey, GpuIndex, Host, JobSpec, Launcher, SavedPoint, Span, TaskId,
};

use super::*;
use crate::network::Address;
use crate::testing::launch;

const LAUNCHERS: [Launcher; 8] = [
    Launcher::None,
    Launcher::Torch,
    Launcher::Torchrun,
    Launcher::Mpi,
    Launcher::Jax,
    Launcher::Tf,
    Launcher::Deepspeed,
    Launcher::Ray,
];

/// What helpers add when the gang runs.
const BY_HELPERS: [&str; 4] = [
    "TUTTI_HOSTFILE",
    "OMPI_MCA_orte_default_hostfile",
    "PRTE_MCA_prte_default_hostfile",
    "RAY_ADDRESS",
];

fn network() -> Network {
    let mask = Some([255, 255, 255, 0].into());
    let own = Address { interface: "eth0".into(), ip: [10, 0, 0, 2].into(), mask };
    Network::discover(Path::new("/no/such/root"), &[own], [10, 0, 0, 2].into(), None)
}

fn environment(launch: &Launch, rank: u32) -> Result<BTreeMap<String, String>, PartError> {
    let (account, network) = (Account::fake("ada"), network());
    let ports: Vec<u16> = (0..launch.hosts.len()).map(|n| 4000 + n as u16).collect();
    let around = Surroundings {
        node: "n1",
        address: "127.0.0.2",
        simulated: true,
        account: &account,
        master_port: 4711,
        ports: &ports,
        network: &network,
        devices: Devices::default(),
        part: Path::new("/data/parts/1@1"),
        progress: Path::new("/data/run/1@1"),
        tmpdir: Some("/scratch"),
        program: "/bin/tutti",
        as_root: true,
        now: Time(1_000_000),
    };
    let made = of_part(launch, &around)?;
    let mut all = made.shared;
    all.extend(made.by_rank.values(Rank(rank), launch.first_rank));
    let pair = |s: &String| {
        let (k, v) = s.split_once('=').unwrap();
        (k.to_owned(), v.to_owned())
    };
    let map: BTreeMap<_, _> = all.iter().map(pair).collect();
    assert_eq!(map.len(), all.len(), "no name twice");
    Ok(map)
}

fn env(launch: &Launch) -> BTreeMap<String, String> {
    environment(launch, launch.first_rank.0).unwrap()
}

/// The second of two nodes, with two GPUs each and a rank for each of them.
fn gang(launcher: Launcher) -> Launch {
    let mut gang = launch("7", 3);
    let ranks = if launcher.makes_processes() { 1 } else { 2 };
    let host = |n| Host {
        name: format!("n{n}"),
        address: format!("10.0.0.{n}"),
        gpus: 2,
        ranks,
        rack: (n == 2).then(|| "r1".to_owned()),
    };
    gang.hosts = vec![host(1), host(2)];
    gang.spec = Arc::new(JobSpec { launcher, ..JobSpec::shell("true") });
    gang.gpus = vec![GpuIndex(4), GpuIndex(5)];
    (gang.ranks, gang.world_size, gang.node_rank) = (ranks, 2 * ranks, 1);
    gang.first_rank = Rank(ranks);
    gang.key = Some(GangKey([0xab; 32]));
    gang
}

#[test]
fn the_tables_list_exactly_what_is_set() {
    for launcher in LAUNCHERS {
        let mut gang = gang(launcher);
        gang.lease.task = "7_3".parse().unwrap();
        gang.array_tasks = Some(10);
        let path = Some("/ckpt/40".into());
        gang.saved = Some(SavedPoint { step: 40, at: None, path, save_ms: None, node: None });
        let spec = Arc::make_mut(&mut gang.spec);
        spec.array = Some("0-9".parse::<ArraySpec>().unwrap());
        spec.time = Some(Span::secs(60));
        spec.workdir = Some("/work".into());
        spec.service = Some(Box::default());
        let mut set: BTreeSet<String> = env(&gang).into_keys().collect();
        let own: BTreeSet<&str> = launcher_environment(launcher).iter().map(|(n, _)| *n).collect();
        let helped = BY_HELPERS.iter().filter(|name| own.contains(*name));
        set.extend(helped.map(|name| (*name).to_owned()));

        let mut listed: BTreeSet<&str> = own.clone();
        listed.extend(ENVIRONMENT.iter().map(|(n, _)| *n));
        listed.extend(crate::network::VARIABLES.iter().map(|(n, _)| *n));
        let jobs = SLURM_JOB.iter().filter(|_| launcher != Launcher::Mpi);
        listed.extend(jobs.map(|(n, _)| *n));
        let makes = [Launcher::Mpi, Launcher::Torchrun, Launcher::Ray];
        let tasks = SLURM_TASK.iter().filter(|_| !makes.contains(&launcher));
        listed.extend(tasks.map(|(n, _)| *n));
        // This machine has no adapters and no file of the operator.
        listed.remove("NCCL_IB_HCA");
        listed.remove("NCCL_TOPO_FILE");
        let set: BTreeSet<&str> = set.iter().map(String::as_str).collect();
        assert_eq!(set, listed, "{}", launcher.as_str());
    }
}

#[test]
fn a_replica_learns_where_it_listens() {
    let mut l = launch("7", 1);
    Arc::make_mut(&mut l.spec).env.insert("PORT".into(), "80".into());
    let job = env(&l);
    assert_eq!((job["PORT"].as_str(), job.get("TUTTI_PORT")), ("80", None), "it is no service");
    Arc::make_mut(&mut l.spec).service = Some(Box::default());
    holds(&env(&l), &[("PORT", "4711"), ("TUTTI_PORT", "4711")]);
    let fixed = tutti_model::ServiceSpec { port: Some(8080), ..Default::default() };
    Arc::make_mut(&mut l.spec).service = Some(Box::new(fixed));
    holds(&env(&l), &[("PORT", "8080"), ("TUTTI_PORT", "8080")]);
}

#[test]
fn racks_stand_in_the_order_of_the_nodes() {
    let mut gang = gang(Launcher::Torch);
    assert_eq!(env(&gang)["TUTTI_RACKS"], ",r1");
    gang.hosts[1].rack = Some("r1, west".into());
    assert_eq!(env(&gang)["TUTTI_RACKS"], ",r1_ west");
    gang.hosts[1].rack = None;
    assert_eq!(env(&gang).get("TUTTI_RACKS"), None);
}

#[test]
fn the_reference_names_exactly_these() {
    let page = include_str!("../../../../docs/reference/environment.md");
    let (page, _) = page.split_once("## What the command line reads").unwrap();
    let rows = page.lines().filter(|l| l.starts_with("| `"));
    let first = rows.filter_map(|row| row.split('|').nth(1));
    let named: BTreeSet<&str> =
        first.flat_map(|cell| cell.split(',')).map(|name| name.trim().trim_matches('`')).collect();
    let own = LAUNCHERS.iter().flat_map(|l| launcher_environment(*l));
    let all = ENVIRONMENT.iter().chain(own).chain(SLURM_JOB).chain(SLURM_TASK);
    let all = all.chain(VENDORS).chain(crate::network::VARIABLES).chain(crate::mps::VARIABLES);
    let all = all.map(|(name, _)| *name);
    assert_eq!(named, all.collect::<BTreeSet<_>>());
}

#[test]
fn who_the_rank_is_can_not_be_overridden_but_the_rest_can() {
    let mut l = launch("7", 1);
    l.gpus = vec![GpuIndex(2), GpuIndex(5)];
    let spec = Arc::make_mut(&mut l.spec);
    for (k, v) in [
        ("RANK", "9"),
        ("WORLD_SIZE", "9"),
        ("CUDA_VISIBLE_DEVICES", "0"),
        ("CUDA_DEVICE_ORDER", "FASTEST_FIRST"),
        ("TUTTI_ARRAY_INDEX", "9"),
        ("TUTTI_GANG_KEY", "9"),
        ("SLURM_PROCID", "9"),
        ("SLURM_ARRAY_TASK_ID", "9"),
        ("MASTER_PORT", "1234"),
        ("PATH", "/opt/bin"),
        ("NCCL_SOCKET_IFNAME", "bond0"),
        ("MINE", "yes"),
    ] {
        spec.env.insert(k.into(), v.into());
    }
    let env = env(&l);
    assert_eq!((env["RANK"].as_str(), env["SLURM_PROCID"].as_str()), ("0", "0"));
    assert_eq!(env["WORLD_SIZE"], "1");
    assert_eq!(env["CUDA_VISIBLE_DEVICES"], "2,5");
    assert_eq!(env["CUDA_DEVICE_ORDER"], "PCI_BUS_ID");
    for name in ["TUTTI_ARRAY_INDEX", "SLURM_ARRAY_TASK_ID", "TUTTI_GANG_KEY"] {
        assert!(!env.contains_key(name), "{name}");
    }
    assert_eq!(env["MASTER_PORT"], "1234");
    assert_eq!(env["PATH"], "/opt/bin");
    assert_eq!((env["NCCL_SOCKET_IFNAME"].as_str(), env["MINE"].as_str()), ("bond0", "yes"));
    assert_eq!(env["GLOO_SOCKET_IFNAME"], "eth0");
}

#[test]
fn a_configuration_file_of_nccl_is_left_alone() {
    let mut l = launch("7", 1);
    let spec = Arc::make_mut(&mut l.spec);
    spec.env.insert("NCCL_CONF_FILE".into(), "/etc/mine".into());
    assert!(!env(&l).contains_key("NCCL_SOCKET_IFNAME"));
}

#[test]
fn no_gpus_is_an_empty_list_so_that_cuda_sees_none() {
    let mut l = launch("7", 1);
    l.gpus.clear();
    l.lease.task = TaskId::single(l.lease.task.job);
    assert_eq!(env(&l)["CUDA_VISIBLE_DEVICES"], "");
}

#[track_caller]
fn holds(env: &BTreeMap<String, String>, wanted: &[(&str, &str)]) {
    for (name, value) in wanted {
        assert_eq!(env.get(*name).map(String::as_str), Some(*value), "{name}");
    }
}

#[test]
fn slurm_values_say_what_slurm_would() {
    let env = environment(&gang(Launcher::Torch), 3).unwrap();
    holds(
        &env,
        &[
            ("SLURM_JOB_ID", "7"),
            ("SLURM_JOB_NODELIST", "n[1-2]"),
            ("SLURM_NNODES", "2"),
            ("SLURM_NODEID", "1"),
            ("SLURM_NTASKS", "4"),
            ("SLURM_NTASKS_PER_NODE", "2"),
            ("SLURM_TASKS_PER_NODE", "2(x2)"),
            ("SLURM_PROCID", "3"),
            ("SLURM_LOCALID", "1"),
            ("SLURM_GPUS_ON_NODE", "2"),
            ("SLURM_JOB_GPUS", "4,5"),
            ("SLURM_JOB_START_TIME", "1000"),
        ],
    );
    // With these Open MPI would call srun.
    assert!(!env.contains_key("SLURM_JOBID") && !env.contains_key("SLURM_STEPID"));
    assert!(!env.contains_key("SLURM_JOB_END_TIME"));
}

#[test]
fn torchrun_and_deepspeed_find_their_gang() {
    let mut torchrun = gang(Launcher::Torchrun);
    holds(
        &env(&torchrun),
        &[
            ("PET_NNODES", "2"),
            ("PET_NPROC_PER_NODE", "2"),
            ("PET_NODE_RANK", "1"),
            ("PET_MASTER_ADDR", "10.0.0.1"),
            ("PET_MASTER_PORT", "4711"),
            ("PET_RDZV_BACKEND", "static"),
            ("PET_RDZV_ENDPOINT", "10.0.0.1:4711"),
            ("PET_RDZV_ID", "7@3"),
            ("PET_RDZV_CONF", "is_host=0"),
        ],
    );
    // What the job says of the master, and of torchrun's own, counts.
    let own = &mut Arc::make_mut(&mut torchrun.spec).env;
    own.insert("MASTER_PORT".into(), "29500".into());
    own.insert("PET_NPROC_PER_NODE".into(), "4".into());
    let wanted = [("PET_RDZV_ENDPOINT", "10.0.0.1:29500"), ("PET_NPROC_PER_NODE", "4")];
    holds(&env(&torchrun), &wanted);

    let deepspeed = env(&gang(Launcher::Deepspeed));
    let wanted = [("LOCAL_SIZE", "2"), ("CROSS_RANK", "1"), ("CROSS_SIZE", "2"), ("RANK", "2")];
    holds(&deepspeed, &wanted);
}

#[test]
fn jax_has_all_gpus_or_one_for_each_process() {
    let each = environment(&gang(Launcher::Jax), 3).unwrap();
    holds(
        &each,
        &[
            ("JAX_COORDINATOR_ADDRESS", "10.0.0.1:4711"),
            ("JAX_NUM_PROCESSES", "4"),
            ("JAX_PROCESS_ID", "3"),
            ("JAX_LOCAL_DEVICE_IDS", "1"),
        ],
    );
    let mut one = gang(Launcher::Jax);
    (one.ranks, one.world_size, one.first_rank) = (1, 2, Rank(1));
    holds(&env(&one), &[("JAX_LOCAL_DEVICE_IDS", "0,1"), ("JAX_PROCESS_ID", "1")]);
    one.gpus.clear();
    assert!(!env(&one).contains_key("JAX_LOCAL_DEVICE_IDS"));
}

#[test]
fn tensorflow_knows_every_worker_and_its_port() {
    let config = &env(&gang(Launcher::Tf))["TF_CONFIG"];
    let config: serde_json::Value = serde_json::from_str(config).unwrap();
    let wanted = serde_json::json!({
        "cluster": {"worker": ["10.0.0.1:4000", "10.0.0.2:4001"]},
        "task": {"type": "worker", "index": 1},
    });
    assert_eq!(config, wanted);
}

#[test]
fn mpirun_asks_agents_for_its_daemons() {
    let mut mpi = gang(Launcher::Mpi);
    let own = env(&mpi);
    holds(
        &own,
        &[
            ("OMPI_MCA_plm_rsh_agent", "/bin/tutti __rsh"),
            ("OMPI_MCA_btl_tcp_if_include", "10.0.0.0/24"),
            ("OMPI_MCA_hwloc_base_binding_policy", "none"),
            ("TUTTI_SLOTS", "2,2"),
        ],
    );
    assert!(!own.contains_key("SLURM_JOB_ID"));
    let spec = Arc::make_mut(&mut mpi.spec);
    (spec.ranks_per_node, spec.exclusive) = (Some(5), true);
    let own = env(&mpi);
    holds(&own, &[("TUTTI_SLOTS", "5,5")]);
    assert!(!own.contains_key("OMPI_MCA_hwloc_base_binding_policy"));
}

#[test]
fn an_older_controller_is_said_to_be_too_old() {
    for launcher in [Launcher::Mpi, Launcher::Tf, Launcher::Ray] {
        let mut gang = gang(launcher);
        gang.key = None;
        let error = environment(&gang, 1).unwrap_err();
        let wanted = "needs a newer controller than this one";
        assert!(error.message.ends_with(wanted), "{}", error.message);
    }
}
