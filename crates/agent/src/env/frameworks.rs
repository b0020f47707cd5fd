//! What each launcher sets beside what all ranks get, so that an unmodified program starts.

use tutti_model::{Blame, Launch, Launcher, PartError};

use super::Surroundings;

/// What all of a launcher's ranks get, and what it means.
pub fn table(launcher: Launcher) -> &'static [(&'static str, &'static str)] {
    match launcher {
        Launcher::None | Launcher::Torch => &[],
        Launcher::Torchrun => TORCHRUN,
        Launcher::Mpi => MPI,
        Launcher::Jax => JAX,
        Launcher::Tf => TF,
        Launcher::Deepspeed => DEEPSPEED,
        Launcher::Ray => RAY,
    }
}

const TORCHRUN: &[(&str, &str)] = &[
    ("PET_NNODES", "how many nodes the gang has"),
    ("PET_NPROC_PER_NODE", "how many GPUs this part has, or 1"),
    ("PET_NODE_RANK", "position of this node in the gang, from 0"),
    ("PET_MASTER_ADDR", "as `MASTER_ADDR`"),
    ("PET_MASTER_PORT", "as `MASTER_PORT`"),
    ("PET_RDZV_BACKEND", "`static`: who takes part is settled before anything starts"),
    ("PET_RDZV_ENDPOINT", "`MASTER_ADDR:MASTER_PORT`"),
    ("PET_RDZV_ID", "this attempt's lease"),
    ("PET_RDZV_CONF", "`is_host=1` on the first node, else `is_host=0`; for the c10d backend"),
];

