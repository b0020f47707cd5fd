//! Each rule on something that misbehaves so: it fires in its time, says what is wrong, and ends when
//! that is mended.

use tutti_model::{
    Alert, AlertJob, AskedBy, Budget, JobId, JobWatch, Limit, OwnTerms, Period, Rank, Span,
    Subject, TaskId, Time, WatchAction, WatchPolicy, WatchRule,
};

use crate::*;

const ROUND: u64 = 5;
const START: u64 = 1_000_000;

fn task(gpus: Vec<GpuSeen>) -> TaskSeen {
    TaskSeen {
        id: TaskId::single(JobId(7)),
        era: 1,
        job: AlertJob { name: "train".into(), user: "ada".into() },
        asks: None,
        gpus,
        steps: None,
    }
}

fn gpu(n: u16) -> GpuSeen {
    GpuSeen {
        node: "n1".into(),
        gpu: n,
        activity: Some(0.8),
        busy: Some(1.0),
        power: Some(0.9),
        traffic: Some(0.5),
        memory: Some(0.7),
        growth: Some(0.0),
    }
}

fn idle_gpu(n: u16) -> GpuSeen {
    let none = Some(0.0);
    GpuSeen { activity: none, busy: none, power: Some(0.1), traffic: none, ..gpu(n) }
}

fn stepping(age: u64) -> Steps {
    Steps { age: Span::secs(age), pace: Some(Span::secs(2)), stalled: false, behind: None }
}

/// Looks at the same until it is over: after how many seconds an alert began, and which.
fn until_fired(policy: &WatchPolicy, seen: impl Fn(u64) -> Seen) -> Option<(u64, Alert)> {
    run(&mut Watcher::default(), policy, 0..4000, seen, |change| match change {
        Change::Began(alert) => Some(alert),
        Change::Ended(_) => None,
    })
}

fn run(
    watcher: &mut Watcher,
    policy: &WatchPolicy,
    secs: std::ops::Range<u64>,
    seen: impl Fn(u64) -> Seen,
    wanted: impl Fn(Change) -> Option<Alert>,
) -> Option<(u64, Alert)> {
    secs.step_by(ROUND as usize).find_map(|at| {
        let seen = Seen { now: Time((START + at) * 1000), ..seen(at) };
        let changes = watcher.round(policy, &seen);
        changes.into_iter().find_map(&wanted).map(|alert| (at, alert))
    })
}

fn tasks(task: TaskSeen) -> Seen {
    Seen { tasks: vec![task], ..Seen::default() }
}

/// It fires after this long, says this, and ends when all is well again for as long as the rule says.
#[track_caller]
fn fires(bad: impl Fn(u64) -> Seen, good: Seen, rule: WatchRule, text: &str) {
    let policy = WatchPolicy::default();
    let terms = rule.defaults();
    let (at, alert) = until_fired(&policy, &bad).expect("it fires");
    assert_eq!(alert.rule, rule);
    assert_eq!(alert.text, text);
    assert_eq!(at, terms.lasts.0 / 1000, "on the round that it is due");
    let mut watcher = Watcher::default();
    let none = |_| None;
    run(&mut watcher, &policy, 0..at + 1, &bad, none);
    assert_eq!(watcher.standing().len(), 1);
    let ended = |change| if let Change::Ended(alert) = change { Some(alert) } else { None };
    let from = at + ROUND;
    let (ended_at, alert) =
        run(&mut watcher, &policy, from..from + 4000, |_| good.clone(), ended).expect("it ends");
    assert_eq!(ended_at - from, terms.clear.0 / 1000);
    assert_eq!(alert.ended_at, Some(Time((START + ended_at) * 1000)));
    assert!(watcher.standing().is_empty());
}

#[test]
fn idle() {
    let some = || tasks(task((0..8).map(|n| if n < 5 { idle_gpu(n) } else { gpu(n) }).collect()));
    let text = "5 of its 8 GPUs do nothing (under 3% busy): n1 GPU 0, n1 GPU 1, n1 GPU 2, n1 GPU 3 \
                and 1 more";
    fires(|_| some(), tasks(task(vec![gpu(0)])), WatchRule::Idle, text);
}

