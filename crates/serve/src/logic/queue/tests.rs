use proptest::prelude::*;

use super::*;

fn room(capacity: usize) -> (FairQueue<(u32, u32)>, Instant) {
    let now = Instant::now();
    (FairQueue::new(capacity, now), now)
}

fn offer(queue: &mut FairQueue<(u32, u32)>, key: u32, n: u32, now: Instant) -> Offered<(u32, u32)> {
    queue.offer(Who::Key(key), (key, n), now + Duration::from_secs(60), now)
}

fn waits(offered: Offered<(u32, u32)>) -> (Ticket, Option<(u32, u32)>) {
    match offered {
        Offered::Waits { ticket, pushed_out } => (ticket, pushed_out.map(|out| out.item)),
        Offered::Refused { item, .. } => panic!("{item:?} was refused"),
    }
}

#[test]
fn keys_take_turns_and_a_key_keeps_its_order() {
    let (mut queue, now) = room(100);
    for (key, n) in [(1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (3, 1), (3, 2)] {
        waits(offer(&mut queue, key, n, now));
    }
    let order: Vec<_> = std::iter::from_fn(|| queue.take(now)).collect();
    assert_eq!(order, [(1, 1), (2, 1), (3, 1), (1, 2), (3, 2), (1, 3), (1, 4)]);
    assert!(queue.is_empty() && queue.lines.is_empty());
}

#[test]
fn a_full_room_refuses_the_greedy_and_makes_place_for_the_modest() {
    let (mut queue, now) = room(4);
    for n in 0..4 {
        waits(offer(&mut queue, 1, n, now));
    }
    assert!(matches!(offer(&mut queue, 1, 4, now), Offered::Refused { item: (1, 4), .. }));
    assert_eq!(waits(offer(&mut queue, 2, 0, now)).1, Some((1, 3)), "the newest of the largest");
    assert_eq!(waits(offer(&mut queue, 2, 1, now)).1, Some((1, 2)));
    assert!(matches!(offer(&mut queue, 2, 2, now), Offered::Refused { .. }), "two each is fair");
    assert_eq!(queue.len(), 4);
}

#[test]
fn with_more_keys_than_places_nobody_loses_the_only_one() {
    let (mut queue, now) = room(2);
    waits(offer(&mut queue, 1, 0, now));
    waits(offer(&mut queue, 2, 0, now));
    assert!(matches!(offer(&mut queue, 3, 0, now), Offered::Refused { .. }));
    let (mut none, now) = room(0);
    assert!(matches!(offer(&mut none, 1, 0, now), Offered::Refused { .. }));
}

fn offer_from(
    queue: &mut FairQueue<(u32, u32)>,
    address: u8,
    n: u32,
    now: Instant,
) -> Offered<(u32, u32)> {
    let who = Who::Address([10, 0, 0, address].into());
    queue.offer(who, (u32::from(address), n), now + Duration::from_secs(60), now)
}

#[test]
fn without_a_key_addresses_take_turns_in_one_line() {
    let (mut queue, now) = room(100);
    for (address, n) in [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)] {
        waits(offer_from(&mut queue, address, n, now));
    }
    for n in 0..3 {
        waits(offer(&mut queue, 7, n, now));
    }
    assert_eq!([(); 4].map(|()| queue.take(now).unwrap()), [(1, 1), (7, 0), (2, 1), (7, 1)]);
    waits(offer_from(&mut queue, 3, 1, now));
    let order: Vec<_> = std::iter::from_fn(|| queue.take(now)).collect();
    assert_eq!(order, [(3, 1), (7, 2), (1, 2), (2, 2), (1, 3)], "a newcomer need not wait for all");
}

#[test]
fn an_address_that_fills_the_room_makes_place_for_another() {
    let (mut queue, now) = room(4);
    for n in 0..4 {
        waits(offer_from(&mut queue, 1, n, now));
    }
    assert!(matches!(offer_from(&mut queue, 1, 4, now), Offered::Refused { .. }));
    assert_eq!(waits(offer_from(&mut queue, 2, 0, now)).1, Some((1, 3)));
    assert_eq!(waits(offer_from(&mut queue, 2, 1, now)).1, Some((1, 2)));
    for address in [1, 2] {
        assert!(matches!(offer_from(&mut queue, address, 9, now), Offered::Refused { .. }));
    }
    assert_eq!(waits(offer(&mut queue, 5, 0, now)).1, Some((2, 1)), "one with a key");
    assert_eq!(waits(offer_from(&mut queue, 3, 0, now)).1, Some((1, 1)));
}

#[test]
fn who_cancels_or_is_late_is_not_taken() {
    let (mut queue, now) = room(10);
    let (ticket, _) = waits(offer(&mut queue, 1, 0, now));
    let late = now + Duration::from_secs(1);
    queue.offer(Who::Key(1), (1, 1), late, now);
    waits(offer(&mut queue, 1, 2, now));
    assert_eq!(queue.next_deadline(), Some(late));
    assert_eq!(queue.cancel(ticket), Some((1, 0)));
    assert_eq!(queue.cancel(ticket), None);
    assert_eq!(queue.take(late), Some((1, 2)));
    assert_eq!(queue.expire(late), [(1, 1)]);
    assert_eq!((queue.take(late), queue.len()), (None, 0));
}

