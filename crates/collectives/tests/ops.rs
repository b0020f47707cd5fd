//! Every operation, element type, algorithm and world size against a naive reference.

mod common;

use common::ranks;
use tutti_collectives::{Algorithm, Config, Element, Group, Op, bf16, f16};

/// A type whose small whole numbers are exact, so that the order of a sum does not matter.
trait Number: Element + PartialEq + std::fmt::Debug {
    fn of(v: i32) -> Self;
    fn value(self) -> f64;
    /// 1 / 2 in the type itself: 0 if it is an integer.
    fn halved_one() -> Self;
}

macro_rules! numbers {
    ($($t:ty),*) => {$(impl Number for $t {
        fn of(v: i32) -> Self { v as $t }
        fn value(self) -> f64 { self as f64 }
        fn halved_one() -> Self { 1 as $t / 2 as $t }
    })*};
}
numbers!(f32, f64, i8, u8, i32, u32, i64, u64);
impl Number for bf16 {
    fn halved_one() -> Self {
        bf16::from_f32(0.5)
    }
    fn of(v: i32) -> Self {
        bf16::from_f32(v as f32)
    }
    fn value(self) -> f64 {
        self.to_f64()
    }
}
impl Number for f16 {
    fn halved_one() -> Self {
        f16::from_f32(0.5)
    }
    fn of(v: i32) -> Self {
        f16::from_f32(v as f32)
    }
    fn value(self) -> f64 {
        self.to_f64()
    }
}

/// What rank `rank` holds at `i`: 0 to 6, so that eight ranks fit every type.
fn held(rank: usize, i: usize) -> i32 {
    ((rank * 31 + i * 7 + i / 5) % 7) as i32
}

fn reduced(n: usize, i: usize, op: Op) -> i32 {
    let all = (0..n).map(|r| held(r, i));
    match op {
        Op::Sum | Op::Mean => all.sum(),
        Op::Max => all.max().unwrap(),
        Op::Min => all.min().unwrap(),
    }
}

fn mine<T: Number>(rank: usize, len: usize) -> Vec<T> {
    (0..len).map(|i| T::of(held(rank, i))).collect()
}

fn same<T: Number>(got: T, n: usize, i: usize, op: Op) -> bool {
    let want = reduced(n, i, op);
    match op {
        Op::Mean => {
            let mean = f64::from(want) / n as f64;
            // Integers round toward zero; bf16 has three digits.
            let integer = T::halved_one() == T::of(0);
            if integer { got == T::of(want / n as i32) } else { (got.value() - mean).abs() < 0.03 }
        }
        _ => got == T::of(want),
    }
}

const OPS: [Op; 4] = [Op::Sum, Op::Max, Op::Min, Op::Mean];

fn check_type<T: Number>(g: &Group, sizes: &[usize], algorithms: &[Algorithm]) {
    let (n, me) = (g.size(), g.rank());
    for (k, &len) in sizes.iter().enumerate() {
        let op = OPS[k % 4];
        for &algorithm in algorithms {
            let mut x = mine::<T>(me, len);
            g.with_algorithm(algorithm).all_reduce(&mut x, op).unwrap();
            for (i, v) in x.iter().enumerate() {
                assert!(same(*v, n, i, op), "{algorithm} n={n} len={len} {op:?} [{i}] = {v:?}");
            }
        }
        let input = mine::<T>(me, len * n);
        let mut part = vec![T::ZERO; len];
        g.reduce_scatter(&input, &mut part, op).unwrap();
        for (i, v) in part.iter().enumerate() {
            assert!(same(*v, n, me * len + i, op), "reduce_scatter n={n} len={len} {op:?} [{i}]");
        }
        let mut all = vec![T::ZERO; len * n];
        g.all_gather(&mine::<T>(me, len), &mut all).unwrap();
        let want: Vec<T> = (0..n).flat_map(|r| mine::<T>(r, len)).collect();
        assert_eq!(all, want, "all_gather n={n} len={len}");
        let root = k % n;
        let mut x = mine::<T>(me, len);
        g.broadcast(&mut x, root).unwrap();
        assert_eq!(x, mine::<T>(root, len), "broadcast n={n} len={len} root={root}");
        let mut out = vec![T::ZERO; len * n];
        g.all_to_all(&mine::<T>(me, len * n), &mut out).unwrap();
        for r in 0..n {
            let theirs = mine::<T>(r, len * n);
            assert_eq!(out[r * len..(r + 1) * len], theirs[me * len..(me + 1) * len]);
        }
    }
}

