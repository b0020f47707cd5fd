//! The parts of the transformer on Burn tensors: forward, and the gradients written out.
//!
//! Each part knows one tensor rank's share alone and never communicates: what it returns is the
//! rank's part of a sum, and the stage adds the parts up. So every point where ranks meet is in
//! one place, between the parts. The tests hold each gradient against Burn's own differentiation.

pub mod attention;
pub mod cached;
pub mod head;
pub mod mlp;
pub mod norm;

use crate::tensor::{Device, FloatDType, Int, Tensor};

/// Sizes of one micro-batch on one rank.
#[derive(Clone, Copy, Debug)]
pub struct Geometry {
    pub batch: usize,
    pub seq: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Precision of the matrices.
    pub dtype: FloatDType,
}

/// `x` times the transpose of `w`: weights are kept as one row per output.
pub fn linear(x: Tensor<2>, w: Tensor<2>) -> Tensor<2> {
    x.matmul(w.transpose())
}

/// Gradient of the weights of [`linear`].
pub fn linear_weight(dy: Tensor<2>, x: Tensor<2>) -> Tensor<2> {
    dy.transpose().matmul(x)
}

/// One row per token: a one in the column of its byte, if that column is among this rank's.
/// With a vocabulary this small a product with it is the quickest look-up, and its transpose the
/// quickest sum of gradients.
pub fn one_hot(tokens: Tensor<1, Int>, first: usize, columns: usize, device: &Device) -> Tensor<2> {
    let first = first as i64;
    let columns = Tensor::<1, Int>::arange(first..first + columns as i64, device);
    tokens.unsqueeze_dim::<2>(1).equal(columns.unsqueeze_dim::<2>(0)).float()
}
