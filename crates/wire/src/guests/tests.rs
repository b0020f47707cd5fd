use proptest::prelude::*;

use super::*;

const LIMITS: PoolLimits = PoolLimits { total: 6, per_key: 4, drops_working: false };

/// Enters with its own number as the handle; gives who was dropped.
fn enter(pool: &mut Pool<&'static str, u64>, key: &'static str) -> Result<Option<u64>, PoolFull> {
    let handle = pool.next;
    pool.enter(key, handle).map(|entered| entered.dropped)
}

#[test]
fn the_oldest_silent_one_of_the_largest_address_goes() {
    let mut pool = Pool::new(LIMITS);
    for key in ["b", "a", "a", "a", "b", "c"] {
        assert_eq!(enter(&mut pool, key), Ok(None));
    }
    assert_eq!(enter(&mut pool, "d"), Ok(Some(1)), "a has the most, and its oldest goes");
    pool.set_working(2, true);
    // a and b have two each: b's is older.
    assert_eq!(enter(&mut pool, "e"), Ok(Some(0)));
    assert_eq!(enter(&mut pool, "f"), Ok(Some(3)), "2 is being served");
    // Everybody has one: the oldest of all that is silent.
    assert_eq!(enter(&mut pool, "g"), Ok(Some(4)));
    assert_eq!((pool.len(), pool.of_key(&"a"), pool.of_key(&"b")), (6, 1, 0));
}

#[test]
fn an_address_at_its_share_pays_itself() {
    let mut pool = Pool::new(LIMITS);
    (0..4).for_each(|_| assert_eq!(enter(&mut pool, "a"), Ok(None)));
    assert_eq!(enter(&mut pool, "a"), Ok(Some(0)));
    assert_eq!(enter(&mut pool, "b"), Ok(None));
    (1..5).for_each(|id| pool.set_working(id, true));
    assert_eq!(enter(&mut pool, "a"), Err(PoolFull));
    assert_eq!(pool.leave(4), Some(4));
    assert_eq!(pool.leave(4), None);
    assert_eq!(enter(&mut pool, "a"), Ok(None));
}

#[test]
fn where_all_are_served_the_largest_pays_for_others_if_it_may() {
    let full = |drops_working| {
        let mut pool = Pool::new(PoolLimits { per_key: 6, drops_working, ..LIMITS });
        for (id, key) in ["b", "a", "a", "a", "a", "b"].into_iter().enumerate() {
            assert_eq!(enter(&mut pool, key), Ok(None));
            pool.set_working(id as u64, true);
        }
        pool
    };
    assert_eq!(enter(&mut full(false), "b"), Err(PoolFull));
    assert_eq!(enter(&mut full(true), "b"), Ok(Some(1)));
    assert_eq!(enter(&mut full(true), "a"), Err(PoolFull), "nobody has more than a");
}

#[test]
fn who_waits_is_given_up_when_the_system_is_full() {
    let mut pool = Pool::new(LIMITS);
    for key in ["b", "a", "a"] {
        assert_eq!(enter(&mut pool, key), Ok(None));
    }
    pool.set_working(0, true);
    assert_eq!((pool.shed(), pool.shed(), pool.shed()), (Some(1), Some(2), None));
    assert_eq!(pool.len(), 1);
}

#[test]
fn a_network_of_ipv6_is_one_address_and_every_one_of_loopback_is_its_own() {
    let address = |text: &str| client_address(text.parse().unwrap());
    assert_eq!(address("2001:db8::1"), address("2001:db8::2:3"));
    assert_ne!(address("2001:db8::1"), address("2001:db8:0:1::1"));
    assert_eq!(address("::ffff:10.0.0.1"), address("10.0.0.1"));
    assert_ne!(address("127.0.0.1"), address("127.0.0.2"));
    assert_eq!(address("::1").to_string(), "::1");
}

#[derive(Clone, Debug)]
enum Step {
    Enter(u8),
    Leave(u64),
    Works(u64, bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u8..5).prop_map(Step::Enter),
        1 => (0u64..60).prop_map(Step::Leave),
        2 => (0u64..60, any::<bool>()).prop_map(|(id, works)| Step::Works(id, works)),
    ]
}

proptest! {
    #[test]
    fn limits_hold_and_a_newcomer_gets_in_where_somebody_waits(
        steps in prop::collection::vec(step(), 0..80),
        drops_working: bool,
    ) {
        let mut pool = Pool::new(PoolLimits { total: 8, per_key: 4, drops_working });
        for step in steps {
            match step {
                Step::Enter(key) => {
                    let own: Vec<bool> =
                        pool.guests.values().filter(|g| g.key == key).map(|g| g.works).collect();
                    let waits = match own.len() >= 4 {
                        true => own.iter().any(|works| !works),
                        false => pool.len() < 8 || pool.guests.values().any(|g| !g.works),
                    };
                    let counts: BTreeMap<u8, usize> =
                        pool.keys.iter().map(|(key, all)| (*key, all.len())).collect();
                    let silent = pool.keys.values().filter(|all| !all.silent.is_empty());
                    let most = silent.map(Connections::len).max();
                    let before = pool.len();
                    match pool.enter(key, key) {
                        Ok(Entered { dropped, .. }) => {
                            prop_assert!(waits || (drops_working && own.len() < 4));
                            prop_assert_eq!(pool.len(), before + usize::from(dropped.is_none()));
                            if own.len() < 4 && let Some(loser) = dropped && most.is_some() {
                                prop_assert_eq!(counts.get(&loser).copied(), most);
                            }
                        }
                        Err(PoolFull) => prop_assert!(!waits && pool.len() == before),
                    }
                }
                Step::Leave(id) => {
                    let was = pool.guests.contains_key(&id);
                    prop_assert_eq!(pool.leave(id).is_some(), was);
                }
                Step::Works(id, works) => pool.set_working(id, works),
            }
            prop_assert!(pool.len() <= 8 && pool.keys.values().all(|all| all.len() <= 4));
            let counted: usize = pool.keys.values().map(Connections::len).sum();
            prop_assert_eq!(counted, pool.len());
            let ranked = |of: fn(&Connections) -> &BTreeSet<u64>| {
                pool.keys.values().filter(|all| !of(all).is_empty()).count()
            };
            prop_assert_eq!(pool.silent.len(), ranked(|all| &all.silent));
            prop_assert_eq!(pool.working.len(), ranked(|all| &all.working));
        }
    }
}
