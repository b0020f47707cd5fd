//! Saving and loading a run: weights, moments, step. Any layout loads what any other saved.
//!
//! ```text
//! save: copy to host ─► written by a thread ─► all ranks done? ─► reports to rank 0 ─► published
//! load: rank 0 picks the newest ─► each rank reads its boxes ─► all could? else the one before
//! ```

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tutti_checkpoint::{
    AsyncSave, Dtype, Error as StoreError, Keep, Options, Selector, ShardReport, Store, Tensor,
    Writer, chain,
};
use tutti_collectives::Error as PeerError;

use crate::comm::to_host;
use crate::config::{ModelConfig, TrainConfig};
use crate::cut::{Cut, cuts};
use crate::optim::{Shard, ShardValues};
use crate::trainer::Trainer;

#[derive(Debug, Error)]
pub enum CheckpointError {
    #[error(transparent)]
    Peer(#[from] PeerError),
    #[error("the checkpoints in {location} can't be used")]
    Store {
        location: String,
        #[source]
        source: Box<StoreError>,
    },
    #[error("{ranks} other ranks can't read the checkpoints in {location}: see their own messages")]
    Others { location: String, ranks: usize },
    #[error(
        "the checkpoint of step {step} in {location} is of another model: {theirs}; this run has {ours}. Use the same sizes, or another --checkpoint"
    )]
    OtherModel { step: u64, location: String, ours: String, theirs: String },
    #[error("the checkpoint of step {step} in {location} was not written by tutti train")]
    NotOurs {
        step: u64,
        location: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("step {step} was not saved: {why}")]
    NotSaved { step: u64, why: String },
}

/// Kept with the tensors.
#[derive(Debug, Serialize, Deserialize)]
struct Meta {
    /// Steps done.
    step: u64,
    tokens: u64,
    config: TrainConfig,
    /// For people: it loads under any other.
    layout: String,
}

/// The checkpoints of a run, seen by one rank.
pub struct Checkpoints {
    store: Store,
    location: String,
    /// What is kept when a new one is published; None keeps all.
    keep: Option<Keep>,
    underway: Option<Underway>,
}

/// A save that is not published yet.
struct Underway {
    step: u64,
    save: AsyncSave,
    held_ms: u64,
}

/// A save that came to its end, on every rank.
#[derive(Clone, Debug)]
pub struct Saved {
    pub step: u64,
    pub location: String,
    /// How long it held up the training on this rank.
    pub held_ms: u64,
    /// Why there is no checkpoint of this step after all.
    pub failed: Option<String>,
    /// Copies that could not be made.
    pub warnings: Vec<String>,
}

/// What one rank has to say about its part.
type Word = Result<ShardReport, String>;

const PARTS: [&str; 3] = ["model", "adam.first", "adam.second"];

impl Checkpoints {
    pub fn open(
        location: &str,
        writer: Writer,
        keep: Option<Keep>,
    ) -> Result<Self, CheckpointError> {
        let options = Options { writer: Some(writer), ..Options::default() };
        let store = Store::open(location, options).map_err(|e| in_store(location, e))?;
        Ok(Checkpoints { store, location: location.to_owned(), keep, underway: None })
    }

    /// Starts to save what the trainer has after `step` steps. The training may go on at once.
    pub fn start(&mut self, trainer: &Trainer, step: u64) -> Result<(), CheckpointError> {
        let begun = std::time::Instant::now();
        let mut save = self.store.save(step).map_err(|e| in_store(&self.location, e))?;
        for tensor in tensors(trainer) {
            save.add(tensor).map_err(|e| in_store(&self.location, e))?;
        }
        let save = save.finish();
        self.underway = Some(Underway { step, save, held_ms: millis(begun) });
        Ok(())
    }

    /// The step that is being saved.
    pub fn underway(&self) -> Option<u64> {
        self.underway.as_ref().map(|underway| underway.step)
    }

    /// Whether this rank's part is written, or there is none.
    pub fn is_written(&self) -> bool {
        self.underway.as_ref().is_none_or(|underway| underway.save.is_done())
    }

