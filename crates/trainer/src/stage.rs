//! One stage of the pipeline: forward and backward of one micro-batch, and the points where tensor
//! ranks meet.
//!
//! ```text
//! x ─► norm ─► attention ─► sum over ranks ─► + x ─► norm ─► mlp ─► sum over ranks ─► +
//! backward:  the sum passes the gradient on as it is; where a norm's output was handed to all
//!            ranks, their gradients are summed, so that norms see whole gradients on every rank
//! ```

use tutti_collectives::Error;

use crate::comm::Mesh;
use crate::data::Batch;
use crate::grads::{Exchange, Gradients};
use crate::nn::attention::{self, Tables};
use crate::nn::{Geometry, head, linear, linear_weight, mlp, norm, one_hot};
use crate::params::{LayerRoles, Local, Roles, Unit};
use crate::tensor::{Device, FloatDType, Int, Tensor, TensorData};

pub struct Stage {
    pub geometry: Geometry,
    pub tables: Tables,
    pub roles: Roles,
    pub local: Local,
    /// Weights in the precision of the products; those of norms in f32.
    pub weights: Vec<Tensor<2>>,
    pub recompute: bool,
    pub device: Device,
    /// What the loss of one token counts: one over the tokens of the whole batch.
    pub token_weight: f64,
}

/// What a micro-batch leaves behind for its backward pass.
pub struct Trail {
    tokens: Option<Tensor<2>>,
    layers: Vec<LayerTrail>,
    head: Option<HeadTrail>,
}

struct LayerTrail {
    input: Tensor<2>,
    body: Option<LayerBody>,
}

struct LayerBody {
    attention_scale: Tensor<2>,
    attention: attention::Saved,
    middle: Tensor<2>,
    mlp_scale: Tensor<2>,
    mlp: mlp::Saved,
}

struct HeadTrail {
    input: Tensor<2>,
    scale: Tensor<2>,
    normed: Tensor<2>,
    exponentials: Tensor<2>,
    sum: Tensor<2>,
    targets: Tensor<2>,
}

/// What a stage hands on.
pub enum Output {
    /// To the next stage.
    Hidden(Tensor<2>),
    /// Of all tokens of the micro-batch together.
    Loss(Tensor<1>),
}

impl Stage {
    /// `input` is None on the first stage.
    pub fn forward(
        &self,
        mesh: &Mesh,
        batch: &Batch,
        input: Option<Tensor<2>>,
    ) -> Result<(Output, Trail), Error> {
        let (mut x, tokens) = match input {
            Some(x) => (x, None),
            None => {
                let (x, tokens) = self.embed(mesh, batch)?;
                (x, Some(tokens))
            }
        };
        let mut layers = Vec::with_capacity(self.roles.layers.len());
        for roles in &self.roles.layers {
            let (y, body) = self.layer(mesh, *roles, x.clone())?;
            layers.push(LayerTrail { input: x, body: (!self.recompute).then_some(body) });
            x = y;
        }
        if self.roles.head.is_none() {
            return Ok((Output::Hidden(x), Trail { tokens, layers, head: None }));
        }
        let (loss, head) = self.loss(mesh, batch, x)?;
        Ok((Output::Loss(loss), Trail { tokens, layers, head: Some(head) }))
    }

    /// Gradient of the stage's input, or None on the first stage. `finish` is the exchange to start
    /// with units that are complete: that is on the last micro-batch of a step. The embedding is for
    /// the caller to finish: a tied head would wait for the first stage, which waits for us.
    pub fn backward(
        &self,
        mesh: &Mesh,
        trail: Trail,
        doutput: Option<Tensor<2>>,
        gradients: &mut Gradients,
        finish: Option<&Exchange<'_>>,
    ) -> Result<Option<Tensor<2>>, Error> {
        let done = |gradients: &mut Gradients, unit| match finish {
            Some(exchange) => gradients.finish(unit, exchange),
            None => Ok(()),
        };
        let mut dx = match trail.head {
            Some(head) => {
                let dx = self.loss_backward(mesh, head, gradients)?;
                done(gradients, Unit::Head)?;
                dx
            }
            None => doutput.expect("a stage before the last gets its gradient from the next"),
        };
        for (at, layer) in trail.layers.into_iter().enumerate().rev() {
            dx = self.layer_backward(mesh, self.roles.layers[at], layer, dx, gradients)?;
            done(gradients, Unit::Layer(at))?;
        }
        let Some(tokens) = trail.tokens else { return Ok(Some(dx)) };
        let embedding = self.roles.embedding.expect("the stage that embeds has an embedding");
        let dtype = self.geometry.dtype;
        gradients.add(embedding, linear_weight(tokens.cast(dtype), dx.cast(dtype)));
        Ok(None)
    }

    fn weight(&self, index: usize) -> Tensor<2> {
        self.weights[index].clone()
    }

    fn tokens(&self, tokens: &[i32]) -> Tensor<2> {
        let data = TensorData::new(tokens.to_vec(), [tokens.len()]);
        let tokens = Tensor::<1, Int>::from_data(data, &self.device);
        one_hot(tokens, self.local.vocab_first, self.local.vocab, &self.device)
    }

    fn embed(&self, mesh: &Mesh, batch: &Batch) -> Result<(Tensor<2>, Tensor<2>), Error> {
        let embedding = self.roles.embedding.expect("only the first stage embeds");
        let tokens = self.tokens(&batch.inputs);
        let x = tokens.clone().cast(self.geometry.dtype).matmul(self.weight(embedding));
        Ok((mesh.sum(mesh.tensor.as_ref(), x.cast(FloatDType::F32))?, tokens))
    }

