use std::collections::BTreeMap;

use tutti_model::{
    EndpointReport, Generation, JobId, ReplicaReport, RouterReport, Served, Span, Time, Traffic,
};

use super::Routers;
use super::loads::{EndpointScene, ReplicaScene, Scene};

const JOB: JobId = JobId(7);

fn at(seconds: u64) -> Time {
    Time(1_800_000_000_000 + seconds * 1000)
}

fn traffic(requests: u64, errors: u64) -> Traffic {
    let mut traffic = Traffic {
        requests,
        errors,
        prompt_tokens: requests * 100,
        output_tokens: requests * 10,
        ..Traffic::default()
    };
    (0..requests).for_each(|_| traffic.first_byte.add(20_000));
    traffic
}

fn ready(generation: u64, in_flight: u32) -> ReplicaReport {
    let generation = Generation(generation);
    ReplicaReport { generation, ready: true, in_flight, ..ReplicaReport::default() }
}

/// A router that knows the table of version 5 and has asked so often.
fn report(router: &str, requests: u64) -> RouterReport {
    let said = EndpointReport {
        in_flight: 2,
        queued: 1,
        traffic: traffic(requests, 0),
        revisions: [(1, traffic(requests, 0))].into(),
        replicas: [(JOB, ready(3, 2))].into(),
        ..EndpointReport::default()
    };
    RouterReport {
        router: router.to_owned(),
        address: "http://127.0.0.1:80".to_owned(),
        version: 5,
        endpoints: [("chat".to_owned(), said)].into(),
    }
}

fn said(report: &mut RouterReport) -> &mut EndpointReport {
    report.endpoints.get_mut("chat").unwrap()
}

fn scene(version: u64, rollout: Option<Time>, draining: bool) -> Scene {
    let replica = |generation, draining| ReplicaScene { generation, draining };
    let replicas = [(JOB, replica(Generation(3), draining))].into();
    let endpoint = EndpointScene { created_at: at(0), rollout, replicas };
    Scene { version, endpoints: [("chat".to_owned(), endpoint)].into(), ..Scene::default() }
}

#[test]
fn what_all_routers_say_is_added_up() {
    let routers = Routers::default();
    let scene = scene(5, None, false);
    let alone = routers.loads(&scene, at(0)).remove("chat").unwrap();
    assert_eq!((alone.routers, alone.in_flight, alone.queued), (0, 0, 0));
    assert!(!alone.replicas[&JOB].ready, "nobody has an answer from it");
    routers.note(report("a", 0), at(0)).unwrap();
    let mut other = report("b", 0);
    *said(&mut other).replicas.get_mut(&JOB).unwrap() =
        ReplicaReport { ready: false, why: Some("refused".into()), ..ready(3, 5) };
    routers.note(other, at(1)).unwrap();
    let load = routers.loads(&scene, at(2)).remove("chat").unwrap();
    assert_eq!((load.routers, load.in_flight, load.queued), (2, 4, 2));
    let replica = &load.replicas[&JOB];
    assert_eq!((replica.generation, replica.ready, replica.in_flight), (Generation(3), true, 7));
    assert_eq!(replica.why, None, "it answers to one of them");
    assert!(!replica.all_know_draining, "it does not drain");
    // The first is silent for too long.
    let load = routers.loads(&scene, at(10)).remove("chat").unwrap();
    assert_eq!((load.routers, load.in_flight), (1, 2));
    assert_eq!((load.replicas[&JOB].ready, load.replicas[&JOB].in_flight), (false, 7));
    assert_eq!(load.replicas[&JOB].why.as_deref(), Some("refused"));
}

#[test]
fn a_peak_is_told_once() {
    let routers = Routers::default();
    let scene = scene(5, None, false);
    let peak = |now: Time| routers.loads(&scene, now)["chat"].peak;
    let with_peak = |router: &str, peak: u32| {
        let mut report = report(router, 0);
        said(&mut report).peak = peak;
        report
    };
    routers.note(with_peak("a", 7), at(0)).unwrap();
    routers.note(with_peak("a", 3), at(1)).unwrap();
    routers.note(with_peak("b", 4), at(1)).unwrap();
    assert_eq!(peak(at(1)), 11, "two reports before the engine was told, and another router");
    assert_eq!(peak(at(2)), 0, "nothing new was said");
    routers.note(with_peak("a", 3), at(2)).unwrap();
    assert_eq!(peak(at(3)), 3);
}

