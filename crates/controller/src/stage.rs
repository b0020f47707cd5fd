//! A simulated cluster on the controller's port: the same pages and API, over a world that a simulator
//! moves and a clock that it sets. Nothing can be changed there: the only token is a viewer's.
//!
//! ```text
//!  simulator ── play ──► World ◄── reads ── pages, API, `tutti top`
//!            ── hear ──► telemetry
//!            ── beat ──► the past of the overview
//! ```

use std::future::Future;
use std::sync::{Arc, Mutex};

use tutti_engine::{Command, Record};
use tutti_model::{NodeSample, Role, Span, Time};
use tutti_watch::Watcher;

use crate::api::App;
use crate::clock;
use crate::config::ControllerConfig;
use crate::core::{self, Scene, Started, World};
use crate::dash;
use crate::error::ControllerError;
use crate::identity::{self, Identity};
use crate::idle;
use crate::links::{GangKeys, Links};
use crate::lock::lock;
use crate::start::{self, Handle, Inside};
use crate::telemetry::Store;
use crate::watch;

/// How often it is looked for GPUs that do nothing.
const IDLE_EVERY: Span = Span::secs(300);

/// And for what else is wrong.
const WATCH_EVERY: Span = Span::secs(60);

/// Where a simulated cluster is shown.
pub struct Stage {
    scene: Scene,
    app: Arc<App>,
    rounds: Mutex<Rounds>,
}

/// What is done now and then, and when it is next.
#[derive(Default)]
struct Rounds {
    watcher: Watcher,
    watch_at: Time,
    idle_at: Time,
}

/// Shows a world, at this moment, in the current tokio runtime. The clock of the process is the
/// simulation's from here on.
pub async fn stage(
    config: ControllerConfig,
    mut world: World,
    now: Time,
) -> Result<(Handle, Stage), ControllerError> {
    clock::stage(now, 0.0);
    start::prepare_dir(&config.data_dir)?;
    let identity = Identity::load_or_create(&config)?;
    let token = identity::mint(&identity.ca, &config.data_dir, Role::Viewer)?;
    let add = Command::AddToken { actor: identity::operator(), token };
    world.step(add, now).reply.map_err(core::CallError::Rejected)?;
    let links = Arc::new(Links::new(GangKeys::new(&identity.ca)));
    let (Started { core, ended }, scene) = core::stage(world);
    let telemetry = Arc::new(Store::default());
    let inside = Inside { core, ended, links, identity, telemetry, keeper: None };
    let (handle, app) = start::open(config, inside).await?;
    Ok((handle, Stage { scene, app, rounds: Mutex::default() }))
}

/// Runs a stage until SIGTERM or SIGINT.
pub fn run_stage(
    staged: impl Future<Output = Result<Handle, ControllerError>>,
) -> Result<(), ControllerError> {
    start::run_until_signal(staged)
}

impl Stage {
    /// It is `now`, and time goes on `pace` times as fast as outside; 0 stands still.
    pub fn set_clock(&self, now: Time, pace: f64) {
        clock::stage(now, pace);
    }

    pub fn now(&self) -> Time {
        clock::now()
    }

    /// Moves the world; the records of that are what became of it.
    pub fn play(&self, act: impl FnOnce(&mut World) -> Vec<Record>) {
        self.scene.play(act);
    }

    /// None if the show is over.
    pub fn look<T>(&self, look: impl FnOnce(&World) -> T) -> Option<T> {
        self.app.core.peek(look).ok()
    }

    /// What a node says of its GPUs.
    pub fn hear(&self, node: &str, sample: NodeSample) {
        let at = sample.at;
        self.app.telemetry.push(node, sample, at);
    }

    /// What it said a while ago, of a whole minute.
    pub fn recall(&self, node: &str, sample: NodeSample) {
        self.app.telemetry.recall(node, sample);
    }

    /// A point of the cluster's past; `teams` too now and then.
    pub fn beat(&self, at: Time, teams: bool) {
        dash::beat(&self.app, at, teams);
        let mut rounds = lock(&self.rounds);
        if at >= rounds.watch_at {
            rounds.watch_at = at.plus(WATCH_EVERY);
            watch::look_on(&self.app, &mut rounds.watcher, at);
        }
        if at < rounds.idle_at {
            return;
        }
        // Dear with many GPUs, and who idles does so for minutes.
        rounds.idle_at = at.plus(IDLE_EVERY);
        if let Ok((_, turned)) = idle::turned(&self.app, at) {
            let step = |world: &mut World, command| world.step(command, at).records;
            self.play(|world| turned.into_iter().flat_map(|c| step(world, c)).collect());
        }
    }

    /// Nobody looks any more.
    pub fn stopped(&self) -> bool {
        *self.app.shutdown.borrow()
    }

    /// Ends the show.
    pub fn stop(&self) {
        self.app.shutdown.send_replace(true);
    }

    /// Seconds before `at` become minutes.
    pub fn close_minutes(&self, at: Time) {
        self.app.telemetry.close(at.0 / 1000);
    }
}
