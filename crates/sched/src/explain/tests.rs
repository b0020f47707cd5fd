use tutti_model::*;

use crate::testing::*;

const HOUR: Span = Span::secs(3600);
const ALL: &[u16] = &[0, 1, 2, 3, 4, 5, 6, 7];

#[test]
fn holders_come_in_the_order_of_their_ends() {
    let c = case().nodes(2, 8).running(gpus(8), &[(1, ALL)]);
    let c = c.running(time(HOUR, gpus(8)), &[(2, ALL)]).submit(gpus(1)).submit(gpus(8));
    let e = c.explain("4");
    let held: Vec<_> = e.holders.iter().map(|h| (h.task.to_string(), h.gpus, h.nodes)).collect();
    assert_eq!(held, [("2".to_owned(), 8, 1), ("1".to_owned(), 8, 1)]);
    assert_eq!((e.ahead, e.holders[1].ends_by), (1, None));
    assert_eq!(e.holders[0].ends_by, Some(Time(NOW.0 - 10_000 + HOUR.0)));
}

#[test]
fn starts_by_walks_the_ends_and_leaves_room_for_those_ahead() {
    let c = case().nodes(2, 8).running(time(HOUR, gpus(8)), &[(1, ALL)]);
    let c = c.running(time(Span(2 * HOUR.0), gpus(8)), &[(2, ALL)]).submit(gpus(8));
    assert_eq!(c.explain("3").starts_by, Some(Time(NOW.0 - 10_000 + HOUR.0)));
    let c = c.submit(gpus(1)).submit(gang(2, 8));
    assert_eq!(c.explain("4").starts_by, Some(Time(NOW.0 - 10_000 + 2 * HOUR.0)));
    assert_eq!(c.explain("5").starts_by, None, "two nodes never fit beside those ahead");
    let c = case().nodes(1, 8).running(gpus(8), &[(1, ALL)]).submit(gpus(8));
    assert_eq!(c.explain("2").starts_by, None, "the holder has no limit");
}

#[test]
fn an_array_at_its_limit_starts_when_one_of_its_own_ends() {
    let c = case().nodes(1, 8).submit(array("0-9%1", time(HOUR, gpus(1))));
    let e = c.running_index(0, &[(1, &[0])]).explain("1_5");
    assert_eq!((e.ahead, e.starts_by), (4, None), "four siblings are ahead of task 5");
    let c = case().nodes(1, 8).submit(array("0-9%1", time(HOUR, gpus(1))));
    let e = c.running_index(0, &[(1, &[0])]).explain("1_1");
    assert_eq!(e.starts_by, Some(Time(NOW.0 - 10_000 + HOUR.0)));
}

#[test]
fn a_held_job_is_to_be_released() {
    let held = |spec| JobSpec { hold: true, ..spec };
    let e = case().nodes(1, 8).submit(held(gpus(8))).explain("1");
    assert_eq!(e.advice, ["release it: tutti release 1 (it would start now)"]);
    let e = case().nodes(1, 8).lose(1).submit(held(gpus(8))).explain("1");
    assert_eq!(e.advice, ["release it: tutti release 1 (it would then wait for its turn)"]);
    let e = case().nodes(1, 8).submit(held(gpus(1))).submit(after("1", gpus(1))).explain("2");
    assert_eq!(e.advice, ["job 1, which it waits for, is held: tutti release 1"]);
}

