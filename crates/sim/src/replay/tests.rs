use tutti_model::{PlacementRule, Policy, QueueOrder, Span, Time};

use super::*;
use crate::cluster::Cluster;
use crate::shape::parse_lots;
use crate::trace::{read_csv, read_muri};

fn cluster(shapes: &str) -> Cluster {
    Cluster { nodes: parse_lots(shapes, "").unwrap() }
}

fn go(shapes: &str, csv: &str, options: &Options) -> Run {
    run(&cluster(shapes), &read_csv(csv).unwrap(), options, &mut |_| {}).unwrap()
}

fn ends(run: &Run) -> Vec<u64> {
    run.jobs.iter().map(|j| j.end.map_or(0, |t| t.0 / 1000)).collect()
}

fn fifo() -> Options {
    let mut policy = Policy { order: QueueOrder::Fifo, ..Policy::default() };
    policy.preemption.enabled = false;
    Options { policy, ..Options::default() }
}

const THREE: &str = "name,submit_s,duration_s,gpus_per_node\na,0,100,8\nb,10,50,8\nc,20,30,4\n";

#[test]
fn jobs_wait_for_each_other() {
    let run = go("1xh100:8", THREE, &fifo());
    assert_eq!(ends(&run), [100, 150, 180]);
    let waits: Vec<_> = run.jobs.iter().map(|j| j.wait().unwrap().0 / 1000).collect();
    assert_eq!(waits, [0, 90, 130]);
    assert!(run.jobs.iter().all(|j| j.fate == Fate::Completed && j.attempts == 1));
    let held: Vec<_> = run.samples.iter().map(|s| (s.at.0 / 1000, s.held, s.waiting)).collect();
    assert_eq!(held[0], (0, 8000, 0));
    assert_eq!(held.last(), Some(&(180, 0, 0)));
}

#[test]
fn each_task_of_an_array_is_counted_as_a_job() {
    let mut trace = read_csv(THREE).unwrap();
    trace.jobs[2].spec.array = Some("0-4".parse().unwrap());
    let mut over = 0;
    let run = run(&cluster("2xh100:8"), &trace, &fifo(), &mut |n| over = n).unwrap();
    let f = crate::report::figures("fifo", 1, &run);
    assert_eq!((f.jobs, f.completed), (7, 7));
    assert_eq!((trace.job_count(), over), (7, 7), "progress counts as the figures do");
}

#[test]
fn one_more_node_helps() {
    let run = go("2xh100:8", THREE, &fifo());
    assert_eq!(ends(&run), [100, 60, 90]);
}

#[test]
fn gangs_run_on_several_nodes() {
    let text = "submit_s,duration_s,nodes,gpus_per_node\n0,60,2,8\n0,60,2,8\n";
    let run = go("2xh100:8", text, &fifo());
    assert_eq!(ends(&run), [60, 120]);
    assert_eq!(run.jobs[0].stints[0].nodes.len(), 2);
}

#[test]
fn what_can_never_run_is_refused_with_the_reason() {
    let text = "submit_s,duration_s,gpus_per_node\n0,60,9\n0,60,8\n";
    let run = go("1xh100:8", text, &fifo());
    let Fate::Refused(reason) = &run.jobs[0].fate else { panic!("{:?}", run.jobs[0]) };
    assert!(reason.contains("can never run"), "{reason}");
    assert_eq!(ends(&run), [0, 60]);
}

#[test]
fn a_time_limit_ends_a_job() {
    let text = "submit_s,duration_s,gpus_per_node,time_limit_s\n0,60,8,40\n";
    let run = go("1xh100:8", text, &fifo());
    assert_eq!((ends(&run), run.jobs[0].fate.clone()), (vec![40], Fate::Failed));
}

#[test]
fn a_limit_that_is_just_enough_is_enough() {
    let text = "submit_s,duration_s,gpus_per_node,time_limit_s\n0,60,8,60\n";
    let run = go("1xh100:8", text, &fifo());
    assert_eq!(run.jobs[0].fate, Fate::Completed);
    let known = Options { know_durations: true, ..fifo() };
    let run = go("1xh100:8", THREE, &known);
    assert!(run.jobs.iter().all(|j| j.fate == Fate::Completed));
}