fn check_all(g: &Group, algorithms: &[Algorithm]) {
    let odd = [0, 1, 3, 7, 1025, 20_011];
    check_type::<f32>(g, &[0, 1, 2, 5, 1023, 4099, 70_001], algorithms);
    check_type::<f64>(g, &odd, algorithms);
    check_type::<bf16>(g, &odd, algorithms);
    check_type::<f16>(g, &odd, algorithms);
    check_type::<i8>(g, &odd, algorithms);
    check_type::<u8>(g, &odd, algorithms);
    check_type::<i32>(g, &[4, 333], algorithms);
    check_type::<u32>(g, &[2, 334], algorithms);
    check_type::<i64>(g, &[6, 335], algorithms);
    check_type::<u64>(g, &[1, 336], algorithms);
}

fn tcp(config: &mut Config) {
    config.shared_memory = false;
}

#[test]
fn tcp_gives_what_a_naive_sum_gives() {
    for n in 1..=8 {
        ranks(n, tcp, |world| {
            let algorithms = [Algorithm::Ring, Algorithm::Halving, Algorithm::Tree];
            check_all(&world.group(), &algorithms);
        });
    }
}

#[test]
fn shared_memory_gives_what_a_naive_sum_gives() {
    for n in 1..=8 {
        ranks(
            n,
            |_| (),
            |world| {
                check_all(&world.group(), &[Algorithm::Direct, Algorithm::Hierarchical]);
                check_type::<f32>(&world.group(), &[1, 1000, 100_003], &[Algorithm::Ring]);
            },
        );
    }
}

/// Ranks over nodes: how many on each.
fn over(nodes: &'static [usize]) -> impl Fn(&mut Config) + Sync {
    move |config| {
        let mut first = 0;
        for (node, ranks) in nodes.iter().enumerate() {
            if (first..first + ranks).contains(&config.rank) {
                config.node = format!("n{node}");
                config.node_rank = node;
            }
            first += ranks;
        }
    }
}

#[test]
fn two_levels_give_what_a_naive_sum_gives() {
    for nodes in [&[2, 2][..], &[1, 3], &[3, 2, 1], &[2, 2, 2, 2], &[4, 4]] {
        ranks(nodes.iter().sum(), over(nodes), |world| {
            let g = world.group();
            let all = [Algorithm::Hierarchical, Algorithm::Halving, Algorithm::Ring];
            check_type::<f32>(&g, &[0, 1, 3, 1023, 70_001, 300_007], &all);
            check_type::<bf16>(&g, &[5, 40_001], &all);
            check_type::<i8>(&g, &[5, 40_001], &all);
            let mut x = mine::<f64>(g.rank(), 5000);
            g.all_reduce(&mut x, Op::Sum).unwrap();
            assert!((0..5000).all(|i| same(x[i], g.size(), i, Op::Sum)), "the planned one");
            let error = g.with_algorithm(Algorithm::Direct).barrier().unwrap_err();
            assert!(error.to_string().contains("one node"), "{error}");
        });
    }
}

#[test]
fn large_messages_go_round_the_slots_and_groups_share_a_node() {
    ranks(
        4,
        |_| (),
        |world| {
            let g = world.group();
            let (low, high) = (g.subgroup(&[0, 1]).unwrap(), g.subgroup(&[2, 3]).unwrap());
            let pair = low.or(high).unwrap();
            for round in 0..3 {
                let len = 1_000_003 + round;
                let mut x = mine::<f32>(g.rank(), len);
                g.all_reduce(&mut x, Op::Sum).unwrap();
                assert!((0..len).all(|i| same(x[i], 4, i, Op::Sum)));
                let mut y = vec![g.rank() as i32; 500];
                pair.all_reduce(&mut y, Op::Sum).unwrap();
                let base = (g.rank() / 2 * 2) as i32;
                assert!(y.iter().all(|v| *v == 2 * base + 1));
            }
        },
    );
}

#[test]
fn several_streams_carry_one_message() {
    let adjust = |c: &mut Config| {
        tcp(c);
        c.streams = 3;
    };
    ranks(3, adjust, |world| {
        let g = world.group();
        check_type::<f32>(&g, &[1, 70_001, 300_007, 65_536 * 3], &[Algorithm::Ring]);
    });
}

#[test]
fn floats_are_the_same_bits_on_every_rank_and_in_every_run() {
    for algorithm in Algorithm::ALL {
        let run = || {
            let adjust = |c: &mut Config| match algorithm {
                Algorithm::Direct => (),
                _ => over(&[2, 3])(c),
            };
            ranks(5, adjust, |world| {
                let me = world.rank() as f32;
                let mut x: Vec<f32> =
                    (0..3001).map(|i| (i as f32 * 0.1 + me).sin() * 1e3).collect();
                world.group().with_algorithm(algorithm).all_reduce(&mut x, Op::Mean).unwrap();
                x.iter().map(|v| v.to_bits()).collect::<Vec<_>>()
            })
        };
        let (first, second) = (run(), run());
        assert!(first.iter().all(|bits| *bits == first[0]), "{algorithm}: ranks differ");
        assert_eq!(first, second, "{algorithm}: runs differ");
    }
}