    /// Publishes what all ranks have written. All of them call this at the same step; the call
    /// waits for the slowest.
    pub fn publish(&mut self, trainer: &Trainer) -> Result<Option<Saved>, CheckpointError> {
        let Some(underway) = self.underway.take() else { return Ok(None) };
        let begun = std::time::Instant::now();
        let step = underway.step;
        let word: Word = underway.save.wait().map_err(|e| chain(&e));
        let words = exchange(trainer, word)?;
        let mut saved = Saved {
            step,
            location: self.location.clone(),
            held_ms: underway.held_ms,
            failed: None,
            warnings: Vec::new(),
        };
        // Rank 0 publishes, and the others learn from it how that went.
        let verdict = words.map(|words| self.publish_all(trainer, step, words));
        match spread(trainer, verdict)? {
            Ok(warnings) => saved.warnings = warnings,
            Err(why) => saved.failed = Some(why),
        }
        saved.held_ms += millis(begun);
        Ok(Some(saved))
    }

    fn publish_all(
        &self,
        trainer: &Trainer,
        step: u64,
        words: Vec<Word>,
    ) -> Result<Vec<String>, String> {
        let mut reports = Vec::with_capacity(words.len());
        for (rank, word) in words.into_iter().enumerate() {
            reports.push(word.map_err(|why| format!("rank {rank}: {why}"))?);
        }
        let meta = Meta {
            step,
            tokens: step * trainer.config.tokens_per_step(),
            config: trainer.config.clone(),
            layout: trainer.layout.to_string(),
        };
        let meta = serde_json::to_value(meta).expect("plain data becomes JSON");
        let published = self.store.publish(step, reports, meta).map_err(|e| chain(&e))?;
        let mut warnings = published.warnings;
        if let Some(keep) = &self.keep
            && let Err(error) = self.store.retain(keep)
        {
            warnings.push(format!("old checkpoints were not removed: {}", chain(&error)));
        }
        Ok(warnings)
    }

    /// Goes on from the newest checkpoint that all ranks can read. None: there is none yet.
    pub fn resume(&self, trainer: &mut Trainer) -> Result<Option<u64>, CheckpointError> {
        let mut selector = Selector::Latest;
        loop {
            let Some(step) = self.pick(trainer, selector)? else { return Ok(None) };
            let read = self.read(trainer, step);
            let damaged =
                matches!(&read, Err(CheckpointError::Store { source, .. }) if source.is_damage());
            let failed = read.is_err() && !damaged;
            let mut votes = [f64::from(u8::from(damaged)), f64::from(u8::from(failed))];
            trainer.mesh.sum_host(trainer.mesh.world.as_ref(), &mut votes)?;
            match (read, votes) {
                (Err(error), _) if failed => return Err(error),
                (_, [_, others]) if others > 0.0 => {
                    let location = self.location.clone();
                    return Err(CheckpointError::Others { location, ranks: others as usize });
                }
                (Ok(values), [0.0, _]) => {
                    trainer.set(values)?;
                    return Ok(Some(step));
                }
                (_, _) => selector = Selector::Before(step),
            }
        }
    }

    /// Rank 0 looks, so that all ranks try the same one.
    fn pick(&self, trainer: &Trainer, selector: Selector) -> Result<Option<u64>, CheckpointError> {
        const NONE: i64 = -1;
        const FAILED: i64 = -2;
        let leader = trainer.mesh.world.as_ref().is_none_or(|world| world.rank() == 0);
        let mut found = [NONE];
        let mut failure = None;
        if leader {
            match self.store.load(selector) {
                Ok(loaded) => found = [loaded.step() as i64],
                Err(StoreError::Nothing { .. }) => {}
                Err(error) => {
                    found = [FAILED];
                    failure = Some(in_store(&self.location, error));
                }
            }
        }
        if let Some(world) = &trainer.mesh.world {
            world.broadcast(&mut found, 0)?;
        }
        match (found[0], failure) {
            (_, Some(error)) => Err(error),
            (NONE, _) => Ok(None),
            (FAILED, _) => {
                Err(CheckpointError::Others { location: self.location.clone(), ranks: 1 })
            }
            (step, _) => Ok(Some(step as u64)),
        }
    }

