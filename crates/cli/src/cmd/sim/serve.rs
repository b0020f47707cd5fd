//! `tutti sim --serve`: the dashboard of a simulated cluster.
//!
//! ```text
//!  this thread: the controller's port and pages          the other: the simulator
//!        World  ◄────────── moved under its lock ──────────  replay, up to the time it is
//!        telemetry, the past of the overview ◄─────────────  made up from what runs
//! ```

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tutti_controller::core::World;
use tutti_controller::{ControllerConfig, Stage, run_stage, stage};
use tutti_engine::{Command, Engine, Record, Settings, Step};
use tutti_model::{Span, Time};
use tutti_sim::cluster::Cluster;
use tutti_sim::replay::{self, Host, Options};
use tutti_sim::trace::Trace;
use tutti_sim::vitals;

use super::{SimArgs, failed};
use crate::fail::{Fail, chain};
use crate::local::temporary_dir;
use crate::terminal;

/// Ended jobs stay on the pages.
const KEEP: Span = Span::secs(7 * 24 * 3600);
/// When it is, unless somebody says otherwise.
const AT: Span = Span::secs(18 * 3600);
/// How far back machines are known, and in what steps: the longer ago, the coarser.
const KNOWN: &[(Span, Span)] = &[
    (Span::secs(8 * 3600), Span::secs(60)),
    (Span::secs(3600), Span::secs(30)),
    (Span::secs(11 * 60), Span::secs(10)),
];
/// Up to here the past is kept in minutes.
const FINE: Span = Span::secs(3600);
const MINUTE: Span = Span::secs(60);
/// While time goes on, the world is moved so often.
const MOVE_EVERY: Duration = Duration::from_millis(500);

/// The controller's world as the simulator has it in hand.
struct Hosted {
    world: World,
    records: Vec<Record>,
}

impl Hosted {
    fn keep(&mut self, step: Step) -> Step {
        self.records.extend(step.records.iter().cloned());
        step
    }
}

impl Host for Hosted {
    fn engine(&self) -> &Engine {
        &self.world.engine
    }
    fn step(&mut self, command: Command, now: Time) -> Step {
        let step = self.world.step(command, now);
        self.keep(step)
    }
    fn schedule(&mut self, now: Time) -> Step {
        let step = self.world.schedule(now);
        self.keep(step)
    }
}

/// Runs until it is told to stop.
pub fn show(
    addr: SocketAddr,
    args: &SimArgs,
    note: &str,
    cluster: &Cluster,
    trace: &Trace,
    options: Options,
) -> Result<(), Fail> {
    let options = Options { keep: KEEP, ..options };
    let world = World::new(Engine::new(replay::settings(&options)));
    let host = Hosted { world, records: Vec::new() };
    let mut sim = replay::World::new(host, cluster, trace, &options).map_err(|e| failed(&e))?;
    let dir = Dir::make()?;
    let path = dir.0.as_path();
    let mut config = ControllerConfig::new(path);
    config.listen = addr;
    let (world, began) = (take(&mut sim), sim.start());
    let (sender, staged) = mpsc::channel();
    std::thread::scope(|scope| {
        let player = scope.spawn(move || match staged.recv() {
            Ok((stage, addr)) => {
                Player { sim, stage, began }.play(args, &Words { note, path, addr })
            }
            Err(_) => Ok(()),
        });
        let shown = run_stage(async move {
            let (handle, stage) = stage(config, world, began).await?;
            // Refused only if the other thread is gone, which says why.
            let _ = sender.send((stage, handle.addr));
            Ok(handle)
        });
        let played = player.join().unwrap_or_else(|_| Err(Fail::new("the simulation broke off")));
        shown.map_err(|e| Fail::new(chain(&e)))?;
        played
    })
}

/// What the simulator's world leaves behind while it is shown.
fn nothing() -> World {
    World::new(Engine::new(Settings::default()))
}

fn take(sim: &mut replay::World<'_, Hosted>) -> World {
    sim.host().records.clear();
    std::mem::replace(&mut sim.host().world, nothing())
}

struct Player<'a> {
    sim: replay::World<'a, Hosted>,
    stage: Stage,
    /// When the trace starts.
    began: Time,
}

