//! From the state and telemetry to what pages show.

pub mod alerts;
pub mod cost;
pub mod endpoints;
pub mod job;
pub mod jobs;
pub mod nodes;
pub mod overview;
pub mod timeline;

use std::sync::Arc;

use tutti_web::Shown;

use super::hub::Topic;
use crate::api::{App, Problem};
use crate::clock::now;

/// What of a page is live, as it is now.
pub async fn shown(app: &Arc<App>, topic: &Topic) -> Result<Shown, Problem> {
    Ok(match topic {
        Topic::Overview => overview::view(app).await?.shown(),
        Topic::Queue(q) => jobs::queue(app, q).await?.shown(),
        Topic::Jobs(q) => jobs::jobs(app, q).await?.shown(),
        Topic::Job(id) => job::view(app, *id, None).await?.shown(),
        Topic::Endpoints(q) => endpoints::list(app, q).await?.shown(),
        Topic::Endpoint(name) => endpoints::one(app, name, None).await?.shown(),
        Topic::Nodes => nodes::list(app).await?.shown(),
        Topic::Node(name) => nodes::one(app, name).await?.shown(),
        Topic::Teams => teams(app).await?.shown(),
        Topic::Cost(by) => cost::view(app, *by).await?.shown(),
        Topic::Alerts => alerts::view(app).await?.shown(),
        Topic::Timeline => timeline::view(app).await?.shown(),
    })
}

pub async fn teams(app: &App) -> Result<tutti_web::teams::View, Problem> {
    let view = app.core.read(|world| {
        let state = world.engine.state();
        let gpus = state.nodes.values().map(|node| node.facts.gpus.len() as u64).sum();
        let past = app.dash.pulse.teams();
        tutti_web::teams::View { teams: tutti_sched::shares(state, now()), gpus, past }
    });
    Ok(view.await?)
}
