//! NVIDIA machines. NVML's answers are given in code: it has no files that could be recorded.

use tutti_gpu::{Answer, Answers, FarEnd, Found, Instance, discover_with};
use tutti_model::{
    Bytes, Fabric, FabricState, GpuFacts, GpuIndex, HardwareProblemKind as Kind, LinkKind, Vendor,
};

use super::tree::expand;
use super::{islands, link, nearest};

fn answers(devices: Vec<Answer>) -> Answers {
    let (driver, cuda) = (Some("580.159.04".into()), Some("13.0".into()));
    Answers { driver, cuda, devices, ..Answers::default() }
}

fn device(i: usize, name: &str, gib: u64, pci: &str) -> Answer {
    Answer {
        name: name.into(),
        uuid: format!("GPU-{i}"),
        mem: Bytes::gib(gib),
        pci: format!("0000:{pci}:00.0"),
        minor: Some(i as u32),
        ..Answer::default()
    }
}

fn devices(name: &str, gib: u64, buses: &[&str]) -> Vec<Answer> {
    buses.iter().enumerate().map(|(i, bus)| device(i, name, gib, bus)).collect()
}

fn found(tree: &str, answers: Answers) -> Found {
    discover_with(Ok(answers), expand(tree).path())
}

fn fabric(state: FabricState) -> Option<Fabric> {
    let clique = (state == FabricState::Completed).then_some(0);
    Some(Fabric { state, cluster: None, clique })
}

const DGX: &str = include_str!("../fixtures/dgx-h100.tree");
const DGX_BUSES: [&str; 8] = ["1b", "43", "52", "61", "9d", "c3", "d1", "df"];

fn dgx() -> Vec<Answer> {
    let mut all = devices("NVIDIA H100 80GB HBM3", 80, &DGX_BUSES);
    for device in &mut all {
        device.nvlinks = vec![FarEnd::Switch; 18];
        device.fabric = fabric(FabricState::Completed);
    }
    all
}

#[test]
fn a_dgx_is_one_island_with_an_adapter_beside_each_gpu() {
    let found = found(DGX, answers(dgx()));
    let models: Vec<_> = found.gpus.iter().map(|g| (g.index.0, g.model.as_str())).collect();
    assert_eq!(models, (0..8).map(|i| (i, "h100")).collect::<Vec<_>>());
    assert_eq!(islands(&found), [Some(0); 8]);
    assert_eq!(found.hardware.links.len(), 28);
    assert_eq!(link(&found, 0, 7), LinkKind::Nvlink { links: 18 });
    assert_eq!(found.hardware.driver.as_deref(), Some("580.159.04"));
    assert_eq!(found.hardware.runtime.as_deref(), Some("13.0"));

    let gpu = &found.hardware.gpus[4];
    assert_eq!(gpu.pci.as_deref(), Some("0000:9d:00.0"));
    assert_eq!((gpu.numa, gpu.cpus.as_deref()), (Some(1), Some("56-111,168-223")));
    assert_eq!(gpu.device_files, ["/dev/nvidia4"]);
    assert_eq!(
        found.hardware.control_files,
        ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
    );
    let numa: Vec<_> = found.hardware.numa.iter().map(|n| (n.id, n.cpus.as_str())).collect();
    assert_eq!(numa, [(0, "0-55,112-167"), (1, "56-111,168-223")]);
    assert_eq!(found.hardware.numa[0].mem, Bytes(1_056_412_345 * 1024));
    assert_eq!(found.hardware.problems, []);
}

#[test]
fn storage_adapters_of_a_dgx_are_near_to_nobody() {
    let found = found(DGX, answers(dgx()));
    assert_eq!(
        nearest(&found),
        [
            ("mlx5_0", vec![0]),
            ("mlx5_1", vec![]),
            ("mlx5_2", vec![]),
            ("mlx5_3", vec![1]),
            ("mlx5_4", vec![2]),
            ("mlx5_5", vec![3]),
            ("mlx5_6", vec![4]),
            ("mlx5_7", vec![]),
            ("mlx5_8", vec![]),
            ("mlx5_9", vec![5]),
            ("mlx5_10", vec![6]),
            ("mlx5_11", vec![7]),
        ]
    );
    let nic = &found.hardware.nics[0];
    assert!(nic.infiniband && nic.up);
    assert_eq!((nic.gbits, nic.numa), (400, Some(0)));
    assert_eq!(nic.pci.as_deref(), Some("0000:18:00.0"));
    let down = &found.hardware.nics[2];
    assert!(!down.up && !down.infiniband);
    assert_eq!(down.pci.as_deref(), Some("0000:29:00.1"));
}