const MPI: &[(&str, &str)] = &[
    (
        "TUTTI_SLOTS",
        "how many processes may be started on each node, in the order of `TUTTI_NODES`",
    ),
    ("TUTTI_HOSTFILE", "the gang's nodes with their slots, as a file; on the first node"),
    ("OMPI_MCA_orte_default_hostfile", "the same"),
    ("PRTE_MCA_prte_default_hostfile", "the same, for Open MPI 5"),
    ("OMPI_MCA_plm", "`rsh`: daemons start through the agents"),
    ("PRTE_MCA_plm", "`ssh`, which is the same for Open MPI 5"),
    ("OMPI_MCA_plm_rsh_agent", "the command that asks an agent for a daemon"),
    ("PRTE_MCA_plm_ssh_agent", "the same, for Open MPI 5"),
    ("OMPI_MCA_ras", "`^slurm`: the nodes are those in the host file"),
    ("PRTE_MCA_ras", "the same, for Open MPI 5"),
    ("OMPI_MCA_if_base_do_not_resolve", "1: names of nodes need not be known to DNS"),
    ("PRTE_MCA_prte_if_base_do_not_resolve", "the same, for Open MPI 5"),
    ("OMPI_MCA_hwloc_base_binding_policy", "`none`, unless the job has its nodes to itself"),
    ("PRTE_MCA_hwloc_default_binding_policy", "the same, for Open MPI 5"),
    ("OMPI_MCA_oob_tcp_if_include", "the network with the node's address"),
    ("PRTE_MCA_prte_if_include", "the same, for Open MPI 5"),
    ("OMPI_MCA_btl_tcp_if_include", "the same, for the ranks' own messages"),
    ("OMPI_ALLOW_RUN_AS_ROOT", "1, only if the rank runs as root"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "the same"),
    ("PRTE_ALLOW_RUN_AS_ROOT", "the same, for Open MPI 5"),
    ("PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "the same"),
];

const JAX: &[(&str, &str)] = &[
    ("JAX_COORDINATOR_ADDRESS", "`MASTER_ADDR:MASTER_PORT`"),
    ("JAX_NUM_PROCESSES", "as `WORLD_SIZE`"),
    (JAX_PROCESS, "as `RANK`"),
    (
        JAX_DEVICES,
        "all GPUs of the part, or with several processes per node the one with the process's own \
         number; not set without GPUs",
    ),
];
const JAX_PROCESS: &str = "JAX_PROCESS_ID";
const JAX_DEVICES: &str = "JAX_LOCAL_DEVICE_IDS";

const TF: &[(&str, &str)] =
    &[("TF_CONFIG", "every node's worker with a port that was free there, and which is this one")];

const DEEPSPEED: &[(&str, &str)] = &[
    (
        "TUTTI_SLOTS",
        "how many processes may be started on each node, in the order of `TUTTI_NODES`",
    ),
    ("LOCAL_SIZE", "as `LOCAL_WORLD_SIZE`"),
    ("CROSS_RANK", "position of this node in the gang, from 0"),
    ("CROSS_SIZE", "how many nodes the gang has"),
    ("TUTTI_HOSTFILE", "the gang's nodes with their GPUs, as a file for `--hostfile`"),
];

const RAY: &[(&str, &str)] = &[
    ("TUTTI_SLOTS", "how many GPUs of the gang each node has, in the order of `TUTTI_NODES`"),
    ("RAY_ADDRESS", "the Ray cluster on the gang's nodes; on the first node"),
];

/// What a launcher gives the ranks of one part, the job's own first: it may set any of these.
pub fn variables(
    launch: &Launch,
    around: &Surroundings<'_>,
    master: &str,
) -> Result<Vec<(&'static str, String)>, PartError> {
    let launcher = launch.spec.launcher;
    if matches!(launcher, Launcher::Mpi | Launcher::Tf | Launcher::Ray) {
        is_told_enough(launch, around)?;
    }
    Ok(match launcher {
        Launcher::None | Launcher::Torch | Launcher::Ray => Vec::new(),
        Launcher::Torchrun => torchrun(launch, master),
        Launcher::Mpi => mpi(launch, around)?,
        Launcher::Jax => jax(launch, master),
        Launcher::Tf => vec![("TF_CONFIG", tf_config(launch, around))],
        Launcher::Deepspeed => vec![
            ("LOCAL_SIZE", launch.ranks.to_string()),
            ("CROSS_RANK", launch.node_rank.to_string()),
            ("CROSS_SIZE", launch.hosts.len().max(1).to_string()),
        ],
    })
}

/// An older controller says nothing of the other nodes' ports.
fn is_told_enough(launch: &Launch, around: &Surroundings<'_>) -> Result<(), PartError> {
    if around.ports.len() == launch.hosts.len() && launch.key.is_some() {
        return Ok(());
    }
    let launcher = launch.spec.launcher.as_str();
    let message = format!("launcher = \"{launcher}\" needs a newer controller than this one");
    Err(PartError { message, blame: Blame::Node })
}

/// Names of variables that hold the rank, and the rank on its node.
pub fn by_rank(launch: &Launch) -> (Vec<&'static str>, Vec<&'static str>) {
    match launch.spec.launcher {
        Launcher::Jax if one_gpu_each(launch) => (vec![JAX_PROCESS], vec![JAX_DEVICES]),
        Launcher::Jax => (vec![JAX_PROCESS], vec![]),
        _ => (vec![], vec![]),
    }
}

/// How many processes a framework may start on each node; none for those that are not told.
pub fn slots(launch: &Launch) -> Option<Vec<u32>> {
    let of_host = |host: &tutti_model::Host| match launch.spec.launcher {
        Launcher::Mpi => Some(launch.spec.ranks_per_node.unwrap_or(host.gpus.max(1))),
        Launcher::Deepspeed => Some(host.ranks),
        Launcher::Ray => Some(host.gpus),
        _ => None,
    };
    launch.hosts.iter().map(of_host).collect()
}

fn torchrun(launch: &Launch, master: &str) -> Vec<(&'static str, String)> {
    let (address, port) = master.rsplit_once(':').unwrap_or((master, ""));
    vec![
        ("PET_NNODES", launch.hosts.len().max(1).to_string()),
        ("PET_NPROC_PER_NODE", launch.gpus.len().max(1).to_string()),
        ("PET_NODE_RANK", launch.node_rank.to_string()),
        ("PET_MASTER_ADDR", address.into()),
        ("PET_MASTER_PORT", port.into()),
        ("PET_RDZV_BACKEND", "static".into()),
        ("PET_RDZV_ENDPOINT", master.into()),
        ("PET_RDZV_ID", launch.lease.to_string()),
        ("PET_RDZV_CONF", format!("is_host={}", u8::from(launch.node_rank == 0))),
    ]
}

fn one_gpu_each(launch: &Launch) -> bool {
    launch.ranks > 1 && launch.gpus.len() >= launch.ranks as usize
}

fn jax(launch: &Launch, master: &str) -> Vec<(&'static str, String)> {
    let mut all = vec![
        ("JAX_COORDINATOR_ADDRESS", master.to_owned()),
        ("JAX_NUM_PROCESSES", launch.world_size.to_string()),
    ];
    if launch.ranks == 1 && !launch.gpus.is_empty() {
        let ids: Vec<String> = (0..launch.gpus.len()).map(|i| i.to_string()).collect();
        all.push((JAX_DEVICES, ids.join(",")));
    }
    all
}

/// Worker 0 is the chief: with a job of that name besides, the others would have to be counted
/// from another number than their node.
fn tf_config(launch: &Launch, around: &Surroundings<'_>) -> String {
    let worker = |(host, port): (&tutti_model::Host, &u16)| {
        format!("\"{}\"", authority(&host.address, *port))
    };
    let workers: Vec<String> = launch.hosts.iter().zip(around.ports).map(worker).collect();
    format!(
        "{{\"cluster\":{{\"worker\":[{}]}},\"task\":{{\"type\":\"worker\",\"index\":{}}}}}",
        workers.join(","),
        launch.node_rank
    )
}

pub fn authority(address: &str, port: u16) -> String {
    match address.contains(':') {
        true => format!("[{address}]:{port}"),
        false => format!("{address}:{port}"),
    }
}

fn mpi(
    launch: &Launch,
    around: &Surroundings<'_>,
) -> Result<Vec<(&'static str, String)>, PartError> {
    let agent = rsh_agent(around.program)?;
    let mut all = vec![
        ("OMPI_MCA_plm", "rsh".to_owned()),
        ("PRTE_MCA_plm", "ssh".to_owned()),
        ("OMPI_MCA_plm_rsh_agent", agent.clone()),
        ("PRTE_MCA_plm_ssh_agent", agent),
        ("OMPI_MCA_ras", "^slurm".to_owned()),
        ("PRTE_MCA_ras", "^slurm".to_owned()),
        ("OMPI_MCA_if_base_do_not_resolve", "1".to_owned()),
        ("PRTE_MCA_prte_if_base_do_not_resolve", "1".to_owned()),
    ];
    if !launch.spec.exclusive {
        // Every job of a node would bind its ranks to the same first cores.
        all.push(("OMPI_MCA_hwloc_base_binding_policy", "none".to_owned()));
        all.push(("PRTE_MCA_hwloc_default_binding_policy", "none".to_owned()));
    }
    if let Some(network) = around.network.interface.as_ref().and_then(|i| i.network.clone()) {
        all.push(("OMPI_MCA_oob_tcp_if_include", network.clone()));
        all.push(("PRTE_MCA_prte_if_include", network.clone()));
        all.push(("OMPI_MCA_btl_tcp_if_include", network));
    }
    if around.as_root {
        for name in [
            "OMPI_ALLOW_RUN_AS_ROOT",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
            "PRTE_ALLOW_RUN_AS_ROOT",
            "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM",
        ] {
            all.push((name, "1".to_owned()));
        }
    }
    Ok(all)
}

/// Open MPI splits it at spaces, and takes what a colon separates for alternatives.
fn rsh_agent(program: &str) -> Result<String, PartError> {
    if program.contains([' ', ':']) {
        let message = format!("mpirun can't call '{program}': install tutti in another directory");
        return Err(PartError { message, blame: Blame::Node });
    }
    Ok(format!("{program} {}", crate::helper::RSH))
}