#[test]
fn bytes_of_different_lengths_are_gathered() {
    let all = ranks(4, tcp, |world| {
        let mine = vec![world.rank() as u8; world.rank() * 1000];
        world.group().all_gather_bytes(&mine).unwrap()
    });
    let want: Vec<Vec<u8>> = (0..4).map(|r| vec![r as u8; r * 1000]).collect();
    assert!(all.iter().all(|got| *got == want));
}

#[test]
fn a_barrier_holds_until_the_last_has_come() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let came = AtomicUsize::new(0);
    ranks(5, tcp, |world| {
        for round in 1..=20 {
            came.fetch_add(1, Ordering::SeqCst);
            world.group().barrier().unwrap();
            assert!(came.load(Ordering::SeqCst) >= round * 5);
        }
    });
}

#[test]
fn subgroups_work_beside_each_other_and_inside_each_other() {
    ranks(6, tcp, |world| {
        let g = world.group();
        let even = g.subgroup(&[4, 2, 0]).unwrap();
        let odd = g.subgroup(&[1, 3, 5]).unwrap();
        let mine = even.as_ref().or(odd.as_ref()).unwrap();
        assert_eq!(even.is_some(), g.rank() % 2 == 0);
        let mut order = vec![0u32; 3];
        mine.all_gather(&[g.rank() as u32], &mut order).unwrap();
        let want = if g.rank() % 2 == 0 { [4, 2, 0] } else { [1, 3, 5] };
        assert_eq!(order, want);
        assert_eq!(mine.global_rank(0), want[0] as usize);
        let pair = mine.subgroup(&[2, 0]).unwrap();
        if let Some(pair) = pair {
            let mut x = [g.rank() as i64];
            pair.all_reduce(&mut x, Op::Sum).unwrap();
            assert_eq!(x[0], i64::from(want[0] + want[2]));
        }
        assert!(g.subgroup(&[0, 0]).is_err());
        assert!(g.subgroup(&[6]).is_err());
    });
}

#[test]
fn groups_started_in_different_orders_do_not_lock_up() {
    ranks(4, tcp, |world| {
        let g = world.group();
        let groups: Vec<Group> =
            (0..3).map(|_| g.subgroup(&[0, 1, 2, 3]).unwrap().unwrap()).collect();
        let me = g.rank();
        let mut pending: Vec<_> = (0..3)
            .map(|i| (i + me) % 3)
            .map(|i| (i, groups[i].start_all_reduce(vec![(me + i) as f32; 50_000], Op::Sum)))
            .collect();
        pending.reverse();
        for (i, p) in pending {
            let want = (0..4).map(|r| r + i).sum::<usize>() as f32;
            assert!(p.wait().unwrap().iter().all(|v| *v == want));
        }
    });
}

#[test]
fn started_and_called_operations_of_a_group_keep_their_order() {
    ranks(3, tcp, |world| {
        let g = world.group();
        let first = g.start_all_reduce(vec![1u32; 100_000], Op::Sum);
        let second = g.start_reduce_scatter(vec![2u32; 300], Op::Sum);
        let mut x = [g.rank() as u32];
        g.all_reduce(&mut x, Op::Max).unwrap();
        let third = g.start_all_gather(vec![g.rank() as u32]);
        assert_eq!(x, [2]);
        assert_eq!(third.wait().unwrap(), [0, 1, 2]);
        assert_eq!(first.wait().unwrap(), vec![3; 100_000]);
        assert_eq!(second.wait().unwrap(), vec![6; 100]);
    });
}

#[test]
fn messages_are_matched_by_sender_group_and_tag_in_any_order() {
    ranks(3, tcp, |world| {
        let g = world.group();
        let other = g.subgroup(&[0, 1, 2]).unwrap().unwrap();
        if g.rank() == 0 {
            // Everything is sent before anything is received, in the opposite order.
            for tag in 0..4 {
                g.send(&vec![tag as f32; 30_000], 1, tag).unwrap();
            }
            other.send(&[9.0f32], 1, 3).unwrap();
            g.send(&[1.0f32], 1, 7).unwrap();
            g.send(&[2.0f32], 1, 7).unwrap();
        } else if g.rank() == 1 {
            let early = g.start_recv(vec![0f32; 1], 2, 0);
            let mut x = vec![0f32; 30_000];
            for tag in (0..4).rev() {
                g.recv(&mut x, 0, tag).unwrap();
                assert!(x.iter().all(|v| *v == tag as f32));
            }
            let mut one = [0f32];
            other.recv(&mut one, 0, 3).unwrap();
            assert_eq!(one, [9.0]);
            let (a, b) = (g.start_recv(vec![0f32], 0, 7), g.start_recv(vec![0f32], 0, 7));
            assert_eq!((a.wait().unwrap(), b.wait().unwrap()), (vec![1.0], vec![2.0]));
            assert_eq!(early.wait().unwrap(), [5.0]);
        } else {
            assert_eq!(g.start_send(vec![5.0f32], 1, 0).wait().unwrap(), [5.0]);
        }
        g.barrier().unwrap();
    });
}

