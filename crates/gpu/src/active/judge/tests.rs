//! Reports as tables, and what follows from each.

use tutti_model::ActiveProduct;

use super::*;

const TB: u64 = 1_000_000_000_000;

/// Memory at so many GB/s of 4800, products at so many TFLOP/s.
fn figures(gb: u64, tflops: u64) -> ActiveFigures {
    ActiveFigures {
        memory_rate: gb * 1_000_000_000,
        memory_peak: Some(4800 * 1_000_000_000),
        matmul: ActiveProduct { rate: tflops * TB, runs: 9, ..ActiveProduct::default() },
        ..ActiveFigures::default()
    }
}

fn report(all: Vec<ActiveOutcome>) -> ActiveReport {
    let gpu = |(at, outcome)| ActiveGpu {
        gpu: GpuIndex(at),
        uuid: format!("GPU-{at}"),
        model: "h200".into(),
        outcome,
    };
    ActiveReport { gpus: (0..).zip(all).map(gpu).collect(), ..ActiveReport::default() }
}

fn judged(report: &ActiveReport, known: &Known) -> Vec<(String, HealthAction, String)> {
    let seen = judge(report, known, &Thresholds::default(), Time(7));
    seen.into_iter().map(|s| (s.finding.key, s.finding.action, s.finding.text)).collect()
}

fn keys(report: &ActiveReport, known: &Known) -> Vec<(String, HealthAction)> {
    judged(report, known).into_iter().map(|(key, action, _)| (key, action)).collect()
}

fn done(gb: u64, tflops: u64) -> ActiveOutcome {
    ActiveOutcome::Done(figures(gb, tflops))
}

fn wrong() -> Wrong {
    Wrong { count: 3, first: "word 9".into() }
}

#[test]
fn right_and_fast_is_nothing() {
    assert_eq!(judged(&report(vec![done(4000, 40); 8]), &Known::default()), []);
}

#[test]
fn a_wrong_answer_fences_until_somebody_resolves_it() {
    let mut memory = figures(4000, 40);
    memory.memory_wrong = wrong();
    let mut matmul = figures(100, 40);
    matmul.matmul.wrong = wrong();
    let mut tensor = figures(4000, 40);
    tensor.tensor = Some(ActiveProduct { wrong: wrong(), ..ActiveProduct::default() });
    let all = [memory, matmul, tensor].map(ActiveOutcome::Done).to_vec();
    let all = report(all);
    let fence = |key: &str| (key.to_owned(), HealthAction::FenceGpu);
    let expected =
        [fence("check-memory/gpu0"), fence("check-matmul/gpu1"), fence("check-matmul/gpu2")];
    assert_eq!(keys(&all, &Known::default()), expected, "a wrong one's speed is nobody's matter");
    let seen = judge(&all, &Known::default(), &Thresholds::default(), Time(7));
    assert!(seen.iter().all(|s| s.keep == Keep::UntilResolved));
    let text = "GPU 0: memory gave back something wrong: 3 in all, the first: word 9";
    assert_eq!(seen[0].finding.text, text);
    assert_eq!(passed(&all), []);
}

#[test]
fn a_gpu_that_does_not_do_it_is_fenced_and_one_that_was_not_asked_is_not() {
    let why = || "cuLaunchKernel: CUDA_ERROR_ECC_UNCORRECTABLE (214): …".to_owned();
    let all = report(vec![
        ActiveOutcome::Failed { what: ActivePart::Matmul, why: why() },
        ActiveOutcome::NotRun { why: "no libcuda".into() },
        ActiveOutcome::Busy { why: "job 7 is on it".into() },
    ]);
    let expected = [("check-matmul/gpu0".to_owned(), HealthAction::FenceGpu)];
    assert_eq!(keys(&all, &Known::default()), expected);
    let noted: Vec<(String, HealthAction)> =
        unchecked(&all, Time(7)).into_iter().map(|s| (s.finding.key, s.finding.action)).collect();
    let note = |key: &str| (key.to_owned(), HealthAction::Note);
    assert_eq!(noted, [note("check-not-run/gpu1"), note("check-not-run/gpu2")]);
}

#[test]
fn slow_is_less_than_the_memory_allows_than_equals_do_or_than_before() {
    let note = |key: &str| vec![(key.to_owned(), HealthAction::Note)];
    let none = Known::default();
    // 59 % of 4800; 60 % is enough.
    assert_eq!(keys(&report(vec![done(2832, 40)]), &none), note("check-memory-slow/gpu0"));
    assert_eq!(keys(&report(vec![done(2880, 40)]), &none), []);
    // One of four at 79 % of the others; of two nobody knows which is the odd one.
    let four = |odd| report(vec![done(4000, 40), done(4000, odd), done(4000, 40), done(4000, 40)]);
    assert_eq!(keys(&four(31), &none), note("check-matmul-slow/gpu1"));
    assert_eq!(keys(&four(32), &none), []);
    assert_eq!(keys(&report(vec![done(4000, 40), done(4000, 20)]), &none), []);
    // The same card before.
    let mut known = Known::default();
    known.learn(&report(vec![done(4000, 40)]));
    known.learn(&report(vec![done(3000, 30)]));
    assert_eq!(keys(&report(vec![done(3100, 40)]), &known), note("check-memory-slow/gpu0"));
    let text = &judged(&report(vec![done(4000, 31)]), &known)[0].2;
    let expected = "GPU 0: products at 31.0 TFLOP/s, which is 77 % of the 40.0 that it did before";
    assert_eq!(text, expected);
    assert_eq!(keys(&report(vec![done(4000, 31)]), &known.under("581")), []);
}