    fn read(&self, trainer: &Trainer, step: u64) -> Result<Vec<ShardValues>, CheckpointError> {
        let store = |e| in_store(&self.location, e);
        let loaded = self.store.load(Selector::Step(step)).map_err(store)?;
        let meta: Meta = serde_json::from_value(loaded.meta().clone()).map_err(|source| {
            CheckpointError::NotOurs { step, location: self.location.clone(), source }
        })?;
        if meta.config.model != trainer.config.model {
            return Err(CheckpointError::OtherModel {
                step,
                location: self.location.clone(),
                ours: sizes(&trainer.config.model),
                theirs: sizes(&meta.config.model),
            });
        }
        let mut all = Vec::with_capacity(trainer.buckets.len());
        for bucket in &trainer.buckets {
            let range = trainer.range(bucket);
            let mut parts = PARTS.map(|_| vec![0.0; range.len()]);
            for cut in cuts(bucket, &trainer.params, &range) {
                for (part, values) in PARTS.iter().zip(&mut parts) {
                    let name = name(part, &cut);
                    let data = loaded.slice(&name, &cut.offset, &cut.extent).map_err(store)?;
                    from_bytes(&data.bytes, &mut values[cut.at.clone()]);
                }
            }
            let [weights, first, second] = parts;
            all.push(ShardValues { weights, first, second });
        }
        Ok(all)
    }
}

/// What this rank saves. Data ranks that hold the same take turns.
fn tensors(trainer: &Trainer) -> Vec<Tensor> {
    let mut tensors = Vec::new();
    let mut turn = 0;
    for (bucket, shard) in trainer.buckets.iter().zip(&trainer.shards) {
        let owned = cuts(bucket, &trainer.params, &shard.range).into_iter().filter(|cut| cut.owned);
        let own: Vec<Cut> = owned
            .filter(|_| {
                turn += 1;
                trainer.layout.zero || turn % trainer.layout.dp == trainer.place.data
            })
            .collect();
        if own.is_empty() {
            continue;
        }
        for (part, values) in PARTS.iter().zip(on_host(shard)) {
            tensors.extend(own.iter().map(|cut| {
                let bytes = to_bytes(&values[cut.at.clone()]);
                Tensor::piece(
                    name(part, cut),
                    Dtype::F32,
                    &cut.shape,
                    &cut.offset,
                    &cut.extent,
                    bytes,
                )
            }));
        }
    }
    tensors
}

fn on_host(shard: &Shard) -> [Vec<f32>; 3] {
    [&shard.weights, &shard.first, &shard.second].map(|tensor| to_host(tensor.clone()))
}

fn name(part: &str, cut: &Cut) -> String {
    format!("{part}.{}", cut.name)
}

fn to_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn from_bytes(bytes: &[u8], values: &mut [f32]) {
    for (value, bytes) in values.iter_mut().zip(bytes.chunks_exact(4)) {
        *value = f32::from_le_bytes(bytes.try_into().expect("chunks of four"));
    }
}

fn in_store(location: &str, source: StoreError) -> CheckpointError {
    CheckpointError::Store { location: location.to_owned(), source: Box::new(source) }
}

fn sizes(model: &ModelConfig) -> String {
    let head = if model.tied { "tied" } else { "untied" };
    format!(
        "--layers {} --dim {} --heads {} --kv-heads {} --ffn {}, {head}",
        model.layers, model.dim, model.heads, model.kv_heads, model.ffn
    )
}

fn millis(since: std::time::Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// Everybody's word, on rank 0.
fn exchange(trainer: &Trainer, word: Word) -> Result<Option<Vec<Word>>, CheckpointError> {
    let Some(world) = &trainer.mesh.world else { return Ok(Some(vec![word])) };
    let bytes = serde_json::to_vec(&word).expect("plain data becomes JSON");
    let all = world.all_gather_bytes(&bytes)?;
    if world.rank() != 0 {
        return Ok(None);
    }
    let parse = |bytes: &Vec<u8>| {
        serde_json::from_slice(bytes).unwrap_or_else(|e| Err(format!("its report is broken: {e}")))
    };
    Ok(Some(all.iter().map(parse).collect()))
}

/// How it went, from rank 0 to all.
fn spread(
    trainer: &Trainer,
    verdict: Option<Result<Vec<String>, String>>,
) -> Result<Result<Vec<String>, String>, CheckpointError> {
    let Some(world) = &trainer.mesh.world else {
        return Ok(verdict.expect("a rank that is alone is rank 0"));
    };
    let bytes = verdict.as_ref().map(|v| serde_json::to_vec(v).expect("plain data becomes JSON"));
    let all = world.all_gather_bytes(&bytes.unwrap_or_default())?;
    let broken = |e| Err(format!("rank 0 sent no verdict: {e}"));
    Ok(serde_json::from_slice(&all[0]).unwrap_or_else(broken))
}