#[test]
fn a_gpu_of_which_nothing_is_known_is_not_idle() {
    let unknown = || GpuSeen { node: "n1".into(), ..GpuSeen::default() };
    let policy = WatchPolicy::default();
    assert_eq!(until_fired(&policy, |_| tasks(task(vec![unknown(), gpu(1)]))), None);
}

/// One node that can't be asked holds up no alert about the rest.
#[test]
fn what_is_known_decides_whether_an_alert_ends() {
    let unknown = || GpuSeen { node: "n2".into(), ..GpuSeen::default() };
    let text = "1 of its 2 GPUs does nothing (under 3% busy): n1 GPU 0";
    let good = tasks(task(vec![gpu(0), unknown()]));
    fires(|_| tasks(task(vec![idle_gpu(0), unknown()])), good, WatchRule::Idle, text);
    let full = || GpuSeen { memory: Some(0.96), growth: Some(1e-4), ..gpu(0) };
    let text = "the memory of n1 GPU 0 is 96% full and grows: nothing is left in 6m40s";
    let good = tasks(task(vec![gpu(0), unknown()]));
    fires(|_| tasks(task(vec![full(), unknown()])), good, WatchRule::Memory, text);
}

#[test]
fn nothing_ends_while_nothing_is_known() {
    let unknown = || tasks(task(vec![GpuSeen { node: "n1".into(), ..GpuSeen::default() }]));
    let full = GpuSeen { memory: Some(0.96), growth: Some(1e-4), ..gpu(0) };
    for bad in [idle_gpu(0), full.clone()] {
        let (mut watcher, policy) = fired(|_| tasks(task(vec![bad.clone()])));
        let over = run(
            &mut watcher,
            &policy,
            4000..8000,
            |_| unknown(),
            |change| match change {
                Change::Ended(alert) => Some(alert),
                Change::Began(_) => None,
            },
        );
        assert_eq!(over, None);
        assert!(!watcher.standing()[0].bad, "and nobody is accused");
    }
    // How full it is is known, but not yet whether it still grows.
    let (mut watcher, policy) = fired(|_| tasks(task(vec![full.clone()])));
    let still = || GpuSeen { growth: None, ..full.clone() };
    run(&mut watcher, &policy, 4000..8000, |_| tasks(task(vec![still(), gpu(1)])), |_| None);
    assert_eq!(watcher.standing().len(), 1);
}

/// A watcher that has found this bad for so long that one alert stands.
#[track_caller]
fn fired(bad: impl Fn(u64) -> Seen) -> (Watcher, WatchPolicy) {
    let (mut watcher, policy) = (Watcher::default(), WatchPolicy::default());
    run(&mut watcher, &policy, 0..4000, bad, |_| None);
    assert_eq!(watcher.standing().len(), 1, "{:?}", watcher.standing());
    (watcher, policy)
}

/// As a new controller has it from the file.
fn restored(watcher: &Watcher) -> Watcher {
    let text = serde_json::to_string(&watcher.standing()).unwrap();
    Watcher::restore(serde_json::from_str(&text).unwrap(), watcher.next())
}

#[test]
fn steps_that_nobody_has_told_yet_end_nothing() {
    let with = |steps: Option<Steps>| tasks(TaskSeen { steps, ..task(vec![gpu(0)]) });
    let stalled = Steps { stalled: true, ..stepping(660) };
    let lag = Lag { rank: Rank(3), node: None, steps: 14 };
    let behind = Steps { behind: Some(lag), ..stepping(1) };
    for bad in [stalled, behind] {
        let (watcher, policy) = fired(|_| with(Some(bad.clone())));
        let mut next = restored(&watcher);
        let seen = |at: u64| if at < 4030 { with(None) } else { with(Some(bad.clone())) };
        for at in (4000..4100).step_by(ROUND as usize) {
            let seen = Seen { now: Time((START + at) * 1000), ..seen(at) };
            assert_eq!(next.round(&policy, &seen), [], "at {at}");
            assert_eq!(next.standing()[0].bad, at >= 4030, "at {at}");
        }
    }
    assert_eq!(until_fired(&WatchPolicy::default(), |_| with(None)), None);
}