/// A class above another takes its GPUs; the loser goes on as the option says.
fn preempted(restart: Restart) -> Run {
    let text = "name,submit_s,duration_s,gpus_per_node,class\nlow,0,1000,8,scavenger\nhigh,300,100,8,standard\n";
    let policy = Policy::default();
    go("1xh100:8", text, &Options { policy, restart, ..Options::default() })
}

#[test]
fn the_preempted_start_again_as_told() {
    for (restart, end, lost_s) in [
        (Restart::Served, 1100, 0),
        (Restart::Scratch, 1400, 300),
        (Restart::Checkpoint(Span::secs(250)), 1150, 50),
    ] {
        let run = preempted(restart);
        assert_eq!(ends(&run), [end, 400], "{restart:?}");
        assert_eq!((run.jobs[0].preemptions, run.jobs[0].attempts), (1, 2), "{restart:?}");
        assert_eq!(run.jobs[0].lost, lost_s * 8 * 1000, "{restart:?}");
    }
}

fn failing(seed: u64) -> Run {
    let mut text = "submit_s,duration_s,nodes,gpus_per_node\n".to_owned();
    (0..40).for_each(|i| text += &format!("{},{},{},8\n", i * 3000, 20_000 + i * 500, 1 + i % 3));
    let options = Options { failures: 500.0, seed, repair: Span::secs(1800), ..fifo() };
    go("6xh100:8", &text, &options)
}

#[test]
fn failures_cost_work_and_everything_still_ends() {
    let run = failing(3);
    assert!(run.failures > 0);
    assert!(run.jobs.iter().all(|j| j.fate == Fate::Completed));
    assert!(run.jobs.iter().any(|j| j.node_failures > 0 && j.lost > 0));
    assert!(run.samples.iter().all(|s| s.held <= run.gpus * 1000));
    assert_eq!(run.samples.last().map(|s| s.held), Some(0));
}

/// As soon as in a real cluster, not when it is repaired.
#[test]
fn a_node_that_falls_silent_is_lost_and_its_job_starts_elsewhere() {
    let text = "submit_s,duration_s,gpus_per_node\n0,1000,8\n";
    let fails = Misfortune::Fails { node: "h100-1".to_owned(), repair: Span::secs(7200) };
    let options = Options {
        incidents: vec![Incident { after: Span::secs(300), what: fails }],
        heartbeat: Some(Span::secs(120)),
        ..fifo()
    };
    let run = go("2xh100:8", text, &options);
    let job = &run.jobs[0];
    assert_eq!((job.node_failures, job.attempts), (1, 2));
    let timeout = tutti_engine::Settings::default().node_timeout;
    let again = job.stints[1].from;
    assert!(again >= Time(300_000).plus(timeout), "{again:?}");
    assert!(again <= Time(300_000).plus(timeout).plus(Span::secs(5)), "{again:?}");
}

#[test]
fn the_same_seed_is_the_same_run() {
    assert_eq!(failing(7), failing(7));
    assert_ne!(failing(7).samples, failing(8).samples);
}

#[test]
fn spreading_slows_a_gang_down() {
    let table = "gpu,n_gpus,model,spread_over_consolidated\na,2,x,0.5\na,2,y,1.5\na,8,x,0.25\n";
    let spreading = Spreading::read(table).unwrap();
    assert_eq!((spreading.speed(1), spreading.speed(2), spreading.speed(4)), (1.0, 0.75, 0.75));
    assert_eq!((spreading.speed(64), spreading.slowest()), (0.25, 0.25));
    // Two racks with one free node each once the small jobs sit there: the gang must span both.
    let text = "submit_s,duration_s,nodes,gpus_per_node\n0,1000,1,8\n0,1000,1,8\n1,100,2,8\n";
    let mut policy = fifo().policy;
    policy.placement = PlacementRule::FirstFit;
    let options = Options { policy, spreading: Some(spreading), ..fifo() };
    let run = go("1xh100:8@a,1xh100:8@b,1xh100:8@a,1xh100:8@b", text, &options);
    assert_eq!(run.jobs[2].racks, Some((2, 1)));
    assert_eq!(run.jobs[2].jct(), Some(Span::secs(400)));
}

