//! The socket, the life of the process around it, and the paths.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::ListenerExt;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::api::{self, ApiError};
use crate::app::{App, Serving};
use crate::engine::{self, Engine};
use crate::metrics::{self, Metrics};
use crate::model::{self, LoadError, Model};
use crate::options::Options;
use crate::schedule::Schedule;

#[derive(Debug, Error)]
pub enum ServeError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("the thread that computes is gone: see what it said before")]
    Died,
    #[error("the socket can't be served")]
    Socket(#[source] std::io::Error),
    #[error("can't listen on {address}: choose another with --listen")]
    Listen {
        address: String,
        #[source]
        source: std::io::Error,
    },
    #[error("the system gives no threads or signals")]
    Runtime(#[source] std::io::Error),
    #[error("a second signal ended it before all was answered")]
    Interrupted,
}

/// Told once, when the model can be used.
#[derive(Clone, Debug)]
pub struct Ready {
    /// The checkpoint's.
    pub step: u64,
    pub parameters: usize,
    /// Tokens of a prompt and its answer together.
    pub context: usize,
    /// Sequences at the same time.
    pub slots: usize,
    /// What their keys and values take.
    pub cache_bytes: u64,
    pub device: String,
    pub precision: &'static str,
    /// From the start until now.
    pub took: Duration,
    /// What was not as hoped.
    pub warnings: Vec<String>,
}

/// Serves until `stop`, then finishes what was taken and refuses what comes.
pub async fn serve(
    listener: TcpListener,
    options: Options,
    stop: impl Future<Output = ()>,
    ready: impl FnOnce(&Ready) + Send + 'static,
) -> Result<(), ServeError> {
    let (names, queue, chunk) = (options.names.clone(), options.queue, options.chunk);
    let limits = Limits { names, queue, chunk };
    serve_with(listener, limits, move || model::load(&options), stop, ready).await
}

pub(crate) struct Limits {
    pub names: Vec<String>,
    pub queue: usize,
    pub chunk: usize,
}

/// Idle connections may take so long to notice the end.
const CLOSING: Duration = Duration::from_secs(5);

pub(crate) async fn serve_with<M: Model + 'static>(
    listener: TcpListener,
    limits: Limits,
    load: impl FnOnce() -> Result<(M, Ready), LoadError> + Send + 'static,
    stop: impl Future<Output = ()>,
    ready: impl FnOnce(&Ready) + Send + 'static,
) -> Result<(), ServeError> {
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let app = Arc::new(App::new(limits.names.clone(), created, Arc::new(Metrics::default())));
    let (close, closed) = oneshot::channel::<()>();
    let listener = listener.tap_io(|io| {
        // Pieces of a stream are small, and each is waited for.
        let _ = io.set_nodelay(true);
    });
    let server = axum::serve(listener, router(app.clone())).with_graceful_shutdown(async {
        let _ = closed.await;
    });
    let mut server = tokio::spawn(server.into_future());
    let mut died = compute(&app, limits, load, ready);
    let socket = |ended: Result<std::io::Result<()>, tokio::task::JoinError>| match ended {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(ServeError::Socket(error)),
        Err(error) => Err(ServeError::Socket(std::io::Error::other(error))),
    };
    let gone = |why: Result<ServeError, _>| Err(why.unwrap_or(ServeError::Died));
    let mut result = tokio::select! {
        ended = &mut server => return socket(ended),
        why = &mut died => gone(why),
        () = stop => Ok(()),
    };
    if result.is_ok() {
        result = tokio::select! {
            why = &mut died => gone(why),
            () = app.drain() => Ok(()),
        };
    }
    if result.is_err() {
        // Whoever waits is told before the process ends.
        let _ = tokio::time::timeout(CLOSING, app.drain()).await;
    }
    let _ = close.send(());
    match tokio::time::timeout(CLOSING, server).await {
        Ok(ended) => result.and(socket(ended)),
        Err(_) => result,
    }
}

/// The thread that loads and computes. What comes back is heard only if it ends.
fn compute<M: Model + 'static>(
    app: &Arc<App>,
    limits: Limits,
    load: impl FnOnce() -> Result<(M, Ready), LoadError> + Send + 'static,
    ready: impl FnOnce(&Ready) + Send + 'static,
) -> oneshot::Receiver<ServeError> {
    let (tell, died) = oneshot::channel();
    // Weak, or the thread would hold the sender whose end it waits for.
    let (app, metrics) = (Arc::downgrade(app), app.metrics.clone());
    std::thread::spawn(move || {
        let (model, told) = match load() {
            Ok(loaded) => loaded,
            Err(error) => {
                let _ = tell.send(error.into());
                return;
            }
        };
        let (engine, inbox) = Engine::new(limits.queue);
        let Some(app) = app.upgrade() else { return };
        app.open(Serving { engine, context: told.context });
        drop(app);
        let schedule = Schedule::new(told.slots, limits.chunk);
        ready(&told);
        engine::run(model, inbox, schedule, told.slots * told.context, metrics);
        drop(tell);
    });
    died
}

fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/completions", post(api::completions))
        .route("/v1/chat/completions", post(api::chat))
        .route("/v1/models", get(api::models))
        .route("/health", get(health))
        .route("/metrics", get(metrics_page))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .with_state(app)
}

async fn health(State(app): State<Arc<App>>) -> Result<&'static str, ApiError> {
    app.serving()?;
    Ok("ready\n")
}

async fn metrics_page(State(app): State<Arc<App>>) -> Response {
    let mut counts = app.metrics.counts();
    counts.waiting = app.waiting();
    let page = metrics::render(&counts, app.name());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], page).into_response()
}

async fn no_such_path(uri: axum::http::Uri) -> ApiError {
    let message = format!(
        "there is nothing at {}; see /v1/completions, /v1/chat/completions, /v1/models, /health, /metrics",
        uri.path()
    );
    ApiError::new(StatusCode::NOT_FOUND, message)
}

async fn no_such_method(method: axum::http::Method, uri: axum::http::Uri) -> ApiError {
    let message = format!("{method} is not for {}", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message)
}

#[cfg(test)]
mod tests;
