//! A model by a few numbers, and the bounds that every model keeps to.

use crate::Arch;
use crate::family::{Shape, family};
use crate::words::thousands;

/// What a number may be. Far beyond every model that there is, and small enough that nothing overflows.
pub(crate) const LAYERS: u64 = 10_000;
pub(crate) const WIDTH: u64 = 10_000_000;
pub(crate) const HEADS: u64 = 100_000;
pub(crate) const EXPERTS: u64 = 100_000;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadNumbers {
    #[error("{what} is {value}, not a whole number from {low} to {}", thousands(*.high))]
    Bounds { what: &'static str, value: u64, low: u64, high: u64 },
    #[error("{what} {value} does not divide by {heads} heads; give the width of a head")]
    Heads { what: &'static str, value: u64, heads: u32 },
    #[error("{heads} heads do not divide by {kv_heads} key-value heads")]
    KvHeads { heads: u32, kv_heads: u32 },
    #[error("a token visits {topk} experts of {experts}; it can visit 1 to {experts}")]
    Topk { topk: u32, experts: u32 },
    #[error("{dense} layers without experts are more than the {layers} layers that there are")]
    DenseLayers { dense: u32, layers: u32 },
    #[error("{params} is no count of weights; give one from 1e6 to 1e14, such as 70e9")]
    Params { params: String },
}

/// A model that has no config.json: what is not given is as in the Llama family.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Numbers {
    pub layers: u32,
    pub hidden: u64,
    pub heads: Option<u32>,
    pub kv_heads: Option<u32>,
    pub head_dim: Option<u64>,
    pub ffn: Option<u64>,
    pub vocab: Option<u64>,
}

impl Numbers {
    pub fn arch(&self) -> Result<Arch, BadNumbers> {
        within("layers", u64::from(self.layers), LAYERS)?;
        within("hidden", self.hidden, WIDTH)?;
        let heads = self.heads.unwrap_or_else(|| (self.hidden / 128).max(1) as u32);
        within("heads", u64::from(heads), HEADS)?;
        let head_dim = match self.head_dim {
            Some(d) => d,
            None if self.hidden.is_multiple_of(u64::from(heads)) => self.hidden / u64::from(heads),
            None => {
                return Err(BadNumbers::Heads { what: "hidden", value: self.hidden, heads });
            }
        };
        let shape = Shape {
            layers: self.layers,
            hidden: self.hidden,
            heads,
            kv_heads: self.kv_heads.unwrap_or(heads),
            head_dim,
            ffn: self.ffn.unwrap_or((self.hidden * 8 / 3).next_multiple_of(256)),
            vocab: self.vocab.unwrap_or(128_256),
            tied: false,
            positions: 0,
            window: None,
            moe: None,
            latent: None,
        };
        let name = format!("{} layers × {}", self.layers, self.hidden);
        let arch = family("llama").expect("llama is a family").arch(&name, &shape);
        check(&arch).map(|()| arch)
    }

    /// Some dense model of so many weights: 128 times as wide as deep, as the large ones are.
    pub fn of_size(params: f64) -> Result<Arch, BadNumbers> {
        if !(1e6..=1e14).contains(&params) {
            return Err(BadNumbers::Params { params: params.to_string() });
        }
        let sized = |layers: u32| {
            let hidden = u64::from(layers) * 128;
            Numbers { layers, hidden, ..Numbers::default() }.arch()
        };
        let mut best = sized(1)?;
        for layers in 2..=512 {
            let next = sized(layers)?;
            if (next.params() - params).abs() > (best.params() - params).abs() {
                break;
            }
            best = next;
        }
        best.name = format!("{:.3}B weights", params / 1e9);
        Ok(best)
    }
}

fn within(what: &'static str, value: u64, high: u64) -> Result<(), BadNumbers> {
    match value {
        v if (1..=high).contains(&v) => Ok(()),
        value => Err(BadNumbers::Bounds { what, value, low: 1, high }),
    }
}

/// Whether a model can be planned at all.
pub fn check(arch: &Arch) -> Result<(), BadNumbers> {
    within("layers", u64::from(arch.layers), LAYERS)?;
    within("heads", u64::from(arch.heads), HEADS)?;
    within("key-value heads", u64::from(arch.kv_heads), HEADS)?;
    for (what, value) in [
        ("hidden", arch.hidden),
        ("the width of a head", arch.head_dim),
        ("the width of the MLP", arch.ffn),
        ("the vocabulary", arch.vocab),
    ] {
        within(what, value, WIDTH)?;
    }
    if !arch.heads.is_multiple_of(arch.kv_heads) {
        return Err(BadNumbers::KvHeads { heads: arch.heads, kv_heads: arch.kv_heads });
    }
    let Some(moe) = arch.moe else { return Ok(()) };
    within("experts", u64::from(moe.experts), EXPERTS)?;
    within("the width of an expert", moe.ffn, WIDTH)?;
    if !(1..=moe.experts).contains(&moe.topk) {
        return Err(BadNumbers::Topk { topk: moe.topk, experts: moe.experts });
    }
    if moe.dense_layers > arch.layers {
        return Err(BadNumbers::DenseLayers { dense: moe.dense_layers, layers: arch.layers });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_numbers_make_a_model() {
        let some = Numbers {
            layers: 32,
            hidden: 4096,
            kv_heads: Some(8),
            ffn: Some(14336),
            ..Numbers::default()
        };
        let arch = some.arch().unwrap();
        assert_eq!((arch.heads, arch.head_dim), (32, 128));
        assert!((arch.params() / 8.03e9 - 1.0).abs() < 0.001);
    }

    #[test]
    fn a_size_makes_a_model_of_about_that_size() {
        for size in [1.3e9, 7e9, 70e9, 1e12] {
            let is = Numbers::of_size(size).unwrap().params();
            assert!((is / size - 1.0).abs() < 0.1, "{size}: {is}");
        }
        for bad in [0.0, -7e9, f64::NAN, f64::INFINITY, 1e30] {
            assert!(Numbers::of_size(bad).is_err());
        }
    }

    #[test]
    fn nonsense_is_refused_with_its_number() {
        let says = |n: Numbers| n.arch().unwrap_err().to_string();
        let some = Numbers { layers: 32, hidden: 4096, ..Numbers::default() };
        assert_eq!(
            says(Numbers { layers: 0, ..some }),
            "layers is 0, not a whole number from 1 to 10,000"
        );
        assert_eq!(
            says(Numbers { heads: Some(30), ..some }),
            "hidden 4096 does not divide by 30 heads; give the width of a head"
        );
        assert_eq!(
            says(Numbers { heads: Some(32), kv_heads: Some(5), ..some }),
            "32 heads do not divide by 5 key-value heads"
        );
    }
}
