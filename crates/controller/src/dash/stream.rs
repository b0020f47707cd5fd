//! The live stream of a page.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use http::{HeaderMap, Method};
use serde::Deserialize;
use tokio::sync::watch;
use tutti_model::TaskId;

use super::hub::Topic;
use super::session::{Session, is_open};
use crate::api::auth::by_session;
use crate::api::sse::{self, Left, Sender, Stream};
use crate::api::{App, Problem};
use crate::clock::now;

/// How soon a stream ends after its session or its token did.
const LOOK_EVERY: Duration = Duration::from_secs(5);

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
            ("nodes", _) => Topic::Nodes,
            ("node", _) => Topic::Node(self.name),
            ("teams", _) => Topic::Teams,
            ("cost", _) => Topic::Cost(self.q),
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
) -> Result<Stream, Problem> {
    session.allows(&Method::GET, &headers)?;
    let query: Query = serde_urlencoded::from_str(request.0.as_deref().unwrap_or_default())
        .map_err(|error| Problem::invalid(format!("in the query: {error}")))?;
    let topic = query.topic()?;
    let (sender, stream) = sse::channel();
    tokio::spawn(async move {
        // The reader left, or may not look any more: either way nothing is left to do.
        let _ = send(&app, &session, topic, &sender).await;
    });
    Ok(stream)
}

async fn send(app: &Arc<App>, session: &Session, topic: Topic, out: &Sender) -> Result<(), Left> {
    let mut page = app.dash.hub.subscribe(app, topic);
    let mut stopping = app.stopping();
    let mut look = tokio::time::interval(LOOK_EVERY);
    loop {
        tokio::select! {
            changes = page.next() => {
                let Some(changes) = changes else { return Ok(()) };
                for change in changes.iter() {
                    out.send_text(change.name, &change.data).await?;
                }
            }
            _ = look.tick() => {
                let may = is_open(&app.dash.sessions, &session.id) && by_session(app, session, now()).is_ok();
                if !may {
                    return Ok(());
                }
            }
            () = out.left() => return Err(Left),
            () = stopped(&mut stopping) => return Ok(()),
        }
    }
}

/// Resolves when the controller is to stop.
async fn stopped(stopping: &mut watch::Receiver<bool>) {
    // The guard must not live on, and an error means that the controller is gone already.
    let _ = stopping.wait_for(|s| *s).await;
}
