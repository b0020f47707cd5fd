//! Saving and loading a run: weights, moments, step. Any layout loads what any other saved.
//!
//! ```text
//! save: copy to host ─► written by a thread ─► all ranks done? ─► reports to rank 0 ─► published
//! load: rank 0 picks the newest ─► each rank reads its boxes ─► all could? else the one before
//! ```

mod deliver;
mod meet;

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use thiserror::Error;

use tutti_checkpoint::{
    AsyncSave, Dtype, Error as StoreError, Keep, Manifest, Options, Selector, Store, Tensor,
    Writer, chain,
};
use tutti_collectives::{Error as PeerError, Group};
use tutti_model::count;

use meet::Word;

use crate::comm::to_host;
use crate::config::{ModelConfig, TrainConfig};
use crate::copies::{Copies, CopiesOptions};
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
    #[error("{} can't read the checkpoints in {location}: see their own messages", count(*.ranks as u64, "other rank"))]
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
    #[error("step {step} is on the nodes, but could not be copied to {place}: {why}")]
    NotDelivered { step: u64, place: String, why: String },
    #[error(
        "step {step} was saved, but no node of this gang has it in {location}; start it on nodes that do, or submit it anew to begin from the first step"
    )]
    Forgotten { step: u64, location: String },
    #[error("can't serve copies to other nodes at {address}")]
    NoDoor {
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
    #[error("can't write in {location}")]
    NoMark {
        location: String,
        #[source]
        source: std::io::Error,
    },
    #[error("another rank says something that is not understood; do all run the same binary?")]
    Card(#[source] serde_json::Error),
    #[error(
        "{location} is one directory for {one} and {other}; copies need one of each node's own. Leave --copies out, or name another"
    )]
    OneDirectory { location: String, one: String, other: String },
}

/// Where and how a run is saved.
pub struct CheckpointOptions {
    pub location: String,
    /// Steps between saves; 0 saves at the end alone.
    pub every: u64,
    /// Steps that may be done while a save is being written: a failure then costs so many more
    /// than `every`. With 0 the training waits for each save.
    pub overlap: u64,
    /// What is kept; None keeps all.
    pub keep: Option<Keep>,
    pub writer: Writer,
    /// The location is a directory of each node's own, and other nodes keep copies.
    pub copies: Option<CopiesOptions>,
    /// With copies: where the last checkpoint goes when the run ends.
    pub durable: Option<String>,
    /// The newest step that the cluster knows to be saved.
    pub known_step: Option<u64>,
}

/// Kept with the tensors.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Meta {
    /// Steps done.
    step: u64,
    tokens: u64,
    pub(crate) config: TrainConfig,
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
    spread: Option<Spread>,
    known_step: Option<u64>,
}

/// Checkpoints that are on several nodes.
struct Spread {
    /// Serves what this node keeps.
    copies: Copies,
    durable: Option<String>,
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

/// Where a run goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resumed {
    /// None: there is no checkpoint yet.
    pub step: Option<u64>,
    /// What was not as hoped: places that did not answer, bad copies, steps that are lost.
    pub warnings: Vec<String>,
}

/// What rank 0 has found.
#[derive(Serialize, Deserialize)]
struct Picked {
    manifest: Manifest,
    warnings: Vec<String>,
}

const PARTS: [&str; 3] = ["model", "adam.first", "adam.second"];

impl Checkpoints {
    pub fn open(
        location: &str,
        writer: Writer,
        keep: Option<Keep>,
    ) -> Result<Self, CheckpointError> {
        let options = Options { writer: Some(writer), ..Options::default() };
        let opened = Store::open(location, options);
        let store = opened.and_then(|store| store.try_to_write().map(|()| store));
        let store = store.map_err(|e| in_store(location, e))?;
        let location = location.to_owned();
        let (underway, spread, known_step) = (None, None, None);
        Ok(Checkpoints { store, location, keep, underway, spread, known_step })
    }

