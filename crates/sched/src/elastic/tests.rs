use tutti_model::*;

use crate::testing::*;

fn grown(c: Case) -> String {
    let old = |t: &mut Task| {
        let since = Time(NOW.0 - 3_600_000);
        t.attempt_mut().unwrap().phase = AttemptPhase::Running { since };
    };
    c.running(elastic(1, 3, 2), &[(1, &[0, 1])]).change_task(old).claimed()
}

#[test]
fn it_grows_into_idle_nodes() {
    let c = || case().nodes(4, 2);
    assert_eq!(grown(c()), "1@n1:0,1+n2:0,1+n3:0,1 resize [1]");
    assert_eq!(grown(c().drain(2).drain(3)), "1@n1:0,1+n4:0,1 resize [1]");
    assert_eq!(grown(c().drain(1)), "", "its own node would not take it again");
    assert_eq!(
        grown(c().team("default", |t| t.limit = Some(quota(5)))),
        "1@n1:0,1+n2:0,1 resize [1]"
    );
}

#[test]
fn not_while_others_wait_nor_too_often() {
    assert_eq!(grown(case().nodes(2, 2).submit(gpus(3))), "");
    let c = case().nodes(2, 2).running(elastic(1, 2, 2), &[(1, &[0, 1])]);
    assert_eq!(c.claimed(), "", "it has just started");
}