#[test]
fn smaller_shapes_are_advised_when_they_fit() {
    let half: &[u16] = &[0, 1, 2, 3];
    let c = case().nodes(3, 8).running(gang(3, 4), &[(1, half), (2, half), (3, half)]);
    let e = c.submit(gang(2, 8)).explain("2");
    assert_eq!(e.advice, ["ask for 4 GPUs per node: 3 nodes could take that now"]);
    let c = case().nodes(3, 8).running(gpus(4), &[(1, half)]).submit(gang(3, 8));
    let e = c.explain("2");
    let expected = [
        "ask for 4 GPUs per node: 3 nodes could take that now",
        "ask for 2 nodes: it would start now",
    ];
    assert_eq!(e.advice, expected);
    let c = case().nodes(2, 8).running(gpus(4), &[(1, half)]).submit(total(16));
    assert_eq!(c.explain("2").advice, ["ask for 12 GPUs: it would start now"]);
    let c = case().nodes(2, 8).running(gang(2, 4), &[(1, half), (2, half)]).submit(gpus(8));
    let expected = [
        "ask for 8 GPUs in all, on any nodes: it would start now",
        "ask for 4 GPUs per node: 2 nodes could take that now",
    ];
    assert_eq!(c.explain("2").advice, expected);
}

#[test]
fn other_models_cpus_and_memory_are_advised_when_they_fit() {
    let c = case().nodes(1, 1).node(|_| {}, &["a100"]).running(gpus(1), &[(1, &[0])]);
    let e = c.submit(model(gpus(1), "h100")).explain("2");
    assert_eq!(e.advice, ["without the GPU model h100 it would start now"]);
    let mem = |n, spec| JobSpec { mem_per_node: Some(Bytes::gib(n)), ..spec };
    let c = case().nodes(1, 8).running(mem(500, cpus(50)), &[(1, &[])]);
    assert_eq!(c.explain_new(cpus(20)), ["ask for 14 CPUs per node: it would start now"]);
    let expected = ["ask for 12GiB of memory per node: it would start now"];
    assert_eq!(c.explain_new(mem(100, gpus(1))), expected);
}

#[test]
fn no_advice_to_resubmit_behind_a_job_that_room_is_kept_for() {
    let c = case().nodes(2, 8).running(gpus(4), &[(1, &[0, 1, 2, 3])]);
    let c = c.submit_ago(HOUR, gang(2, 8)).submit(gang(2, 8)).submit(gpus(1));
    assert_eq!(c.explain("3").advice, Vec::<String>::new());
    let expected = ["give it a higher priority than job 2: it would start now"];
    assert_eq!(c.explain("4").advice, expected);
}

#[test]
fn what_was_kept_back_goes_before_a_new_submission() {
    let c = case().nodes(2, 8).running(gpus(4), &[(1, &[0, 1, 2, 3])]);
    let c = c.submit_ago(HOUR, gang(2, 8)).submit(array("0-9", gpus(4)));
    assert_eq!(c.verdict("3_0"), Some(Verdict::Behind { job: JobId(2) }));
    assert_eq!(c.explain("2").advice, Vec::<String>::new(), "job 3 would take the room");
}

#[test]
fn nodes_are_to_be_resumed_if_that_really_helps() {
    let c = case().nodes(2, 8).drain(2).submit(gang(2, 8));
    assert_eq!(c.explain("1").advice[0], "resume node n2: it would start now");
    let c = case().nodes(3, 8).drain(2).drain(3).submit(gang(3, 8));
    assert_eq!(c.explain("1").advice[0], "resume nodes n2, n3: it would start now");
    let c = case().nodes(2, 8).lose(2).submit(gang(2, 8));
    assert_eq!(c.explain("1").advice[0], "bring back node n2: it would start now");
    let c = case().nodes(2, 1).drain(1).running(gpus(1), &[(2, &[0])]);
    let c = c.submit(gpus(1)).submit(gpus(1));
    assert_eq!(c.explain("2").advice, ["resume node n1: it would start now"]);
    assert_eq!(c.explain("3").advice, Vec::<String>::new(), "job 2 would take it");
}

impl Case {
    fn explain_new(&self, spec: JobSpec) -> Vec<String> {
        let c = Case { state: self.state.clone(), policy: self.policy.clone() }.submit(spec);
        c.explain(&c.state.next_job.to_string()).advice
    }
}
