use std::collections::BTreeMap;

use tutti_model::{OwnLoad, Span};

use super::*;
use crate::logic::tests::make::*;

fn counts(picks: impl Iterator<Item = u64>) -> BTreeMap<u64, usize> {
    let mut counts = BTreeMap::new();
    picks.for_each(|job| *counts.entry(job).or_default() += 1);
    counts
}

fn sticky(endpoint: &mut Endpoint, value: &str, now: Instant) -> u64 {
    let picked = choice(endpoint.pick(&Ask { prompt: None, sticky: Some(value) }, &[], now));
    endpoint.finished(picked.key, Outcome::Ok, now);
    picked.key.job.0
}

fn load(running: u32, waiting: u32) -> ServerMetrics {
    ServerMetrics { load: OwnLoad { running, waiting, kv_used: None }, cache_tokens: None }
}

fn prompt(name: u64, blocks: u64) -> PromptBlocks {
    PromptBlocks::from_hashes((0..blocks).map(|n| name * 10_000 + n).collect())
}

#[test]
fn nothing_goes_to_a_replica_before_its_first_good_probe() {
    let now = Instant::now();
    let mut endpoint = Endpoint::new(&route(RoutePolicy::LeastOutstanding, 1), 1, now);
    assert_eq!(endpoint.pick(&Ask::default(), &[], now), Pick::Absent);
    assert!(!endpoint.has_room(now));
    endpoint.probed(key(1), Err("503".to_owned()), now);
    assert_eq!(endpoint.replicas(now).next().unwrap().why(), Some("503"));
    endpoint.probed(key(1), Ok(()), now);
    assert!(endpoint.has_room(now));
    assert_eq!(plain(&mut endpoint, now), 1);
}

#[test]
fn three_failed_probes_in_a_row_make_it_unready_and_one_good_one_ready() {
    let now = Instant::now();
    let mut endpoint = ready(&route(RoutePolicy::LeastOutstanding, 1), now);
    let bad = || Err("timeout".to_owned());
    endpoint.probed(key(1), bad(), now);
    endpoint.probed(key(1), bad(), now);
    assert_eq!(plain(&mut endpoint, now), 1);
    endpoint.probed(key(1), bad(), now);
    assert_eq!(endpoint.pick(&Ask::default(), &[], now), Pick::Absent);
    endpoint.probed(key(1), Ok(()), now);
    assert_eq!(plain(&mut endpoint, now), 1);
}

#[test]
fn the_least_busy_gets_it_and_equals_take_turns() {
    let now = Instant::now();
    let mut endpoint = ready(&route(RoutePolicy::LeastOutstanding, 3), now);
    let turns: Vec<u64> = (0..6).map(|_| plain(&mut endpoint, now)).collect();
    assert_eq!(turns, [1, 2, 3, 1, 2, 3]);
    endpoint.finished(key(2), Outcome::Ok, now);
    endpoint.finished(key(2), Outcome::Ok, now);
    assert_eq!([plain(&mut endpoint, now), plain(&mut endpoint, now)], [2, 2]);
    let mut idle = ready(&route(RoutePolicy::LeastOutstanding, 3), now);
    let one_by_one = counts((0..30).map(|_| {
        let job = plain(&mut idle, now);
        idle.finished(key(job), Outcome::Ok, now);
        job
    }));
    assert_eq!(one_by_one, BTreeMap::from([(1, 10), (2, 10), (3, 10)]), "not always the first");
}

#[test]
fn round_robin_does_not_look_at_load() {
    let now = Instant::now();
    let mut endpoint = ready(&route(RoutePolicy::RoundRobin, 3), now);
    endpoint.own_load(key(1), &load(50, 0), now);
    assert_eq!(counts((0..9).map(|_| plain(&mut endpoint, now))).into_values().max(), Some(3));
}

#[test]
fn the_better_of_two_keeps_loads_close() {
    let now = Instant::now();
    let mut endpoint = ready(&route(RoutePolicy::P2c, 10), now);
    let counts = counts((0..1000).map(|_| plain(&mut endpoint, now)));
    let (least, most) = (counts.values().min().unwrap(), counts.values().max().unwrap());
    assert!(counts.len() == 10 && most - least <= 6, "{counts:?}");
}

