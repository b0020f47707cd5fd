//! A day of normal work makes no alert, with the terms that everybody has who says nothing: jobs that
//! start slowly, save, load data, evaluate, fill their memory and keep it, serve at night with little
//! to do, a rank that is a little late, a node that is restarted.

use tutti_model::{
    AlertJob, Budget, JobId, Period, Rank, Span, TaskId, Time, WatchPolicy, WatchRule,
};
use tutti_watch::{
    Certificate, CertificateSeen, Change, CirclingSeen, DiskSeen, GpuSeen, Lag, NodeSeen, Seen,
    Steps, TaskSeen, TeamSeen, Watcher,
};

const ROUND: u64 = 5;
const DAY: u64 = 86_400;
const JOBS: u64 = 16;
const GPUS: u16 = 4;

/// The same for the same question, as good as random otherwise.
fn dice(a: u64, b: u64, c: u64) -> f64 {
    let mut x = a.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ b.rotate_left(21) ^ c.rotate_left(42);
    for _ in 0..3 {
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    }
    (x >> 11) as f64 / (1u64 << 53) as f64
}

fn between(low: f64, high: f64, dice: f64) -> f64 {
    low + (high - low) * dice
}

/// What a job does at a moment of its life.
#[derive(Clone, Copy, PartialEq)]
enum Doing {
    /// Images, imports, weights: GPUs have nothing to do.
    Starts,
    Compiles,
    Steps,
    /// A checkpoint, or data that is late.
    Waits,
    Evaluates,
}

/// Lives follow each other: each job of a slot lasts for some hours, then the next one starts.
struct Job {
    number: u64,
    began: u64,
}

impl Job {
    fn in_slot(slot: u64, at: u64) -> Job {
        let (mut number, mut began) = (slot * 1000, 0);
        loop {
            let lasts = between(600.0, 9.0 * 3600.0, dice(1, number, 0)) as u64;
            if at < began + lasts {
                return Job { number, began };
            }
            (number, began) = (number + 1, began + lasts);
        }
    }

    fn serves(&self) -> bool {
        self.number.is_multiple_of(4)
    }

    fn starts_for(&self) -> u64 {
        between(20.0, 660.0, dice(2, self.number, 0)) as u64
    }

    fn doing(&self, at: u64) -> Doing {
        let (age, n) = (at - self.began, self.number);
        let start = self.starts_for();
        let compile = start + between(10.0, 200.0, dice(3, n, 0)) as u64;
        if age < start {
            return Doing::Starts;
        }
        if age < compile {
            return Doing::Compiles;
        }
        let working = age - compile;
        // Every so often a save, and every two hours or so an evaluation.
        let save_every = between(600.0, 3600.0, dice(4, n, 0)) as u64;
        let save = between(5.0, 150.0, dice(5, n, working / save_every)) as u64;
        let eval_every = between(4000.0, 9000.0, dice(6, n, 0)) as u64;
        let eval = between(60.0, 540.0, dice(7, n, working / eval_every)) as u64;
        if working > save_every && working % save_every < save {
            return Doing::Waits;
        }
        if working > eval_every && working % eval_every < eval {
            return Doing::Evaluates;
        }
        // Data comes late for a minute and a half, now and then.
        let late = dice(8, n, working / 600) < 0.1 && working % 600 < 90;
        if late { Doing::Waits } else { Doing::Steps }
    }

    /// How many seconds ago it made its last step.
    fn stepped(&self, at: u64) -> Option<u64> {
        let first = self.began + self.starts_for();
        (0..=(at - first.min(at)).min(1200)).find(|ago| self.doing(at - ago) == Doing::Steps)
    }

    fn seen(&self, at: u64) -> TaskSeen {
        let doing = self.doing(at);
        let gpu = |gpu| self.gpu(gpu, doing, at);
        TaskSeen {
            id: TaskId::single(JobId(self.number)),
            era: 1,
            job: AlertJob { name: format!("job-{}", self.number), user: "ada".into() },
            asks: None,
            gpus: (0..GPUS).map(gpu).collect(),
            steps: if self.serves() { None } else { self.steps(at) },
        }
    }

    /// The engine never says stalled before half a minute without a step; here it always does then.
    fn steps(&self, at: u64) -> Option<Steps> {
        let pace = between(0.2, 12.0, dice(9, self.number, 0));
        let age = Span((self.stepped(at)? * 1000).max((pace * 500.0) as u64));
        // A rank is a few steps late for a while: a garbage collection, a slow read.
        let late = dice(10, self.number, at / 240) < 0.3 && at % 240 < 120;
        let lag = Lag {
            rank: Rank(2),
            node: Some("n2".into()),
            steps: 1 + (dice(11, self.number, at) * 3.0) as u64,
        };
        Some(Steps {
            age,
            pace: Some(Span((pace * 1000.0) as u64)),
            stalled: age >= Span::secs(30),
            behind: late.then_some(lag),
        })
    }

