//! Root mean square norm, in f32.

use crate::tensor::Tensor;

const EPS: f32 = 1e-5;

/// `x` over its root mean square, times `w`. Also the reciprocal of that root, for the gradient.
pub fn forward(x: Tensor<2>, w: Tensor<2>) -> (Tensor<2>, Tensor<2>) {
    let scale = x.clone().square().mean_dim(1).add_scalar(EPS).sqrt().recip();
    (x.mul(scale.clone()).mul(w), scale)
}

/// Gradients of `x` and of `w`.
pub fn backward(
    dy: Tensor<2>,
    x: Tensor<2>,
    scale: Tensor<2>,
    w: Tensor<2>,
) -> (Tensor<2>, Tensor<2>) {
    let unit = x.mul(scale.clone());
    let dw = dy.clone().mul(unit.clone()).sum_dim(0);
    let dunit = dy.mul(w);
    let along = dunit.clone().mul(unit.clone()).mean_dim(1);
    let dx = dunit.sub(unit.mul(along)).mul(scale);
    (dx, dw)
}
