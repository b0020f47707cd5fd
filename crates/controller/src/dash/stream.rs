//! The live stream of a page.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, Method};
use serde::Deserialize;
use tokio::sync::watch;
use tutti_model::TaskId;

use super::gather;
use super::hub::{Subscription, Topic};
use super::session::Session;
use crate::api::sse::{self, Left, Texts};
use crate::api::{App, Problem};

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Query {
    page: String,
    q: String,
    id: Option<TaskId>,
    name: String,
}

impl Query {
    fn topic(self) -> Result<Topic, Problem> {
        Ok(match (self.page.as_str(), self.id) {
            ("overview", _) => Topic::Overview,
            ("queue", _) => Topic::Queue(self.q),
            ("jobs", _) => Topic::Jobs(self.q),
            ("job", Some(id)) => Topic::Job(id),
            ("endpoints", _) => Topic::Endpoints(self.q),
            ("endpoint", _) => Topic::Endpoint(self.name),
            ("nodes", _) => Topic::Nodes,
            ("node", _) => Topic::Node(self.name),
            ("teams", _) => Topic::Teams,
            ("cost", _) => Topic::Cost(gather::cost::by(&self.q)),
            ("alerts", _) => Topic::Alerts,
            ("timeline", _) => Topic::Timeline,
            (page, _) => return Err(Problem::not_found(format!("there is no live page '{page}'"))),
        })
    }
}

pub async fn live(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    headers: HeaderMap,
    request: axum::extract::RawQuery,
) -> Result<Response, Problem> {
    session.allows(&Method::GET, &headers)?;
    let query: Query = serde_urlencoded::from_str(request.0.as_deref().unwrap_or_default())
        .map_err(|error| Problem::invalid(format!("in the query: {error}")))?;
    let mut page = app.dash.hub.subscribe(&app, query.topic()?);
    // Of what can't be shown there is no stream: browsers would open it again and again.
    let Some(first) = page.next().await else { return Err(page.problem()) };
    let (sender, stream) = sse::texts();
    tokio::spawn(async move {
        // The reader left, or may not look any more: either way nothing is left to do.
        let _ = send(&app, &session, page, first, &sender).await;
    });
    Ok(stream)
}

async fn send(
    app: &App,
    session: &Session,
    mut page: Subscription,
    first: Bytes,
    out: &Texts,
) -> Result<(), Left> {
    out.send(first).await?;
    let mut stopping = app.stopping();
    let ended = session.ended(app);
    tokio::pin!(ended);
    loop {
        tokio::select! {
            changes = page.next() => {
                let Some(changes) = changes else { return Ok(()) };
                out.send(changes).await?;
            }
            () = &mut ended => return Ok(()),
            left = out.quiet() => return Err(left),
            () = stopped(&mut stopping) => return Ok(()),
        }
    }
}

/// Resolves when the controller is to stop.
async fn stopped(stopping: &mut watch::Receiver<bool>) {
    // The guard must not live on, and an error means that the controller is gone already.
    let _ = stopping.wait_for(|s| *s).await;
}