#[test]
fn operators_choose_other_limits_and_actions() {
    let actions = [("check-memory-slow".to_owned(), HealthAction::FenceGpu)].into();
    let limits = Thresholds { check_memory_percent: 90, actions, ..Thresholds::default() };
    let seen = judge(&report(vec![done(4000, 40)]), &Known::default(), &limits, Time(7));
    assert_eq!(seen[0].finding.fences(), Some(GpuIndex(0)));
}

#[test]
fn a_wrong_answer_teaches_nothing() {
    let mut bad = figures(9000, 90);
    bad.matmul.wrong = wrong();
    let mut known = Known::default();
    known.learn(&report(vec![ActiveOutcome::Done(bad)]));
    assert_eq!(known, Known::default());
}

#[test]
fn sums_are_judged_by_answer_and_by_before() {
    let mut all = report(vec![done(4000, 40), done(4000, 40)]);
    let sum = |rate, wrong| ActiveSum::Done {
        gpus: vec![GpuIndex(0), GpuIndex(1)],
        rate,
        wrong,
        through_host: false,
    };
    all.all_reduce = sum(100, vec![]);
    let mut known = Known::default();
    known.learn(&all);
    assert_eq!(keys(&all, &known), []);
    all.all_reduce = sum(79, vec![]);
    assert_eq!(keys(&all, &known), [("check-allreduce-slow".to_owned(), HealthAction::Note)]);
    all.all_reduce = sum(100, vec![(GpuIndex(1), wrong())]);
    assert_eq!(keys(&all, &known), [("check-allreduce/gpu1".to_owned(), HealthAction::FenceGpu)]);
    all.all_reduce = ActiveSum::Failed { gpu: Some(GpuIndex(0)), why: "NVLink".into() };
    assert_eq!(keys(&all, &known), [("check-allreduce/gpu0".to_owned(), HealthAction::FenceGpu)]);
}

#[test]
fn suspicion_is_of_the_card_and_not_of_programs() {
    let finding = |check: &str, action, by_job| Finding {
        key: format!("{check}/gpu0"),
        check: check.into(),
        gpu: Some(GpuIndex(0)),
        action,
        text: String::new(),
        since: Time(0),
        drill: false,
        by_job,
    };
    use HealthAction::{FenceGpu, Note, RestartJob};
    for check in ["throttle", "ecc", "nvlink", "pcie-replays", "xid", "row-remap-pending"] {
        assert!(is_suspicious(&finding(check, Note, false)), "{check}");
    }
    assert!(is_suspicious(&finding("xid", RestartJob, false)), "xid-94");
    assert!(!is_suspicious(&finding("xid", RestartJob, true)), "xid-13: the program");
    assert!(!is_suspicious(&finding("ecc", FenceGpu, false)), "it is fenced");
    let killed = Finding { key: "xid-45/gpu0".into(), ..finding("xid", Note, false) };
    assert!(!is_suspicious(&killed), "it comes with every program that is killed");
    assert!(!is_suspicious(&finding("memory-held", Note, false)));
    assert!(!is_suspicious(&finding("check-memory-slow", Note, false)), "no circles");
    let node = Finding { gpu: None, ..finding("ecc", Note, false) };
    assert!(!is_suspicious(&node));
}

#[test]
fn who_was_to_be_checked_and_was_not_has_not_passed() {
    let mut wrong_answer = figures(4000, 40);
    wrong_answer.matmul.wrong = wrong();
    let mut report = report(vec![
        done(4000, 40),
        ActiveOutcome::NotRun { why: "no driver".into() },
        ActiveOutcome::Busy { why: "a job is on it".into() },
        ActiveOutcome::Failed { what: ActivePart::Memory, why: "error 719".into() },
        ActiveOutcome::Done(wrong_answer),
        done(4000, 40),
    ]);
    // It did all that it was asked for, and its sum with the others was wrong.
    let against = seen(
        "check-allreduce",
        Some(GpuIndex(5)),
        HealthAction::FenceGpu,
        "its sum was wrong",
        Keep::UntilResolved,
        Time(7),
    );
    report.findings.push(against.finding);
    let stays = not_passed(&report);
    assert_eq!(stays.keys().map(|gpu| gpu.0).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    assert_eq!(stays[&GpuIndex(1)], "GPU 1 could not be checked: no driver");
    assert_eq!(stays[&GpuIndex(2)], "GPU 2 could not be checked: a job is on it");
    assert!(stays[&GpuIndex(5)].contains("its sum was wrong"), "{stays:?}");
}
