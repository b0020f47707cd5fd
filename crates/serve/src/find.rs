//! Which endpoint a request is for.

use std::sync::Arc;

use crate::access::Caller;
use crate::answer::Answer;
use crate::http::{Framing, Known, RequestHead};
use crate::logic::scan_request;
use crate::routes::{Entry, Routes};

pub enum Found {
    /// The router answers itself.
    Own,
    Endpoint {
        entry: Arc<Entry>,
        /// First bytes of the target that only name the endpoint.
        skip: usize,
    },
    /// The body's `model` says.
    ByModel,
}

/// By what the head says.
pub fn find(head: &RequestHead, routes: &Routes, caller: &Caller) -> Result<Found, Answer> {
    let path = head.path();
    if path.starts_with("/-/") {
        return Ok(Found::Own);
    }
    if let Some(rest) = path.strip_prefix("/e/") {
        let name = rest.split_once('/').map_or(rest, |(name, _)| name);
        let entry = named(name, routes, caller)?;
        return Ok(Found::Endpoint { entry, skip: "/e/".len() + name.len() });
    }
    if let Some(name) = head.fields.get(Known::Endpoint) {
        let entry = named(&String::from_utf8_lossy(name), routes, caller)?;
        return Ok(Found::Endpoint { entry, skip: 0 });
    }
    if path == "/v1/models" && matches!(head.method(), "GET" | "HEAD") {
        return Ok(Found::Own);
    }
    if path.starts_with("/v1/") && head.framing() != Framing::EMPTY {
        // Nobody's megabytes are read before it is clear that somebody may ask at all.
        return match caller.may_ask(routes.any_open) {
            true => Ok(Found::ByModel),
            false => Err(caller.turned_away()),
        };
    }
    only(routes, caller).map(|entry| Found::Endpoint { entry, skip: 0 })
}

/// By what the body says. It need not be whole: `more` comes after this.
pub fn find_by_model(
    body: &[u8],
    more: bool,
    routes: &Routes,
    caller: &Caller,
) -> Result<Arc<Entry>, Answer> {
    match &scan_request(body, false).model {
        Some(model) => named(model, routes, caller),
        None if more && routes.entries.len() > 1 => Err(too_late(body.len())),
        None => only(routes, caller),
    }
}

/// Some clients write a long conversation before `model`.
fn too_late(read: usize) -> Answer {
    let message = format!(
        "there is no 'model' in the first {read} bytes of the body: put it first, name the endpoint in \
         the header x-tutti-endpoint, or have the router started with a larger --peek"
    );
    Answer::error(413, "model_too_late", &message)
}

fn named(name: &str, routes: &Routes, caller: &Caller) -> Result<Arc<Entry>, Answer> {
    match routes.named(name) {
        Some(entry) => Ok(entry.clone()),
        None => Err(unknown(&format!("there is no model '{}'", short(name)), routes, caller)),
    }
}

fn only(routes: &Routes, caller: &Caller) -> Result<Arc<Entry>, Answer> {
    match &routes.entries[..] {
        [entry] => Ok(entry.clone()),
        _ => Err(unknown("the request does not say which model it is for", routes, caller)),
    }
}

fn short(name: &str) -> String {
    name.chars().take(100).collect()
}

/// Says what there is, to those who may know.
fn unknown(what: &str, routes: &Routes, caller: &Caller) -> Answer {
    if !caller.may_ask(routes.any_open) {
        return caller.turned_away();
    }
    let names: Vec<&str> = routes.visible(caller).map(|(name, _)| name).take(50).collect();
    let message = match &names[..] {
        [] => format!("{what}: there are none now"),
        names => format!("{what}: there are {}", names.join(", ")),
    };
    Answer::error(404, "model_not_found", &message)
}