impl Player<'_> {
    fn play(mut self, args: &SimArgs, words: &Words<'_>) -> Result<(), Fail> {
        let (at, pace) = (args.at.unwrap_or(AT), args.pace.unwrap_or(0.0));
        let shown = self.catch_up(at).and_then(|()| {
            self.stage.set_clock(self.began.plus(at), pace);
            words.say(at, pace);
            if pace > 0.0 { self.go_on(at, pace) } else { Ok(()) }
        });
        if shown.is_err() {
            self.stage.stop();
        }
        shown
    }

    /// Up to the time that is to be shown, with as much of the past as pages look at.
    fn catch_up(&mut self, at: Span) -> Result<(), Fail> {
        let mut now = Span(at.0.saturating_sub(KNOWN[0].0.0));
        self.advance(now)?;
        loop {
            let left = Span(at.0 - now.0);
            self.look(now, left > FINE);
            if left.0 == 0 || self.stage.stopped() {
                return Ok(());
            }
            let fits = |(known, _): &&(Span, Span)| left <= *known;
            let step = KNOWN.iter().rev().find(fits).map_or(left, |(_, step)| *step);
            now = Span(now.0 + step.0.min(left.0));
            self.advance(now)?;
        }
    }

    fn advance(&mut self, until: Span) -> Result<(), Fail> {
        let mut went = Ok(());
        let sim = &mut self.sim;
        self.stage.play(|world| {
            std::mem::swap(world, &mut sim.host().world);
            went = sim.advance(until);
            std::mem::swap(world, &mut sim.host().world);
            std::mem::take(&mut sim.host().records)
        });
        went.map_err(|e| failed(&e))
    }

    /// What machines say at this moment, or of the whole minute.
    fn look(&mut self, at: Span, minute: bool) {
        let now = self.began.plus(at);
        self.stage.set_clock(now, 0.0);
        self.hear(now, minute);
        self.stage.beat(now, minute || at.0.is_multiple_of(MINUTE.0));
        if at.0.is_multiple_of(MINUTE.0) {
            self.stage.close_minutes(now);
        }
    }

    fn hear(&self, now: Time, minute: bool) {
        let samples = self.stage.look(|world| {
            let samples = vitals::samples(world.engine.state(), now);
            samples.map(|(node, sample)| (node.to_owned(), sample)).collect::<Vec<_>>()
        });
        for (node, sample) in samples.into_iter().flatten() {
            match minute {
                true => self.stage.recall(&node, sample),
                false => self.stage.hear(&node, sample),
            }
        }
    }

    fn go_on(&mut self, from: Span, pace: f64) -> Result<(), Fail> {
        let began = Instant::now();
        // Ranks report about every two seconds of those who watch, and nodes are not lost.
        let every = Span((2000.0 * pace) as u64).clamp(Span::secs(2), super::HEARTBEAT);
        self.sim.speak_every(every);
        let mut minute = from.0 / MINUTE.0;
        while !self.stage.stopped() {
            std::thread::sleep(MOVE_EVERY);
            let at = Span(from.0 + (began.elapsed().as_secs_f64() * pace * 1000.0) as u64);
            self.advance(at)?;
            let now = self.began.plus(at);
            self.hear(now, false);
            if at.0 / MINUTE.0 > minute {
                minute = at.0 / MINUTE.0;
                self.stage.beat(now, true);
                self.stage.close_minutes(now);
            }
        }
        Ok(())
    }
}

/// What is shown, and where.
struct Words<'a> {
    note: &'a str,
    path: &'a Path,
    addr: SocketAddr,
}

impl Words<'_> {
    fn say(&self, at: Span, pace: f64) {
        let clock = match pace {
            0.0 => "the clock stands still".to_owned(),
            pace => format!("the clock goes {pace} times as fast"),
        };
        let (note, addr, dir) = (self.note, self.addr, self.path.display());
        terminal::say(&format!(
            "simulated: {note}, {at} after the start; {clock}\n  \
             dashboard at http://{addr}/, log in with the token in {dir}/admin.token\n  \
             or watch it with tutti top --cluster {dir}\n  \
             nothing can be changed; Ctrl-C ends it"
        ));
    }
}

/// A data dir for as long as it is shown.
struct Dir(PathBuf);

impl Dir {
    fn make() -> Result<Dir, Fail> {
        temporary_dir("tutti-sim").map(Dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            terminal::warn(&format!("can't remove {}: {error}", self.0.display()));
        }
    }
}