    fn gpu(&self, gpu: u16, doing: Doing, at: u64) -> GpuSeen {
        let roll = |n: u64| dice(20 + n, self.number * 16 + u64::from(gpu), at);
        let (activity, busy, power, traffic) = match (self.serves(), doing) {
            (_, Doing::Starts) => (0.0, between(0.0, 0.02, roll(1)), 0.1, 0.0),
            (true, _) => self.serving(at, roll(2)),
            (_, Doing::Compiles) => (between(0.0, 0.2, roll(3)), 0.3, 0.25, 0.05),
            (_, Doing::Waits) => {
                (between(0.0, 0.02, roll(4)), between(0.0, 0.3, roll(5)), 0.15, 0.0)
            }
            (_, Doing::Evaluates) => (between(0.2, 0.6, roll(6)), 1.0, 0.5, 0.3),
            (_, Doing::Steps) => {
                (between(0.5, 0.95, roll(7)), 1.0, between(0.55, 0.98, roll(8)), 0.4)
            }
        };
        // An allocator takes what it needs in the first minutes and keeps it, nearly all of it.
        let fill = ((at - self.began) as f64 / 300.0).min(1.0);
        let most = between(0.4, 0.99, dice(30, self.number, 0));
        let fills = fill < 1.0;
        GpuSeen {
            node: format!("n{}", self.number % 4 + 1),
            gpu,
            activity: Some(activity),
            busy: Some(busy),
            power: Some(power),
            traffic: Some(traffic),
            memory: Some(fill * most),
            growth: Some(if fills { most / 300.0 } else { 0.0 }),
        }
    }

    /// Decoding: always busy, little power, much traffic. At night requests are few.
    fn serving(&self, at: u64, roll: f64) -> (f64, f64, f64, f64) {
        let night = (2 * 3600..5 * 3600).contains(&(at % DAY));
        match night {
            true => (between(0.05, 0.1, roll), between(0.1, 0.3, roll), 0.2, 0.05),
            false => (between(0.3, 0.6, roll), 1.0, between(0.25, 0.6, roll), 0.4),
        }
    }
}

fn node(n: u64, now: u64) -> NodeSeen {
    // Restarted once in the morning; one of them twice, with a loose cable.
    let restarted = 9 * 3600 + n * 700;
    let mut left = vec![restarted];
    if n == 2 {
        left.insert(0, restarted + 400);
    }
    left.retain(|at| *at <= now);
    // It starts anew longer than a node may be silent.
    let (from, until) = (restarted + 20, restarted + 50);
    NodeSeen {
        name: format!("n{n}"),
        memory: Some(between(0.2, 0.9, dice(40, n, now / 60))),
        left: left.into_iter().map(|at| Time(at * 1000)).collect(),
        lost: (from..until).contains(&now).then_some(Time(from * 1000)),
        shared_key: None,
    }
}

fn look(now: u64) -> Seen {
    let tasks: Vec<TaskSeen> = (0..JOBS).map(|slot| Job::in_slot(slot, now).seen(now)).collect();
    // One fails once at noon, and gets further the next time.
    let failed_once = CirclingSeen {
        id: tasks[0].id,
        job: tasks[0].job.clone(),
        asks: None,
        failures: Some(u32::from((12 * 3600..12 * 3600 + 900).contains(&now))),
        over: false,
    };
    let filled = between(0.5, 0.9, now as f64 / DAY as f64);
    Seen {
        now: Time(now * 1000),
        tasks,
        circling: vec![failed_once],
        nodes: (1..=4).map(|n| node(n, now)).collect(),
        teams: vec![TeamSeen {
            name: "vision".into(),
            budget: Budget { gpu_hours: 1200, per: Period::Day },
            used_hours: now as f64 / 3600.0 * 48.0,
        }],
        disks: vec![DiskSeen {
            node: None,
            path: None,
            free: Some(1.0 - filled),
            free_bytes: 1 << 38,
        }],
        certificates: vec![CertificateSeen {
            which: Certificate::Ca,
            left: Span::secs(400 * DAY - now),
        }],
    }
}

#[test]
fn a_day_of_normal_work_makes_no_alert() {
    let (mut watcher, policy) = (Watcher::default(), WatchPolicy::default());
    for now in (0..DAY).step_by(ROUND as usize) {
        let changes = watcher.round(&policy, &look(now));
        assert_eq!(changes, [], "at {}", Span::secs(now));
    }
}

/// The day is not quiet because nothing could be heard in it.
#[test]
fn the_same_day_with_one_thing_wrong_makes_that_alert() {
    let wrong = |rule: WatchRule, seen: &mut Seen| match rule {
        WatchRule::Idle => {
            let gpu = &mut seen.tasks[5].gpus[0];
            (gpu.activity, gpu.busy) = (Some(0.0), Some(0.0));
        }
        WatchRule::Memory => {
            let gpu = &mut seen.tasks[5].gpus[0];
            (gpu.memory, gpu.growth) = (Some(0.97), Some(1e-4));
        }
        WatchRule::Disk => seen.disks[0].free = Some(0.02),
        WatchRule::Budget => seen.teams[0].used_hours = 1300.0,
        WatchRule::NodeLost => seen.nodes[0].lost = Some(Time(0)),
        _ => unreachable!("not in the list"),
    };
    let rules = [
        WatchRule::Idle,
        WatchRule::Memory,
        WatchRule::Disk,
        WatchRule::Budget,
        WatchRule::NodeLost,
    ];
    for rule in rules {
        let (mut watcher, policy) = (Watcher::default(), WatchPolicy::default());
        let began = (0..DAY).step_by(ROUND as usize).find_map(|now| {
            let mut seen = look(now);
            wrong(rule, &mut seen);
            watcher.round(&policy, &seen).into_iter().find_map(|change| match change {
                Change::Began(alert) => Some(alert),
                Change::Ended(_) => None,
            })
        });
        assert_eq!(began.map(|alert| alert.rule), Some(rule));
    }
}
