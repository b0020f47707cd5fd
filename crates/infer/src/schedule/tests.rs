use super::*;
use crate::sampling::Sampling;

fn request(id: u64, prompt: &str, max_tokens: usize) -> Request {
    Request {
        id: SequenceId(id),
        prompt: prompt.as_bytes().into(),
        max_tokens,
        sampling: Sampling { temperature: 0.0, top_p: 1.0, top_k: 0, seed: 0 },
        choice: 0,
        stops: [].into(),
        logprobs: None,
    }
}

fn certain(token: u8) -> Vec<f32> {
    let mut logits = vec![0.0; 256];
    logits[usize::from(token)] = 9.0;
    logits
}

/// Does what is planned, with a model that always says the same. What came out, by sequence.
fn step(schedule: &mut Schedule, token: u8) -> Vec<Emission> {
    let logits = certain(token);
    let mut all = Vec::new();
    for work in schedule.plan() {
        match work {
            Work::Prefill { slot, last: true, .. } => all.extend(schedule.advance(slot, &logits)),
            Work::Decode(rows) => {
                all.extend(rows.iter().filter_map(|row| schedule.advance(row.slot, &logits)));
            }
            _ => {}
        }
    }
    all
}

fn prefill(slot: usize, start: usize, tokens: &str, last: bool) -> Work {
    Work::Prefill { slot, start, tokens: tokens.as_bytes().to_vec(), last }
}

#[test]
fn a_long_prompt_comes_in_chunks_while_others_decode() {
    let mut schedule = Schedule::new(2, 4);
    schedule.add(request(1, "ab", 9));
    assert_eq!(schedule.plan(), [prefill(0, 0, "ab", true)]);
    schedule.advance(0, &certain(b'c')).unwrap();
    schedule.add(request(2, "0123456", 9));
    let row = |token: u8, position| Work::Decode(vec![Row { slot: 0, token, position }]);
    assert_eq!(schedule.plan(), [prefill(1, 0, "0123", false), row(b'c', 2)]);
    schedule.advance(0, &certain(b'd')).unwrap();
    assert_eq!(schedule.plan(), [prefill(1, 4, "456", true), row(b'd', 3)]);
    schedule.advance(0, &certain(b'e')).unwrap();
    schedule.advance(1, &certain(b'7')).unwrap();
    let rows = [(0, b'e', 4), (1, b'7', 7)];
    let rows = rows.map(|(slot, token, position)| Row { slot, token, position });
    assert_eq!(schedule.plan(), [Work::Decode(rows.to_vec())]);
}

#[test]
fn several_short_prompts_share_a_chunk() {
    let mut schedule = Schedule::new(4, 10);
    for (id, prompt) in [(1, "abc"), (2, "xyz"), (3, "0123456")] {
        schedule.add(request(id, prompt, 1));
    }
    let planned = schedule.plan();
    let expected =
        [prefill(0, 0, "abc", true), prefill(1, 0, "xyz", true), prefill(2, 0, "0123", false)];
    assert_eq!(planned, expected);
}

#[test]
fn who_finds_no_slot_waits_and_comes_in_order() {
    let mut schedule = Schedule::new(1, 100);
    (1..=3).for_each(|id| schedule.add(request(id, "p", 2)));
    let mut done = Vec::new();
    let mut steps = 0;
    while !schedule.is_idle() {
        steps += 1;
        assert!(schedule.running() <= 1);
        let ended = step(&mut schedule, b'x').into_iter().filter(|one| one.finish.is_some());
        done.extend(ended.map(|one| one.id.0));
    }
    assert_eq!((done, steps), (vec![1, 2, 3], 6));
}