#[test]
fn without_its_fabric_a_gpu_is_not_joined() {
    let mut devices = dgx();
    devices[2].fabric = fabric(FabricState::InProgress);
    let found = found(DGX, answers(devices));
    assert_eq!(link(&found, 0, 1), LinkKind::Nvlink { links: 18 });
    assert_eq!(link(&found, 1, 2), LinkKind::SameNuma);
    let [a, b] = [Some(0), Some(1)];
    assert_eq!(islands(&found), [a, a, b, a, a, a, a, a]);
    let [problem] = &found.hardware.problems[..] else { panic!("{:?}", found.hardware.problems) };
    assert_eq!((problem.kind, problem.pci.as_deref()), (Kind::Fabric, Some("0000:52:00.0")));
    assert!(problem.message.contains("fabricmanager"), "{}", problem.message);
}

#[test]
fn two_cliques_are_two_islands() {
    let mut devices = dgx();
    for device in &mut devices[4..] {
        device.fabric.as_mut().unwrap().clique = Some(1);
    }
    let found = found(DGX, answers(devices));
    let [a, b] = [Some(0), Some(1)];
    assert_eq!(islands(&found), [a, a, a, a, b, b, b, b]);
}

#[test]
fn straight_links_are_counted_by_pair() {
    // As on a board with four A100: each has four links to each other one.
    let buses = &DGX_BUSES[..4];
    let mut devices = devices("NVIDIA A100-SXM4-40GB", 40, buses);
    for (i, device) in devices.iter_mut().enumerate() {
        let others = (0..4).filter(|j| *j != i);
        let far = |j: usize| vec![FarEnd::Gpu(format!("0000:{}:00.0", buses[j])); 4];
        device.nvlinks = others.flat_map(far).collect();
    }
    // One link of a pair is down on one end: it does not count.
    devices[0].nvlinks.pop();
    let mut answers = answers(devices);
    answers.driver = None;
    let found = found(DGX, answers);
    assert_eq!(link(&found, 0, 1), LinkKind::Nvlink { links: 4 });
    assert_eq!(link(&found, 0, 3), LinkKind::Nvlink { links: 3 });
    assert_eq!(islands(&found)[..4], [Some(0); 4]);
}

#[test]
fn a_machine_without_nvlink_has_distances_of_its_bus() {
    let buses = ["23", "25", "43", "45", "a3", "a5", "c3", "c5"];
    let answers = answers(devices("NVIDIA L40S", 48, &buses));
    let found = found(include_str!("../fixtures/l40s.tree"), answers);
    assert_eq!(found.gpus[7].model, "l40s");
    for (a, b, kind) in [
        (0, 1, LinkKind::OneSwitch),
        (0, 2, LinkKind::SameNuma),
        (4, 7, LinkKind::SameNuma),
        (0, 4, LinkKind::System),
    ] {
        assert_eq!(link(&found, a, b), kind, "{a} {b}");
    }
    // Each alone: `topology = "island"` must not find two of them.
    assert_eq!(islands(&found), (0..8).map(Some).collect::<Vec<_>>());
    assert_eq!(nearest(&found), [("mlx5_0", (0..8).collect())]);
    assert_eq!(found.hardware.problems, []);
}

#[test]
fn a_dead_gpu_hides_no_other_and_leaves_their_numbers_alone() {
    let mut three = devices("NVIDIA A100 80GB PCIe", 80, &["17", "31", "b1", "ca"]);
    three.remove(2);
    let mut answers = answers(three);
    let tree = include_str!("../fixtures/dead-gpu.tree");
    for (silent, why) in
        [(vec![], "does not list it"), (vec!["device 2: GPU is lost".to_owned()], "GPU is lost")]
    {
        answers.silent = silent;
        let found = found(tree, answers.clone());
        let seen: Vec<_> = found.gpus.iter().map(|g| (g.index.0, g.uuid.as_str())).collect();
        assert_eq!(seen, [(0, "GPU-0"), (1, "GPU-1"), (3, "GPU-3")]);
        let [problem] = &found.hardware.problems[..] else {
            panic!("{:?}", found.hardware.problems)
        };
        assert_eq!((problem.kind, problem.pci.as_deref()), (Kind::Missing, Some("0000:b1:00.0")));
        assert!(problem.message.contains(why), "{}", problem.message);
    }
}

#[test]
fn a_gpu_that_the_operator_took_out_is_not_missing() {
    let mut three = devices("NVIDIA A100 80GB PCIe", 80, &["17", "31", "b1", "ca"]);
    three.remove(2);
    let answers = Answers { excluded: vec!["0000:b1:00.0".into()], ..answers(three) };
    let found = found(include_str!("../fixtures/dead-gpu.tree"), answers);
    let seen: Vec<_> = found.gpus.iter().map(|g| (g.index.0, g.uuid.as_str())).collect();
    assert_eq!(seen, [(0, "GPU-0"), (1, "GPU-1"), (2, "GPU-3")]);
    assert_eq!(found.hardware.problems, []);
}