#[test]
fn what_the_server_has_from_others_counts_too() {
    let now = Instant::now();
    let mut endpoint = ready(&route(RoutePolicy::LeastOutstanding, 2), now);
    assert_eq!([plain(&mut endpoint, now), plain(&mut endpoint, now)], [1, 2]);
    // One of the eleven is ours.
    endpoint.own_load(key(1), &load(8, 3), now);
    assert_eq!(counts((0..10).map(|_| plain(&mut endpoint, now))), BTreeMap::from([(2, 10)]));
    assert_eq!(plain(&mut endpoint, now), 1, "eleven each, and it is the first one's turn");
    let later = after(now, 10_000);
    assert_eq!(plain(&mut endpoint, later), 1, "old news is no news");
}

#[test]
fn never_more_than_the_bound() {
    let now = Instant::now();
    let mut route = route(RoutePolicy::LeastOutstanding, 2);
    route.max_in_flight = Some(2);
    let mut endpoint = ready(&route, now);
    assert_eq!(counts((0..4).map(|_| plain(&mut endpoint, now))), BTreeMap::from([(1, 2), (2, 2)]));
    assert_eq!(endpoint.pick(&Ask::default(), &[], now), Pick::Busy);
    assert!(!endpoint.has_room(now));
    endpoint.finished(key(2), Outcome::Ok, now);
    assert!(endpoint.has_room(now));
    assert_eq!(plain(&mut endpoint, now), 2);
}

#[test]
fn a_server_with_a_queue_of_its_own_is_full_until_something_ends() {
    let now = Instant::now();
    let mut endpoint = ready(&route(RoutePolicy::LeastOutstanding, 1), now);
    (0..6).for_each(|_| assert_eq!(plain(&mut endpoint, now), 1));
    endpoint.own_load(key(1), &load(2, 4), now);
    assert_eq!(endpoint.pick(&Ask::default(), &[], now), Pick::Busy);
    endpoint.finished(key(1), Outcome::Ok, now);
    assert_eq!(plain(&mut endpoint, now), 1, "three wait there now, and this one");
    assert_eq!(endpoint.pick(&Ask::default(), &[], now), Pick::Busy);
    (0..6).for_each(|_| endpoint.finished(key(1), Outcome::Ok, now));
    endpoint.own_load(key(1), &load(20, 40), now);
    assert_eq!(plain(&mut endpoint, now), 1, "with nothing there, nothing would wake us");
}

#[test]
fn nobody_gets_the_whole_queue_for_having_had_none() {
    let now = Instant::now();
    let route = route(RoutePolicy::LeastOutstanding, 1);
    let mut endpoint = ready(&route, now);
    endpoint.own_load(key(1), &load(2, 0), now);
    (0..route.target_in_flight).for_each(|_| assert_eq!(plain(&mut endpoint, now), 1));
    assert_eq!(endpoint.pick(&Ask::default(), &[], now), Pick::Busy);
    endpoint.own_load(key(1), &load(18, 0), now);
    assert_eq!(plain(&mut endpoint, now), 1, "it was looked at again");
}

#[test]
fn conversations_stay_at_a_server_where_requests_wait() {
    let now = Instant::now();
    for policy in [RoutePolicy::Prefix, RoutePolicy::Sticky] {
        let mut endpoint = ready(&route(policy, 1), now);
        (0..6).for_each(|_| assert_eq!(plain(&mut endpoint, now), 1));
        endpoint.own_load(key(1), &load(2, 4), now);
        assert_eq!(plain(&mut endpoint, now), 1, "{policy:?}");
    }
}

#[test]
fn the_same_value_goes_to_the_same_replica() {
    let now = Instant::now();
    let mut route = route(RoutePolicy::Sticky, 4);
    let mut endpoint = ready(&route, now);
    let values: Vec<String> = (0..400).map(|n| format!("session-{n}")).collect();
    let before: Vec<u64> = values.iter().map(|v| sticky(&mut endpoint, v, now)).collect();
    let again: Vec<u64> = values.iter().map(|v| sticky(&mut endpoint, v, now)).collect();
    assert_eq!(before, again);
    let spread = counts(before.iter().copied());
    assert!(spread.values().all(|count| (60..140).contains(count)), "{spread:?}");
    route.replicas.remove(1);
    endpoint.update(&route, now);
    for (value, before) in values.iter().zip(&before) {
        let now_at = sticky(&mut endpoint, value, now);
        assert!(now_at == *before || *before == 2, "only what was on 2 moves");
    }
}

