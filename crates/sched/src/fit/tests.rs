use tutti_model::*;

use crate::testing::*;

/// Two racks of two nodes and one of four, four GPUs each.
fn racks() -> Case {
    let c = case().nodes(8, 4).rack("r1", &[1, 2]).rack("r2", &[3, 4]);
    c.rack("r3", &[5, 6, 7, 8])
}

#[test]
fn the_narrowest_domain_with_least_to_spare() {
    assert_eq!(racks().submit(gang(2, 4)).placed(), "1@n1:0,1,2,3+n2:0,1,2,3");
    let c = racks().running(gpus(1), &[(1, &[0])]).submit(gang(2, 4));
    assert_eq!(c.placed(), "2@n3:0,1,2,3+n4:0,1,2,3");
    assert!(racks().submit(gang(3, 4)).placed().starts_with("1@n5"), "only r3 holds three");
}

#[test]
fn the_fewest_racks_when_one_is_not_enough() {
    let c = racks().submit(gang(5, 4)).plan();
    let nodes: Vec<u32> = c.placements[0].parts.iter().map(|p| p.node.0).collect();
    assert_eq!(nodes, [1, 5, 6, 7, 8], "all of r3, and one more");
}

/// A rail of three racks of two, and one of two racks of four.
#[test]
fn fewer_racks_before_less_to_spare() {
    let c = case().nodes(14, 4).rack("a1", &[1, 2]).rack("a2", &[3, 4]).rack("a3", &[5, 6]);
    let c = c.rack("b1", &[7, 8, 9, 10]).rack("b2", &[11, 12, 13, 14]);
    let rail = |n: &mut Node| {
        let rail = if n.id.0 <= 6 { "a" } else { "b" };
        n.facts.labels.insert("rail".to_owned(), rail.to_owned());
    };
    let c = (1..=14).fold(c, |c, id| c.change_node(id, rail));
    let plan = c.submit(gang(5, 4)).plan();
    let nodes: Vec<u32> = plan.placements[0].parts.iter().map(|p| p.node.0).collect();
    assert_eq!(nodes, [7, 8, 9, 10, 11], "three racks of a would be left with one node");
}

#[test]
fn a_domain_is_not_left() {
    let c = racks().submit(within(Topology::Rack, gang(5, 4)));
    assert_eq!(c.placed(), "");
    let c = racks().submit(within(Topology::Rack, gang(4, 4)));
    assert!(c.placed().starts_with("1@n5"));
    let c = case().nodes(2, 4).submit(within(Topology::Node, total(6)));
    assert_eq!(c.placed(), "");
}

#[test]
fn ranks_are_numbered_by_neighbourhood() {
    let c = case().nodes(10, 1).rack("a", &[2, 10]).rack("b", &[1, 3, 4, 5, 6, 7, 8, 9]);
    let nodes: Vec<u32> =
        c.submit(gang(10, 1)).plan().placements[0].parts.iter().map(|p| p.node.0).collect();
    assert_eq!(nodes, [2, 10, 1, 3, 4, 5, 6, 7, 8, 9]);
}

#[test]
fn an_elastic_gang_takes_what_there_is() {
    let c = case().nodes(3, 2).running(gpus(2), &[(2, &[0, 1])]);
    assert_eq!(c.submit(elastic(1, 4, 2)).placed(), "2@n1:0,1+n3:0,1");
    let c = case().nodes(2, 2).submit(elastic(3, 4, 2));
    assert_eq!(c.placed(), "");
    let c = case().nodes(4, 2).team("a", |t| t.limit = Some(quota(5)));
    assert_eq!(c.submit(team("a", elastic(1, 4, 2))).placed(), "1@n1:0,1+n2:0,1", "its limit");
}

fn islands() -> Case {
    let split = |n: &mut Node| {
        for gpu in &mut n.facts.gpus {
            gpu.island = Some(gpu.index.0 / 4);
        }
    };
    case().node(split, &["h100"; 8])
}

#[test]
fn gpus_of_one_island_if_possible() {
    let c = islands().running(gpus(2), &[(1, &[0, 1])]);
    assert_eq!(c.submit(gpus(4)).placed(), "2@n1:4,5,6,7");
    let c = islands().running(gpus(2), &[(1, &[0, 1])]);
    assert_eq!(c.submit(gpus(2)).placed(), "2@n1:2,3", "the island with fewest left");
    assert_eq!(islands().submit(gpus(6)).placed(), "1@n1:0,1,2,3,4,5");
    assert_eq!(islands().submit(within(Topology::Island, gpus(6))).placed(), "");
}

#[test]
fn parts_of_gpus_share_cards() {
    let c = case().nodes(2, 1).submit(share(600)).submit(share(600)).submit(share(400));
    assert_eq!(c.placed(), "1@n1:0/600 2@n2:0/600 3@n1:0/400");
    let c = case().nodes(1, 1).submit(share(1)).submit(gpus(1));
    assert_eq!(c.placed(), "1@n1:0/1", "a whole GPU is wholly free");
}

