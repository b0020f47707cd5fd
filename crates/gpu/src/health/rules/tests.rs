use super::*;

fn rules(gpus: u16) -> Rules {
    Rules::new(Thresholds::default(), (0..gpus).map(GpuIndex).collect())
}

fn at(second: u64) -> Time {
    Time(1_000_000 + second * 1000)
}

/// Of a GPU that answers.
fn sample(second: u64, gpu: GpuSample) -> NodeSample {
    let gpu = GpuSample { mem_used: Some(Bytes::gib(1)), ..gpu };
    let host = HostSample {
        disk_total: Bytes::gib(1000),
        disk_free: Bytes::gib(500),
        mem_total: Bytes::gib(100),
        mem_available: Bytes::gib(50),
        ..HostSample::default()
    };
    NodeSample { at: at(second), gpus: vec![gpu], host, ..NodeSample::default() }
}

fn found(seen: &[Seen]) -> Vec<(&str, HealthAction)> {
    seen.iter().map(|s| (s.finding.key.as_str(), s.finding.action)).collect()
}

#[test]
fn a_healthy_machine_has_no_findings() {
    let mut rules = rules(1);
    for second in 0..600 {
        let gpu =
            GpuSample { ecc_uncorrected: Some(7), pcie_replays: Some(40), ..GpuSample::default() };
        assert_eq!(rules.sample(&sample(second, gpu)), [], "at {second}");
    }
}

/// What was there before the agent started is not growth; a few contained errors are no reason to
/// lose a GPU, and many are.
#[test]
fn memory_errors_are_noted_and_many_fence() {
    let mut rules = rules(1);
    let gpu = |count| GpuSample { ecc_uncorrected: Some(count), ..GpuSample::default() };
    assert_eq!(rules.sample(&sample(0, gpu(10))), []);
    let one = rules.sample(&sample(1, gpu(11)));
    assert_eq!(found(&one), [("ecc/gpu0", HealthAction::Note)]);
    let many = rules.sample(&sample(2, gpu(13)));
    assert_eq!(found(&many), [("ecc/gpu0", HealthAction::FenceGpu)]);
    assert_eq!(many[0].keep, Keep::UntilReboot);
    assert_eq!(many[0].finding.text, "GPU 0: 3 uncorrectable memory errors within a day");
}

#[test]
fn remapped_rows_are_noted_until_they_fail() {
    let mut rules = rules(1);
    let pending = GpuSample { remap_pending: Some(true), ..GpuSample::default() };
    let seen = rules.sample(&sample(0, pending.clone()));
    assert_eq!(found(&seen), [("row-remap-pending/gpu0", HealthAction::Note)]);
    let failed = GpuSample { remap_failed: Some(true), ..pending };
    let seen = rules.sample(&sample(1, failed));
    assert_eq!(found(&seen), [("row-remap/gpu0", HealthAction::FenceGpu)]);
    assert_eq!(seen[0].keep, Keep::UntilResolved);
}

#[test]
fn throttling_counts_when_it_lasts() {
    let mut rules = rules(1);
    let hot = |bits| GpuSample { throttle: Some(bits), temp: Some(91), ..GpuSample::default() };
    for second in 0..60 {
        assert_eq!(rules.sample(&sample(second, hot(HW_THERMAL))), [], "at {second}");
    }
    let seen = rules.sample(&sample(60, hot(HW_THERMAL)));
    assert_eq!(seen[0].finding.text, "GPU 0: held back by heat at 91 °C for 1m");
    // A moment of relief starts the count anew; an idle GPU has bits of its own.
    assert_eq!(rules.sample(&sample(61, hot(1))), []);
    assert_eq!(rules.sample(&sample(62, hot(HW_THERMAL))), []);
}

#[test]
fn links_are_judged_by_their_rate() {
    let mut rules = rules(1);
    let links = |nvlink, pcie| GpuSample {
        nvlink_errors: Some(nvlink),
        pcie_replays: Some(pcie),
        ..GpuSample::default()
    };
    // One a second is below the limit for ever.
    for second in 0..600 {
        assert_eq!(rules.sample(&sample(second, links(second, second))), [], "at {second}");
    }
    let seen = rules.sample(&sample(601, links(5000, 601)));
    assert_eq!(found(&seen), [("nvlink/gpu0", HealthAction::Note)]);
    // A driver that was loaded anew counts from nothing.
    assert_eq!(rules.sample(&sample(602, links(0, 0))), []);
}