#[test]
fn only_what_is_bad_now_is_acted_upon() {
    let (watcher, policy) = fired(|_| tasks(task(vec![idle_gpu(0)])));
    assert!(watcher.standing()[0].bad);
    let mut next = restored(&watcher);
    assert!(!next.standing()[0].bad, "nobody has looked yet");
    let unknown = GpuSeen { node: "n1".into(), ..GpuSeen::default() };
    for (at, gpu, bad) in [(4000, unknown, false), (4005, idle_gpu(0), true), (4010, gpu(0), false)]
    {
        let seen = Seen { now: Time((START + at) * 1000), ..tasks(task(vec![gpu])) };
        assert_eq!(next.round(&policy, &seen), [], "it stands at {at}");
        assert_eq!(next.standing()[0].bad, bad, "at {at}");
    }
}

#[test]
fn stalled() {
    let steps = |at: u64| Steps { stalled: true, ..stepping(660 + at) };
    let bad = |at: u64| tasks(TaskSeen { steps: Some(steps(at)), ..task(vec![gpu(0)]) });
    let good = tasks(TaskSeen { steps: Some(stepping(1)), ..task(vec![gpu(0)]) });
    fires(bad, good, WatchRule::Stalled, "no step for 11m, usually one in 2s");
}

#[test]
fn nobody_is_stalled_before_the_engine_says_so() {
    let bad = |at: u64| tasks(TaskSeen { steps: Some(stepping(at)), ..task(vec![gpu(0)]) });
    assert_eq!(until_fired(&WatchPolicy::default(), bad), None);
}

#[test]
fn straggler() {
    let lag = Lag { rank: Rank(3), node: Some("n2".into()), steps: 14 };
    let behind = Steps { behind: Some(lag), ..stepping(1) };
    let bad = |_| tasks(TaskSeen { steps: Some(behind.clone()), ..task(vec![gpu(0)]) });
    let good = tasks(TaskSeen { steps: Some(stepping(1)), ..task(vec![gpu(0)]) });
    fires(bad, good, WatchRule::Straggler, "rank 3 on n2 is 14 steps behind the first");
}

fn spinning(n: u16) -> GpuSeen {
    GpuSeen { activity: Some(0.06), power: Some(0.2), traffic: Some(0.0), ..gpu(n) }
}

#[test]
fn hang() {
    let gpus = || vec![spinning(0), spinning(1), idle_gpu(2)];
    let bad = |_| tasks(TaskSeen { steps: Some(stepping(90)), ..task(gpus()) });
    let good = tasks(TaskSeen { steps: Some(stepping(1)), ..task(vec![gpu(0), gpu(1), gpu(2)]) });
    let text = "it hangs: 2 GPUs look busy but draw 20% of their power, and there is no step for \
                1m30s";
    fires(bad, good, WatchRule::Hang, text);
}

#[test]
fn a_job_that_reports_no_steps_hangs_if_it_moves_no_data() {
    let policy = WatchPolicy::default();
    let bad = |_| tasks(task(vec![spinning(0), spinning(1)]));
    assert_eq!(until_fired(&policy, bad).map(|(_, alert)| alert.rule), Some(WatchRule::Hang));
    let decoding = |n| GpuSeen { traffic: Some(0.4), ..spinning(n) };
    assert_eq!(until_fired(&policy, |_| tasks(task(vec![decoding(0), decoding(1)]))), None);
}

#[test]
fn memory() {
    let full =
        |at: u64| GpuSeen { memory: Some(0.95 + at as f64 * 1e-4), growth: Some(1e-4), ..gpu(3) };
    let text = "the memory of n1 GPU 3 is 96% full and grows: nothing is left in 7m20s";
    let good = tasks(task(vec![GpuSeen { memory: Some(0.98), ..gpu(3) }]));
    fires(|at| tasks(task(vec![gpu(0), full(at)])), good, WatchRule::Memory, text);
}

fn n1() -> NodeSeen {
    NodeSeen { name: "n1".into(), ..NodeSeen::default() }
}

#[test]
fn host_memory() {
    let node =
        |memory| Seen { nodes: vec![NodeSeen { memory: Some(memory), ..n1() }], ..Seen::default() };
    fires(|_| node(0.97), node(0.5), WatchRule::HostMemory, "97% of its memory is in use");
}

