use tutti_model::*;

use crate::testing::*;

#[test]
fn held_comes_before_everything() {
    let spec = JobSpec { hold: true, ..after("1", gpus(1)) };
    let c = case().nodes(1, 1).submit(gpus(1)).submit(spec);
    assert_eq!(c.verdict("2"), Some(Verdict::Held));
}

#[test]
fn dependencies_are_named_while_they_run() {
    let c = case().nodes(1, 8).submit(gpus(1)).submit(after("any:1", array("0-3", gpus(1))));
    let waiting_for = vec!["any:1".parse().unwrap()];
    assert_eq!(c.verdict("2_3"), Some(Verdict::Dependencies { waiting_for }));
    let c = case().nodes(1, 1).submit(after("99", gpus(1))).submit(gpus(1));
    assert_eq!(c.placed(), "1@n1:0", "a forgotten job had ended");
}

#[test]
fn back_off_says_until_when() {
    let until = Time(NOW.0 + 500);
    let wait = |t: &mut Task| t.phase = Phase::Pending { since: NOW, not_before: until };
    let c = case().nodes(1, 8).submit(gpus(1)).change_task(wait);
    assert_eq!(c.verdict("1"), Some(Verdict::BackOff { until }));
    let c = case().nodes(1, 8).submit(array("0-0", gpus(1))).change_index(0, wait);
    assert_eq!(c.verdict("1_0"), Some(Verdict::BackOff { until }));
    assert_eq!(c.verdict("1"), Some(Verdict::BackOff { until }), "the whole array");
}

#[test]
fn only_pending_tasks_have_one() {
    let c = case().nodes(1, 8).running(gpus(1), &[(1, &[0])]).submit(array("0-1", gpus(1)));
    for task in ["1", "1_0", "2_7", "9"] {
        assert_eq!(c.verdict(task), None, "{task}");
    }
    assert_eq!(c.verdict("2_0"), Some(Verdict::Next));
    assert_eq!(c.verdict("2"), Some(Verdict::Next));
}
