//! A cluster for the tests.

use tutti_model::{
    Bytes, Explanation, Finding, GpuIndex, HealthAction, JobSpec, JobState, Milli, NodeState,
    Place, Restarts, Role, Span, TaskId, Time, Verdict,
};
use tutti_wire::api::{
    ClusterInfo, GpuCell, GpuLoad, JobDetail, JobLoad, JobProgress, JobRow, Load, NodeLoad,
    NodeRow, PartRow, ProgressDetail, RankRow,
};

use super::super::Size;
use super::super::app::{App, Msg};
use super::super::data::{Found, FoundJob, JobData, JobList, News};
use super::super::theme::Theme;
use crate::show::jobs::tests::row;
use crate::show::nodes::tests::node;

pub const NOW: Time = Time(1_000_000);

pub fn app(size: Size) -> App {
    let theme = Theme { colour: true };
    let mut app = App::new(theme, size, Span::secs(1));
    app.place = "/var/lib/tutti".to_owned();
    app.update(Msg::Tick(NOW));
    app
}

/// So many nodes of eight GPUs, all there and all heard of.
pub fn busy(size: Size, nodes: usize) -> App {
    let mut app = app(size);
    tell(&mut app, nodes, NOW);
    app
}

pub fn tell(app: &mut App, nodes: usize, at: Time) {
    // As the fetcher does: what is in sight is asked for once it is known.
    for _ in 0..2 {
        let news = news(app, nodes, at);
        app.update(Msg::News(Box::new(news)));
    }
}

pub fn news(app: &App, nodes: usize, at: Time) -> News {
    let wanted = app.wanted();
    let rows: Vec<NodeRow> = (1..=nodes).map(|i| node_row(i, nodes)).collect();
    let cells = wanted.cells.iter().filter(|name| rows.iter().any(|row| row.name == **name));
    let jobs = wanted.shown.iter().map(|id| JobLoad { id: *id, load: job_load(*id) });
    News {
        cluster: info(nodes as u32, at),
        load: Load {
            cluster: GpuLoad {
                gpus: nodes as u32 * 8,
                used: nodes as u32 * 6,
                heard: nodes as u32 * 8,
                util: Some(0.7),
                sm: Some(0.62),
                mem_used: Bytes::gib(300 * nodes as u64),
                mem: Bytes::gib(640 * nodes as u64),
                power: Some(3_000.0 * nodes as f32),
                power_limit: Some(5_600.0 * nodes as f32),
                temp: Some(71),
            },
            nodes: cells.map(|name| node_load(name)).collect(),
            jobs: jobs.collect(),
        },
        alerts: Vec::new(),
        nodes: wanted.nodes.then_some(rows),
        jobs: wanted.jobs.is_some().then(job_list),
        job: wanted.job.map(|id| JobData { id, found: found(id) }),
    }
}

fn info(nodes: u32, now: Time) -> ClusterInfo {
    let tasks = [("running", 12), ("pending", 1204), ("suspended", 1), ("starting", 2)];
    ClusterInfo {
        version: "0.1.0".into(),
        user: "ada".into(),
        role: Role::Admin,
        nodes,
        nodes_ready: nodes - 1,
        gpus: nodes * 8,
        gpus_used: nodes * 6,
        simulated: true,
        tasks: tasks.map(|(state, n)| (state.to_owned(), n)).into(),
        now,
        epoch: 1,
        seq: 7,
    }
}

/// Half of them in each of two racks; the second is broken.
pub fn node_row(i: usize, of: usize) -> NodeRow {
    let mut row = NodeRow {
        name: format!("n{i}"),
        state: NodeState::Ready,
        drain_reason: None,
        gpus_used: 6,
        gpu_milli_used: 6000,
        ..node()
    };
    let rack = if i <= of / 2 { "r1" } else { "r2" };
    row.place = Place { site: None, rail: None, rack: Some(rack.to_owned()) };
    if i == 2 {
        row.state = NodeState::Draining;
        row.drain_reason = Some("fan".into());
        row.fenced = vec![3];
        row.findings = vec![Finding {
            key: "xid-79/gpu3".into(),
            check: "xid".into(),
            gpu: Some(GpuIndex(3)),
            action: HealthAction::ResetGpu,
            text: "XID 79: fell off the bus".into(),
            since: Time(400_000),
            drill: false,
            by_job: false,
        }];
    }
    row
}

