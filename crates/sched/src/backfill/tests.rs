use tutti_model::*;

use crate::testing::*;

const HOUR: Span = Span::secs(3600);

/// n1 is busy for an hour less ten seconds, n2 is free.
fn half_busy() -> Case {
    case().nodes(2, 4).running(time(HOUR, gpus(4)), &[(1, &[0, 1, 2, 3])])
}

fn heads(c: &Case) -> Vec<(u64, Option<u64>)> {
    let plan = c.plan();
    let secs = |t: Time| t.since(NOW).0 / 1000;
    plan.heads.iter().map(|h| (h.task.job.0, h.starts_by.map(secs))).collect()
}

#[test]
fn the_head_starts_when_enough_has_ended() {
    let c = half_busy().submit(gang(2, 4));
    assert_eq!(heads(&c), [(2, Some(3590))]);
    let c = case().nodes(1, 4).running(gpus(4), &[(1, &[0, 1, 2, 3])]).submit(gpus(1));
    assert_eq!(heads(&c), [], "nobody knows when");
}

#[test]
fn only_what_ends_in_time_goes_before_it() {
    let short = time(Span::secs(3590), gpus(4));
    let long = time(Span::secs(3591), gpus(4));
    let c = half_busy().submit(gang(2, 4)).submit(long).submit(gpus(1)).submit(short);
    assert_eq!(c.placed(), "5@n2:0,1,2,3");
    assert_eq!(c.verdict("3"), Some(Verdict::Behind { job: JobId(2) }));
    assert_eq!(c.verdict("4"), Some(Verdict::Behind { job: JobId(2) }));
}

#[test]
fn what_fits_beside_it_may_stay() {
    let c = half_busy().submit(gang(2, 3)).submit(gpus(1)).submit(gpus(1));
    assert_eq!(c.placed(), "3@n2:0", "one GPU of n2 is to spare");
    let c = half_busy().submit(gang(2, 3)).submit(total(2));
    assert_eq!(c.placed(), "", "but not two");
    let c = half_busy().submit(gang(2, 3)).submit(exclusive(gpus(1)));
    assert_eq!(c.placed(), "", "nor all of it");
}

#[test]
fn what_starts_or_stops_has_an_end_too() {
    let starting = |t: &mut Task| t.attempt_mut().unwrap().phase = AttemptPhase::Starting;
    let c = case().nodes(1, 4).running(time(HOUR, gpus(4)), &[(1, &[0, 1, 2, 3])]);
    let c = c.change_task(starting).submit(gpus(4));
    assert_eq!(heads(&c), [(2, Some(3600))]);
    let stopping = |t: &mut Task| {
        t.attempt_mut().unwrap().phase =
            AttemptPhase::Stopping { since: NOW, running_since: None, why: StopCause::TimeLimit };
    };
    let c = case().nodes(1, 4).running(gpus(4), &[(1, &[0, 1, 2, 3])]).change_task(stopping);
    assert_eq!(heads(&c.submit(gpus(4))), [(2, Some(30))]);
}

#[test]
fn several_heads_do_not_share_their_room() {
    let c = case().nodes(1, 4).policy(|p| p.reserved_heads = 2);
    let c = c.running(time(HOUR, gpus(2)), &[(1, &[0, 1])]);
    let c = c.running(time(Span::secs(7200), gpus(2)), &[(1, &[2, 3])]);
    let c = c.submit(gpus(2)).submit(priority(-1, gpus(2)));
    assert_eq!(heads(&c), [(3, Some(3590))], "one lane, one head");
    let c = c.submit(priority(-2, time(HOUR, gpus(1))));
    assert_eq!(heads(&c), [(3, Some(3590)), (5, Some(7190))]);
}

#[test]
fn a_head_waits_for_what_is_reserved_to_pass() {
    let kept = |p: &mut Policy| {
        p.reservations = vec![Reservation {
            name: "maintenance".to_owned(),
            nodes: ["n2".to_owned()].into(),
            from: Time(NOW.0 + 1000),
            until: Time(NOW.0 + 2000),
            team: None,
        }];
    };
    let c = half_busy().policy(kept).submit(gang(2, 4)).submit(gpus(1));
    assert!(matches!(c.verdict("3"), Some(Verdict::Reserved { .. })));
    assert_eq!(heads(&c), [(2, Some(3590))], "it is over by then");
}

#[test]
fn learned_durations_count_when_allowed() {
    let mut c = case().nodes(1, 1).running(gpus(1), &[(1, &[0])]).submit(gpus(1));
    let job = c.state.job(JobId(1)).unwrap().clone();
    for _ in 0..3 {
        c.state.learned.note_run(RunKey::of(&job), Span::secs(100));
    }
    assert_eq!(heads(&c), []);
    let c = c.policy(|p| p.durations.learn = true);
    assert_eq!(heads(&c), [(2, Some(140))], "half as much again, from ten seconds ago");
}

/// The parts of a gang end one after another: its first free nodes are not for those behind.
#[test]
fn a_gang_that_ends_makes_room_for_the_head_alone() {
    let whole: &[u16] = &[0, 1];
    let gang_of = |ended: usize, at: Time| {
        let parts: Vec<(u32, &[u16])> = (1..5).map(|n| (n, whole)).collect();
        let c = case().nodes(4, 2).running(time(HOUR, gang(4, 2)), &parts);
        c.change_task(|task| {
            let exit = RankExit { rank: Rank(0), status: ExitStatus::Code(0), at };
            let done = || PartState::Done { exits: vec![exit.clone()], error: None };
            let parts = task.attempt_mut().unwrap().parts.iter_mut();
            parts.take(ended).for_each(|p| p.phase = done());
        })
    };
    let behind = |c: Case| {
        let c = c.submit(priority(5, time(HOUR, gang(3, 2))));
        c.submit(time(Span::secs(60), gpus(2))).submit(time(Span::secs(60), gpus(2)))
    };
    assert_eq!(behind(gang_of(2, NOW)).placed(), "");
    assert_eq!(behind(gang_of(3, NOW)).placed(), "2@n1:0,1+n2:0,1+n3:0,1");
    let long_ago = Time(NOW.0 - 3_000_000);
    assert_eq!(behind(gang_of(2, long_ago)).placed(), "3@n1:0,1 4@n2:0,1", "one rank takes long");
}
