//! Which parameters a rank has, and which part of the whole each of them is.
//!
//! The model works on few large matrices (q, k and v are one). A checkpoint and the first values
//! know the tensors by their names and global shapes. A [`Piece`] ties the two together: a
//! rectangle of a named tensor, and where it lies in the rank's own matrix.

use crate::config::{ModelConfig, VOCAB};
use crate::layout::{Layout, Place};
use crate::rng::Stream;

/// Scale of the first values of all matrices.
const INIT_STD: f32 = 0.02;

/// The part of the model that becomes ready as one in the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unit {
    /// Final norm, and the head when it is its own.
    Head,
    /// A layer, by its number in the stage.
    Layer(usize),
    /// The embedding: ready last. A tied head on another stage waits for it there.
    Embedding,
}

/// A rank's own matrix (or vector, as one row).
#[derive(Clone, Debug)]
pub struct Param {
    pub unit: Unit,
    pub shape: [usize; 2],
    pub pieces: Vec<Piece>,
    /// Vectors are not decayed.
    pub decay: bool,
    /// Summed between the first and the last stage before it is used.
    pub tied: bool,
}

/// A rectangle of a global tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    pub name: String,
    /// One or two dimensions; a vector is a matrix of one row here.
    pub vector: bool,
    pub full: [usize; 2],
    pub offset: [usize; 2],
    pub extent: [usize; 2],
    /// First element in the rank's own matrix. Rows of a piece follow each other there.
    pub at: usize,
    /// Deviation of the first values; None starts at one.
    pub std: Option<f32>,
    /// This rank speaks for it: among ranks with the same rectangle exactly one does.
    pub owned: bool,
    /// Other tensor ranks have the same rectangle, and each has a part of its gradient.
    pub shared: bool,
}

