use tutti_model::*;

use crate::testing::*;

mod patience;

const LONG: Span = Span::secs(3600);

#[test]
fn one_gpu_goes_to_the_fullest_node() {
    let c = case().nodes(2, 8).running(gpus(6), &[(2, &[0, 1, 2, 3, 4, 6])]);
    assert_eq!(c.submit(gpus(1)).submit(gpus(1)).submit(gpus(1)).placed(), "2@n2:5 3@n2:7 4@n1:0");
}

#[test]
fn cpu_work_prefers_nodes_without_free_gpus() {
    let c = case().nodes(1, 8).nodes(1, 2).running(gpus(2), &[(2, &[0, 1])]);
    assert_eq!(c.submit(cpus(4)).placed(), "2@n2:");
    let c = case().nodes(1, 2).running(gpus(2), &[(1, &[0, 1])]).nodes(1, 0);
    assert_eq!(c.submit(cpus(4)).placed(), "2@n2:");
    let c = case().nodes(2, 2).submit(cpus(60)).submit(cpus(60)).submit(cpus(60));
    assert_eq!(c.placed(), "1@n1: 2@n2:");
}

#[test]
fn gangs_are_placed_whole_in_node_order() {
    let c = case().nodes(3, 8).running(gpus(4), &[(3, &[0, 1, 2, 3])]);
    assert_eq!(c.submit(gang(2, 2)).placed(), "2@n1:0,1+n3:4,5");
    let c = case().nodes(3, 8).running(gpus(4), &[(3, &[0, 1, 2, 3])]);
    assert_eq!(c.submit(gang(3, 8)).placed(), "");
}

#[test]
fn a_gang_that_does_not_fit_lets_smaller_work_pass() {
    let c = case().nodes(2, 8).running(gpus(1), &[(1, &[0])]);
    assert_eq!(c.submit(gang(2, 8)).submit(gpus(8)).placed(), "3@n2:0,1,2,3,4,5,6,7");
}

#[test]
fn higher_priority_then_older_first() {
    let c = case().nodes(1, 1).submit(gpus(1)).submit(priority(5, gpus(1)));
    assert_eq!(c.placed(), "2@n1:0");
    let c = case().nodes(1, 2).submit(gpus(1)).submit(cpus(1)).submit(gpus(1)).submit(gpus(1));
    assert_eq!(c.placed(), "1@n1:0 2@n1: 3@n1:1");
}

#[test]
fn totals_take_one_node_if_one_will_do() {
    let c = case().nodes(2, 8).running(gpus(4), &[(2, &[0, 1, 2, 3])]);
    assert_eq!(c.submit(total(4)).placed(), "2@n2:4,5,6,7");
}

#[test]
fn totals_take_the_fewest_nodes_and_trim_the_last() {
    let c = case().nodes(4, 8).running(gpus(6), &[(1, &[0, 1, 2, 3, 4, 5])]);
    let c = c.running(gpus(4), &[(3, &[0, 1, 2, 3])]);
    assert_eq!(c.submit(total(10)).placed(), "3@n1:6,7+n2:0,1,2,3,4,5,6,7");
    let c = case().nodes(3, 8).submit(total(25));
    assert_eq!(c.placed(), "");
}

#[test]
fn totals_count_only_gpus_that_have_their_cpus() {
    let spec = || JobSpec { cpus_per_gpu: Some(16), ..total(6) };
    let c = case().nodes(2, 8).submit(spec());
    assert_eq!(c.placed(), "1@n1:0,1,2,3+n2:0,1");
    let plan = c.plan();
    assert_eq!(plan.placements[0].parts[0].cpus, 64);
    assert_eq!(case().nodes(1, 8).submit(spec()).placed(), "");
}

#[test]
fn models_are_respected_also_on_mixed_nodes() {
    let c = case().node(|_| {}, &["a100", "a100"]).node(|_| {}, &["a100", "h100", "h100"]);
    assert_eq!(c.submit(model(gpus(2), "h100")).placed(), "1@n2:1,2");
    let c = case().node(|_| {}, &["a100"]).node(|_| {}, &["v100"]).node(|_| {}, &["h100"]);
    assert_eq!(c.submit(model(gang(2, 1), "h100|a100")).placed(), "1@n1:0+n3:0");
    let c = case().nodes(1, 8).node(|_| {}, &["a100"]).submit(model(gang(2, 1), "a100"));
    assert_eq!(c.placed(), "");
}

