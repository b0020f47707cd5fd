use tutti_model::{Bytes, ExitStatus, Fault, Rank, RankProgress, ReportedPhase, SavedPoint};

use super::*;
use crate::testing::launch;

const NOW: Time = Time(1_000_000);

struct Case {
    machine: Machine,
}

fn case() -> Case {
    Case { machine: Machine::new([]) }
}

fn lease(task: &str, generation: u64) -> LeaseId {
    launch(task, generation).lease
}

fn start(task: &str, generation: u64) -> Input {
    Input::Order(Order::Start(Box::new(launch(task, generation))))
}

fn gang(task: &str, generation: u64) -> Input {
    let mut l = launch(task, generation);
    l.wait_for_go = true;
    Input::Order(Order::Start(Box::new(l)))
}

fn stop(task: &str, generation: u64, secs: u64) -> Input {
    Input::Order(Order::Stop {
        lease: lease(task, generation),
        grace: Span::secs(secs),
        signal: None,
    })
}

fn exit(rank: u32, status: ExitStatus) -> RankExit {
    RankExit { rank: Rank(rank), status, at: NOW }
}

impl Case {
    fn step(&mut self, input: Input) -> Vec<Action> {
        self.machine.step(NOW, input)
    }
    fn phase(&self, l: LeaseId) -> ReportedPhase {
        self.machine.report(NOW, l).expect("known").phase
    }
    /// A part that runs, its shim connected.
    fn running(mut self, task: &str, generation: u64) -> Case {
        let l = lease(task, generation);
        self.step(start(task, generation));
        self.step(Input::Prepared { lease: l, result: Ok(4000) });
        self.step(Input::Hello { lease: l, exits: vec![] });
        self
    }
    fn unheard(mut self, task: &str, generation: u64) -> Case {
        self.step(Input::Gone { lease: lease(task, generation) });
        self
    }
    fn error(&self, l: LeaseId) -> PartError {
        match self.phase(l) {
            ReportedPhase::Done { error: Some(e), .. } => e,
            other => panic!("{l} is {other:?}"),
        }
    }
}

#[test]
fn a_part_on_one_node_starts_at_once() {
    let (mut c, l) = (case(), lease("1", 1));
    assert_eq!(c.step(start("1", 1)), [Action::Prepare(l)]);
    let launched = c.step(Input::Prepared { lease: l, result: Ok(4000) });
    assert_eq!(
        launched,
        [
            Action::Launch { lease: l, ports: Ports { master: 4000, all: vec![4000] } },
            Action::Look { lease: l, after: HELLO_WITHIN }
        ]
    );
    assert_eq!(c.step(Input::Hello { lease: l, exits: vec![] }), [Action::Report(l)]);
    let end = End { exits: vec![exit(0, ExitStatus::Code(3))], ..End::default() };
    assert_eq!(c.step(Input::Ended { lease: l, end: end.clone() }), [Action::Report(l)]);
    assert_eq!(c.phase(l), ReportedPhase::Done { exits: end.exits, error: None });
    assert!(c.machine.is_idle());
    assert_eq!(c.step(Input::Order(Order::Forget { lease: l })), [Action::Remove(l)]);
    assert_eq!(c.machine.reports(NOW), []);
}

#[test]
fn a_start_that_comes_twice_starts_once() {
    let (mut c, l) = (case().running("1", 1), lease("1", 1));
    assert_eq!(c.step(start("1", 1)), [Action::Report(l)]);
    c.step(Input::Ended { lease: l, end: End { exits: vec![], ..End::default() } });
    assert_eq!(c.step(start("1", 1)), [Action::Report(l)]);
    c.step(Input::Order(Order::Forget { lease: l }));
    assert_eq!(c.step(start("1", 1)), [Action::Report(l)], "refused after it was forgotten");
    assert_eq!(c.error(l).blame, Blame::Node);
}