#[test]
fn whoever_wants_a_node_alone_gets_it_alone() {
    let c =
        case().nodes(2, 4).submit(exclusive(gpus(1))).submit(gpus(1)).submit(exclusive(cpus(1)));
    assert_eq!(c.placed(), "1@n1:0 2@n2:0");
}

#[test]
fn labels_and_gpu_memory_are_respected() {
    let label = |n: &mut Node| {
        n.facts.labels.insert("net".to_owned(), "ib".to_owned());
    };
    let c = || case().nodes(1, 1).node(label, &["h100"]);
    let net = |value: &str| [("net".to_owned(), value.to_owned())].into();
    let want = JobSpec { labels: net("eth|ib"), ..gpus(1) };
    let avoid = JobSpec { avoid_labels: net("ib"), ..gpus(1) };
    assert_eq!(c().submit(want).placed(), "1@n2:0");
    assert_eq!(c().submit(avoid).placed(), "1@n1:0");
    let small = |n: &mut Node| n.facts.gpus[0].mem = Bytes::gib(40);
    let c = case().node(small, &["a100", "a100"]);
    assert_eq!(c.submit(JobSpec { gpu_mem: Some(Bytes::gib(80)), ..gpus(1) }).placed(), "1@n1:1");
}

#[test]
fn spares_are_for_those_who_lost_a_node() {
    let spare = |p: &mut Policy| p.spares = vec![Spare { per: Topology::Rack, nodes: 1 }];
    let c = || case().nodes(2, 1).policy(spare);
    assert_eq!(c().submit(gang(2, 1)).placed(), "");
    let c = c().submit(gang(2, 1)).change_task(|t| t.restarts.node_failure = 1);
    assert_eq!(c.placed(), "1@n1:0+n2:0");
}

#[test]
fn plain_first_fit_and_best_fit_know_no_racks() {
    let c = |rule| {
        let c = case().nodes(4, 2).rack("a", &[1, 3]).rack("b", &[2, 4]);
        c.policy(|p| p.placement = rule).running(gpus(1), &[(3, &[0])])
    };
    let gang_of_two = |rule| c(rule).submit(gang(2, 1)).placed();
    assert_eq!(gang_of_two(PlacementRule::FirstFit), "2@n1:0+n2:0");
    assert_eq!(gang_of_two(PlacementRule::BestFit), "2@n1:0+n3:1");
    assert_eq!(c(PlacementRule::FirstFit).submit(total(5)).placed(), "2@n1:0,1+n3:1+n2:0,1");
    let within_rack = c(PlacementRule::FirstFit).submit(within(Topology::Rack, gang(2, 2)));
    assert_eq!(within_rack.placed(), "2@n2:0,1+n4:0,1", "unless the job says so");
}

/// `tutti up` with loopback addresses on one machine, an agent on another.
fn two_machines() -> Case {
    let on = |host: &'static str| move |n: &mut Node| n.facts.loopback = Some(loopback_of(host));
    let c = case().nodes(4, 4).change_node(1, on("x")).change_node(2, on("x"));
    c.change_node(3, on("y"))
}

#[test]
fn nodes_that_do_not_reach_each_other_are_never_one_gang() {
    assert_eq!(two_machines().submit(gang(2, 4)).placed(), "1@n1:0,1,2,3+n2:0,1,2,3");
    assert_eq!(two_machines().submit(total(8)).placed(), "1@n1:0,1,2,3+n2:0,1,2,3");
    let c = two_machines().running(gpus(4), &[(1, &[0, 1, 2, 3])]).submit(gang(2, 4));
    assert_eq!(c.placed(), "", "n2, n3 and n4 are free, and each is alone");
    let Some(Verdict::Busy(s)) = c.verdict("2") else { panic!("{:?}", c.verdict("2")) };
    assert_eq!((s.nodes_fitting, s.blocked.unreachable, s.blocked.gpus_busy), (1, 2, 1));
    let c = two_machines().running(gpus(4), &[(1, &[0, 1, 2, 3])]).submit(total(8));
    assert_eq!(c.placed(), "");
    // One node has nobody to reach.
    let c =
        two_machines().submit(gang(1, 4)).submit(gang(1, 4)).submit(gang(1, 4)).submit(gang(1, 4));
    assert_eq!(c.plan().placements.len(), 4);
    for rule in [PlacementRule::FirstFit, PlacementRule::BestFit] {
        let c = two_machines().running(gpus(4), &[(1, &[0, 1, 2, 3])]).submit(gang(2, 4));
        assert_eq!(c.policy(|p| p.placement = rule).placed(), "");
    }
    let c = two_machines().submit(elastic(1, 4, 4));
    assert_eq!(c.plan().placements[0].parts.len(), 2);
}

#[test]
fn a_gang_over_nodes_that_never_reach_each_other_is_refused() {
    let state = two_machines().state();
    let refused =
        |spec: &JobSpec| crate::impossible(&state, &Demand::of(spec)).unwrap_err().to_string();
    assert_eq!(
        refused(&gang(3, 4)),
        "asks for 3 nodes that reach each other; the cluster has room for 2"
    );
    assert!(refused(&total(12)).contains("12 GPUs on nodes that reach each other"));
    assert!(crate::impossible(&state, &Demand::of(&gang(2, 4))).is_ok());
}