    /// As the options say. All ranks call this together.
    pub fn of(options: &CheckpointOptions, group: &Group) -> Result<Self, CheckpointError> {
        let CheckpointOptions { location, keep, writer, .. } = options;
        let Some(wanted) = &options.copies else {
            let opened = Self::open(location, writer.clone(), *keep)?;
            return Ok(Checkpoints { known_step: options.known_step, ..opened });
        };
        let copies = Copies::meet(location, wanted, group)?;
        let places = Options {
            writer: Some(writer.clone()),
            replicas: copies.replicas.clone(),
            scattered: true,
            fellows: copies.fellows.clone(),
            sources: options.durable.iter().cloned().collect(),
            key: Some(wanted.key),
            ..Options::default()
        };
        let store = Store::open(location, places).map_err(|e| in_store(location, e))?;
        let (durable, known_step) = (options.durable.clone(), options.known_step);
        let (location, keep) = (location.clone(), *keep);
        let (underway, spread) = (None, Some(Spread { copies, durable }));
        Ok(Checkpoints { store, location, keep, underway, spread, known_step })
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
        let words = meet::written(trainer.mesh.world.as_ref(), underway.save)?;
        let mut saved = Saved {
            step,
            location: self.location.clone(),
            held_ms: underway.held_ms,
            failed: None,
            warnings: Vec::new(),
        };
        // Rank 0 publishes, and the others learn from it how that went.
        let meta = meta(trainer, step);
        let publish = words.map(|words| || self.publish_all(step, words, meta));
        match from_leader(trainer, publish)? {
            Ok(warnings) => saved.warnings = warnings,
            Err(why) => saved.failed = Some(why),
        }
        saved.held_ms += millis(begun);
        Ok(Some(saved))
    }

    fn publish_all(
        &self,
        step: u64,
        words: Vec<Word>,
        meta: serde_json::Value,
    ) -> Result<Vec<String>, String> {
        let mut reports = Vec::with_capacity(words.len());
        for (rank, word) in words.into_iter().enumerate() {
            reports.push(word.map_err(|why| {
                self.store.give_up(step);
                format!("rank {rank}: {why}")
            })?);
        }
        let published = self.store.publish(step, reports, meta).map_err(|e| {
            self.store.give_up(step);
            chain(&e)
        })?;
        let mut warnings = published.warnings;
        if self.spread.as_ref().is_some_and(|spread| spread.copies.replicas.is_empty()) {
            warnings.push("there is no other node to keep copies".to_owned());
        }
        if let Some(keep) = &self.keep
            && let Err(error) = self.store.retain(keep)
        {
            warnings.push(format!("old checkpoints were not removed: {}", chain(&error)));
        }
        Ok(warnings)
    }