    fn layer(
        &self,
        mesh: &Mesh,
        roles: LayerRoles,
        x: Tensor<2>,
    ) -> Result<(Tensor<2>, LayerBody), Error> {
        let dtype = self.geometry.dtype;
        let (normed, attention_scale) = norm::forward(x.clone(), self.weight(roles.attention_norm));
        let (part, attention) = attention::forward(
            self.geometry,
            &self.tables,
            normed.cast(dtype),
            self.weight(roles.qkv),
            self.weight(roles.out),
        );
        let middle = x.add(mesh.sum(mesh.tensor.as_ref(), part.cast(FloatDType::F32))?);
        let (normed, mlp_scale) = norm::forward(middle.clone(), self.weight(roles.mlp_norm));
        let (part, mlp) =
            mlp::forward(normed.cast(dtype), self.weight(roles.gate_up), self.weight(roles.down));
        let sum = mesh.sum(mesh.tensor.as_ref(), part.cast(FloatDType::F32))?;
        let y = middle.clone().add(sum);
        Ok((y, LayerBody { attention_scale, attention, middle, mlp_scale, mlp }))
    }

    fn layer_backward(
        &self,
        mesh: &Mesh,
        roles: LayerRoles,
        trail: LayerTrail,
        dy: Tensor<2>,
        gradients: &mut Gradients,
    ) -> Result<Tensor<2>, Error> {
        let dtype = self.geometry.dtype;
        let body = match trail.body {
            Some(body) => body,
            None => self.layer(mesh, roles, trail.input.clone())?.1,
        };
        let (gate_up, down) = (self.weight(roles.gate_up), self.weight(roles.down));
        let grads = mlp::backward(dy.clone().cast(dtype), body.mlp, gate_up, down);
        gradients.add(roles.gate_up, grads.gate_up);
        gradients.add(roles.down, grads.down);
        let dnormed = mesh.sum(mesh.tensor.as_ref(), grads.input.cast(FloatDType::F32))?;
        let scale = self.weight(roles.mlp_norm);
        let (dmiddle, dscale) = norm::backward(dnormed, body.middle, body.mlp_scale, scale);
        gradients.add(roles.mlp_norm, dscale);
        let dmiddle = dy.add(dmiddle);

        let grads = attention::backward(
            self.geometry,
            &self.tables,
            dmiddle.clone().cast(dtype),
            body.attention,
            self.weight(roles.qkv),
            self.weight(roles.out),
        );
        gradients.add(roles.qkv, grads.qkv);
        gradients.add(roles.out, grads.out);
        let dnormed = mesh.sum(mesh.tensor.as_ref(), grads.input.cast(FloatDType::F32))?;
        let scale = self.weight(roles.attention_norm);
        let (dx, dscale) = norm::backward(dnormed, trail.input, body.attention_scale, scale);
        gradients.add(roles.attention_norm, dscale);
        Ok(dmiddle.add(dx))
    }

    fn loss(
        &self,
        mesh: &Mesh,
        batch: &Batch,
        x: Tensor<2>,
    ) -> Result<(Tensor<1>, HeadTrail), Error> {
        let norm_index = self.roles.norm.expect("the stage with the head has the last norm");
        let head_index = self.roles.head.expect("only the stage with the head has a loss");
        let tensor = mesh.tensor.as_ref();
        let (normed, scale) = norm::forward(x.clone(), self.weight(norm_index));
        let normed = normed.cast(self.geometry.dtype);
        let logits = linear(normed.clone(), self.weight(head_index)).cast(FloatDType::F32);
        let logits = head::mask_padding(logits, self.local.vocab_used());
        let targets = self.tokens(&batch.targets);
        let largest = mesh.max(tensor, head::largest(logits.clone()))?;
        let share = head::share(logits, largest, targets.clone());
        // Both numbers in one exchange.
        let both = mesh.sum(tensor, Tensor::cat(vec![share.sum, share.target], 1))?;
        let (sum, target) = (both.clone().narrow(1, 0, 1), both.narrow(1, 1, 1));
        let loss = head::loss(sum.clone(), target);
        let exponentials = share.exponentials;
        Ok((loss, HeadTrail { input: x, scale, normed, exponentials, sum, targets }))
    }

    fn loss_backward(
        &self,
        mesh: &Mesh,
        trail: HeadTrail,
        gradients: &mut Gradients,
    ) -> Result<Tensor<2>, Error> {
        let norm_index = self.roles.norm.expect("the stage with the head has the last norm");
        let head_index = self.roles.head.expect("only the stage with the head has a loss");
        let dlogits =
            head::backward(trail.exponentials, trail.sum, trail.targets, self.token_weight);
        let dlogits = dlogits.cast(self.geometry.dtype);
        gradients.add(head_index, linear_weight(dlogits.clone(), trail.normed));
        let dnormed = dlogits.matmul(self.weight(head_index)).cast(FloatDType::F32);
        let dnormed = mesh.sum(mesh.tensor.as_ref(), dnormed)?;
        let (dx, dscale) =
            norm::backward(dnormed, trail.input, trail.scale, self.weight(norm_index));
        gradients.add(norm_index, dscale);
        Ok(dx)
    }
}
