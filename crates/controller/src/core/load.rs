//! From the journal to an engine: the newest snapshot, then every record after it.

use tutti_engine::{Engine, Record, Settings};
use tutti_journal::{BoxError, Journal, JournalError, Replay, codec};
use tutti_model::{Seq, State};

use super::World;
use crate::chronicle::Chronicle;

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(transparent)]
    Journal(#[from] JournalError),
}

struct Loader {
    settings: Settings,
    engine: Engine,
    chronicle: Chronicle,
}

impl Replay for Loader {
    fn snapshot(&mut self, _seq: Seq, bytes: &[u8]) -> Result<(), BoxError> {
        let state: State = codec::decode(bytes)?;
        self.engine = Engine::restore(state, self.settings.clone());
        self.chronicle = Chronicle::of(self.engine.state());
        Ok(())
    }

    fn batch(&mut self, _first: Seq, _last: Seq, bytes: &[u8]) -> Result<(), BoxError> {
        let records: Vec<Record> = codec::decode(bytes)?;
        let seen = self.engine.state().seq;
        for record in records.iter().filter(|r| r.seq > seen) {
            self.engine.replay(record);
            self.chronicle.note(self.engine.state(), record);
        }
        Ok(())
    }
}

pub fn load(journal: &mut dyn Journal, settings: Settings) -> Result<World, LoadError> {
    let (engine, chronicle) = (Engine::new(settings.clone()), Chronicle::default());
    let mut loader = Loader { engine, settings, chronicle };
    let loaded = journal.load(&mut loader)?;
    for skipped in &loaded.skipped {
        tracing::warn!(seq = %skipped.seq, why = %skipped.why, "skipped a damaged snapshot");
    }
    let Loader { engine, chronicle, .. } = loader;
    tracing::info!(
        seq = %engine.state().seq,
        snapshot = ?loaded.snapshot,
        batches = loaded.batches,
        jobs = engine.state().jobs.len(),
        "read the journal"
    );
    Ok(World { chronicle, ..World::new(engine) })
}
