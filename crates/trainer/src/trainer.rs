//! One rank at work: its stage, its shards of the optimiser, and a step over both.

use std::collections::VecDeque;

use tutti_collectives::{Error, Pending};

use crate::bucket::{Bucket, buckets};
use crate::comm::{Mesh, from_host, to_host};
use crate::config::{Precision, TrainConfig};
use crate::data::{Batch, Corpus};
use crate::grads::{Exchange, Gradients};
use crate::layout::{Layout, Place};
use crate::nn::Geometry;
use crate::nn::attention::Tables;
use crate::optim::{Rates, Shard, ShardValues, clip_scale};
use crate::params::{Local, Param, Unit, parameters};
use crate::schedule::{Action, learning_rate, one_forward_one_backward};
use crate::stage::{Output, Stage, Trail};
use crate::tensor::{self, Device, FloatDType, Tensor};

pub struct Trainer {
    pub config: TrainConfig,
    pub layout: Layout,
    pub place: Place,
    pub mesh: Mesh,
    pub(crate) params: Vec<Param>,
    pub(crate) buckets: Vec<Bucket>,
    pub(crate) shards: Vec<Shard>,
    stage: Stage,
    device: Device,
}

/// What came out of a step.
pub struct Outcome {
    pub loss: Loss,
    /// Ranks that were asked to save and leave.
    pub asked: f64,
    /// Ranks whose part of a checkpoint is not written yet.
    pub unwritten: f64,
}

/// What a rank tells all others with a step.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wishes {
    /// It was asked to save and leave.
    pub asked: bool,
    /// It is still writing its part of a checkpoint.
    pub unwritten: bool,
}

/// Mean over the tokens of the whole batch.
pub enum Loss {
    Known(f64),
    /// Alone on an accelerator nothing waits for it: it is fetched when somebody wants to see it.
    OnDevice(Box<Tensor<1>>),
}

impl Loss {
    pub fn read(self) -> f64 {
        match self {
            Loss::Known(loss) => loss,
            Loss::OnDevice(loss) => f64::from(to_host(*loss)[0]),
        }
    }
}

impl Trainer {
    /// First values come from the seed.
    pub fn new(
        config: TrainConfig,
        layout: Layout,
        rank: usize,
        mesh: Mesh,
        device: Device,
    ) -> Result<Self, Error> {
        let place = layout.place(rank);
        let (params, roles) = parameters(&config.model, &layout, place);
        let shards = if layout.zero { layout.dp } else { 1 };
        let buckets = buckets(&params, shards, config.bucket_bytes);
        let local = Local::new(&config.model, &layout, place);
        let stage = Stage {
            geometry: geometry(&config, local),
            tables: Tables::new(config.seq, local.head_dim, &device),
            roles,
            local,
            weights: Vec::new(),
            recompute: config.recompute,
            device: device.clone(),
            token_weight: 1.0 / config.tokens_per_step() as f64,
        };
        let shards = Vec::new();
        let mut trainer =
            Trainer { config, layout, place, mesh, params, buckets, shards, stage, device };
        let seed = trainer.config.seed;
        let values = trainer
            .buckets
            .iter()
            .map(|bucket| Shard::initial(bucket, &trainer.params, &trainer.range(bucket), seed));
        let values = values.collect();
        trainer.set(values)?;
        Ok(trainer)
    }

    /// What this rank's optimiser has of a bucket.
    pub(crate) fn range(&self, bucket: &Bucket) -> std::ops::Range<usize> {
        match self.layout.zero {
            true => bucket.shard(self.place.data, self.layout.dp),
            false => 0..bucket.len,
        }
    }

    /// Takes these weights and moments, one set per bucket.
    pub(crate) fn set(&mut self, values: Vec<ShardValues>) -> Result<(), Error> {
        let shards = self.buckets.iter().zip(values).map(|(bucket, values)| {
            Shard::new(bucket, &self.params, self.range(bucket), values, &self.device)
        });
        self.shards = shards.collect();
        self.refresh()
    }