#[test]
fn who_was_found_late_can_still_cancel() {
    let (mut queue, now) = room(10);
    let (ticket, _) = waits(offer(&mut queue, 1, 0, now));
    let late = now + Duration::from_secs(61);
    assert_eq!((queue.take(late), queue.len()), (None, 0));
    assert_eq!(queue.cancel(ticket), Some((1, 0)));
    assert!(queue.expire(late).is_empty());
}

#[test]
fn the_refused_are_told_how_long_it_takes() {
    let (mut queue, start) = room(40);
    assert_eq!(queue.retry_after(1, start), RETRY_UNKNOWN);
    let mut now = start;
    for n in 0..100 {
        now = start + Duration::from_millis(500 * u64::from(n));
        waits(offer(&mut queue, 1, n, now));
        queue.take(now);
    }
    (0..40).for_each(|n| {
        waits(offer(&mut queue, 1, n, now));
    });
    let greedy = queue.retry_after(1, now).as_secs_f64();
    assert!((17.0..24.0).contains(&greedy), "41 at two a second, not {greedy}");
    let modest = queue.retry_after(2, now).as_secs_f64();
    assert!(modest < 2.0, "its turn comes next, not in {modest}");
}

#[derive(Clone, Debug)]
enum Step {
    Offer { key: u32, patience: u64 },
    Take,
    Cancel(usize),
    Pass(u64),
    Expire,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u32..6, 1u64..50).prop_map(|(key, patience)| Step::Offer { key, patience }),
        3 => Just(Step::Take),
        1 => (0usize..100).prop_map(Step::Cancel),
        1 => (1u64..20).prop_map(Step::Pass),
        1 => Just(Step::Expire),
    ]
}

proptest! {
    /// Everybody who comes leaves exactly once: taken, refused, pushed out, cancelled or expired; never
    /// more wait than there are places; and inside a key nobody overtakes.
    #[test]
    fn nobody_is_lost_and_the_room_is_bounded(
        capacity in 0usize..12,
        steps in prop::collection::vec(step(), 0..200),
    ) {
        let (mut queue, mut now) = room(capacity);
        let (mut came, mut left) = (Vec::new(), Vec::new());
        let mut tickets = Vec::new();
        let mut last_taken = std::collections::BTreeMap::new();
        for step in steps {
            match step {
                Step::Offer { key, patience } => {
                    let item = (key, came.len() as u32);
                    came.push(item);
                    match queue.offer(Who::Key(key), item, now + Duration::from_millis(patience), now) {
                        Offered::Waits { ticket, pushed_out } => {
                            tickets.push(ticket);
                            if let Some(out) = pushed_out {
                                prop_assert!(out.item.0 != key, "nobody pushes out oneself");
                                prop_assert!(queue.held_by(out.item.0) >= queue.held_by(key));
                                left.push(out.item);
                            }
                        }
                        Offered::Refused { item, retry_after } => {
                            prop_assert!(retry_after >= Duration::from_secs(1));
                            left.push(item);
                        }
                    }
                }
                Step::Take => {
                    if let Some(item) = queue.take(now) {
                        let before = last_taken.insert(item.0, item.1);
                        prop_assert!(before.is_none_or(|before| before < item.1));
                        left.push(item);
                    }
                }
                Step::Cancel(at) => left.extend(tickets.get(at).and_then(|t| queue.cancel(*t))),
                Step::Pass(ms) => now += Duration::from_millis(ms),
                Step::Expire => left.extend(queue.expire(now)),
            }
            prop_assert!(queue.len() <= capacity);
            let held: usize = (0..6).map(|key| queue.held_by(key)).sum();
            prop_assert_eq!(held, queue.len());
            prop_assert_eq!(queue.deadlines.len(), queue.len());
            prop_assert_eq!(queue.turns.len(), queue.by_size.len());
        }
        left.extend(queue.expire(now + Duration::from_secs(1)));
        left.sort_by_key(|item| item.1);
        prop_assert_eq!(left, came);
    }

    /// While two keys both have somebody waiting, neither is served twice more often than the other,
    /// whatever each has sent.
    #[test]
    fn turns_are_equal(sent in prop::collection::vec(1usize..40, 2..6)) {
        let (mut queue, now) = room(1000);
        for (key, count) in sent.iter().enumerate() {
            (0..*count).for_each(|n| { waits(offer(&mut queue, key as u32, n as u32, now)); });
        }
        let mut served = vec![0usize; sent.len()];
        while let Some((key, _)) = queue.take(now) {
            served[key as usize] += 1;
            let waiting = (0..sent.len()).filter(|key| served[*key] < sent[*key]);
            let counts: Vec<usize> = waiting.map(|key| served[key]).collect();
            if let (Some(least), Some(most)) = (counts.iter().min(), counts.iter().max()) {
                prop_assert!(most - least <= 1, "{:?}", served);
            }
        }
        prop_assert_eq!(served, sent);
    }

    /// A key that floods a full room cannot keep others from their part.
    #[test]
    fn a_flood_does_not_keep_others_out(capacity in 4usize..50, flood in 1usize..200) {
        let (mut queue, now) = room(capacity);
        (0..flood + capacity).for_each(|n| { offer(&mut queue, 1, n as u32, now); });
        for n in 0..capacity / 2 {
            let offered = offer(&mut queue, 2, n as u32, now);
            prop_assert!(matches!(offered, Offered::Waits { .. }), "number {}", n);
        }
        prop_assert_eq!(queue.held_by(2), capacity / 2);
    }
}