#[test]
fn a_gang_waits_for_go() {
    let (mut c, l) = (case(), lease("1", 1));
    c.step(gang("1", 1));
    let prepared = c.step(Input::Prepared { lease: l, result: Ok(4000) });
    assert_eq!(prepared, [Action::KeepPrepared(l), Action::Report(l)]);
    assert_eq!(c.phase(l), ReportedPhase::Prepared { port: 4000 });
    let go = Input::Order(Order::Go { lease: l, master_port: 5000, ports: vec![5000, 1] });
    assert_eq!(
        c.step(go.clone()),
        [
            Action::Launch { lease: l, ports: Ports { master: 5000, all: vec![5000, 1] } },
            Action::Look { lease: l, after: HELLO_WITHIN }
        ]
    );
    assert_eq!(c.step(go), [Action::Report(l)], "the second go starts nothing");
}

#[test]
fn go_for_an_unknown_lease_is_answered_so_that_the_gang_does_not_hang() {
    let (mut c, l) = (case(), lease("1", 1));
    let go = Input::Order(Order::Go { lease: l, master_port: 5000, ports: vec![5000, 1] });
    assert_eq!(c.step(go), [Action::Report(l)]);
    assert_eq!(c.error(l).blame, Blame::Node);
}

#[test]
fn a_part_that_can_not_be_prepared_is_done_with_the_reason() {
    let (mut c, l) = (case(), lease("1", 1));
    c.step(start("1", 1));
    let error = PartError { message: "no such user".into(), blame: Blame::Job };
    let failed = c.step(Input::Prepared { lease: l, result: Err(error.clone()) });
    assert_eq!(failed, [Action::Report(l)]);
    assert_eq!(c.error(l), error);
}

#[test]
fn older_generations_of_a_task_are_refused() {
    let mut c = case().running("1", 7);
    assert_eq!(c.step(start("1", 6)), [Action::Report(lease("1", 6))]);
    assert!(c.error(lease("1", 6)).message.contains("is old"));
}

#[test]
fn older_generations_on_a_gpu_are_refused() {
    let mut c = case().running("1", 7);
    let end = End { exits: vec![], ..End::default() };
    c.step(Input::Ended { lease: lease("1", 7), end });
    assert_eq!(c.step(start("2", 6)), [Action::Report(lease("2", 6))]);
    assert!(c.error(lease("2", 6)).message.contains("is old"));
    assert_eq!(c.step(start("3", 8)), [Action::Prepare(lease("3", 8))]);
}

#[test]
fn a_gpu_that_is_still_held_is_not_given_again() {
    let mut c = case().running("1", 7);
    assert_eq!(c.step(start("2", 8)), [Action::Report(lease("2", 8))]);
    assert_eq!(c.error(lease("2", 8)).message, "GPU 0 is still held by 1@7");
}

#[test]
fn a_newer_attempt_of_the_same_task_stops_the_older() {
    let mut c = case().running("1", 7);
    let mut newer = launch("1", 8);
    newer.gpus.clear();
    let actions = c.step(Input::Order(Order::Start(Box::new(newer))));
    let stop = ToShim::Stop { grace: Span(0), signal: None, because: None };
    assert_eq!(
        actions,
        [Action::Tell { lease: lease("1", 7), message: stop }, Action::Prepare(lease("1", 8))]
    );
}

#[test]
fn stop_reaches_the_shim_and_is_said_again_when_it_dials_again() {
    let (mut c, l) = (case().running("1", 1), lease("1", 1));
    let told = |secs| Action::Tell {
        lease: l,
        message: ToShim::Stop { grace: Span::secs(secs), signal: None, because: None },
    };
    assert_eq!(c.step(stop("1", 1, 30)), [told(30)]);
    assert_eq!(c.step(stop("1", 1, 60)), [told(30)], "grace only gets shorter");
    assert_eq!(c.step(stop("1", 1, 5)), [told(5)]);
    let later = c.machine.step(NOW.plus(Span::secs(2)), Input::Hello { lease: l, exits: vec![] });
    assert_eq!(later, [told(3)]);
}

#[test]
fn stop_of_a_waiting_part_ends_it_without_a_process() {
    let (mut c, l) = (case(), lease("1", 1));
    c.step(gang("1", 1));
    c.step(Input::Prepared { lease: l, result: Ok(4000) });
    assert_eq!(c.step(stop("1", 1, 5)), [Action::Remove(l), Action::Report(l)]);
    assert_eq!(c.phase(l), ReportedPhase::Done { exits: vec![], error: None });
    let go = Input::Order(Order::Go { lease: l, master_port: 1, ports: vec![1, 1] });
    assert_eq!(c.step(go), [Action::Report(l)], "too late");
}

