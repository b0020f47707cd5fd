//! Worlds whose ranks are threads of the test.

use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tutti_collectives::{Config, Result, World};

/// A thread of a busy machine may rest for so long; only a failure waits for it.
const LONG: Duration = Duration::from_secs(120);

/// Runs `body` on every rank of a world, and returns what each of them returned. `adjust` changes a
/// rank's configuration first.
pub fn ranks<R: Send>(
    world: usize,
    adjust: impl Fn(&mut Config) + Sync,
    body: impl Fn(World) -> R + Sync,
) -> Vec<R> {
    ranks_that_try(world, adjust, |world| body(world.unwrap()))
}

/// The same where already meeting each other may fail.
pub fn ranks_that_try<R: Send>(
    world: usize,
    adjust: impl Fn(&mut Config) + Sync,
    body: impl Fn(Result<World>) -> R + Sync,
) -> Vec<R> {
    let listener = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
    let port = listener.local_addr().unwrap().port();
    thread::scope(|scope| {
        let start = |rank| {
            let mut config = Config::new(rank, world, ("127.0.0.1".into(), port));
            (config.timeout, config.silence) = (LONG, LONG);
            config.listener = (rank == 0).then(|| Arc::clone(&listener));
            adjust(&mut config);
            let body = &body;
            scope.spawn(move || body(World::connect(config)))
        };
        let threads: Vec<_> = (0..world).map(start).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}