fn reserved(epoch: Option<Time>) -> Run {
    let mut options = fifo();
    // The node is kept from everybody from the 100th to the 400th second of the trace.
    let day = 1_772_323_200_000;
    options.policy.reservations.push(tutti_model::Reservation {
        name: "repair".to_owned(),
        nodes: ["h100-1".to_owned()].into(),
        from: Time(day + 100_000),
        until: Time(day + 400_000),
        team: None,
    });
    let text = "submit_s,duration_s,gpus_per_node,time_limit_s\n0,60,8,60\n50,60,8,60\n";
    let mut trace = read_csv(text).unwrap();
    trace.epoch = epoch.map(|_| Time(day));
    run(&cluster("1xh100:8"), &trace, &options, &mut |_| {}).unwrap()
}

#[test]
fn reservations_hold_on_the_days_they_name() {
    let run = reserved(Some(Time(0)));
    assert_eq!(ends(&run), [60, 460]);
    assert_eq!(run.jobs[1].wait(), Some(Span::secs(350)));
    assert_eq!(run.samples[0].at, Time(0));
    assert_eq!(run.jobs[1].stints[0].from, Time(400_000));
    assert_eq!(ends(&reserved(None)), [60, 120]);
}

/// From scratch, 16 nodes for 30 days, while one of them fails every day.
#[test]
fn what_failures_keep_from_its_end_is_given_up() {
    let text = "submit_s,duration_s,nodes,gpus_per_node\n0,2592000,16,8\n0,3600,1,8\n";
    let options = Options { failures: 80.0, ..fifo() };
    let run = go("16xh100:8", text, &options);
    let fates: Vec<_> = run.jobs.iter().map(|j| j.fate.clone()).collect();
    assert_eq!(fates, [Fate::Hopeless, Fate::Completed]);
    assert_eq!(run.jobs[0].end, None);
    assert_eq!(run.samples.last().map(|s| s.held), Some(0));
    let figures = crate::report::figures("fifo", 1, &run);
    assert_eq!((figures.hopeless, figures.completed, figures.stuck), (1, 1, 0));
    assert!(crate::report::jobs_csv([("fifo", 1, &run)]).contains(",hopeless,"));
}

#[test]
fn checkpoints_bring_it_to_its_end() {
    let text = "submit_s,duration_s,nodes,gpus_per_node\n0,2592000,16,8\n";
    let restart = Restart::Checkpoint(Span::secs(3600));
    let run = go("17xh100:8", text, &Options { failures: 80.0, restart, ..fifo() });
    assert_eq!(run.jobs[0].fate, Fate::Completed);
}

/// Nodes are down so often that all twelve are never up at once.
#[test]
fn what_never_sees_enough_nodes_is_given_up() {
    let text = "submit_s,duration_s,nodes,gpus_per_node\n0,60,12,8\n";
    let options = Options { failures: 100_000.0, repair: Span::secs(86_400), ..fifo() };
    let mut trace = read_csv(text).unwrap();
    trace.jobs[0].submit = Time(40_000_000);
    let run = run(&cluster("12xh100:8"), &trace, &options, &mut |_| {}).unwrap();
    assert_eq!(run.jobs[0].fate, Fate::Hopeless);
}

/// On half of its nodes a job takes twice as long, and a limit that knows must know that.
#[test]
fn a_known_duration_allows_for_an_elastic_job_at_its_smallest() {
    let text = "submit_s,duration_s,gpus_per_node,min_nodes,max_nodes,time_limit_s\n\
                0,10000,8,,,10000\n0,600,8,1,2,\n";
    let options = Options { know_durations: true, ..fifo() };
    let run = go("2xh100:8", text, &options);
    assert_eq!(run.jobs[1].fate, Fate::Completed);
    assert_eq!(run.jobs[1].jct(), Some(Span::secs(1200)));
}

#[test]
fn openb_counts_what_arrived_and_what_fits() {
    use crate::trace::{read_openb_nodes, read_openb_pods};
    let nodes = read_openb_nodes("sn,cpu_milli,memory_mib,gpu,model\nn,4000,100,2,T4\n").unwrap();
    let pods = read_openb_pods(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n\
         half,1000,1,1,500,\nwhole,1000,1,1,1000,\ntwo,1000,1,2,1000,\nother,1,1,1,1000,A100\n",
    )
    .unwrap();
    let policy = openb::without_preemption(Policy::default());
    // half (25 %), two does not fit (125 %), whole (175 %), half beside half (200 %), A100 (250 %).
    let order = [0, 2, 1, 0, 3];
    let all = openb::run(&nodes, &pods, &order, &policy, &mut |_| {}).unwrap();
    assert_eq!((all.pods, all.placed), (5, 3));
    let curve: Vec<_> = all.curve().collect();
    assert_eq!(curve, [(25, 25.0), (125, 25.0), (175, 75.0), (200, 100.0), (250, 100.0)]);
    assert_eq!(all.at(100), None);
}