#[test]
fn crash_loop() {
    let failed = |failures: Option<u32>| Seen {
        circling: vec![CirclingSeen {
            id: TaskId::single(JobId(7)),
            job: AlertJob { name: "train".into(), user: "ada".into() },
            asks: None,
            failures,
            over: false,
        }],
        ..Seen::default()
    };
    let text = "failed 3 times in a row and got nowhere";
    fires(|_| failed(Some(3)), failed(Some(0)), WatchRule::CrashLoop, text);
    let policy = WatchPolicy::default();
    assert_eq!(until_fired(&policy, |_| failed(Some(1))), None);
    // It may have got further before the controller was started again.
    assert_eq!(until_fired(&policy, |_| failed(None)), None);
    let (mut watcher, policy) = fired(|_| failed(Some(3)));
    run(&mut watcher, &policy, 4000..8000, |_| failed(None), |_| None);
    assert_eq!(watcher.standing().len(), 1);
    assert!(!watcher.standing()[0].bad);
}

#[test]
fn budget() {
    let used = |used_hours| Seen {
        teams: vec![TeamSeen {
            name: "vision".into(),
            budget: Budget { gpu_hours: 1000, per: Period::Month },
            used_hours,
        }],
        ..Seen::default()
    };
    let text = "used 1041.5 of 1,000 GPU-hours this month (104%)";
    fires(|_| used(1041.5), used(3.0), WatchRule::Budget, text);
}

#[test]
fn flapping() {
    let left = |ago: &[u64]| Seen {
        nodes: vec![NodeSeen {
            left: ago.iter().map(|secs| Time((START - secs) * 1000)).collect(),
            ..n1()
        }],
        ..Seen::default()
    };
    let text = "was gone 3 times within 30m";
    fires(|_| left(&[10, 300, 900]), left(&[]), WatchRule::Flapping, text);
    assert_eq!(until_fired(&WatchPolicy::default(), |_| left(&[10, 300, 2000])), None);
}

#[test]
fn shared_key() {
    let at = |holders: Option<(&str, &str)>| Seen {
        nodes: vec![NodeSeen {
            shared_key: holders.map(|(a, b)| (a.to_owned(), b.to_owned())),
            ..n1()
        }],
        ..Seen::default()
    };
    let text = "two agents hold its key, at 10.0.0.1:5 and at 10.9.9.9:7: nothing new starts there; \
                find out which one is not yours, then `tutti nodes remove n1` and let it join again";
    fires(|_| at(Some(("10.0.0.1:5", "10.9.9.9:7"))), at(None), WatchRule::SharedKey, text);
}

#[test]
fn node_lost() {
    let lost = |since: Option<u64>| Seen {
        nodes: vec![NodeSeen { lost: since.map(|secs| Time((START + secs) * 1000)), ..n1() }],
        ..Seen::default()
    };
    let text = "is lost for 1m: look at its machine, or take it out with tutti drain n1";
    fires(|_| lost(Some(0)), lost(None), WatchRule::NodeLost, text);
    // One that comes back in time makes no alert, however often it goes.
    let comes_back = |at: u64| lost((at % 60 < 50).then_some(at / 60 * 60));
    assert_eq!(until_fired(&WatchPolicy::default(), comes_back), None);
}

#[test]
fn certificate() {
    let left = |which: Certificate, days: u64| Seen {
        certificates: vec![CertificateSeen { which, left: Span::secs(days * 86_400) }],
        ..Seen::default()
    };
    for (which, text) in [
        (
            Certificate::Server,
            "the server certificate ends in 9 days: restart the controller to renew it",
        ),
        (
            Certificate::Ca,
            "the CA ends in 9 days: it does not renew itself, and all tokens and certificates of \
             nodes end with it; docs/guide/alerts.md says how to make a new one",
        ),
    ] {
        fires(|_| left(which, 9), left(which, 90), WatchRule::Certificate, text);
    }
}

#[test]
fn disk() {
    let free = |free| Seen {
        disks: vec![DiskSeen {
            node: None,
            path: Some("/var/lib/tutti".into()),
            free: Some(free),
            free_bytes: 5 << 30,
        }],
        ..Seen::default()
    };
    let text = "only 3.1% (5120 MiB) of the disk is free for /var/lib/tutti";
    fires(|_| free(0.031), free(0.2), WatchRule::Disk, text);
}

