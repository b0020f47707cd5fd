//! SwiGLU: the gate and the way up are one matrix.

use super::{linear, linear_weight};
use crate::tensor::{Tensor, activation};

pub struct Saved {
    input: Tensor<2>,
    /// Gate and up beside each other.
    hidden: Tensor<2>,
}

pub struct Grads {
    pub input: Tensor<2>,
    pub gate_up: Tensor<2>,
    pub down: Tensor<2>,
}

pub fn forward(input: Tensor<2>, gate_up: Tensor<2>, down: Tensor<2>) -> (Tensor<2>, Saved) {
    let hidden = linear(input.clone(), gate_up);
    let (gate, up) = halves(hidden.clone());
    let out = linear(activation::silu(gate).mul(up), down);
    (out, Saved { input, hidden })
}

pub fn backward(dy: Tensor<2>, saved: Saved, gate_up: Tensor<2>, down: Tensor<2>) -> Grads {
    let (gate, up) = halves(saved.hidden);
    let sigmoid = activation::sigmoid(gate.clone());
    let silu = gate.clone().mul(sigmoid.clone());
    let down_grad = linear_weight(dy.clone(), silu.clone().mul(up.clone()));
    let dinner = dy.matmul(down);
    let dup = dinner.clone().mul(silu.clone());
    // The slope of silu is sigmoid + silu (1 - sigmoid).
    let slope = sigmoid.clone().add(silu.mul(sigmoid.neg().add_scalar(1.0)));
    let dgate = dinner.mul(up).mul(slope);
    let dhidden = Tensor::cat(vec![dgate, dup], 1);
    Grads {
        gate_up: linear_weight(dhidden.clone(), saved.input),
        input: dhidden.matmul(gate_up),
        down: down_grad,
    }
}

fn halves(hidden: Tensor<2>) -> (Tensor<2>, Tensor<2>) {
    let half = hidden.dims()[1] / 2;
    (hidden.clone().narrow(1, 0, half), hidden.narrow(1, half, half))
}
