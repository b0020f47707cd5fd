//! Cross entropy over a vocabulary that is split between ranks.
//!
//! A rank sees its columns alone. Three numbers per token must be known of all columns: the largest
//! logit, the sum of exponentials, and the logit of the token that follows. The caller adds them up
//! between the ranks; in between, each function goes as far as it can alone.

use crate::tensor::Tensor;

/// Added to the logits of padding.
const PADDING: f32 = -1e9;

/// Padding must never win, nor weigh anything.
pub fn mask_padding(logits: Tensor<2>, used: usize) -> Tensor<2> {
    let [tokens, columns] = logits.dims();
    if used == columns {
        return logits;
    }
    let padding = Tensor::full([tokens, columns - used], PADDING, &logits.device());
    if used == 0 {
        return padding;
    }
    Tensor::cat(vec![logits.narrow(1, 0, used), padding], 1)
}

pub fn largest(logits: Tensor<2>) -> Tensor<2> {
    logits.max_dim(1)
}

/// What a rank has of each token's loss: exponentials, their sum, and the logit of the target,
/// all measured from `largest` of all ranks.
pub struct Share {
    pub exponentials: Tensor<2>,
    pub sum: Tensor<2>,
    pub target: Tensor<2>,
}

pub fn share(logits: Tensor<2>, largest: Tensor<2>, targets: Tensor<2>) -> Share {
    let shifted = logits.sub(largest);
    let target = shifted.clone().mul(targets).sum_dim(1);
    let exponentials = shifted.exp();
    Share { sum: exponentials.clone().sum_dim(1), exponentials, target }
}

/// Loss of all tokens together, from the sums of all ranks.
pub fn loss(sum: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
    sum.log().sub(target).sum()
}

/// Gradient of the logits, when the loss counts `weight`.
pub fn backward(
    exponentials: Tensor<2>,
    sum: Tensor<2>,
    targets: Tensor<2>,
    weight: f64,
) -> Tensor<2> {
    exponentials.div(sum).sub(targets).mul_scalar(weight)
}