#[test]
fn a_replica_that_was_started_again_is_another() {
    let routers = Routers::default();
    let mut old = report("a", 0);
    *said(&mut old).replicas.get_mut(&JOB).unwrap() = ready(2, 9);
    routers.note(old, at(0)).unwrap();
    let load = routers.loads(&scene(5, None, false), at(0)).remove("chat").unwrap();
    let replica = &load.replicas[&JOB];
    assert_eq!((replica.generation, replica.ready, replica.in_flight), (Generation(3), false, 0));
    let seen = routers.seen("chat", at(0)).replicas.remove(&JOB).unwrap();
    assert_eq!((seen.generation, seen.in_flight), (Generation(2), 9));
}

#[test]
fn a_replica_goes_when_every_router_knows() {
    let routers = Routers::default();
    let know = |version: u64, now: Time| {
        let load = routers.loads(&scene(version, None, true), now).remove("chat").unwrap();
        load.replicas[&JOB].all_know_draining
    };
    assert!(know(8, at(0)), "there is nobody who does not");
    routers.note(report("a", 0), at(1)).unwrap();
    routers.note(RouterReport { version: 8, ..report("b", 0) }, at(1)).unwrap();
    assert!(!know(8, at(1)), "a goes by version 5");
    routers.note(RouterReport { version: 8, ..report("a", 0) }, at(2)).unwrap();
    assert!(know(9, at(2)), "what came after 8 is of no interest");
    let mut without = report("a", 0);
    said(&mut without).replicas.clear();
    routers.note(without, at(3)).unwrap();
    assert!(know(9, at(3)), "it has no such replica");
    // One that is cut off may still send requests there.
    routers.note(report("c", 0), at(4)).unwrap();
    routers.note(RouterReport { version: 9, ..report("a", 0) }, at(20)).unwrap();
    assert!(!know(9, at(20)));
    assert!(know(9, at(64)), "but not for ever");
}

#[test]
fn what_a_silent_router_has_there_is_waited_for() {
    let routers = Routers::default();
    let knows = |router: &str, in_flight: u32| {
        let mut report = RouterReport { version: 8, ..report(router, 0) };
        said(&mut report).replicas.get_mut(&JOB).unwrap().in_flight = in_flight;
        report
    };
    let idle = |now: Time| {
        let load = routers.loads(&scene(8, None, true), now).remove("chat").unwrap();
        assert!(load.replicas[&JOB].all_know_draining);
        load.replicas[&JOB].in_flight == 0
    };
    routers.note(knows("a", 3), at(0)).unwrap();
    routers.note(knows("b", 0), at(15)).unwrap();
    assert!(!idle(at(15)), "a may still have its three streams");
    routers.note(knows("a", 0), at(20)).unwrap();
    assert!(idle(at(20)), "it is back, and they have ended");
    routers.note(knows("a", 3), at(21)).unwrap();
    routers.note(knows("b", 0), at(80)).unwrap();
    assert!(!idle(at(80)));
    assert!(idle(at(81)), "but not for ever");
}

#[test]
fn the_version_of_a_drain_is_that_of_its_beginning() {
    let routers = Routers::default();
    routers.note(RouterReport { version: 8, ..report("a", 0) }, at(0)).unwrap();
    let know = |version: u64, draining: bool| {
        let load = routers.loads(&scene(version, None, draining), at(1)).remove("chat").unwrap();
        load.replicas[&JOB].all_know_draining
    };
    assert!(know(8, true));
    assert!(!know(12, false));
    assert!(!know(12, true), "it came back and drains again since 12");
}