impl Param {
    pub fn len(&self) -> usize {
        self.shape[0] * self.shape[1]
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Piece {
    pub fn len(&self) -> usize {
        self.extent[0] * self.extent[1]
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first values: those that the whole tensor has there.
    pub fn init(&self, seed: u64, into: &mut [f32]) {
        let Some(std) = self.std else {
            into.fill(1.0);
            return;
        };
        let stream = Stream::new(seed, &self.name);
        for row in 0..self.extent[0] {
            let first = (self.offset[0] + row) * self.full[1] + self.offset[1];
            let row = &mut into[row * self.extent[1]..(row + 1) * self.extent[1]];
            for (column, value) in row.iter_mut().enumerate() {
                *value = std * stream.normal((first + column) as u64);
            }
        }
    }
}

/// Sizes of one tensor rank's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub ffn: usize,
    /// Rows of the embedding, padding included.
    pub vocab: usize,
    /// First of them.
    pub vocab_first: usize,
    /// How many tensor ranks have the same key and value heads.
    pub kv_sharers: usize,
}

impl Local {
    pub fn new(model: &ModelConfig, layout: &Layout, place: Place) -> Self {
        let tp = layout.tp;
        let vocab = VOCAB.div_ceil(tp);
        Local {
            heads: model.heads / tp,
            kv_heads: (model.kv_heads / tp).max(1),
            head_dim: model.head_dim(),
            ffn: model.ffn / tp,
            vocab,
            vocab_first: vocab * place.tensor,
            kv_sharers: (tp / model.kv_heads).max(1),
        }
    }

    /// Rows of the embedding that stand for a byte.
    pub fn vocab_used(&self) -> usize {
        VOCAB.saturating_sub(self.vocab_first).min(self.vocab)
    }
}

/// Where each parameter of a stage is in its list.
#[derive(Clone, Debug)]
pub struct Roles {
    pub embedding: Option<usize>,
    pub layers: Vec<LayerRoles>,
    pub norm: Option<usize>,
    pub head: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
pub struct LayerRoles {
    pub attention_norm: usize,
    pub qkv: usize,
    pub out: usize,
    pub mlp_norm: usize,
    pub gate_up: usize,
    pub down: usize,
}

/// The parameters of one rank.
pub fn parameters(model: &ModelConfig, layout: &Layout, place: Place) -> (Vec<Param>, Roles) {
    let mut build =
        Build { model, local: Local::new(model, layout, place), place, params: Vec::new() };
    let (first, last) = (place.pipe == 0, place.pipe + 1 == layout.pp);
    let embedding = first.then(|| build.embedding("embedding", Unit::Embedding, true));
    let layers = layout.layers(place.pipe);
    let layers = layers.enumerate().map(|(at, layer)| build.layer(at, layer)).collect();
    let norm = last.then(|| build.norm("norm", Unit::Head));
    let head = match (last, model.tied) {
        (false, _) => None,
        (true, false) => Some(build.embedding("head", Unit::Head, true)),
        (true, true) if first => embedding,
        (true, true) => Some(build.embedding("embedding", Unit::Embedding, false)),
    };
    if model.tied && layout.pp > 1 {
        for index in [embedding, head].into_iter().flatten() {
            build.params[index].tied = true;
        }
    }
    (build.params, Roles { embedding, layers, norm, head })
}

struct Build<'a> {
    model: &'a ModelConfig,
    local: Local,
    place: Place,
    params: Vec<Param>,
}

impl Build<'_> {
    fn push(&mut self, unit: Unit, shape: [usize; 2], pieces: Vec<Piece>) -> usize {
        let decay = pieces.iter().all(|piece| !piece.vector);
        self.params.push(Param { unit, shape, pieces, decay, tied: false });
        self.params.len() - 1
    }

    /// A rectangle that starts the matrix. Owned and not shared, until said otherwise.
    fn piece(
        &self,
        name: String,
        full: [usize; 2],
        offset: [usize; 2],
        extent: [usize; 2],
    ) -> Piece {
        let std = Some(INIT_STD);
        Piece { name, vector: false, full, offset, extent, at: 0, std, owned: true, shared: false }
    }

    fn norm(&mut self, name: &str, unit: Unit) -> usize {
        let shape = [1, self.model.dim];
        let piece = Piece {
            vector: true,
            std: None,
            owned: self.place.tensor == 0,
            ..self.piece(name.to_owned(), shape, [0, 0], shape)
        };
        self.push(unit, shape, vec![piece])
    }

    fn embedding(&mut self, name: &str, unit: Unit, owned: bool) -> usize {
        let (local, dim) = (self.local, self.model.dim);
        let extent = [local.vocab_used(), dim];
        // A rank past the end of the vocabulary has nothing but padding.
        let first = local.vocab_first.min(VOCAB);
        let piece = self.piece(name.to_owned(), [VOCAB, dim], [first, 0], extent);
        let pieces = if piece.is_empty() { vec![] } else { vec![Piece { owned, ..piece }] };
        self.push(unit, [local.vocab, dim], pieces)
    }

    fn layer(&mut self, at: usize, layer: usize) -> LayerRoles {
        let unit = Unit::Layer(at);
        let name = |part: &str| format!("layers.{layer}.{part}");
        LayerRoles {
            attention_norm: self.norm(&name("attention_norm"), unit),
            qkv: self.qkv(unit, &name),
            out: self.row_parallel(unit, name("wo"), self.local.heads * self.local.head_dim),
            mlp_norm: self.norm(&name("mlp_norm"), unit),
            gate_up: self.gate_up(unit, &name),
            down: self.row_parallel(unit, name("w2"), self.local.ffn),
        }
    }

    /// Split by heads. Key and value heads that are fewer than the ranks are on several of them.
    fn qkv(&mut self, unit: Unit, name: &dyn Fn(&str) -> String) -> usize {
        let (local, model, tensor) = (self.local, self.model, self.place.tensor);
        let (dim, size) = (model.dim, local.head_dim);
        let mut pieces = Vec::new();
        let mut at = 0;
        let kv_first = tensor / local.kv_sharers * local.kv_heads;
        for (part, all, first, own) in [
            ("wq", model.heads, tensor * local.heads, local.heads),
            ("wk", model.kv_heads, kv_first, local.kv_heads),
            ("wv", model.kv_heads, kv_first, local.kv_heads),
        ] {
            let shared = part != "wq" && local.kv_sharers > 1;
            let piece =
                self.piece(name(part), [all * size, dim], [first * size, 0], [own * size, dim]);
            let owned = !shared || tensor.is_multiple_of(local.kv_sharers);
            pieces.push(Piece { at, owned, shared, ..piece });
            at += own * size * dim;
        }
        self.push(unit, [at / dim, dim], pieces)
    }

    fn gate_up(&mut self, unit: Unit, name: &dyn Fn(&str) -> String) -> usize {
        let (own, all, dim) = (self.local.ffn, self.model.ffn, self.model.dim);
        let offset = [own * self.place.tensor, 0];
        let gate = self.piece(name("w1"), [all, dim], offset, [own, dim]);
        let up = Piece { name: name("w3"), at: own * dim, ..gate.clone() };
        self.push(unit, [2 * own, dim], vec![gate, up])
    }

    /// Split by columns: what comes out is a part of the sum. Starts smaller the deeper the model,
    /// so that the residual stream keeps its size.
    fn row_parallel(&mut self, unit: Unit, name: String, own: usize) -> usize {
        let dim = self.model.dim;
        let all = if name.ends_with("wo") { dim } else { self.model.ffn };
        let offset = [0, own * self.place.tensor];
        let std = INIT_STD / (2.0 * self.model.layers as f32).sqrt();
        let piece = self.piece(name, [dim, all], offset, [dim, own]);
        self.push(unit, [dim, own], vec![Piece { std: Some(std), ..piece }])
    }
}

#[cfg(test)]
mod tests;
