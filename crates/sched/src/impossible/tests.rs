use tutti_model::*;

use crate::testing::*;

fn says(case: &Case, spec: JobSpec) -> String {
    match crate::impossible(&case.state(), &Demand::of(&spec)) {
        Ok(()) => "possible".to_owned(),
        Err(e) => e.to_string(),
    }
}

#[test]
fn busy_lost_and_draining_nodes_count() {
    let c = case().nodes(3, 8).drain(1).lose(2).running(gpus(8), &[(3, &[0, 1, 2, 3, 4, 5, 6, 7])]);
    assert_eq!(says(&c, gang(3, 8)), "possible");
    assert_eq!(says(&c, total(24)), "possible");
    assert_eq!(says(&c, cpus(64)), "possible");
}

#[test]
fn the_first_excess_is_named_with_its_numbers() {
    let c = case().nodes(2, 8).node(|n| n.facts.mem = Bytes::gib(64), &["a100"; 4]);
    let mem = |spec| JobSpec { mem_per_node: Some(Bytes::gib(100)), ..spec };
    for (spec, text) in [
        (gang(4, 1), "asks for 4 nodes; the cluster has 3"),
        (model(gang(3, 1), "h100"), "asks for 3 nodes; the cluster has 2 with h100"),
        (gpus(9), "asks for 9 GPUs on one node; the largest node has 8"),
        (model(gpus(5), "a100"), "asks for 5 GPUs on one node; the largest node has 4 with a100"),
        (total(21), "asks for 21 GPUs; the cluster has 20"),
        (model(gpus(1), "b200"), "asks for GPU model 'b200'; the cluster has a100, h100"),
        (cpus(65), "asks for 65 CPUs on one node; the largest suitable node has 64"),
        (
            mem(model(gpus(1), "a100")),
            "asks for 100GiB of memory on one node; the largest suitable node has 64GiB",
        ),
        (gang(3, 8), "asks for 3 nodes with 8 GPUs, 1 CPU each; the cluster has room for 2"),
        (
            mem(gang(3, 0)),
            "asks for 3 nodes with 1 CPU and 100GiB of memory each; the cluster has room for 2",
        ),
        (
            JobSpec { cpus_per_gpu: Some(32), ..total(7) },
            "asks for 7 GPUs with 32 CPUs for the first on each node; the cluster has room for 6",
        ),
        (
            JobSpec { cpus_per_gpu: Some(65), ..total(1) },
            "asks for 65 CPUs on one node; the largest suitable node has 64",
        ),
    ] {
        assert_eq!(says(&c, spec), text);
    }
    assert_eq!(says(&case(), gpus(1)), "no node has joined the cluster yet");
}

#[test]
fn memory_of_gpus_is_named() {
    let mem =
        |n: &mut Node, gib: u64| n.facts.gpus.iter_mut().for_each(|g| g.mem = Bytes::gib(gib));
    let c = case().node(|n| mem(n, 80), &["h100"; 8]).node(|n| mem(n, 40), &["a100"; 4]);
    let with = |gib, spec| JobSpec { gpu_mem: Some(Bytes::gib(gib)), ..spec };
    for (spec, text) in [
        (with(80, gpus(8)), "possible"),
        (with(200, gpus(1)), "asks for GPUs with 200GiB of memory; the largest has 80GiB"),
        (with(200, total(3)), "asks for GPUs with 200GiB of memory; the largest has 80GiB"),
        (
            with(80, model(gpus(1), "a100")),
            "asks for GPUs with 80GiB of memory; the largest a100 has 40GiB",
        ),
        (
            with(80, gpus(9)),
            "asks for 9 GPUs on one node; the largest node has 8 with GPUs of at least 80GiB",
        ),
        (
            with(80, model(total(9), "h100")),
            "asks for 9 GPUs; the cluster has 8 with h100 of at least 80GiB",
        ),
        (
            with(200, cpus(1_000)),
            "asks for 1,000 CPUs on one node; the largest suitable node has 64",
        ),
    ] {
        assert_eq!(says(&c, spec), text);
    }
}