    /// Goes on from the newest checkpoint that all ranks can read.
    pub fn resume(&self, trainer: &mut Trainer) -> Result<Resumed, CheckpointError> {
        let mut selector = Selector::Latest;
        let mut warnings = Vec::new();
        loop {
            let Some(picked) = self.pick(trainer, selector)? else {
                return self.nothing().map(|()| Resumed { step: None, warnings });
            };
            let step = picked.manifest.step;
            warnings.extend(picked.warnings);
            let read = self.read(trainer, picked.manifest);
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
                (Ok((values, lines)), [0.0, _]) => {
                    trainer.set(values)?;
                    warnings.extend(lines);
                    warnings.extend(self.far_back(step));
                    return Ok(Resumed { step: Some(step), warnings });
                }
                (read, _) => {
                    let why = read.err().map_or_else(
                        || "another rank can't read it".to_owned(),
                        |error| chain(&error),
                    );
                    warnings.push(format!("step {step} was given up for an older one: {why}"));
                    selector = Selector::Before(step);
                }
            }
        }
    }

    /// Steps that the cluster knows to be saved, and that are done again.
    fn far_back(&self, step: u64) -> Option<String> {
        let known = self.known_step.filter(|&known| known > step)?;
        let again = known - step;
        Some(format!(
            "step {known} was saved, but {step} is the newest that was found in {}: {} again",
            self.location,
            count(again, "step")
        ))
    }

    /// On nodes that were lost may have been what the cluster counts on: that is not to be begun again
    /// in silence.
    fn nothing(&self) -> Result<(), CheckpointError> {
        match self.known_step {
            Some(step @ 1..) if self.spread.is_some() => {
                Err(CheckpointError::Forgotten { step, location: self.location.clone() })
            }
            _ => Ok(()),
        }
    }

    /// Rank 0 looks, so that all ranks read the same one.
    fn pick(
        &self,
        trainer: &Trainer,
        selector: Selector,
    ) -> Result<Option<Picked>, CheckpointError> {
        let mut failure = None;
        let look = || match self.store.load(selector) {
            Ok(loaded) => {
                let (manifest, warnings) = (loaded.manifest().clone(), loaded.report().lines());
                Ok(Some(Picked { manifest, warnings }))
            }
            Err(StoreError::Nothing { .. }) => Ok(None),
            Err(error) => {
                let why = chain(&error);
                failure = Some(in_store(&self.location, error));
                Err(why)
            }
        };
        let found = from_leader(trainer, is_leader(trainer).then_some(look))?;
        match (found, failure) {
            (_, Some(error)) => Err(error),
            (Ok(found), _) => Ok(found),
            (Err(_), _) => {
                Err(CheckpointError::Others { location: self.location.clone(), ranks: 1 })
            }
        }
    }

    /// Copies the checkpoint of a step to where it is safe without the nodes, and, when the work is
    /// done, takes it away from them. All ranks call this together.
    pub fn deliver(
        &self,
        trainer: &Trainer,
        step: u64,
        done: bool,
    ) -> Result<Option<String>, CheckpointError> {
        let place = self.spread.as_ref().and_then(|spread| spread.durable.clone());
        let Some(place) = place else { return Ok(None) };
        let bring = || deliver::to_place(&self.store, step, &place, done);
        match from_leader(trainer, is_leader(trainer).then_some(bring))? {
            Ok(()) => Ok(Some(place)),
            Err(why) => Err(CheckpointError::NotDelivered { step, place, why }),
        }
    }

    fn read(
        &self,
        trainer: &Trainer,
        manifest: Manifest,
    ) -> Result<(Vec<ShardValues>, Vec<String>), CheckpointError> {
        let store = |e| in_store(&self.location, e);
        let step = manifest.step;
        let loaded = self.store.load_manifest(manifest).map_err(store)?;
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
        Ok((all, loaded.report().lines()))
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

pub(crate) fn from_bytes(bytes: &[u8], values: &mut [f32]) {
    for (value, bytes) in values.iter_mut().zip(bytes.chunks_exact(4)) {
        *value = f32::from_le_bytes(bytes.try_into().expect("chunks of four"));
    }
}

pub(crate) fn in_store(location: &str, source: StoreError) -> CheckpointError {
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

fn meta(trainer: &Trainer, step: u64) -> serde_json::Value {
    let meta = Meta {
        step,
        tokens: step * trainer.config.tokens_per_step(),
        config: trainer.config.clone(),
        layout: trainer.layout.to_string(),
    };
    serde_json::to_value(meta).expect("plain data becomes JSON")
}

fn is_leader(trainer: &Trainer) -> bool {
    trainer.mesh.world.as_ref().is_none_or(|world| world.rank() == 0)
}

fn from_leader<T, W>(
    trainer: &Trainer,
    work: Option<W>,
) -> Result<Result<T, String>, CheckpointError>
where
    T: Serialize + for<'de> Deserialize<'de> + Send,
    W: FnOnce() -> Result<T, String> + Send,
{
    Ok(meet::from_leader(trainer.mesh.world.as_ref(), meet::EVERY, work)?)
}