#[test]
fn a_driver_that_does_not_answer_is_a_problem_and_none_is_not() {
    use nvml_wrapper::error::NvmlError;
    use tutti_gpu::NvmlFailure;

    let none = || Err(NvmlFailure::NoDriver(NvmlError::DriverNotLoaded));
    let empty = discover_with(none(), expand("").path());
    assert_eq!(empty, Found::default());

    // The cards are there, so somebody expects them to be used.
    let tree = expand(include_str!("../fixtures/dead-gpu.tree"));
    let mismatch =
        || NvmlFailure::Driver { what: "starting NVML", source: NvmlError::LibRmVersionMismatch };
    for failure in [none(), Err(mismatch())] {
        let found = discover_with(failure, tree.path());
        assert_eq!(found.gpus, []);
        let kinds: Vec<_> = found.hardware.problems.iter().map(|p| p.kind).collect();
        assert_eq!(kinds, [Kind::Driver]);
    }
}

#[test]
fn a_virtual_machine_with_one_gpu() {
    let answers = answers(vec![device(0, "NVIDIA H200", 141, "00")]);
    let answers = Answers {
        devices: vec![Answer { pci: "0000:00:06.0".into(), ..answers.devices[0].clone() }],
        ..answers
    };
    let found = found(include_str!("../fixtures/h200-vm.tree"), answers);
    assert_eq!(found.gpus[0].model, "h200");
    assert_eq!(
        found.hardware.gpus,
        [GpuFacts {
            index: GpuIndex(0),
            vendor: Vendor::Nvidia,
            name: "NVIDIA H200".into(),
            pci: Some("0000:00:06.0".into()),
            numa: None,
            cpus: Some("0-15".into()),
            device_files: vec!["/dev/nvidia0".into()],
            mig: None,
            fabric: None,
        }]
    );
    assert_eq!(found.hardware.links, []);
    assert_eq!(found.hardware.problems, []);
}

fn instance(id: u32, profile: &str, gib: u64) -> Instance {
    Instance {
        name: format!("NVIDIA A100-SXM4-80GB MIG {profile}"),
        uuid: format!("MIG-{id}"),
        mem: Bytes::gib(gib),
        gpu_instance: id,
        compute_instance: 0,
    }
}

#[test]
fn mig_instances_are_offered_instead_of_their_gpu() {
    let mut devices = devices("NVIDIA A100-SXM4-80GB", 80, &["07", "47"]);
    devices[0].instances = Some(vec![
        instance(1, "3g.40gb", 40),
        instance(5, "2g.20gb", 20),
        instance(13, "1g.10gb", 10),
    ]);
    let found = found(include_str!("../fixtures/mig-a100.tree"), answers(devices));
    let seen: Vec<_> =
        found.gpus.iter().map(|g| (g.index.0, g.model.as_str(), g.uuid.as_str())).collect();
    assert_eq!(
        seen,
        [
            (0, "a100-3g.40gb", "MIG-1"),
            (1, "a100-2g.20gb", "MIG-5"),
            (2, "a100-1g.10gb", "MIG-13"),
            (3, "a100", "GPU-1"),
        ]
    );
    assert_eq!(found.gpus[1].mem, Bytes::gib(20));
    let facts = &found.hardware.gpus[1];
    let caps = ["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap48", "/dev/nvidia-caps/nvidia-cap49"];
    assert_eq!(facts.device_files, caps);
    let mig = facts.mig.as_ref().unwrap();
    assert_eq!((mig.parent, mig.parent_uuid.as_str()), (0, "GPU-0"));
    assert_eq!((mig.gpu_instance, mig.profile.as_str()), (5, "2g.20gb"));
    assert_eq!(found.hardware.gpus[3].device_files, ["/dev/nvidia1"]);
    assert_eq!(islands(&found), [Some(0), Some(1), Some(2), Some(3)]);
}

#[test]
fn mig_without_instances_offers_nothing_and_says_so() {
    let mut devices = devices("NVIDIA A100-SXM4-80GB", 80, &["07", "47"]);
    devices[0].instances = Some(Vec::new());
    let found = found(include_str!("../fixtures/mig-a100.tree"), answers(devices));
    let seen: Vec<_> = found.gpus.iter().map(|g| (g.index.0, g.uuid.as_str())).collect();
    assert_eq!(seen, [(0, "GPU-1")]);
    assert_eq!(found.hardware.problems[0].kind, Kind::NoInstances);
}