const MURI: &str = "job_id,num_gpu,submit_time,iterations,model_name,iteration_time\n";

/// Two one-node jobs on one node, model `dqn`: each event costs a running job 6 s (8 GPUs).
#[test]
fn muri_rules_by_hand() {
    let text = format!("{MURI}0,8,0,1000,dqn,1000\n1,8,100000,100,dqn,1000\n");
    let jobs = read_muri(&text).unwrap();
    let run = muri::run(&jobs, 1, 8, QueueOrder::Srtf, &mut |_| {});
    // At 100 s job 0 has 1015 - (100 - 6) = 921 s left and gives way to job 1 (101.5 s), which ends at
    // 201.5 s; job 0 then runs 921 s more.
    assert!((run.jct_s[1] - 101.5).abs() < 1e-6, "{:?}", run.jct_s);
    assert!((run.jct_s[0] - (201.5 + 921.0)).abs() < 1e-6, "{:?}", run.jct_s);
    assert!((run.makespan_s - 1122.5).abs() < 1e-6);
    assert_eq!(run.taken, [1, 0]);
    let whole = run.into_run(&jobs);
    assert_eq!(whole.jobs[0].stints.len(), 2);
    assert_eq!(whole.jobs[0].end, Some(Time(1_122_500)));
}

#[test]
fn muri_backfills_and_splits_over_nodes() {
    let text = format!("{MURI}0,4,0,100,bert,1000\n1,16,0,50,bert,1000\n2,4,0,10,bert,1000\n");
    let jobs = read_muri(&text).unwrap();
    let run = muri::run(&jobs, 2, 8, QueueOrder::Srsf, &mut |_| {});
    // Least service first: 2 (4 × 10), 0 (4 × 100); 1 (16 × 50) needs both nodes empty.
    assert!((run.jct_s[2] - 10.15).abs() < 1e-6, "{:?}", run.jct_s);
    // Job 0 loses min(10.15, 10) s at that event.
    assert!((run.jct_s[0] - 111.5).abs() < 1e-6, "{:?}", run.jct_s);
    assert!((run.jct_s[1] - 162.25).abs() < 1e-6, "{:?}", run.jct_s);
}

/// An engine that remembers when it was told the time.
struct Told {
    engine: Engine,
    ticks: std::rc::Rc<std::cell::RefCell<Vec<Time>>>,
}

impl Host for Told {
    fn engine(&self) -> &Engine {
        &self.engine
    }
    fn step(&mut self, command: Command, now: Time) -> Step {
        if command == Command::Tick {
            self.ticks.borrow_mut().push(now);
        }
        self.engine.step(command, now)
    }
    fn schedule(&mut self, now: Time) -> Step {
        self.engine.schedule(now)
    }
}

#[test]
fn a_moment_has_one_tick() {
    let mut text = "submit_s,duration_s,nodes,gpus_per_node,time_limit_s\n".to_owned();
    (0..60).for_each(|i| text += &format!("{},{},{},8,9000\n", i * 600, 2000 + i, 1 + i % 3));
    let options = Options { failures: 5000.0, repair: Span::secs(1800), ..fifo() };
    let (cluster, trace) = (cluster("6xh100:8"), read_csv(&text).unwrap());
    let ticks = std::rc::Rc::default();
    let told =
        Told { engine: Engine::new(world::settings(&options)), ticks: std::rc::Rc::clone(&ticks) };
    let run =
        world::World::new(told, &cluster, &trace, &options).unwrap().run(&mut |_| {}).unwrap();
    assert!(run.failures > 0);
    let ticks = ticks.borrow();
    let twice: Vec<_> = ticks.windows(2).filter(|pair| pair[0] == pair[1]).collect();
    assert!(ticks.len() > 10 && twice.is_empty(), "{} of {}", twice.len(), ticks.len());
}
