//! Engine records as they become durable.

use std::borrow::Cow;
use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use http::HeaderMap;
use serde::{Deserialize, Serialize};
use tutti_engine::{Event, Record};
use tutti_model::{JobId, JobSpec, Role, Seq};
use utoipa::{IntoParams, ToSchema};

use super::App;
use super::auth::Caller;
use super::body::Params;
use super::openapi::Problems;
use super::policy::as_seen_by;
use super::problem::Problem;
use super::sse::{self, Left, Sender, Stream};
use crate::feed::Pulled;
use crate::reads::jobs_of;
use crate::views;

/// Records taken from the ring at once.
const PULL_MAX: usize = 256;

#[derive(Clone, Copy, Debug, Default, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub struct EventQuery {
    /// Records after this one; none is from now on. `Last-Event-ID` goes before it.
    since: Option<u64>,
    /// Only about this job.
    job: Option<u64>,
}

/// SSE event `lagged`: records before `first` are no longer in memory. Look at the state, then go
/// on from here.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct Lagged {
    missed_after: u64,
    first: u64,
}

/// A stream of records. The event name is the kind of the record, its id the sequence number; a
/// reader that was too slow gets `lagged`.
#[utoipa::path(get, path = "/api/v1/events", tag = "cluster", params(EventQuery),
    responses((status = 200, content_type = "text/event-stream", body = Lagged), Problems))]
pub async fn events(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Params(query): Params<EventQuery>,
) -> Result<Stream, Problem> {
    let resumed = headers.get("last-event-id").and_then(|v| v.to_str().ok()?.parse().ok());
    let newest = app.core.feed().durable().borrow().seq;
    let position = resumed.or(query.since).map_or(newest, Seq).min(newest);
    let (sender, stream) = sse::channel();
    tokio::spawn(async move {
        // The reader left, or the controller stops: either way nothing is left to do.
        let _ = send_records(&app, &caller, &sender, position, query.job.map(JobId)).await;
    });
    Ok(stream)
}

async fn send_records(
    app: &App,
    caller: &Caller,
    sender: &Sender,
    mut position: Seq,
    job: Option<JobId>,
) -> Result<(), Left> {
    let mut durable = app.core.feed().durable();
    let mut stopping = app.stopping();
    loop {
        durable.borrow_and_update();
        match app.core.feed().pull(position, PULL_MAX) {
            Pulled::Lagged { first } => {
                let lagged = Lagged { missed_after: position.0, first: first.0 };
                sender.send("lagged", &lagged).await?;
                position = Seq(first.0 - 1);
            }
            Pulled::Records(records) if records.is_empty() => tokio::select! {
                changed = durable.changed() => if changed.is_err() || durable.borrow().stopped {
                    return Ok(());
                },
                () = sender.left() => return Err(Left),
                _ = stopping.wait_for(|s| *s) => return Ok(()),
            },
            Pulled::Records(records) => {
                for record in records {
                    position = record.seq;
                    if job.is_none_or(|j| jobs_of(&record.event).contains(&j))
                        && let Some(shown) = shown(&record, caller)
                    {
                        sender.send_id("record", record.seq.0, shown.as_ref()).await?;
                    }
                }
            }
        }
    }
}

/// The record without what is not the reader's to know: hashes, idempotency keys, what others set in
/// their environments, and where exactly alerts are posted. None for records about tokens, which are
/// for admins.
fn shown<'a>(record: &'a Record, caller: &Caller) -> Option<Cow<'a, Record>> {
    let event = match &record.event {
        Event::TokenAdded { .. } | Event::TokenUsed { .. } | Event::TokenRevoked { .. }
            if caller.actor.role < Role::Admin =>
        {
            return None;
        }
        // Whoever may see it has it in the event that refers to it.
        Event::TextKept { .. } => return None,
        Event::TokenAdded { token } => {
            let mut token = token.clone();
            token.hash = String::new();
            Event::TokenAdded { token }
        }
        Event::JobSubmitted { user: author, .. } => {
            let mut event = record.event.clone();
            if let Event::JobSubmitted { spec, key, .. } = &mut event {
                *spec = spec_for(caller, author, spec);
                *key = None;
            }
            event
        }
        Event::EndpointCreated { user: author, .. } | Event::EndpointRevised { by: author, .. } => {
            let mut event = record.event.clone();
            if let Event::EndpointCreated { key, .. } = &mut event {
                *key = None;
            }
            if let Event::EndpointCreated { spec, .. } | Event::EndpointRevised { spec, .. } =
                &mut event
            {
                *spec = spec_for(caller, author, spec);
            }
            event
        }
        Event::PolicyChanged { policy, by } => {
            Event::PolicyChanged { policy: as_seen_by(policy, caller), by: by.clone() }
        }
        _ => return Some(Cow::Borrowed(record)),
    };
    Some(Cow::Owned(Record { event, ..record.clone() }))
}

/// As it is to whoever wrote it and to admins.
fn spec_for(caller: &Caller, author: &str, spec: &Arc<JobSpec>) -> Arc<JobSpec> {
    match caller.may_look_inside(author) {
        true => Arc::clone(spec),
        false => Arc::new(views::without_secrets(spec)),
    }
}

#[cfg(test)]
mod tests {
    use tutti_engine::Actor;
    use tutti_model::{Policy, TextRefs, Time};

    use super::*;

    #[test]
    fn environments_of_endpoints_are_for_those_who_wrote_them() {
        let env = [("API_KEY".to_owned(), "hush".to_owned())].into();
        let spec = Arc::new(JobSpec { env, ..JobSpec::shell("serve") });
        let (endpoint, by) = ("chat".to_owned(), "ada".to_owned());
        let created = Event::EndpointCreated {
            endpoint: endpoint.clone(),
            user: by.clone(),
            team: "default".to_owned(),
            spec: Arc::clone(&spec),
            by: by.clone(),
            key: Some("once".to_owned()),
            want: 1,
            texts: TextRefs::default(),
        };
        let (same_as, rollout) = (None, None);
        let texts = TextRefs::default();
        let revised =
            Event::EndpointRevised { endpoint, revision: 2, spec, by, same_as, rollout, texts };
        for event in [created, revised] {
            let record = Record { seq: Seq(1), at: Time(0), event };
            let seen_by = |user: &str, role| {
                let caller = Caller { actor: Actor { user: user.to_owned(), role } };
                serde_json::to_string(&shown(&record, &caller).unwrap()).unwrap()
            };
            assert!(seen_by("ada", Role::User).contains("hush"));
            assert!(seen_by("root", Role::Admin).contains("hush"));
            let other = seen_by("bob", Role::User);
            assert!(other.contains("API_KEY") && !other.contains("hush"), "{other}");
            assert!(!other.contains("once"), "{other}");
        }
    }

    #[test]
    fn a_change_of_the_policy_does_not_tell_everybody_where_alerts_are_posted() {
        let mut policy = Policy::default();
        policy.watch.notify.webhook = Some("https://hooks.example.org/T00/secret".to_owned());
        let event = Event::PolicyChanged { policy: Arc::new(policy), by: "root".to_owned() };
        let record = Record { seq: Seq(1), at: Time(0), event };
        let seen_by = |role| {
            let caller = Caller { actor: Actor { user: "ada".to_owned(), role } };
            serde_json::to_string(&shown(&record, &caller).unwrap()).unwrap()
        };
        assert!(seen_by(Role::Admin).contains("/T00/secret"));
        for role in [Role::Viewer, Role::User] {
            let text = seen_by(role);
            assert!(text.contains("https://hooks.example.org/"), "{text}");
            assert!(!text.contains("secret"), "{text}");
        }
    }
}