#[test]
fn only_nodes_that_accept_work_are_used() {
    let lease = LeaseId { task: TaskId::single(JobId(9)), generation: Generation(1) };
    let c = case().nodes(4, 1).drain(1).lose(2).change_node(3, |n| {
        n.stale.insert(lease);
    });
    assert_eq!(c.submit(gpus(1)).submit(gpus(1)).placed(), "1@n4:0");
}

#[test]
fn avoided_nodes_come_last() {
    let avoid = |id: u32| move |t: &mut Task| t.avoid = [NodeId(id)].into();
    assert_eq!(case().nodes(2, 2).submit(gpus(1)).change_task(avoid(1)).placed(), "1@n2:0");
    assert_eq!(case().nodes(1, 2).submit(gpus(1)).change_task(avoid(1)).placed(), "1@n1:0");
    let c = case().nodes(3, 2).submit(gang(2, 1)).change_task(avoid(1));
    assert_eq!(c.placed(), "1@n2:0+n3:0");
    let c = case().nodes(2, 2).submit(total(3)).change_task(avoid(1));
    assert_eq!(c.placed(), "1@n1:0+n2:0,1");
    let c = case().nodes(2, 2).submit(total(2)).change_task(avoid(1));
    assert_eq!(c.placed(), "1@n2:0,1");
}

#[test]
fn memory_counts() {
    let spec = || JobSpec { mem_per_gpu: Some(Bytes::gib(200)), ..gpus(1) };
    let c = case().nodes(1, 8).submit(spec()).submit(spec()).submit(spec());
    assert_eq!(c.placed(), "1@n1:0 2@n1:1");
}

#[test]
fn arrays_start_as_many_as_fit() {
    let c = case().nodes(1, 3).submit(array("0-9", gpus(1))).submit(gpus(1));
    assert_eq!(c.placed(), "1_0@n1:0 1_1@n1:1 1_2@n1:2");
    assert!(matches!(c.verdict("1_3"), Some(Verdict::Busy(_))));
    assert!(matches!(c.verdict("2"), Some(Verdict::Busy(_))));
}

#[test]
fn arrays_keep_their_limit() {
    let c = case().nodes(1, 8).submit(array("0-9%3", gpus(1))).running_index(0, &[(1, &[0])]);
    assert_eq!(c.placed(), "1_1@n1:1 1_2@n1:2");
    assert_eq!(c.verdict("1_3"), Some(Verdict::ArrayLimit { max_running: 3 }));
    let c = c.change_index(7, |_| {}).submit(gpus(1));
    assert_eq!(c.placed(), "1_7@n1:1 1_1@n1:2 2@n1:3", "requeued tasks count, and go first");
    assert_eq!(c.verdict("1_2"), Some(Verdict::ArrayLimit { max_running: 3 }));
}

#[test]
fn a_requeued_task_keeps_its_index() {
    let c = case().nodes(1, 8).submit(array("0-1", gpus(4)));
    let c = c.change_index(0, |t| t.avoid = [NodeId(1)].into());
    assert_eq!(c.placed(), "1_0@n1:0,1,2,3 1_1@n1:4,5,6,7");
}

#[test]
fn an_impatient_gang_keeps_the_nodes_it_waits_for() {
    let busy = || case().nodes(2, 8).running(gpus(1), &[(1, &[0])]);
    let c = busy().submit_ago(LONG, gang(2, 8)).submit(gpus(1));
    assert_eq!(c.placed(), "");
    assert_eq!(c.claimed(), "2@n1:0,1,2,3,4,5,6,7+n2:0,1,2,3,4,5,6,7 overdue []");
    assert!(matches!(c.verdict("3"), Some(Verdict::Busy(_))));
    let c = c.submit(priority(1, gpus(2)));
    assert_eq!(c.placed(), "4@n1:1,2", "more important work still starts");
    let c = busy().submit(gang(2, 8)).submit(gpus(1));
    assert_eq!((c.placed().as_str(), c.claimed().as_str()), ("3@n1:1", ""), "not yet");
}

