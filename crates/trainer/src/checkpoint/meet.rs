//! Waiting for slow places without being taken for dead.
//!
//! A rank that waits in a collective accuses whoever is late. So nobody is: while one still writes,
//! all ranks meet every few seconds and hear that it is busy.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tutti_checkpoint::{AsyncSave, ShardReport, chain};
use tutti_collectives::{Error, Group};

/// How often ranks meet while one is busy; far less than they would wait for each other.
pub const EVERY: Duration = Duration::from_secs(2);
/// How often a rank looks whether its own part is written.
const LOOK: Duration = Duration::from_millis(2);

/// What one rank has to say about its part.
pub type Word = Result<ShardReport, String>;

/// Everybody's word, on rank 0, when all parts are written.
pub fn written(world: Option<&Group>, save: AsyncSave) -> Result<Option<Vec<Word>>, Error> {
    let word = |save: AsyncSave| -> Word { save.wait().map_err(|e| chain(&e)) };
    let Some(world) = world else { return Ok(Some(vec![word(save)])) };
    let (mut save, mut own) = (Some(save), Vec::new());
    loop {
        let begun = Instant::now();
        while save.as_ref().is_some_and(|save| !save.is_done()) && begun.elapsed() < EVERY {
            std::thread::sleep(LOOK);
        }
        if let Some(done) = save.take_if(|save| save.is_done()) {
            own = serde_json::to_vec(&word(done)).expect("plain data becomes JSON");
        }
        // Nothing said: still busy.
        let all = world.all_gather_bytes(&own)?;
        if all.iter().any(Vec::is_empty) {
            continue;
        }
        return Ok((world.rank() == 0).then(|| all.iter().map(|bytes| read(bytes)).collect()));
    }
}

fn read(bytes: &[u8]) -> Word {
    serde_json::from_slice(bytes).unwrap_or_else(|e| Err(format!("its report is broken: {e}")))
}

/// Rank 0 works, and all learn how it went. `work` is rank 0's alone.
pub fn from_leader<T, W>(
    world: Option<&Group>,
    every: Duration,
    work: Option<W>,
) -> Result<Result<T, String>, Error>
where
    T: Serialize + for<'de> Deserialize<'de> + Send,
    W: FnOnce() -> Result<T, String> + Send,
{
    let Some(world) = world else {
        return Ok(work.expect("a rank that is alone is rank 0")());
    };
    let broken = |e| Err(format!("rank 0 sent no verdict: {e}"));
    let Some(work) = work else {
        loop {
            let all = world.all_gather_bytes(&[])?;
            if !all[0].is_empty() {
                return Ok(serde_json::from_slice(&all[0]).unwrap_or_else(broken));
            }
        }
    };
    std::thread::scope(|scope| {
        let (done, verdict) = channel();
        // Whoever waits for it is gone only when this rank has failed: nobody to tell.
        scope.spawn(move || done.send(work()).is_ok());
        loop {
            match verdict.recv_timeout(every) {
                Ok(verdict) => {
                    let bytes = serde_json::to_vec(&verdict).expect("plain data becomes JSON");
                    world.all_gather_bytes(&bytes)?;
                    return Ok(verdict);
                }
                Err(RecvTimeoutError::Timeout) => drop(world.all_gather_bytes(&[])?),
                Err(RecvTimeoutError::Disconnected) => panic!("the work of rank 0 panicked"),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::Arc;

    use tutti_collectives::{Config, World};

    use super::*;

    /// Two ranks that wait for each other no longer than 3 s, while rank 0 works for 5 s.
    #[test]
    fn long_work_of_one_rank_is_no_fault() {
        let listener = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
        let port = listener.local_addr().unwrap().port();
        let rank = |rank: usize| {
            let mut config = Config::new(rank, 2, ("127.0.0.1".into(), port));
            config.listener = (rank == 0).then(|| Arc::clone(&listener));
            config.op_timeout = Duration::from_secs(3);
            let group = World::connect(config).unwrap().group();
            let work = (rank == 0).then_some(|| {
                std::thread::sleep(Duration::from_secs(5));
                Ok::<u32, String>(7)
            });
            from_leader(Some(&group), Duration::from_millis(100), work).unwrap()
        };
        std::thread::scope(|scope| {
            let ranks = [0, 1].map(|n| scope.spawn(move || rank(n)));
            for rank in ranks {
                assert_eq!(rank.join().unwrap(), Ok(7));
            }
        });
    }
}
