//! A whole run: go on from the newest checkpoint, step by step, save, report, leave when asked.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde::Serialize;
use thiserror::Error;
use tutti_collectives::{Error as PeerError, World};
use tutti_model::{Fault, ProgressLine, Rank};

use crate::checkpoint::{CheckpointError, CheckpointOptions, Checkpoints, Saved};
use crate::comm::Mesh;
use crate::config::TrainConfig;
use crate::data::{Corpus, DataError};
use crate::layout::Layout;
use crate::params::Local;
use crate::progress::Progress;
use crate::tensor::Device;
use crate::trainer::{Outcome, Trainer, Wishes};

#[derive(Debug, Error)]
pub enum RunError {
    #[error(transparent)]
    Peer(#[from] PeerError),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Checkpoint(CheckpointError),
}

impl From<CheckpointError> for RunError {
    fn from(error: CheckpointError) -> Self {
        match error {
            CheckpointError::Peer(error) => RunError::Peer(error),
            other => RunError::Checkpoint(other),
        }
    }
}

impl RunError {
    /// Another rank is to blame.
    pub fn fault(&self) -> Option<Fault> {
        let RunError::Peer(error) = self else { return None };
        let accused = error.accused()?;
        Some(Fault {
            rank: Rank(u32::try_from(accused.rank).ok()?),
            op: accused.op.to_string(),
            why: accused.why.to_string(),
        })
    }
}

/// What a run needs besides what is trained.
pub struct RunOptions {
    pub data: Option<std::path::PathBuf>,
    pub checkpoint: Option<CheckpointOptions>,
    /// Save and leave after this step, before the last.
    pub stop_after: Option<u64>,
    /// So many steps at the beginning are not in the figures: they compile and warm up.
    pub unmeasured: u64,
    /// Set from outside, by a signal: save and leave.
    pub asked: &'static AtomicBool,
}

/// Told while the run goes on.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    Started(Started),
    Step(StepReport),
    Saved(SavedReport),
    /// Figures of every rank, told once by each, at the end.
    Ended(Ended),
}

#[derive(Debug, Serialize)]
pub struct Started {
    pub rank: usize,
    pub world: usize,
    pub layout: Layout,
    pub parameters: usize,
    /// The first step of this run: more than 0 when it goes on from a checkpoint.
    pub step: u64,
    pub steps: u64,
    /// What was not as hoped when it was looked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// One step. Times are of this rank.
#[derive(Clone, Debug, Serialize)]
pub struct StepReport {
    /// Steps done since the very beginning.
    pub step: u64,
    pub loss: f64,
    pub lr: f64,
    pub tokens_per_s: f64,
    pub step_ms: f64,
    pub compute_ms: f64,
    /// Waiting for other ranks, but for the pipeline.
    pub comm_ms: f64,
    /// Waiting for the neighbours in the pipeline.
    pub bubble_ms: f64,
}

#[derive(Debug, Serialize)]
pub struct SavedReport {
    pub step: u64,
    pub location: String,
    pub held_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Ended {
    pub why: Why,
    pub step: u64,
    pub loss: Option<f64>,
    /// Of all ranks together, over the measured steps.
    pub tokens_per_s: f64,
    pub ranks: Vec<RankTimes>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    Done,
    /// A signal came, and the work is saved if there is a place to save to.
    Asked,
    /// `--stop-after`.
    Stopped,
}

/// Where the time of one rank went, over the measured steps.
#[derive(Clone, Debug, Serialize)]
pub struct RankTimes {
    pub rank: usize,
    pub compute_s: f64,
    pub comm_s: f64,
    pub bubble_s: f64,
}

/// One rank's run. Accuses the culprit on `$TUTTI_PROGRESS` when another rank fails.
pub fn run(
    config: TrainConfig,
    layout: Layout,
    world: &World,
    device: Device,
    options: &RunOptions,
    tell: &mut dyn FnMut(Event),
) -> Result<Ended, RunError> {
    let group = world.group();
    let mut progress = Progress::from_env(group.rank());
    let result =
        Run::new(config, layout, &group, device, options, &mut progress, tell).and_then(Run::go);
    if let Err(error) = &result
        && let Some(fault) = error.fault()
    {
        progress.say(ProgressLine { fault: Some(fault), ..ProgressLine::default() });
    }
    result
}

struct Run<'a> {
    trainer: Trainer,
    corpus: Corpus,
    checkpoints: Option<Checkpoints>,
    options: &'a RunOptions,
    progress: &'a mut Progress,
    tell: &'a mut dyn FnMut(Event),
    rank: usize,
    /// Steps done.
    step: u64,
    begun: Instant,
    /// Steps of this run alone.
    run_steps: u64,
    measured_since: Instant,
    times: [f64; 3],
    loss: Option<f64>,
    /// A step whose loss is still on the device.
    late: Option<(u64, Outcome, [f64; 4])>,
}

impl<'a> Run<'a> {
    fn new(
        config: TrainConfig,
        layout: Layout,
        group: &tutti_collectives::Group,
        device: Device,
        options: &'a RunOptions,
        progress: &'a mut Progress,
        tell: &'a mut dyn FnMut(Event),
    ) -> Result<Self, RunError> {
        let corpus = Corpus::load(options.data.as_deref(), config.seq, config.seed)?;
        let sharers = Local::new(&config.model, &layout, layout.place(group.rank())).kv_sharers;
        let mesh = Mesh::new(group, &layout, sharers, config.model.tied)?;
        let started = Started {
            rank: group.rank(),
            world: group.size(),
            layout: layout.clone(),
            parameters: config.model.parameters(),
            step: 0,
            steps: config.steps,
            warnings: Vec::new(),
        };
        let mut trainer = Trainer::new(config, layout, group.rank(), mesh, device)?;
        let checkpoints = match &options.checkpoint {
            None => None,
            Some(wanted) => Some(Checkpoints::of(wanted, group)?),
        };
        let (step, warnings) = match &checkpoints {
            None => (0, Vec::new()),
            Some(checkpoints) => {
                let resumed = checkpoints.resume(&mut trainer)?;
                (resumed.step.unwrap_or(0), resumed.warnings)
            }
        };
        tell(Event::Started(Started { step, warnings, ..started }));
        Ok(Run {
            trainer,
            corpus,
            checkpoints,
            options,
            progress,
            tell,
            rank: group.rank(),
            step,
            begun: Instant::now(),
            run_steps: 0,
            measured_since: Instant::now(),
            times: [0.0; 3],
            loss: None,
            late: None,
        })
    }

