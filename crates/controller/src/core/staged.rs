//! A world that somebody else moves: a simulator, instead of agents and callers.

use std::sync::{Arc, RwLock};

use tokio::sync::{mpsc, oneshot};
use tutti_engine::Record;

use super::{Core, QUEUE_MAX, Request, Started, World};
use crate::feed::Feed;

/// The side from which it is moved.
pub struct Scene {
    world: Arc<RwLock<World>>,
    feed: Arc<Feed>,
}

impl Scene {
    /// Moves the world, and tells those who look. Nobody sees what is between two moves.
    pub fn play(&self, act: impl FnOnce(&mut World) -> Vec<Record>) {
        let mut world = self.world.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        let records = act(&mut world);
        drop(world);
        self.feed.publish(records);
    }
}

/// The reading side is that of every controller. Commands are not taken: callers hear that
/// nobody does anything for them.
pub fn stage(world: World) -> (Started, Scene) {
    let (queue, mut requests) = mpsc::channel(QUEUE_MAX);
    let feed = Arc::new(Feed::new(world.engine.state().seq));
    let world = Arc::new(RwLock::new(world));
    let (ended_tx, ended) = oneshot::channel();
    let ends = Arc::clone(&feed);
    tokio::spawn(async move {
        while let Some(request) = requests.recv().await {
            if matches!(request, Request::Stop) {
                break;
            }
        }
        ends.stop();
        // Nobody may be left who waits for it.
        let _ = ended_tx.send(Ok(()));
    });
    let scene = Scene { world: Arc::clone(&world), feed: Arc::clone(&feed) };
    (Started { core: Core { queue, world, feed }, ended }, scene)
}