#[test]
fn an_overloaded_replica_lets_go_of_what_sticks_to_it() {
    let now = Instant::now();
    let mut endpoint = ready(&route(RoutePolicy::Sticky, 3), now);
    let ask = Ask { prompt: None, sticky: Some("a") };
    let picks = counts((0..14).map(|_| choice(endpoint.pick(&ask, &[], now)).key.job.0));
    assert!(picks.len() >= 2, "{picks:?}");
    let most = picks.values().max().unwrap();
    assert!((8..=10).contains(most), "not more than a few above the least busy: {picks:?}");
}

#[test]
fn a_prompt_goes_where_its_beginning_was() {
    let now = Instant::now();
    let mut endpoint = ready(&route(RoutePolicy::Prefix, 4), now);
    let homes: Vec<u64> = (0..8)
        .map(|name| {
            let first = with_prompt(&mut endpoint, &prompt(name, 20), now);
            assert_eq!((first.prefix_blocks, first.prefix_hit_blocks), (20, 0));
            endpoint.finished(first.key, Outcome::Ok, now);
            first.key.job.0
        })
        .collect();
    assert_eq!(counts(homes.iter().copied()), BTreeMap::from([(1, 2), (2, 2), (3, 2), (4, 2)]));
    for (name, home) in homes.iter().enumerate() {
        let next = with_prompt(&mut endpoint, &prompt(name as u64, 30), now);
        assert_eq!((next.key.job.0, next.prefix_blocks, next.prefix_hit_blocks), (*home, 30, 20));
        endpoint.finished(next.key, Outcome::Ok, now);
    }
}

#[test]
fn a_match_of_less_than_a_third_is_not_worth_it() {
    let now = Instant::now();
    let mut endpoint = ready(&route(RoutePolicy::Prefix, 2), now);
    assert_eq!(with_prompt(&mut endpoint, &prompt(1, 10), now).key.job.0, 1);
    let long = with_prompt(&mut endpoint, &prompt(1, 40), now);
    assert_eq!((long.key.job.0, long.prefix_hit_blocks), (2, 0));
}

#[test]
fn an_overloaded_replica_does_not_get_more_for_its_cache() {
    let now = Instant::now();
    let mut endpoint = ready(&route(RoutePolicy::Prefix, 2), now);
    let picks = counts((0..40).map(|_| with_prompt(&mut endpoint, &prompt(1, 20), now).key.job.0));
    assert!(picks[&1].abs_diff(picks[&2]) <= 9, "{picks:?}");
    let short = PromptBlocks::default();
    assert_eq!(with_prompt(&mut endpoint, &short, now).prefix_blocks, 0);
}

#[test]
fn an_announced_cache_bounds_what_is_remembered() {
    let now = Instant::now();
    let mut endpoint = ready(&route(RoutePolicy::Prefix, 1), now);
    let metrics = ServerMetrics { cache_tokens: Some(32 * 100), ..ServerMetrics::default() };
    endpoint.own_load(key(1), &metrics, now);
    (0..50).for_each(|name| {
        with_prompt(&mut endpoint, &prompt(name, 20), now);
    });
    assert_eq!(endpoint.replicas(now).next().unwrap().known_blocks(), 100);
    assert_eq!(with_prompt(&mut endpoint, &prompt(3, 20), now).prefix_hit_blocks, 0);
    assert_eq!(with_prompt(&mut endpoint, &prompt(49, 20), now).prefix_hit_blocks, 20);
}