#[test]
fn stop_of_an_unknown_lease_bars_it_for_ever() {
    let (mut c, l) = (case(), lease("1", 5));
    assert_eq!(c.step(stop("1", 5, 5)), [Action::Report(l), Action::Bar(l)]);
    assert_eq!(c.phase(l), ReportedPhase::Done { exits: vec![], error: None });
    c.step(Input::Order(Order::Forget { lease: l }));
    assert_eq!(c.step(start("1", 5)), [Action::Report(l)]);
    assert!(c.error(l).message.contains("is old"));
    let mut next_agent = Case { machine: Machine::new([l]) };
    assert_eq!(next_agent.step(start("1", 5)), [Action::Report(l)]);
    assert_eq!(next_agent.step(start("1", 6)), [Action::Prepare(lease("1", 6))]);
}

#[test]
fn each_exit_is_reported_with_those_before() {
    let (mut c, l) = (case().running("1", 1), lease("1", 1));
    let exits = vec![exit(1, ExitStatus::Signal(9))];
    assert_eq!(c.step(Input::Exits { lease: l, exits: exits.clone() }), [Action::Report(l)]);
    assert_eq!(c.phase(l), ReportedPhase::Running { exits });
}

#[test]
fn a_shim_that_never_came_is_revoked() {
    let (mut c, l) = (case(), lease("1", 1));
    c.step(start("1", 1));
    c.step(Input::Prepared { lease: l, result: Ok(1) });
    let looked = c.step(Input::Looked { lease: l, fate: Fate::Unclaimed });
    assert_eq!(looked, [Action::Revoke(l)]);
    c.step(Input::LaunchFailed { lease: l, message: "nobody came".into() });
    assert_eq!(c.error(l), node_error("nobody came".into()));
}

#[test]
fn a_dead_shim_is_swept_before_the_part_counts_as_done() {
    let (mut c, l) = (case().running("1", 1).unheard("1", 1), lease("1", 1));
    let looked = c.step(Input::Looked { lease: l, fate: Fate::Dead });
    assert_eq!(looked, [Action::Sweep(l)]);
    assert_eq!(c.phase(l), ReportedPhase::Running { exits: vec![] });
    assert_eq!(c.step(Input::Swept { lease: l }), [Action::Report(l)]);
    assert_eq!(c.error(l).blame, Blame::Node);
}

#[test]
fn a_broken_connection_to_a_living_shim_changes_nothing() {
    let (mut c, l) = (case().running("1", 1), lease("1", 1));
    assert_eq!(c.step(Input::Looked { lease: l, fate: Fate::Alive }), [], "it is connected");
    assert_eq!(c.step(Input::Gone { lease: l }), [Action::Look { lease: l, after: Span(0) }]);
    let looked = c.step(Input::Looked { lease: l, fate: Fate::Alive });
    assert_eq!(looked, [Action::Look { lease: l, after: LOOK_AGAIN }]);
    assert_eq!(c.phase(l), ReportedPhase::Running { exits: vec![] });
}

#[test]
fn an_end_on_disk_counts_when_the_shim_could_not_say_it() {
    let (mut c, l) = (case().running("1", 1).unheard("1", 1), lease("1", 1));
    let end = End { exits: vec![exit(0, ExitStatus::Code(0))], ..End::default() };
    let looked = c.step(Input::Looked { lease: l, fate: Fate::Ended(end.clone()) });
    assert_eq!(looked, [Action::Report(l)]);
    assert_eq!(c.phase(l), ReportedPhase::Done { exits: end.exits, error: None });
}