fn own(limit: Option<Limit>, lasts: u64, action: Option<WatchAction>) -> OwnTerms {
    OwnTerms { limit, lasts: Some(Span::secs(lasts)), action, ..OwnTerms::default() }
}

#[test]
fn a_job_asks_for_more_and_never_for_less() {
    let asks =
        JobWatch { idle: Some(own(None, 60, Some(WatchAction::Kill))), ..JobWatch::default() };
    let idle = |asks: &JobWatch| {
        tasks(TaskSeen { asks: Some(Box::new(asks.clone())), ..task(vec![idle_gpu(0)]) })
    };
    let policy = WatchPolicy::default();
    let (at, alert) = until_fired(&policy, |_| idle(&asks)).unwrap();
    assert_eq!((at, alert.asked_by, alert.action), (60, AskedBy::Job, WatchAction::Kill));
    // Silence for itself leaves the operator's rule as it is.
    let off = own(None, 9999, Some(WatchAction::Off));
    let asks = JobWatch { idle: Some(off), ..JobWatch::default() };
    let (at, alert) = until_fired(&policy, |_| idle(&asks)).unwrap();
    assert_eq!((at, alert.asked_by, alert.action), (900, AskedBy::Policy, WatchAction::Tell));
    // And the operator's silence leaves the job's.
    let off = OwnTerms { action: Some(WatchAction::Off), ..OwnTerms::default() };
    let quiet = WatchPolicy { idle: off, ..WatchPolicy::default() };
    let asks = JobWatch { idle: Some(own(None, 60, None)), ..JobWatch::default() };
    let (at, alert) = until_fired(&quiet, |_| idle(&asks)).unwrap();
    assert_eq!((at, alert.asked_by, alert.action), (60, AskedBy::Job, WatchAction::Tell));
}

#[test]
fn what_an_attempt_did_says_nothing_about_the_next() {
    let idle = |era| tasks(TaskSeen { era, ..task(vec![idle_gpu(0)]) });
    let (mut watcher, policy) = (Watcher::default(), WatchPolicy::default());
    run(&mut watcher, &policy, 0..905, |_| idle(1), |_| None);
    assert_eq!(watcher.standing().len(), 1);
    let seen = Seen { now: Time((START + 905) * 1000), ..idle(2) };
    let changes = watcher.round(&policy, &seen);
    assert!(matches!(changes.as_slice(), [Change::Ended(_)]), "{changes:?}");
    assert!(watcher.standing().is_empty());
}

#[test]
fn a_new_controller_goes_on_where_the_old_one_was() {
    let policy = WatchPolicy::default();
    let idle = || tasks(task(vec![idle_gpu(0)]));
    let mut watcher = Watcher::default();
    run(&mut watcher, &policy, 0..905, |_| idle(), |_| None);
    let mut next = restored(&watcher);
    let seen = Seen { now: Time((START + 990) * 1000), ..idle() };
    assert_eq!(next.round(&policy, &seen), [], "it was told already");
    // A job that ended meanwhile is not seen any more.
    let changes = next.round(&policy, &Seen { now: seen.now, ..Seen::default() });
    assert!(matches!(changes.as_slice(), [Change::Ended(alert)] if alert.id == 0));
    assert_eq!(next.next(), 1);
}

#[test]
fn a_level_that_wavers_around_its_limit_makes_one_alert() {
    let wavers = |at: u64| match (at / ROUND) % 3 {
        0 => 0.049,
        1 => 0.051,
        _ => 0.06,
    };
    let seen = |free| Seen {
        disks: vec![DiskSeen {
            node: Some("n1".into()),
            path: None,
            free: Some(free),
            free_bytes: 0,
        }],
        ..Seen::default()
    };
    let policy = WatchPolicy::default();
    let mut watcher = Watcher::default();
    let mut count = 0;
    for at in (0..3600).step_by(ROUND as usize) {
        let free = if at < 120 { 0.04 } else { wavers(at) };
        let seen = Seen { now: Time((START + at) * 1000), ..seen(free) };
        count += watcher.round(&policy, &seen).len();
    }
    assert_eq!(count, 1);
    assert_eq!(watcher.standing()[0].alert.subject, Subject::Node { name: "n1".into() });
}
