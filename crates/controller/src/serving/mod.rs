//! What routers say, gathered: how much is asked of each endpoint now, how it went lately, and what it
//! has served in all. In memory; the engine hears a level once a second and what was served once a
//! minute, or at once of an endpoint that stops.
//!
//! ```text
//!  routers ── report, once a second ──► Routers ─┬─► loads ─► Command::Load    each second, or at once
//!                                                ├─► accounts ─► Command::Served   each minute, and
//!                                                │                            when one goes
//!                                                └─► figures ─► api, pages, /metrics
//! ```
//! It decides nothing: how many replicas there are and which revision serves is the engine's.

mod accounts;
mod file;
mod loads;
mod routers;
mod tally;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use tutti_engine::Command;

use crate::api::App;
use crate::clock::now;
use crate::core::{Core, Stopped};

pub use accounts::Pending;
pub use loads::Scene;
use loads::lately_gone;
pub use routers::{BadReport, News, ReplicaSeen, Routers, Seen};
pub use tally::Point;

const LOAD_EVERY: Duration = Duration::from_secs(1);
/// Turns between two times that the engine is told what was served.
const TURNS_PER_SERVED: u32 = 60;

/// Tells the engine what routers say, until the controller stops.
pub async fn keep(app: Arc<App>) {
    let mut stopping = app.stopping();
    let mut every = tokio::time::interval(LOAD_EVERY);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for turn in 1.. {
        tokio::select! {
            _ = every.tick() => {}
            _ = stopping.wait_for(|s| *s) => return,
        }
        if tell_load(&app).await.is_err() {
            return;
        }
        let due = turn % TURNS_PER_SERVED == 0 || account_ends(&app).unwrap_or(false);
        if due && tell_served(&app.core, &app.routers).await.is_err() {
            return;
        }
    }
}

/// An endpoint that goes or is gone has served more: soon nobody can be told of it.
fn account_ends(app: &App) -> Result<bool, Stopped> {
    app.core.peek(|world| {
        let state = world.engine.state();
        let going = state.endpoints.values().filter(|endpoint| endpoint.stopping);
        let mut names = going.map(|e| e.name.as_str()).chain(lately_gone(state, now()).into_keys());
        names.any(|name| app.routers.owes(name))
    })
}

/// What is asked of every endpoint now. Nothing while there is none.
pub async fn tell_load(app: &App) -> Result<(), Stopped> {
    let scene = app.core.peek(|world| Scene::of(world.engine.state(), now()))?;
    let loads = app.routers.loads(&scene, now());
    if loads.is_empty() {
        return Ok(());
    }
    app.core.tell(vec![Command::Load { loads }]).await
}

/// What was served since the last time, and then on disk how far that was. Breaking off in between
/// counts it twice; it is never lost.
pub(crate) async fn tell_served(core: &Core, routers: &Routers) -> Result<(), Stopped> {
    let _one_at_a_time = routers.telling.lock().await;
    let (scene, has) = core.peek(|world| {
        let state = world.engine.state();
        let here = state.endpoints.values().map(|e| (e.name.clone(), e.served.clone()));
        let gone = lately_gone(state, now()).into_values();
        let gone = gone.map(|past| (past.name.clone(), past.served.clone()));
        (Scene::of(state, now()), here.chain(gone).collect())
    })?;
    // Else what one has served would be booked to the next of its name.
    routers.forget_endpoints(&scene);
    let Some(told) = routers.take_served(&has, now()) else { return Ok(()) };
    let served = told.served.into_iter();
    let commands: Vec<Command> =
        served.map(|(endpoint, more)| Command::Served { endpoint, more }).collect();
    if !commands.is_empty() {
        // One that is refused is of an endpoint that nobody remembers.
        core.call_many(commands).await?;
    }
    routers.told();
    tokio::task::block_in_place(|| routers.save(&told.accounts));
    Ok(())
}