    fn go(mut self) -> Result<Ended, RunError> {
        let steps = self.trainer.config.steps;
        let mut why = Why::Done;
        while self.step < steps {
            let votes = self.one_step()?;
            if let Some(early) = self.between(votes)? {
                why = early;
                break;
            }
        }
        self.report_late();
        let tokens_per_s = self.speed();
        self.save_last()?;
        self.deliver(why)?;
        self.end(why, tokens_per_s)
    }

    /// One step, and what all ranks wish: to leave, and whether their parts are written.
    fn one_step(&mut self) -> Result<Votes, RunError> {
        let asked = self.options.asked.load(Ordering::Relaxed);
        let written = self.checkpoints.as_ref().is_none_or(Checkpoints::is_written);
        let wishes = Wishes { asked, unwritten: !written };
        let outcome = self.trainer.step(&self.corpus, self.step, wishes)?;
        let votes = Votes { asked: outcome.asked > 0.0, written: outcome.unwritten == 0.0 };
        self.step += 1;
        let now = Instant::now();
        let took = (now - self.begun).as_secs_f64();
        self.begun = now;
        let (comm, bubble) = self.trainer.mesh.clock.take();
        let (comm, bubble) = (comm.as_secs_f64(), bubble.as_secs_f64());
        let times = [took, (took - comm - bubble).max(0.0), comm, bubble];
        self.measure(&times);
        self.report_late();
        self.late = Some((self.step, outcome, times));
        if self.trainer.reads_at_once() {
            self.report_late();
        }
        Ok(votes)
    }

    fn measure(&mut self, times: &[f64; 4]) {
        self.run_steps += 1;
        if self.run_steps == self.options.unmeasured {
            self.trainer.sync();
            self.measured_since = Instant::now();
        } else if self.run_steps > self.options.unmeasured {
            for (sum, time) in self.times.iter_mut().zip(&times[1..]) {
                *sum += time;
            }
        }
    }

    fn report_late(&mut self) {
        let Some((step, outcome, times)) = self.late.take() else { return };
        let loss = outcome.loss.read();
        self.loss = Some(loss);
        let config = &self.trainer.config;
        let per_step = config.tokens_per_step();
        let line = ProgressLine { step: Some(step), ..ProgressLine::default() };
        self.progress.say(match self.rank {
            0 => ProgressLine { loss: Some(loss), tokens: Some(step * per_step), ..line },
            _ => line,
        });
        let [took, compute, comm, bubble] = times;
        (self.tell)(Event::Step(StepReport {
            step,
            loss,
            lr: crate::schedule::learning_rate(&config.optim, step - 1, config.steps),
            tokens_per_s: per_step as f64 / took,
            step_ms: took * 1e3,
            compute_ms: compute * 1e3,
            comm_ms: comm * 1e3,
            bubble_ms: bubble * 1e3,
        }));
    }