    /// One step over the whole batch. All ranks learn of each other's wishes here, at the same step.
    pub fn step(&mut self, corpus: &Corpus, step: u64, wishes: Wishes) -> Result<Outcome, Error> {
        let mut gradients = Gradients::new(self.params.len(), self.buckets.len());
        let loss = self.passes(corpus, step, &mut gradients)?;
        let exchange = self.exchange();
        let gradients = gradients.collect(&exchange, &self.device)?;
        let square_norm = self.square_norm(&gradients);
        let (outcome, scale) = self.totals(loss, square_norm, wishes)?;
        let lr = learning_rate(&self.config.optim, step, self.config.steps);
        let rates = Rates::at(&self.config.optim, lr, step);
        for (shard, gradient) in self.shards.iter_mut().zip(gradients) {
            shard.step(&rates, gradient, scale.clone());
        }
        self.refresh()?;
        Ok(outcome)
    }

    fn exchange(&self) -> Exchange<'_> {
        Exchange {
            mesh: &self.mesh,
            params: &self.params,
            buckets: &self.buckets,
            zero: self.layout.zero,
        }
    }

    /// All micro-batches, forward and backward. The sum of the losses, on the last stage.
    fn passes(
        &self,
        corpus: &Corpus,
        step: u64,
        gradients: &mut Gradients,
    ) -> Result<Option<Tensor<1>>, Error> {
        let micro_batches = self.layout.micro_batches(&self.config);
        let (pipe, stages) = (self.place.pipe, self.layout.pp);
        let mut trails = VecDeque::new();
        let mut sent = Vec::new();
        let mut losses: Option<Tensor<1>> = None;
        for action in one_forward_one_backward(pipe, stages, micro_batches) {
            match action {
                Action::Forward(micro) => {
                    let batch = self.batch(corpus, step, micro);
                    let (output, trail) = self.forward(&batch, micro, &mut sent)?;
                    trails.push_back(trail);
                    if let Some(loss) = output {
                        losses = Some(match losses {
                            None => loss,
                            Some(sum) => sum.add(loss),
                        });
                    }
                }
                Action::Backward(micro) => {
                    let trail = trails.pop_front().expect("forward comes first");
                    let last = micro + 1 == micro_batches;
                    self.backward(trail, micro, last, gradients, &mut sent)?;
                }
            }
        }
        for pending in sent {
            self.mesh.wait(pending)?;
        }
        Ok(losses)
    }

    fn batch(&self, corpus: &Corpus, step: u64, micro: usize) -> Batch {
        let own = self.config.batch / self.layout.dp;
        let first = self.place.data * own + micro * self.config.micro_batch;
        corpus.batch(step, first, self.config.micro_batch)
    }

    fn forward(
        &self,
        batch: &Batch,
        micro: usize,
        sent: &mut Vec<Pending<Vec<f32>>>,
    ) -> Result<(Option<Tensor<1>>, Trail), Error> {
        let pipe = self.place.pipe;
        let input = match pipe {
            0 => None,
            _ => Some(self.receive(pipe - 1, forward_tag(micro))?),
        };
        let (output, trail) = self.stage.forward(&self.mesh, batch, input)?;
        match output {
            Output::Loss(loss) => Ok((Some(loss), trail)),
            Output::Hidden(x) => {
                sent.push(self.mesh.send(pipe + 1, forward_tag(micro), x)?);
                Ok((None, trail))
            }
        }
    }

    fn backward(
        &self,
        trail: Trail,
        micro: usize,
        last: bool,
        gradients: &mut Gradients,
        sent: &mut Vec<Pending<Vec<f32>>>,
    ) -> Result<(), Error> {
        let pipe = self.place.pipe;
        let doutput = match pipe + 1 < self.layout.pp {
            true => Some(self.receive(pipe + 1, backward_tag(micro))?),
            false => None,
        };
        let exchange = self.exchange();
        let finish = last.then_some(&exchange);
        let dinput = self.stage.backward(&self.mesh, trail, doutput, gradients, finish)?;
        if let Some(dinput) = dinput {
            sent.push(self.mesh.send(pipe - 1, backward_tag(micro), dinput)?);
        }
        match finish {
            Some(exchange) => gradients.finish(Unit::Embedding, exchange),
            None => Ok(()),
        }
    }

    fn receive(&self, from: usize, tag: u64) -> Result<Tensor<2>, Error> {
        let dims = [self.config.micro_batch * self.config.seq, self.config.model.dim];
        self.mesh.receive(from, tag, dims, &self.device)
    }

    /// Of what this rank speaks for: data ranks that hold the same gradients must not all count.
    fn square_norm(&self, gradients: &[Tensor<1>]) -> Option<Tensor<1>> {
        if !self.layout.zero && self.place.data > 0 {
            return None;
        }
        let pairs = self.shards.iter().zip(gradients);
        pairs.map(|(shard, gradient)| shard.square_norm(gradient.clone())).reduce(Tensor::add)
    }

    /// Loss, norm and wishes of all ranks, in one exchange. Alone nothing leaves the device.
    fn totals(
        &self,
        loss: Option<Tensor<1>>,
        square_norm: Option<Tensor<1>>,
        wishes: Wishes,
    ) -> Result<(Outcome, Tensor<1>), Error> {
        let (clip, weight) = (self.config.optim.clip, self.stage.token_weight);
        let number = |yes: bool| f64::from(u8::from(yes));
        let (asked, unwritten) = (number(wishes.asked), number(wishes.unwritten));
        if self.mesh.world.is_none() {
            let loss = loss.expect("a rank that is alone has every stage").mul_scalar(weight);
            let norm = square_norm.expect("a rank that is alone speaks for everything");
            let outcome = Outcome { loss: Loss::OnDevice(Box::new(loss)), asked, unwritten };
            return Ok((outcome, clip_scale(norm, clip)));
        }
        // All tensor ranks of the last stage know the loss; one of them says it.
        let loss = loss.filter(|_| self.place.tensor == 0);
        let number = |x: Option<Tensor<1>>| x.map_or(0.0, |x| f64::from(to_host(x)[0]));
        let mut totals = [number(loss) * weight, number(square_norm), asked, unwritten];
        self.mesh.sum_host(self.mesh.world.as_ref(), &mut totals)?;
        let [loss, norm, asked, unwritten] = totals;
        let norm = from_host(vec![norm as f32], [1], &self.device);
        let outcome = Outcome { loss: Loss::Known(loss), asked, unwritten };
        Ok((outcome, clip_scale(norm, clip)))
    }

    /// The stage's matrices from the weights of the optimiser.
    fn refresh(&mut self) -> Result<(), Error> {
        let mut weights: Vec<Option<Tensor<2>>> = vec![None; self.params.len()];
        let flats = self.gather()?;
        for (bucket, flat) in self.buckets.iter().zip(flats) {
            for slot in &bucket.slots {
                let spec = &self.params[slot.param];
                let own = flat.clone().narrow(0, slot.offset, spec.len()).reshape(spec.shape);
                let dtype = if spec.decay { self.stage.geometry.dtype } else { FloatDType::F32 };
                weights[slot.param] = Some(own.cast(dtype));
            }
        }
        let weights = weights.into_iter().map(|w| w.expect("each parameter is in a bucket"));
        self.stage.weights = weights.collect();
        Ok(())
    }

    /// The whole of each bucket's weights.
    fn gather(&self) -> Result<Vec<Tensor<1>>, Error> {
        let (true, Some(data)) = (self.layout.zero, &self.mesh.data) else {
            return Ok(self.shards.iter().map(|shard| shard.weights.clone()).collect());
        };
        let started =
            self.shards.iter().map(|shard| data.start_all_gather(to_host(shard.weights.clone())));
        let started: Vec<_> = started.collect();
        let whole = started.into_iter().map(|pending| {
            let numbers = self.mesh.wait(pending)?;
            let len = numbers.len();
            Ok(from_host(numbers, [len], &self.device))
        });
        whole.collect()
    }

    /// Whether a loss is there as soon as its step is over. Else reading it would hold up the device.
    pub fn reads_at_once(&self) -> bool {
        self.mesh.world.is_some() || self.device == tensor::cpu()
    }

    /// Waits until the device has done all that it was given.
    pub fn sync(&self) {
        tensor::sync(&self.device);
    }
}

fn forward_tag(micro: usize) -> u64 {
    2 * micro as u64
}

fn backward_tag(micro: usize) -> u64 {
    2 * micro as u64 + 1
}

fn geometry(config: &TrainConfig, local: Local) -> Geometry {
    Geometry {
        batch: config.micro_batch,
        seq: config.seq,
        heads: local.heads,
        kv_heads: local.kv_heads,
        head_dim: local.head_dim,
        dtype: match config.precision {
            Precision::F32 => FloatDType::F32,
            Precision::Bf16 => FloatDType::BF16,
        },
    }
}

#[cfg(test)]
mod tests;