#[test]
fn patience_is_found_behind_younger_work_of_the_same_kind() {
    let c = case().nodes(2, 8).running(gpus(1), &[(1, &[0])]);
    let c = c.submit_ago(LONG, gang(2, 8)).submit(priority(5, gang(2, 8)));
    let c = c.submit(priority(1, gpus(1))).submit(gpus(1));
    assert_eq!(c.placed(), "", "the first in line is young, but one like it is not");
    assert_eq!(c.claimed(), "2@n1:0,1,2,3,4,5,6,7+n2:0,1,2,3,4,5,6,7 overdue []");
}

#[test]
fn nobody_waits_behind_a_job_that_waits_for_lost_nodes() {
    let c = case().nodes(2, 8).lose(2).submit_ago(LONG, gang(2, 8)).submit(gpus(1));
    assert_eq!(c.placed(), "2@n1:0");
    assert!(matches!(c.verdict("1"), Some(Verdict::NodesUnavailable(_))));
}

#[test]
fn an_array_at_its_limit_keeps_no_room() {
    let c = case().nodes(1, 2).submit_ago(LONG, array("0-9%1", gpus(1)));
    let c = c.running_index(0, &[(1, &[0])]).running(gpus(1), &[(1, &[1])]);
    let c = c.submit(gpus(1)).submit(cpus(1));
    assert_eq!(c.placed(), "4@n1:");
}

#[test]
fn a_pass_ends_at_its_limit() {
    let mut c = case().nodes(1, 8).submit(array("0-5", gpus(1))).submit(cpus(1));
    c.policy.placements_max = 2;
    assert_eq!(c.placed(), "1_0@n1:0 1_1@n1:1");
    assert_eq!(c.verdict("1_2"), Some(Verdict::Next));
    assert_eq!(c.verdict("2"), Some(Verdict::Next));
}

#[test]
fn ranks_follow_the_launcher() {
    let ranks = |launcher, ranks_per_node| {
        let spec = JobSpec { launcher, ranks_per_node, ..gang(1, 4) };
        case().nodes(1, 8).submit(spec).plan().placements[0].parts[0].ranks
    };
    for launcher in [Launcher::Torch, Launcher::Deepspeed] {
        assert_eq!((ranks(launcher, None), ranks(launcher, Some(2))), (4, 2));
    }
    for launcher in [Launcher::None, Launcher::Jax] {
        assert_eq!((ranks(launcher, None), ranks(launcher, Some(2))), (1, 2));
    }
    // One process for each node, and that makes the others.
    for launcher in [Launcher::Torchrun, Launcher::Mpi, Launcher::Tf, Launcher::Ray] {
        assert_eq!((ranks(launcher, None), ranks(launcher, Some(2))), (1, 1));
    }
}

#[test]
fn a_node_that_came_back_with_fewer_gpus_is_no_trouble() {
    let c = case().nodes(1, 4).running(gpus(2), &[(1, &[2, 3])]);
    let c = c.change_node(1, |n| n.facts.gpus.truncate(3));
    assert_eq!(c.submit(gpus(2)).placed(), "2@n1:0,1");
}

#[test]
fn what_a_node_says_that_it_can_t_do_is_not_placed_there() {
    let unable = |key: &'static str| {
        move |n: &mut Node| {
            n.facts.labels.insert(key.to_owned(), UNABLE.to_owned());
        }
    };
    let c = case().node(unable(IMAGES_LABEL), &["h100"]).node(unable(SHARES_LABEL), &["h100"]);
    let c = c.submit(JobSpec { image: Some("x".into()), ..gpus(1) });
    let c = c.submit(JobSpec { gpu_share: Some(0.5), ..cpus(1) });
    assert_eq!(c.placed(), "1@n2:0 2@n1:0/500");
}

#[test]
fn all_of_a_gpu_is_a_gpu() {
    let c = case().nodes(1, 2).submit(JobSpec { gpu_share: Some(1.0), ..cpus(1) });
    assert_eq!(c.placed(), "1@n1:0");
}