    /// What is done between two steps, by all ranks alike.
    fn between(&mut self, votes: Votes) -> Result<Option<Why>, RunError> {
        let stop = self.options.stop_after.is_some_and(|last| self.step >= last);
        let last = self.step == self.trainer.config.steps;
        let leave = match (votes.asked, stop) {
            _ if last => None,
            (true, _) => Some(Why::Asked),
            (_, true) => Some(Why::Stopped),
            _ => None,
        };
        let every = self.options.checkpoint.as_ref().map_or(0, |wanted| wanted.every);
        let due = last || leave.is_some() || (every > 0 && self.step.is_multiple_of(every));
        // One at a time: the next waits for the last.
        if votes.written || due {
            self.publish()?;
        }
        if due && let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.start(&self.trainer, self.step)?;
        }
        // The last one is waited for at the end, where a failure is an error.
        if leave.is_none() && !last && self.is_overdue() {
            self.publish()?;
        }
        // What saving took is told with the save; it is no part of the next step.
        self.begun = Instant::now();
        Ok(leave)
    }

    /// The same on every rank: it depends on steps alone.
    fn is_overdue(&self) -> bool {
        let overlap = self.options.checkpoint.as_ref().map_or(0, |wanted| wanted.overlap);
        let underway = self.checkpoints.as_ref().and_then(Checkpoints::underway);
        underway.is_some_and(|step| self.step >= step.saturating_add(overlap))
    }

    fn publish(&mut self) -> Result<(), RunError> {
        let Some(checkpoints) = &mut self.checkpoints else { return Ok(()) };
        if checkpoints.underway().is_none() {
            return Ok(());
        }
        let Some(saved) = checkpoints.publish(&self.trainer)? else { return Ok(()) };
        self.tell_saved(saved);
        Ok(())
    }

    fn tell_saved(&mut self, saved: Saved) {
        let Saved { step, location, held_ms, failed, warnings } = saved;
        if self.rank == 0 && failed.is_none() {
            self.progress.say(ProgressLine {
                saved: Some(step),
                path: Some(location.clone()),
                save_ms: Some(held_ms),
                ..ProgressLine::default()
            });
        }
        (self.tell)(Event::Saved(SavedReport { step, location, held_ms, failed, warnings }));
    }

    /// Nothing comes after it that could save again: it must be there.
    fn save_last(&mut self) -> Result<(), RunError> {
        let Some(checkpoints) = &mut self.checkpoints else { return Ok(()) };
        let Some(saved) = checkpoints.publish(&self.trainer)? else { return Ok(()) };
        let (step, failed) = (saved.step, saved.failed.clone());
        self.tell_saved(saved);
        match failed {
            None => Ok(()),
            Some(why) => Err(CheckpointError::NotSaved { step, why }.into()),
        }
    }

    /// Who leaves may come back on other nodes.
    fn deliver(&mut self, why: Why) -> Result<(), RunError> {
        let Some(checkpoints) = &self.checkpoints else { return Ok(()) };
        let place = checkpoints.deliver(&self.trainer, self.step, why == Why::Done)?;
        if let Some(location) = place {
            let (held_ms, failed, warnings) = (0, None, Vec::new());
            self.tell_saved(Saved { step: self.step, location, held_ms, failed, warnings });
        }
        Ok(())
    }

    /// Tokens per second of all ranks together.
    fn speed(&self) -> f64 {
        self.trainer.sync();
        let steps = self.run_steps.saturating_sub(self.options.unmeasured);
        let tokens = steps * self.trainer.config.tokens_per_step();
        tokens as f64 / self.measured_since.elapsed().as_secs_f64()
    }

    fn end(self, why: Why, tokens_per_s: f64) -> Result<Ended, RunError> {
        let mut flat = self.times.to_vec();
        if let Some(world) = &self.trainer.mesh.world {
            let mut all = vec![0.0; 3 * world.size()];
            world.all_gather(&flat, &mut all)?;
            flat = all;
        }
        let ranks = flat.chunks(3).enumerate().map(|(rank, times)| RankTimes {
            rank,
            compute_s: times[0],
            comm_s: times[1],
            bubble_s: times[2],
        });
        let ended =
            Ended { why, step: self.step, loss: self.loss, tokens_per_s, ranks: ranks.collect() };
        (self.tell)(Event::Ended(ended.clone()));
        Ok(ended)
    }
}

/// What all ranks said in a step.
#[derive(Clone, Copy)]
struct Votes {
    asked: bool,
    written: bool,
}