#[test]
fn two_ranks_that_both_send_first_do_not_lock_up() {
    ranks(2, tcp, |world| {
        let g = world.group();
        let (me, big) = (g.rank(), 4 << 20);
        g.send(&vec![me as u8; big], 1 - me, 1).unwrap();
        let mut x = vec![9u8; big];
        g.recv(&mut x, 1 - me, 1).unwrap();
        assert!(x.iter().all(|v| usize::from(*v) == 1 - me));
    });
}

#[test]
fn a_message_does_not_wait_behind_a_collective_operation() {
    ranks(3, tcp, |world| {
        let g = world.group();
        let pair = g.subgroup(&[0, 1]).unwrap();
        if g.rank() == 2 {
            // The all-reduce of all can't end before this message has come.
            let mut x = [0u8];
            g.recv(&mut x, 0, 5).unwrap();
            assert_eq!(x, [42]);
            g.all_reduce(&mut x, Op::Max).unwrap();
            return;
        }
        let pair = pair.unwrap();
        let all = g.start_all_reduce(vec![g.rank() as u8], Op::Max);
        let mut both = [g.rank() as u8];
        pair.all_reduce(&mut both, Op::Sum).unwrap();
        if g.rank() == 0 {
            g.send(&[42u8], 2, 5).unwrap();
        }
        assert_eq!(all.wait().unwrap(), [42]);
    });
}

#[test]
fn wrong_sizes_are_refused_before_anything_is_sent() {
    ranks(2, tcp, |world| {
        let g = world.group();
        let message =
            g.reduce_scatter(&[0f32; 3], &mut [0f32; 1], Op::Sum).unwrap_err().to_string();
        assert!(message.contains("reduce_scatter") && message.contains('3'), "{message}");
        assert!(g.all_gather(&[0u8; 2], &mut [0u8; 3]).is_err());
        assert!(g.all_to_all(&[0u8; 3], &mut [0u8; 3]).is_err());
        assert!(g.broadcast(&mut [0u8], 2).is_err());
        assert!(g.send(&[0u8], 2, 0).is_err());
        assert!(g.start_send(vec![0u8], g.rank(), 0).wait().is_err());
        // And the group still works.
        let mut x = [1u8];
        g.all_reduce(&mut x, Op::Sum).unwrap();
        assert_eq!(x, [2]);
    });
}

#[test]
fn a_receive_of_another_length_says_both() {
    ranks(2, tcp, |world| {
        let g = world.group();
        if g.rank() == 0 {
            g.send(&[1u8; 8], 1, 3).unwrap();
        } else {
            let message = g.recv(&mut [0u8; 4], 0, 3).unwrap_err().to_string();
            assert!(message.contains("8 bytes") && message.contains("4 were"), "{message}");
        }
        g.barrier().unwrap();
    });
}

#[test]
fn ranks_that_call_different_operations_are_told() {
    told(tcp);
    told(|_| ());
}

fn told(adjust: fn(&mut Config)) {
    let messages = ranks(2, adjust, |world| {
        let g = world.group();
        if g.rank() == 0 {
            g.all_reduce(&mut [0f32; 4], Op::Sum).unwrap_err().to_string()
        } else {
            g.all_reduce(&mut [0f32; 5], Op::Sum).unwrap_err().to_string()
        }
    });
    for message in messages {
        assert!(message.contains("16 bytes") && message.contains("20 bytes"), "{message}");
    }
}

#[test]
fn a_burn_in_measures_every_pair_and_every_rank_knows_it() {
    use tutti_collectives::burn_in::{Effort, run};
    let effort = Effort { sizes: vec![1024, 65_536], message: 100_000, rounds: 2 };
    let all = ranks(5, over(&[2, 2, 1]), |world| run(&world.group(), &effort).unwrap());
    assert!(all.iter().all(|m| *m == all[0]));
    let m = &all[0];
    assert_eq!((m.pairs.len(), m.copy.len(), m.all_reduce.len()), (10, 5, 2));
    assert!(m.pairs.iter().all(|p| p.latency > 0.0 && p.bandwidth > 0.0 && p.a < p.b));
    assert!(m.copy.iter().all(|c| *c > 0.0));
}