/// Six GPUs are held, the seventh by half, the eighth by nobody; of n2 the fourth is broken.
fn node_load(name: &str) -> NodeLoad {
    let cell = |i: u16| GpuCell {
        gpu: GpuIndex(i),
        milli: [1000, 1000, 1000, 1000, 1000, 1000, 500, 0][usize::from(i)],
        fenced: name == "n2" && i == 3,
        jobs: if i < 7 { vec!["7".parse().unwrap()] } else { Vec::new() },
        util: Some([99, 90, 80, 70, 60, 20, 10, 0][usize::from(i)]),
        sm: Some([95, 80, 70, 60, 50, 10, 5, 0][usize::from(i)]),
        mem: Some(50),
        power: Some(500),
        power_limit: Some(700),
        temp: Some(60 + i as i16),
    };
    let load = GpuLoad {
        gpus: 8,
        used: 7,
        heard: 8,
        sm: Some(0.46),
        mem_used: Bytes::gib(320),
        mem: Bytes::gib(640),
        power: Some(4_000.0),
        power_limit: Some(5_600.0),
        temp: Some(67),
        ..GpuLoad::default()
    };
    let (age, cpu) = (Some(Span(400)), Some(0.25));
    NodeLoad { node: name.to_owned(), age, cpu, load, gpus: (0..8).map(cell).collect() }
}

fn job_load(id: TaskId) -> GpuLoad {
    let share = if id.job.0 == 8 { 0.04 } else { 0.91 };
    let (mem_used, mem) = (Bytes::gib(640), Bytes::gib(1280));
    GpuLoad {
        gpus: 16,
        used: 16,
        heard: 16,
        sm: Some(share),
        mem_used,
        mem,
        power: Some(9_800.0),
        ..GpuLoad::default()
    }
}

pub fn job_list() -> JobList {
    let on = |id: &str, name: &str, user: &str| JobRow {
        name: name.into(),
        user: user.into(),
        started_at: Some(Time(400_000)),
        node_names: vec!["n1".into(), "n2".into()],
        ..row(id, JobState::Running)
    };
    let progress = JobProgress { step: Some(1200), loss: Some(2.3149), ..JobProgress::default() };
    let rows = vec![
        JobRow { progress: Some(progress), ..on("7", "train", "ada") },
        JobRow { gpus: 8, ..on("8", "訓練-with-a-very-long-name-that-goes-on", "babbage") },
        JobRow {
            submitted_at: Time(900_000),
            note: "needs 2 nodes with 8 free GPUs, 1 fits now".into(),
            ..row("9", JobState::Pending)
        },
        JobRow {
            started_at: Some(Time(100_000)),
            ended_at: Some(Time(200_000)),
            note: "rank 1 exited with 3".into(),
            ..row("5", JobState::Failed)
        },
    ];
    JobList { rows, more: true, refused: None }
}

/// Job 7 runs on two nodes and rank 2 is behind; 9 waits; others are not there.
fn found(id: TaskId) -> Found {
    let row = job_list().rows.into_iter().find(|row| row.id == id);
    let Some(row) = row else { return Found::Not { error: format!("there is no job {id}") } };
    let part = |node: &str, first_rank: u32| PartRow {
        node: node.into(),
        address: "127.0.1.1".into(),
        gpus: vec![0, 1],
        share: Milli::WHOLE,
        cpus: 16,
        mem: Bytes::gib(64),
        first_rank,
        ranks: 2,
        phase: "running".into(),
        exits: Vec::new(),
    };
    let runs = row.state == JobState::Running;
    let detail = JobDetail {
        row,
        spec: JobSpec::shell("python train.py"),
        attempt: Some(2),
        generation: Some(9),
        restarts_by_cause: Restarts { node_failure: 1, ..Restarts::default() },
        parts: if runs { vec![part("n1", 0), part("n2", 2)] } else { Vec::new() },
        end: None,
        time_left: None,
        held: false,
        checkpoints: Vec::new(),
        suspensions: Vec::new(),
        goodput: None,
        output_dropped: 0,
        stopped_before: Some("GPU 3 of n2 was broken".into()),
        replica_of: None,
    };
    let rank = |rank: u32| RankRow {
        rank,
        node: None,
        step: 1200 - u64::from(rank == 2) * 40,
        loss: Some(2.3),
        tokens: None,
        pace: Some(Span(1_500)),
        age: Some(Span(900)),
    };
    let progress = JobProgress { behind: Some(2), slowest: Some(2), ..JobProgress::default() };
    let progress = ProgressDetail {
        id,
        progress: runs.then_some(progress),
        ranks: if runs { (0..4).map(rank).collect() } else { Vec::new() },
        history: Vec::new(),
    };
    let why = (detail.row.state == JobState::Pending).then(|| Explanation {
        task: id,
        verdict: Verdict::Next,
        blockers: Vec::new(),
        default_time: None,
        ahead: 3,
        holders: Vec::new(),
        starts_by: None,
        forecast: None,
        advice: vec!["ask for 8 GPUs on 1 node".into()],
        fences: Vec::new(),
        kept: Vec::new(),
        gives_up_at: None,
    });
    Found::Job(Box::new(FoundJob { detail, progress, why }))
}