#[test]
fn a_rollout_is_judged_by_what_came_since() {
    let routers = Routers::default();
    let of = |requests_1, requests_2, errors_2| {
        let mut report = report("a", requests_1 + requests_2);
        said(&mut report).revisions =
            [(1, traffic(requests_1, 0)), (2, traffic(requests_2, errors_2))].into();
        report
    };
    let revisions = |rollout: Option<Time>, now: Time| -> BTreeMap<u32, (u64, u64)> {
        let load = routers.loads(&scene(5, rollout, false), now).remove("chat").unwrap();
        load.revisions.into_iter().map(|(n, t)| (n, (t.requests, t.errors))).collect()
    };
    routers.note(report("a", 100), at(0)).unwrap();
    assert_eq!(revisions(None, at(1)), [(1, (100, 0))].into(), "of the last minutes");
    let began = Some(at(2));
    assert_eq!(revisions(began, at(2)), [].into());
    routers.note(of(130, 20, 4), at(3)).unwrap();
    assert_eq!(revisions(began, at(3)), [(1, (30, 0)), (2, (20, 4))].into());
    // It is started again: it has another name, and counts from nothing.
    let again = RouterReport { router: "a2".into(), ..of(5, 10, 1) };
    routers.note(again, at(4)).unwrap();
    assert_eq!(revisions(began, at(20)), [(1, (35, 0)), (2, (30, 5))].into());
    // The same name with smaller counters is a router that was started again as well.
    routers.note(RouterReport { router: "a2".into(), ..of(1, 0, 0) }, at(21)).unwrap();
    assert_eq!(revisions(began, at(21)), [(1, (36, 0)), (2, (30, 5))].into());
    assert_eq!(revisions(Some(at(30)), at(30)), [].into(), "the next one");
    assert_eq!(revisions(None, at(400)), [].into(), "nothing in the last minutes");
}

#[test]
fn figures_are_of_the_last_minute() {
    let routers = Routers::default();
    for second in 0..=120_u64 {
        // Ten a second for a minute, then twenty.
        let requests = 10 * second + 10 * second.saturating_sub(60);
        let mut report = report("a", requests);
        said(&mut report).traffic.errors = requests / 10;
        said(&mut report).traffic.prefix_blocks = requests * 4;
        said(&mut report).traffic.prefix_blocks_hit = requests;
        routers.note(report, at(second)).unwrap();
    }
    let figures = routers.seen("chat", at(120)).figures;
    assert!((figures.requests_per_second - 20.0).abs() < 1.0, "{figures:?}");
    assert!((figures.errors - 0.1).abs() < 0.01, "{figures:?}");
    assert!((figures.output_tokens_per_second - 200.0).abs() < 10.0, "{figures:?}");
    assert_eq!(figures.prefix_hits, Some(0.25));
    let first = figures.first_byte_p50.unwrap();
    assert!(Span::millis(15) <= first && first <= Span::millis(22), "{first}");
    assert_eq!(figures.queue_wait_p95, None, "nothing waited");
    let history = routers.history("chat", at(120));
    assert!((24..=26).contains(&history.len()), "{}", history.len());
    assert_eq!(history.iter().map(|point| point.traffic.requests).sum::<u64>(), 1800);
    let later = routers.seen("chat", at(300));
    assert_eq!(later.figures.requests_per_second, 0.0);
    assert_eq!((later.in_flight, later.traffic.requests), (0, 1800));
    assert_eq!((routers.seen("other", at(120)).routers, later.routers), (1, 0), "it is silent");
}

#[test]
fn a_young_endpoint_has_rates_of_its_own_age() {
    let routers = Routers::default();
    routers.note(report("a", 0), at(0)).unwrap();
    routers.note(report("a", 40), at(4)).unwrap();
    let rate = routers.seen("chat", at(4)).figures.requests_per_second;
    assert!((rate - 10.0).abs() < 0.01, "{rate}");
}

/// What the state has of the only endpoint that there is.
fn has(requests: u64) -> BTreeMap<String, Served> {
    let [prompt_tokens, output_tokens] = [100, 10].map(|tokens| requests * tokens);
    let served = Served { requests, prompt_tokens, output_tokens, ..Served::default() };
    [("chat".to_owned(), served)].into()
}

#[test]
fn what_was_served_is_told_once() {
    let routers = Routers::default();
    assert!(routers.take_served(&has(0), at(0)).is_none(), "there is no router");
    routers.note(report("a", 10), at(0)).unwrap();
    routers.note(report("b", 5), at(0)).unwrap();
    let told = routers.take_served(&has(0), at(1)).unwrap();
    let served = &told.served["chat"];
    assert_eq!((served.requests, served.prompt_tokens, served.output_tokens), (15, 1500, 150));
    routers.told();
    assert!(routers.take_served(&has(15), at(1)).unwrap().served.is_empty());
    routers.note(report("a", 12), at(2)).unwrap();
    // Counters that begin anew are new in full.
    routers.note(report("b", 3), at(2)).unwrap();
    assert_eq!(routers.take_served(&has(15), at(3)).unwrap().served["chat"].requests, 5);
    // Whoever told it was broken off: it is told again, unless the engine has it.
    routers.note(report("b", 4), at(4)).unwrap();
    assert_eq!(routers.take_served(&has(15), at(5)).unwrap().served["chat"].requests, 6);
    routers.note(report("b", 5), at(6)).unwrap();
    assert_eq!(routers.take_served(&has(21), at(7)).unwrap().served["chat"].requests, 1);
    assert!(routers.take_served(&[].into(), at(8)).unwrap().served.is_empty(), "it is gone");
}