#[test]
fn a_starting_agent_takes_over_what_it_finds() {
    let end = End { exits: vec![exit(0, ExitStatus::Code(4))], ..End::default() };
    let running = ReportedPhase::Running { exits: vec![] };
    let done = ReportedPhase::Done { exits: end.exits.clone(), error: None };
    let l = lease("1", 1);
    for (state, action, phase) in [
        (FoundState::Prepared, None, ReportedPhase::Prepared { port: 7 }),
        (
            FoundState::Unclaimed,
            Some(Action::Look { lease: l, after: CLAIM_WITHIN }),
            running.clone(),
        ),
        (FoundState::Alive, Some(Action::Look { lease: l, after: LOOK_AGAIN }), running.clone()),
        (FoundState::Dead, Some(Action::Sweep(l)), running),
        (FoundState::Ended(end), None, done),
    ] {
        let mut c = case();
        let record = Box::new(Record { launch: launch("1", 1), port: 7 });
        let actions = c.step(Input::Found { record, state, moved: None });
        assert_eq!(actions, action.into_iter().collect::<Vec<_>>());
        assert_eq!(c.phase(l), phase);
        assert_eq!(c.step(start("1", 1)), [Action::Report(l)], "known, so not started again");
    }
}

#[test]
fn a_shim_of_an_unknown_part_is_told_to_kill_it() {
    let (mut c, l) = (case(), lease("9", 9));
    let message = ToShim::Stop { grace: Span(0), signal: None, because: None };
    let told = [Action::Tell { lease: l, message }];
    assert_eq!(c.step(Input::Hello { lease: l, exits: vec![] }), told);
}

#[test]
fn shutdown_blames_neither_the_node_nor_the_job() {
    let mut c = case().running("1", 1);
    let actions = c.step(Input::Shutdown { grace: Span::secs(3) });
    let message = "the node was taken down".to_owned();
    let because = Some(PartError { message, blame: Blame::Operator });
    let message = ToShim::Stop { grace: Span::secs(3), signal: None, because };
    assert_eq!(actions, [Action::Tell { lease: lease("1", 1), message }]);
    assert!(!c.machine.is_idle());
}

fn start_share(task: &str, generation: u64, share: f64) -> Input {
    let mut l = launch(task, generation);
    std::sync::Arc::make_mut(&mut l.spec).gpu_share = Some(share);
    Input::Order(Order::Start(Box::new(l)))
}

#[test]
fn parts_of_one_gpu_run_beside_each_other_in_whatever_order_they_come() {
    let mut c = case();
    assert_eq!(c.step(start_share("2", 6, 0.5)), [Action::Prepare(lease("2", 6))]);
    assert_eq!(c.step(start_share("1", 5, 0.5)), [Action::Prepare(lease("1", 5))]);
    c.step(start("3", 7));
    assert!(c.error(lease("3", 7)).message.contains("still held"), "a whole GPU is for one alone");
    let mut c = case().running("1", 5);
    c.step(start_share("2", 6, 0.5));
    assert!(c.error(lease("2", 6)).message.contains("still held"));
}

#[test]
fn a_share_that_is_older_than_a_whole_lease_is_old() {
    let mut c = case().running("1", 5);
    c.step(Input::Ended { lease: lease("1", 5), end: End { exits: vec![], ..End::default() } });
    c.step(start_share("2", 4, 0.5));
    assert!(c.error(lease("2", 4)).message.contains("is old"));
    c.step(start_share("3", 6, 0.5));
    c.step(start("4", 5));
    assert!(c.error(lease("4", 5)).message.contains("is old"));
}

#[test]
fn a_shim_that_dials_again_is_asked_to_save_again() {
    let (c, l) = (case(), lease("1", 1));
    let mut c = c.running("1", 1);
    let signal = Some("USR1".to_owned());
    let order = Order::Stop { lease: l, grace: Span::secs(9), signal: signal.clone() };
    let message = ToShim::Stop { grace: Span::secs(9), signal, because: None };
    let tell = Action::Tell { lease: l, message };
    assert_eq!(c.step(Input::Order(order)), std::slice::from_ref(&tell));
    c.step(Input::Gone { lease: l });
    assert!(c.step(Input::Hello { lease: l, exits: vec![] }).contains(&tell));
}

fn at_step(step: u64, saved: Option<u64>) -> Box<PartProgress> {
    let rank =
        RankProgress { rank: Rank(0), step, loss: None, tokens: None, age: Span(10), pace: None };
    let saved =
        saved.map(|step| SavedPoint { step, at: None, path: None, save_ms: None, node: None });
    Box::new(PartProgress { ranks: vec![rank], saved, ..PartProgress::default() })
}