#[test]
fn one_that_has_just_become_ready_gets_less_at_first() {
    let now = Instant::now();
    for policy in [RoutePolicy::LeastOutstanding, RoutePolicy::RoundRobin, RoutePolicy::P2c] {
        let mut route = route(policy, 4);
        route.slow_start = Span::secs(10);
        let mut endpoint = ready(&route, now);
        let later = after(now, 60_000);
        endpoint.probed(key(4), Err("restarting".to_owned()), later);
        endpoint.finished(key(4), Outcome::Refused, later);
        endpoint.probed(key(4), Ok(()), later);
        (0..2).for_each(|_| endpoint.answered(key(4)));
        let share = |endpoint: &mut Endpoint, ms| {
            let at = after(later, ms);
            let jobs = (0..400).map(|_| {
                let job = plain(endpoint, at);
                endpoint.finished(key(job), Outcome::Ok, at);
                job
            });
            counts(jobs).get(&4).copied().unwrap_or(0)
        };
        let early = share(&mut endpoint, 0);
        let middle = share(&mut endpoint, 5_000);
        let late = share(&mut endpoint, 10_000);
        assert!((5..=15).contains(&early), "{policy:?}: a tenth of a hundred, not {early}");
        assert!((40..=65).contains(&middle), "{policy:?}: about half, not {middle}");
        assert!((80..=120).contains(&late), "{policy:?}: all of it, not {late}");
    }
}

#[test]
fn when_all_start_at_once_none_is_held_back() {
    let now = Instant::now();
    let mut route = route(RoutePolicy::LeastOutstanding, 2);
    route.slow_start = Span::secs(10);
    let mut endpoint = ready(&route, now);
    assert_eq!(
        counts((0..10).map(|_| plain(&mut endpoint, now))),
        BTreeMap::from([(1, 5), (2, 5)])
    );
}

#[test]
fn revisions_get_their_parts_exactly() {
    let now = Instant::now();
    let mut route = route(RoutePolicy::LeastOutstanding, 3);
    route.replicas.push(replica(4, 2));
    route.replicas.push(replica(5, 3));
    route.split = shares(&[(1, 900), (2, 100)]);
    let mut endpoint = ready(&route, now);
    let jobs = counts((0..1000).map(|_| plain(&mut endpoint, now)));
    assert_eq!(jobs, BTreeMap::from([(1, 300), (2, 300), (3, 300), (4, 100)]), "and 5 gets none");
}

#[test]
fn a_revision_without_a_ready_replica_is_stood_in_for() {
    let now = Instant::now();
    let mut route = route(RoutePolicy::LeastOutstanding, 1);
    route.replicas.push(replica(2, 2));
    route.split = shares(&[(1, 500), (2, 500)]);
    let mut endpoint = ready(&route, now);
    (0..3).for_each(|_| endpoint.probed(key(2), Err("gone".to_owned()), now));
    assert_eq!(counts((0..10).map(|_| plain(&mut endpoint, now))), BTreeMap::from([(1, 10)]));
}

#[test]
fn a_value_that_sticks_stays_with_its_revision() {
    let now = Instant::now();
    let mut route = route(RoutePolicy::Sticky, 2);
    route.replicas.extend([replica(3, 2), replica(4, 2)]);
    route.split = shares(&[(1, 700), (2, 300)]);
    let mut endpoint = ready(&route, now);
    let mut new = 0;
    for n in 0..500 {
        let value = format!("s{n}");
        let first = sticky(&mut endpoint, &value, now);
        assert!((0..5).all(|_| sticky(&mut endpoint, &value, now) == first));
        new += usize::from(first >= 3);
    }
    assert!((110..190).contains(&new), "{new} of 500");
}

#[test]
fn after_five_failures_others_are_asked() {
    let now = Instant::now();
    let mut endpoint = ready(&route(RoutePolicy::LeastOutstanding, 2), now);
    for _ in 0..5 {
        let job = choice(endpoint.pick(&Ask::default(), &[key(2)], now)).key;
        endpoint.finished(job, Outcome::Failed, now);
    }
    assert!(endpoint.replicas(now).next().unwrap().broken());
    assert_eq!(counts((0..10).map(|_| plain(&mut endpoint, now))), BTreeMap::from([(2, 10)]));
    let later = after(now, 30_000);
    assert_eq!(plain(&mut endpoint, later), 1, "a trial");
    assert_eq!(plain(&mut endpoint, later), 2, "one at a time");
    endpoint.answered(key(1));
    assert_eq!(plain(&mut endpoint, later), 1, "another");
    endpoint.answered(key(1));
    assert_eq!([plain(&mut endpoint, later), plain(&mut endpoint, later)], [1, 1]);
}