#[test]
fn a_total_that_people_see_does_not_fall() {
    let routers = Routers::default();
    let total = |state: u64| {
        let state = &has(state)["chat"];
        state.requests + routers.seen("chat", at(0)).pending.beyond(state).requests
    };
    routers.note(report("a", 10), at(0)).unwrap();
    assert_eq!(total(100), 110);
    let told = routers.take_served(&has(100), at(0)).unwrap();
    assert_eq!((told.served["chat"].requests, total(100)), (10, 110), "on its way to the engine");
    routers.note(report("a", 13), at(0)).unwrap();
    assert_eq!((total(100), total(110)), (113, 113), "before the engine has it, and after");
    routers.told();
    assert_eq!(total(110), 113);
}

#[test]
fn a_new_controller_goes_on_where_the_last_one_was() {
    let dir = tempfile::tempdir().unwrap();
    let first = Routers::open(dir.path(), at(0));
    first.note(report("a", 100), at(0)).unwrap();
    first.note(RouterReport { router: "gone".into(), ..report("a", 7) }, at(0)).unwrap();
    first.note(report("a", 110), at(50)).unwrap();
    let told = first.take_served(&has(0), at(50)).unwrap();
    first.note(report("a", 115), at(51)).unwrap();
    first.save(&told.accounts);
    drop(first);

    let second = Routers::open(dir.path(), at(55));
    let know = |now: Time| {
        let load = second.loads(&scene(5, None, true), now).remove("chat").unwrap();
        (load.routers, load.replicas[&JOB].all_know_draining)
    };
    assert_eq!(know(at(55)), (0, false), "a has not spoken yet");
    second.note(report("a", 130), at(56)).unwrap();
    assert_eq!(know(at(56)), (1, true), "and nobody waits for the one that was silent before");
    assert_eq!(second.take_served(&has(117), at(57)).unwrap().served["chat"].requests, 20);
    assert_eq!(second.seen("chat", at(56)).traffic.requests, 0, "when they came is not known");
    second.note(report("a", 140), at(57)).unwrap();
    assert_eq!(second.seen("chat", at(57)).traffic.requests, 10);
    std::fs::write(dir.path().join("routers.json"), b"{\"routers\": ").unwrap();
    let third = Routers::open(dir.path(), at(60));
    assert!(third.take_served(&has(0), at(60)).is_none(), "a damaged file is no file");
}

#[test]
fn news_is_told_at_once() {
    let routers = Routers::default();
    let first = routers.note(report("a", 0), at(0)).unwrap();
    assert!(first.readiness && first.waiting == ["chat"]);
    assert!(!routers.note(report("a", 1), at(1)).unwrap().readiness);
    let mut down = report("a", 1);
    said(&mut down).queued = 0;
    said(&mut down).replicas.get_mut(&JOB).unwrap().ready = false;
    let news = routers.note(down, at(2)).unwrap();
    assert!(news.readiness && news.waiting.is_empty());
}

#[test]
fn routers_are_listed_while_they_speak() {
    let routers = Routers::default();
    routers.note(report("a", 0), at(0)).unwrap();
    routers.note(RouterReport { version: 6, ..report("b", 0) }, at(5)).unwrap();
    let rows = routers.rows(6, at(6));
    let named: Vec<_> = rows.iter().map(|row| (row.router.as_str(), row.current)).collect();
    assert_eq!(named, [("a", false), ("b", true)]);
    assert_eq!((routers.count(at(6)), routers.count(at(11)), routers.count(at(15))), (2, 1, 0));
    let endless = RouterReport { router: "x".repeat(200), ..report("a", 0) };
    assert!(routers.note(endless, at(6)).is_err());
}