#[test]
fn steps_wait_for_the_heartbeat_and_checkpoints_do_not() {
    let mut c = case().running("1", 1);
    let l = lease("1", 1);
    assert_eq!(c.machine.report(NOW, l).unwrap().progress, None);
    let mut says = |progress| c.step(Input::Progress { lease: l, progress });
    assert_eq!(says(at_step(3, None)), []);
    assert_eq!(says(at_step(4, Some(4))), [Action::Report(l)]);
    assert_eq!(says(at_step(5, Some(4))), []);
    let mut accuses = at_step(5, Some(4));
    accuses.fault = Some(Fault { rank: Rank(1), op: "barrier".into(), why: String::new() });
    assert_eq!(says(accuses.clone()), [Action::Report(l)]);
    let later = c.machine.report(NOW.plus(Span(990)), l).unwrap().progress.unwrap();
    assert_eq!((later.ranks[0].age, later.saved_age), (Span(1000), Span(990)), "it grows old");
    assert_eq!(c.step(Input::Progress { lease: lease("2", 2), progress: accuses }), []);
}

#[test]
fn the_last_progress_is_in_the_end_however_that_is_learned() {
    let l = lease("1", 1);
    let last = |c: &Case| {
        let report = c.machine.report(NOW, l).unwrap();
        assert!(matches!(report.phase, ReportedPhase::Done { .. }));
        // Output that is in no log is told as well.
        (report.progress.map(|p| p.ranks[0].step), report.output_dropped)
    };
    let end = End {
        exits: vec![],
        progress: Some(at_step(9, Some(8))),
        output_dropped: 7,
        ..End::default()
    };

    let mut c = case().running("1", 1);
    c.step(Input::Progress { lease: l, progress: at_step(5, None) });
    c.step(Input::Ended { lease: l, end: end.clone() });
    assert_eq!(last(&c), (Some(9), 7));
    c.step(Input::Progress { lease: l, progress: at_step(2, None) });
    assert_eq!(last(&c), (Some(9), 7), "what comes late does not count");

    let mut c = case().running("1", 1).unheard("1", 1);
    c.step(Input::Looked { lease: l, fate: Fate::Ended(end.clone()) });
    assert_eq!(last(&c), (Some(9), 7));

    let mut c = case();
    let record = Box::new(Record { launch: launch("1", 1), port: 1 });
    c.step(Input::Found { record, state: FoundState::Ended(end), moved: None });
    assert_eq!(last(&c), (Some(9), 7));

    // A supervisor that died said nothing more.
    let mut c = case().running("1", 1);
    c.step(Input::Progress { lease: l, progress: at_step(5, None) });
    c.step(Input::Swept { lease: l });
    assert_eq!(last(&c), (Some(5), 0));
}

fn suspend(task: &str, generation: u64) -> Input {
    Input::Order(Order::Suspend { lease: lease(task, generation) })
}

fn wake(task: &str, generation: u64, gpu: u16) -> Input {
    Input::Order(Order::Wake { lease: lease(task, generation), gpus: vec![GpuIndex(gpu)] })
}

fn says(task: &str, suspension: Option<Suspension>, gpu: u16) -> Input {
    let moved = Moved { suspension, gpus: Some(vec![GpuIndex(gpu)]) };
    Input::Suspension { lease: lease(task, 1), moved }
}

fn out() -> Option<Suspension> {
    Some(Suspension::Suspended { bytes: tutti_model::Bytes::gib(1) })
}

