use tutti_model::*;

use crate::testing::*;

fn shortage(case: &Case, task: &str) -> Shortage {
    match case.verdict(task) {
        Some(Verdict::Busy(s) | Verdict::NodesUnavailable(s)) => s,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_node_is_counted_once_by_its_first_reason() {
    let c = case()
        .nodes(6, 8)
        .node(|_| {}, &["a100"])
        .drain(2)
        .lose(3)
        .running(gpus(1), &[(4, &[0])])
        .running(cpus(60), &[(5, &[])])
        .running(JobSpec { mem_per_node: Some(Bytes::gib(500)), ..cpus(1) }, &[(6, &[])]);
    let spec = model(gang(2, 8), "h100");
    let c = c.submit(JobSpec { cpus_per_gpu: Some(1), mem_per_gpu: Some(Bytes::gib(2)), ..spec });
    let blocked =
        Blocked { unsuitable: 1, gpus_busy: 1, cpus_busy: 1, mem_busy: 1, draining: 1, away: 1 };
    let expected = Shortage {
        nodes_wanted: 2,
        gpus_wanted: 16,
        nodes_fitting: 1,
        gpus_free: 31,
        nodes_total: 7,
        blocked,
    };
    assert_eq!(c.verdict("4"), Some(Verdict::Busy(expected)));
}

#[test]
fn it_waits_for_nodes_only_if_those_up_would_not_do() {
    let c = case().nodes(3, 8).drain(3).running(gpus(1), &[(1, &[0])]);
    assert!(matches!(c.submit(gang(2, 8)).verdict("2"), Some(Verdict::Busy(_))));
    let c = case().nodes(3, 8).drain(3).submit(gang(3, 8));
    assert!(matches!(c.verdict("1"), Some(Verdict::NodesUnavailable(_))));
    let c = case().nodes(3, 8).lose(3).submit(total(17));
    assert!(matches!(c.verdict("1"), Some(Verdict::NodesUnavailable(_))));
}

#[test]
fn totals_are_counted_in_gpus() {
    let c = case().nodes(2, 8).running(gpus(3), &[(1, &[0, 1, 2])]).submit(total(16));
    let s = shortage(&c, "2");
    assert_eq!((s.nodes_wanted, s.gpus_wanted, s.gpus_free, s.nodes_fitting), (0, 16, 13, 2));
}
