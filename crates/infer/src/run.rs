//! A server as a process: its address, its signals, its end.

use std::net::SocketAddr;

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::options::Options;
use crate::server::{Ready, ServeError, serve};

/// What is told on the way.
#[derive(Clone, Debug)]
pub enum Told {
    /// The socket answers; the model is being loaded.
    Listening(SocketAddr),
    Ready(Ready),
    /// A signal came: nothing new is taken.
    Draining,
}

/// Serves until TERM or INT, then finishes what it has. A second signal ends it at once.
pub fn run(
    listen: &str,
    options: Options,
    tell: impl Fn(Told) + Clone + Send + 'static,
) -> Result<(), ServeError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        // Requests cost little; the model has a thread of its own.
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(ServeError::Runtime)?;
    let ended = runtime.block_on(async {
        let listen_error = |source| ServeError::Listen { address: listen.to_owned(), source };
        let listener = TcpListener::bind(listen).await.map_err(listen_error)?;
        let address = listener.local_addr().map_err(listen_error)?;
        let signals = signals().map_err(ServeError::Runtime)?;
        tell(Told::Listening(address));
        let (draining, ready) = (tell.clone(), tell);
        let stop = async {
            at_least(signals.clone(), 1).await;
            draining(Told::Draining);
        };
        tokio::select! {
            ended = serve(listener, options, stop, move |told| ready(Told::Ready(told.clone()))) => ended,
            () = at_least(signals.clone(), 2) => Err(ServeError::Interrupted),
        }
    });
    // The thread that computes may be in the middle of something that nobody waits for.
    runtime.shutdown_background();
    ended
}

/// How many signals have come.
fn signals() -> std::io::Result<watch::Receiver<u32>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (count, counted) = watch::channel(0);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            count.send_modify(|count| *count += 1);
        }
    });
    Ok(counted)
}

async fn at_least(mut counted: watch::Receiver<u32>, wanted: u32) {
    if counted.wait_for(|count| *count >= wanted).await.is_err() {
        // Nobody counts any more: the runtime is going down.
        std::future::pending::<()>().await;
    }
}