#[test]
fn endpoints_that_are_gone_are_forgotten() {
    let routers = Routers::default();
    routers.note(report("a", 10), at(0)).unwrap();
    let load = routers.loads(&Scene::default(), at(1));
    assert!(load.is_empty());
    assert_eq!(routers.seen("chat", at(1)).traffic.requests, 0);
    assert!(!routers.owes("chat"), "nobody can be told");
    let mut scene = scene(5, None, false);
    scene.endpoints.get_mut("chat").unwrap().replicas.clear();
    let load = routers.loads(&scene, at(1)).remove("chat").unwrap();
    assert!(load.replicas.is_empty());
}

#[test]
fn what_is_said_shortly_after_the_end_counts() {
    let routers = Routers::default();
    routers.note(report("a", 10), at(0)).unwrap();
    routers.loads(&scene(5, None, false), at(1));
    let gone = Scene { gone: [("chat".to_owned(), at(0))].into(), ..Scene::default() };
    routers.note(report("a", 12), at(2)).unwrap();
    assert!(routers.loads(&gone, at(2)).is_empty());
    assert_eq!(
        routers.seen("chat", at(2)).traffic.requests,
        0,
        "how it went is of no use any more"
    );
    assert_eq!(routers.take_served(&has(0), at(2)).unwrap().served["chat"].requests, 12);
    routers.told();
    routers.note(report("a", 13), at(3)).unwrap();
    let mut next = scene(6, None, false);
    next.endpoints.get_mut("chat").unwrap().created_at = at(3);
    routers.loads(&next, at(3));
    assert!(!routers.owes("chat"), "another one has its name");
}

#[test]
fn those_that_are_gone_are_spoken_of_for_a_minute() {
    use tutti_model::{PastEndpoint, State};
    let mut state = State::default();
    for (name, created, stopped) in [("old", 0, 5), ("chat", 10, 20), ("chat", 30, 40)] {
        let served = Served::default();
        let (user, team) = ("ada".to_owned(), "lab".to_owned());
        let (created_at, stopped_at) = (at(created), at(stopped));
        let name = name.to_owned();
        state.past_endpoints.add(PastEndpoint { name, user, team, created_at, stopped_at, served });
    }
    let gone = |now| Scene::of(&state, at(now)).gone;
    assert_eq!(gone(64), [("chat".to_owned(), at(30)), ("old".to_owned(), at(0))].into());
    assert_eq!(gone(70), [("chat".to_owned(), at(30))].into(), "the newer of both");
    assert_eq!(gone(100), [].into());
}

#[test]
fn the_next_endpoint_of_a_name_begins_with_nothing() {
    let routers = Routers::default();
    routers.note(report("a", 10), at(0)).unwrap();
    routers.loads(&scene(5, None, false), at(1));
    assert!(routers.owes("chat"), "it is there");
    let mut scene = scene(6, None, false);
    scene.endpoints.get_mut("chat").unwrap().created_at = at(2);
    routers.loads(&scene, at(2));
    assert!(!routers.owes("chat"));
    assert_eq!(routers.seen("chat", at(2)).traffic.requests, 0);
    routers.note(report("a", 12), at(3)).unwrap();
    routers.loads(&scene, at(3));
    assert_eq!(routers.take_served(&has(0), at(4)).unwrap().served["chat"].requests, 2);
}

#[test]
fn what_a_router_says_no_more_of_is_not_kept() {
    let routers = Routers::default();
    let known = || {
        let told = routers.take_served(&has(0), at(9)).unwrap();
        let kept = serde_json::to_value(&told.accounts).unwrap();
        let endpoints = kept["routers"]["a"]["endpoints"].as_object().unwrap().clone();
        (endpoints.keys().cloned().collect::<Vec<_>>(), told.served["chat"].requests)
    };
    let mut both = report("a", 10);
    let other = said(&mut both).clone();
    both.endpoints.insert("other".to_owned(), other);
    routers.note(both, at(0)).unwrap();
    routers.note(report("a", 12), at(1)).unwrap();
    assert_eq!(known(), (vec!["chat".to_owned()], 12));
    routers.note(RouterReport { endpoints: [].into(), ..report("a", 0) }, at(2)).unwrap();
    assert_eq!(known(), (vec![], 12), "what was counted is not lost");
    routers.note(report("a", 15), at(3)).unwrap();
    assert_eq!(known(), (vec!["chat".to_owned()], 27), "it began anew");
}