#[test]
fn a_refused_connection_ends_it_until_a_probe_succeeds() {
    let now = Instant::now();
    let mut endpoint = ready(&route(RoutePolicy::LeastOutstanding, 1), now);
    let job = plain(&mut endpoint, now);
    endpoint.finished(key(job), Outcome::Refused, now);
    assert_eq!(endpoint.pick(&Ask::default(), &[key(1)], now), Pick::Exhausted);
    assert_eq!(endpoint.pick(&Ask::default(), &[], after(now, 100_000)), Pick::Absent);
    endpoint.probed(key(1), Ok(()), now);
    assert_eq!(plain(&mut endpoint, now), 1);
}

#[test]
fn when_all_are_broken_the_one_that_failed_longest_ago_is_asked() {
    let now = Instant::now();
    let mut endpoint = ready(&route(RoutePolicy::LeastOutstanding, 2), now);
    for (ms, job) in [(0, 2), (10, 1)] {
        for _ in 0..5 {
            endpoint.finished(key(job), Outcome::Failed, after(now, ms));
        }
    }
    let now = after(now, 20);
    assert!(endpoint.has_room(now));
    assert_eq!(plain(&mut endpoint, now), 2);
    endpoint.finished(key(2), Outcome::Failed, after(now, 1));
    assert_eq!(plain(&mut endpoint, after(now, 2)), 1);
    endpoint.probed(key(1), Err("503".to_owned()), now);
    endpoint.probed(key(2), Err("503".to_owned()), now);
    assert_eq!(endpoint.pick(&Ask::default(), &[], after(now, 3)), Pick::Absent);
}

#[test]
fn each_is_tried_once() {
    let now = Instant::now();
    let mut endpoint = ready(&route(RoutePolicy::Prefix, 3), now);
    let mut tried = Vec::new();
    for _ in 0..3 {
        let picked = choice(endpoint.pick(&Ask::default(), &tried, now)).key;
        assert!(!tried.contains(&picked));
        endpoint.finished(picked, Outcome::Failed, now);
        tried.push(picked);
    }
    assert_eq!(endpoint.pick(&Ask::default(), &tried, now), Pick::Exhausted);
}

#[test]
fn updates_keep_what_is_known_and_wait_for_what_is_under_way() {
    let now = Instant::now();
    let mut route = route(RoutePolicy::LeastOutstanding, 2);
    let mut endpoint = ready(&route, now);
    assert_eq!(plain(&mut endpoint, now), 1);
    route.replicas[0].draining = true;
    endpoint.update(&route, now);
    assert_eq!(counts((0..3).map(|_| plain(&mut endpoint, now))), BTreeMap::from([(2, 3)]));
    route.replicas.remove(0);
    endpoint.update(&route, now);
    assert_eq!(endpoint.in_flight(), 4);
    let views: Vec<_> = endpoint.replicas(now).map(|v| (v.key(), v.draining())).collect();
    assert_eq!(views, [(key(1), true), (key(2), false)]);
    endpoint.finished(key(1), Outcome::Ok, now);
    assert_eq!(endpoint.replicas(now).count(), 1);
    let mut again = replica(2, 1);
    again.generation.0 = 2;
    route.replicas = vec![again];
    endpoint.update(&route, now);
    assert_eq!(endpoint.pick(&Ask::default(), &[], now), Pick::Absent, "another one, not probed");
}

/// Somebody else may have listened at its address while it was left out.
#[test]
fn a_replica_that_is_listed_again_is_probed_anew_and_old_connections_are_not_its_own() {
    let now = Instant::now();
    let listed = route(RoutePolicy::LeastOutstanding, 1);
    let without = EndpointRoute { replicas: Vec::new(), ..listed.clone() };
    let mut endpoint = ready(&listed, now);
    let before = choice(endpoint.pick(&Ask::default(), &[], now));
    endpoint.update(&listed, now);
    let same = choice(endpoint.pick(&Ask::default(), &[], now));
    assert_eq!(before.listing, same.listing, "it was there all the time");
    endpoint.update(&without, now);
    assert_eq!(endpoint.pick(&Ask::default(), &[], now), Pick::Absent);
    endpoint.update(&listed, now);
    assert_eq!(endpoint.pick(&Ask::default(), &[], now), Pick::Absent, "what it had is under way");
    endpoint.probed(before.key, Ok(()), now);
    let after = choice(endpoint.pick(&Ask::default(), &[], now));
    assert_eq!((after.key, &after.address), (before.key, &before.address));
    assert_ne!(after.listing, before.listing);
}