#[test]
fn a_gpu_that_is_gone_is_fenced() {
    let mut rules = rules(2);
    let gpu = |index| GpuSample { index: GpuIndex(index), temp: Some(40), ..GpuSample::default() };
    let mute = GpuSample { index: GpuIndex(1), ..GpuSample::default() };
    for second in 0..40 {
        let now = NodeSample { gpus: vec![gpu(0), mute.clone()], ..sample(second, gpu(0)) };
        assert_eq!(rules.sample(&now), [], "it may come back: {second}");
    }
    let seen = rules.sample(&sample(40, gpu(0)));
    assert_eq!(found(&seen), [("bus/gpu1", HealthAction::FenceGpu)]);
    let both = NodeSample { gpus: vec![gpu(0), gpu(1)], ..sample(41, gpu(0)) };
    assert_eq!(rules.sample(&both), [], "it is back");
    assert_eq!(rules.sample(&sample(42, gpu(0))), [], "and counts anew");
}

#[test]
fn hosts_are_watched() {
    let mut rules = rules(0);
    let mut now = sample(0, GpuSample::default());
    now.host.disk_free = Bytes::gib(90);
    now.host.mem_available = Bytes::gib(1);
    let seen = rules.sample(&now);
    assert_eq!(found(&seen), [("disk", HealthAction::Note), ("memory", HealthAction::Note)]);
    now.host.disk_free = Bytes::gib(1);
    assert_eq!(found(&rules.sample(&now))[0], ("disk", HealthAction::DrainNode));
}

#[test]
fn infiniband_is_watched() {
    let mut rules = rules(0);
    let with = |second, up, symbols, downed| {
        let nic = NicSample {
            port: "mlx5_0:1".into(),
            up,
            symbol_errors: symbols,
            link_downed: downed,
            ..NicSample::default()
        };
        let mut now = sample(second, GpuSample::default());
        now.host.nics = vec![nic];
        now
    };
    assert_eq!(rules.sample(&with(0, true, 100, 50)), []);
    let seen = rules.sample(&with(1, true, 300, 50));
    assert_eq!(found(&seen), [("ib-symbols/mlx5_0:1", HealthAction::Note)]);
    let seen = rules.sample(&with(61, false, 300, 51));
    assert!(found(&seen).contains(&("ib-down/mlx5_0:1", HealthAction::Note)));
    let flaps = rules.sample(&with(200, true, 300, 54));
    assert!(flaps.iter().any(|s| s.finding.text.contains("4 times in a day")), "{flaps:?}");
    // A port that nobody ever plugged in is not down.
    let mut other = with(201, true, 300, 54);
    other.host.nics[0] = NicSample { port: "mlx5_7:1".into(), ..NicSample::default() };
    assert!(rules.sample(&other).is_empty());
}

#[test]
fn silence_is_noted_and_long_silence_drains() {
    let rules = rules(1);
    let action = |s| rules.silence(at(0), at(s)).map(|seen| seen.finding.action);
    assert_eq!(
        [10, 30, 299].map(action),
        [None, Some(HealthAction::Note), Some(HealthAction::Note)]
    );
    assert_eq!(action(300), Some(HealthAction::DrainNode));
}

#[test]
fn a_clock_that_is_off_is_noted_beyond_what_the_network_explains() {
    let rules = rules(0);
    assert_eq!(rules.clock(1900, Span(0), at(0)), None);
    assert_eq!(rules.clock(2500, Span(800), at(0)), None, "it may be the network");
    let text = |ahead| rules.clock(ahead, Span(5), at(0)).unwrap().finding.text;
    assert!(text(30_000).contains("30.0 s behind"), "{}", text(30_000));
    assert!(text(-3000).contains("3.0 s ahead of"), "{}", text(-3000));
}

#[test]
fn an_operator_may_want_another_action() {
    let mut thresholds = Thresholds { throttle_for: Span(0), ..Thresholds::default() };
    thresholds.actions.insert("throttle".into(), HealthAction::FenceGpu);
    let mut rules = Rules::new(thresholds, BTreeSet::new());
    let hot = GpuSample { throttle: Some(POWER_BRAKE), ..GpuSample::default() };
    assert_eq!(found(&rules.sample(&sample(0, hot))), [("throttle/gpu0", HealthAction::FenceGpu)]);
}

#[test]
fn limits_that_make_no_sense_are_refused() {
    assert_eq!(Thresholds::default().check(), Ok(()));
    let disk = Thresholds { disk_free_percent: 200, ..Thresholds::default() };
    assert_eq!(disk.check().unwrap_err(), "disk_free_percent = 200: is more than 100");
    let with = |key: &str| {
        let actions = [(key.to_owned(), HealthAction::Note)].into();
        Thresholds { actions, ..Thresholds::default() }.check()
    };
    assert!(with("xid-48").unwrap_err().starts_with("actions.xid-48: there is no such check"));
    assert_eq!(with("throttle").and(with("check-matmul")), Ok(()));
}