#[test]
fn a_suspended_part_has_no_gpu_until_it_is_woken() {
    let mut c = case().running("1", 1);
    let l = lease("1", 1);
    let told = c.step(suspend("1", 1));
    assert!(told.contains(&Action::TellSuspend(l)), "{told:?}");
    c.step(says("1", Some(Suspension::Suspending), 0));
    let refused = |c: &mut Case, task, generation| {
        c.step(start(task, generation)).contains(&Action::Report(lease(task, generation)))
    };
    assert!(refused(&mut c, "2", 2), "still there");
    c.step(says("1", out(), 0));
    assert!(!refused(&mut c, "3", 3), "it is free");
    // The controller would wake it on a GPU that another part holds.
    let complaint = c.step(wake("1", 1, 0));
    assert!(matches!(&complaint[..], [Action::Complain(text)] if text.contains("3@3")));
    let told = c.step(wake("1", 1, 4));
    assert!(told.contains(&Action::TellWake { lease: l, gpus: vec![GpuIndex(4)] }), "{told:?}");
    let report = c.machine.report(NOW, l).unwrap();
    assert_eq!(report.suspension, Some(Suspension::Waking));
    let mut on_four = launch("4", 4);
    on_four.gpus = vec![GpuIndex(4)];
    c.step(Input::Order(Order::Start(Box::new(on_four))));
    assert!(matches!(c.phase(lease("4", 4)), ReportedPhase::Done { error: Some(_), .. }));
}

#[test]
fn an_order_waits_for_a_shim_that_is_not_there() {
    let mut c = case().running("1", 1).unheard("1", 1);
    let l = lease("1", 1);
    let tells = |actions: Vec<Action>| {
        actions.into_iter().filter(|a| matches!(a, Action::TellSuspend(_))).count()
    };
    assert_eq!(tells(c.step(suspend("1", 1))), 0);
    assert_eq!(tells(c.step(Input::Hello { lease: l, exits: vec![] })), 1);
    c.step(Input::Gone { lease: l });
    assert_eq!(tells(c.step(Input::Hello { lease: l, exits: vec![] })), 0, "it was told");
    let mut c = case();
    c.step(gang("1", 1));
    c.step(suspend("1", 1));
    c.step(Input::Prepared { lease: l, result: Ok(4000) });
    let report = c.machine.report(NOW, l).unwrap();
    assert!(matches!(report.suspension, Some(Suspension::Refused { .. })), "{report:?}");
    let unknown = case().step(suspend("9", 9));
    assert!(unknown.contains(&Action::Report(lease("9", 9))), "{unknown:?}");
}

/// What was told to go counts from that moment, and until it is back.
#[test]
fn the_room_for_a_part_is_what_others_leave() {
    let gib = Bytes::gib;
    let mut c = case();
    for (task, generation, gpu) in [("1", 1, 0), ("2", 2, 1)] {
        let mut l = launch(task, generation);
        (l.gpus, l.mem) = (vec![GpuIndex(gpu)], gib(4));
        c.step(Input::Order(Order::Start(Box::new(l))));
        let lease = lease(task, generation);
        c.step(Input::Prepared { lease, result: Ok(4000) });
        c.step(Input::Hello { lease, exits: vec![] });
    }
    let (first, second) = (lease("1", 1), lease("2", 2));
    let room = |c: &Case, of| c.machine.room_for(of, gib(32), |_| gib(10));
    assert_eq!((room(&c, first), room(&c, second)), (gib(24), gib(24)));
    c.step(suspend("1", 1));
    assert_eq!((room(&c, first), room(&c, second)), (gib(24), gib(14)));
    c.step(says("1", out(), 0));
    assert_eq!(room(&c, second), gib(14));
    c.step(says("1", None, 0));
    assert_eq!(room(&c, second), gib(24));
    c.step(suspend("1", 1));
    c.step(says("1", Some(Suspension::Refused { why: "no".into() }), 0));
    assert_eq!(room(&c, second), gib(24));
}

#[test]
fn nothing_grows_old_while_it_is_suspended() {
    let mut c = case().running("1", 1);
    let l = lease("1", 1);
    let rank = RankProgress {
        rank: Rank(0),
        step: 7,
        loss: None,
        tokens: None,
        age: Span(100),
        pace: None,
    };
    let progress = Box::new(PartProgress { ranks: vec![rank], ..PartProgress::default() });
    c.step(Input::Progress { lease: l, progress });
    let at = |ms| Time(NOW.0 + ms);
    let age = |c: &Case, ms| c.machine.report(at(ms), l).unwrap().progress.unwrap().ranks[0].age.0;
    assert_eq!(age(&c, 50), 150);
    c.machine.step(at(200), says("1", out(), 0));
    assert_eq!(age(&c, 900_000), 300);
    c.machine.step(at(900_000), says("1", None, 0));
    assert_eq!(age(&c, 900_010), 310);
}