#[test]
fn a_sequence_ends_by_length_or_by_a_stop_string() {
    let mut schedule = Schedule::new(2, 100);
    schedule.add(request(1, "p", 3));
    schedule.add(Request { stops: ["xx".into()].into(), ..request(2, "q", 9) });
    let mut texts = [String::new(), String::new()];
    let mut ends = Vec::new();
    while !schedule.is_idle() {
        for emission in step(&mut schedule, b'x') {
            texts[emission.id.0 as usize - 1].push_str(&emission.text);
            ends.extend(
                emission.finish.map(|finish| (emission.id.0, finish.reason, finish.tokens)),
            );
        }
    }
    assert_eq!(texts, ["xxx", ""]);
    assert_eq!(ends, [(2, Reason::Stop, 2), (1, Reason::Length, 3)]);
}

#[test]
fn a_cancelled_sequence_frees_its_slot_and_the_queue() {
    let mut schedule = Schedule::new(1, 100);
    (1..=3).for_each(|id| schedule.add(request(id, "p", 50)));
    step(&mut schedule, b'x');
    assert!(schedule.cancel(SequenceId(2)));
    assert_eq!((schedule.running(), schedule.waiting()), (1, 1));
    assert!(schedule.cancel(SequenceId(1)));
    assert!(!schedule.cancel(SequenceId(1)));
    assert_eq!(schedule.running(), 0);
    let next = step(&mut schedule, b'x');
    assert_eq!(next[0].id, SequenceId(3));
}

#[test]
fn logits_of_a_sequence_that_was_cancelled_meanwhile_are_nobodys() {
    let mut schedule = Schedule::new(1, 100);
    schedule.add(request(1, "p", 50));
    schedule.plan();
    schedule.cancel(SequenceId(1));
    assert_eq!(schedule.advance(0, &certain(b'x')), None);
}

#[test]
fn what_begins_the_same_way_is_not_computed_again() {
    let common = "a beginning of more than sixteen bytes, ";
    let mut schedule = Schedule::new(3, 1000);
    schedule.add(request(1, &format!("{common}one"), 2));
    schedule.add(request(2, &format!("{common}two"), 2));
    let planned = schedule.plan();
    // The second waits for nobody: what it copies is computed before it in the same step.
    assert_eq!(planned[1], Work::Copy { from: 0, to: 1, len: common.len() });
    assert_eq!(planned[2], prefill(1, common.len(), "two", true));
    schedule.advance(0, &certain(b'x'));
    schedule.advance(1, &certain(b'y'));
    while !schedule.is_idle() {
        step(&mut schedule, b'x');
    }
    // The last token that was made has no key; the one before it has.
    schedule.add(request(3, &format!("{common}onexxx"), 1));
    let reuse = common.len() + 4;
    assert_eq!(schedule.plan(), [prefill(0, reuse, "xx", true)]);
    let finish = schedule.advance(0, &certain(b'x')).unwrap().finish.unwrap();
    assert_eq!(finish.cached, reuse);
    let tokens = (common.len() + reuse) as u64;
    assert_eq!(schedule.reuse(), Reuse { prompts: 3, hits: 2, tokens });
}

#[test]
fn the_same_seed_draws_the_same_tokens_and_choices_differ() {
    let even = vec![0.0; 256];
    let draw = |seed, choice| {
        let mut schedule = Schedule::new(1, 100);
        let sampling = Sampling { temperature: 1.0, top_p: 1.0, top_k: 0, seed };
        schedule.add(Request { sampling, choice, ..request(1, "p", 20) });
        let mut tokens = Vec::new();
        while !schedule.is_idle() {
            schedule.plan();
            tokens.extend(schedule.advance(0, &even).map(|one| one.token));
        }
        tokens
    };
    assert_eq!(draw(5, 0), draw(5, 0));
    assert_ne!(draw(5, 0), draw(6, 0));
    assert_ne!(draw(5, 0), draw(5, 1));
}

#[test]
fn only_sequences_under_way_count_as_use_of_the_cache() {
    let mut schedule = Schedule::new(2, 100);
    schedule.add(request(1, "abcd", 2));
    step(&mut schedule, b'x');
    assert_eq!(schedule.tokens(), 4);
    step(&mut schedule, b'x');
    assert_eq!((schedule.tokens(), schedule.running()), (0, 0));
}
