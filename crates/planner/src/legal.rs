//! Which layouts can be run at all.

use thiserror::Error;

use crate::words::thousands;
use crate::{Arch, Cluster, Layout, Workload};

/// Why a layout cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Illegal {
    #[error("{what} is 0; it must be at least 1")]
    Zero { what: &'static str },
    #[error(
        "the layout needs {} GPUs (tp {tp} × pp {pp} × cp {cp} × dp {dp}) and the cluster has {}; \
         use fewer or add nodes", thousands(*.needed), thousands(*.there)
    )]
    TooManyGpus { needed: u64, there: u64, tp: u32, pp: u32, cp: u32, dp: u32 },
    #[error("{heads} attention heads do not divide by tp {tp}; use a tp that divides them")]
    Heads { heads: u32, tp: u32 },
    #[error("{kv_heads} key-value heads and tp {tp} do not divide one another; use a smaller tp")]
    KvHeads { kv_heads: u32, tp: u32 },
    #[error("an inner width of {} does not divide by tp {tp}; use a tp that divides it", thousands(*.ffn))]
    Ffn { ffn: u64, tp: u32 },
    #[error(
        "tp {tp} does not divide evenly into nodes of {per_node} GPUs; use one that divides or is a multiple of {per_node}"
    )]
    TensorSpans { tp: u32, per_node: u32 },
    #[error("{layers} layers cannot be cut into pp {pp} × vp {vp} chunks; use fewer chunks")]
    Layers { layers: u32, pp: u32, vp: u32 },
    #[error("vp {vp} needs a pipeline, and pp is 1; set vp to 1 or use pp 2 and more")]
    ChunksWithoutPipeline { vp: u32 },
    #[error(
        "interleaving (vp {vp}) sends micro-batches in groups of pp {pp}, and there are {}; \
         use vp 1 or a multiple of {pp} micro-batches", thousands(*.micro_batches)
    )]
    Interleaving { vp: u32, pp: u32, micro_batches: u64 },
    #[error(
        "a batch of {} sequences does not divide by dp {dp} × micro-batch {micro_batch}; \
         use a batch that is a multiple of {}",
        thousands(*.batch), thousands(u64::from(*.dp).saturating_mul(*.micro_batch))
    )]
    Batch { batch: u64, dp: u32, micro_batch: u64 },
    #[error("ep {ep} spreads experts, and the model has none; set ep to 1")]
    NoExperts { ep: u32 },
    #[error("{experts} experts do not divide by ep {ep}; use an ep that divides them")]
    Experts { experts: u32, ep: u32 },
    #[error(
        "ep {ep} does not divide tp {tp} × cp {cp} × dp {dp}; experts are spread over those ranks"
    )]
    ExpertRanks { ep: u32, tp: u32, cp: u32, dp: u32 },
    #[error("sequences of {} tokens do not divide by 2 × cp {cp}; use a smaller cp", thousands(*.seq))]
    Context { seq: u64, cp: u32 },
    #[error(
        "sequences of {} tokens do not divide by tp {tp} × cp {cp} for sequence parallelism; turn it off",
        thousands(*.seq)
    )]
    SequenceParallel { seq: u64, tp: u32, cp: u32 },
}

/// Whether this layout can be run. Memory is another matter.
pub fn legal(
    arch: &Arch,
    workload: &Workload,
    cluster: &Cluster,
    layout: &Layout,
) -> Result<(), Illegal> {
    counts(layout)?;
    whole(arch, workload, layout)?;
    tensor(arch, cluster, layout)?;
    pipeline(arch, workload, layout)?;
    experts(arch, layout)?;
    sequence(workload, layout)?;
    let (needed, there) = (layout.ranks(), u64::from(cluster.gpus()));
    if needed > there {
        let Layout { tp, pp, cp, dp, .. } = *layout;
        return Err(Illegal::TooManyGpus { needed, there, tp, pp, cp, dp });
    }
    Ok(())
}

fn counts(layout: &Layout) -> Result<(), Illegal> {
    let counts = [
        ("tp", u64::from(layout.tp)),
        ("pp", u64::from(layout.pp)),
        ("vp", u64::from(layout.vp)),
        ("cp", u64::from(layout.cp)),
        ("ep", u64::from(layout.ep)),
        ("dp", u64::from(layout.dp)),
        ("the micro-batch", layout.micro_batch),
    ];
    match counts.iter().find(|(_, n)| *n == 0) {
        Some((what, _)) => Err(Illegal::Zero { what }),
        None => Ok(()),
    }
}

fn whole(arch: &Arch, workload: &Workload, layout: &Layout) -> Result<(), Illegal> {
    let sizes = [
        ("the number of layers", u64::from(arch.layers)),
        ("the hidden size", arch.hidden),
        ("the number of heads", u64::from(arch.heads)),
        ("the number of key-value heads", u64::from(arch.kv_heads)),
        ("the vocabulary", arch.vocab),
        ("the sequence length", workload.seq),
        ("the batch", workload.global_batch),
    ];
    if let Some((what, _)) = sizes.iter().find(|(_, n)| *n == 0) {
        return Err(Illegal::Zero { what });
    }
    let Layout { dp, micro_batch, .. } = *layout;
    let group = u64::from(dp).saturating_mul(micro_batch);
    if !workload.global_batch.is_multiple_of(group) {
        return Err(Illegal::Batch { batch: workload.global_batch, dp, micro_batch });
    }
    Ok(())
}

fn tensor(arch: &Arch, cluster: &Cluster, layout: &Layout) -> Result<(), Illegal> {
    let tp = layout.tp;
    if !arch.heads.is_multiple_of(tp) {
        return Err(Illegal::Heads { heads: arch.heads, tp });
    }
    let kv_heads = arch.kv_heads;
    if arch.latent.is_none() && !kv_heads.is_multiple_of(tp) && !tp.is_multiple_of(kv_heads) {
        return Err(Illegal::KvHeads { kv_heads, tp });
    }
    if arch.dense_layers() > 0 && !arch.ffn.is_multiple_of(u64::from(tp)) {
        return Err(Illegal::Ffn { ffn: arch.ffn, tp });
    }
    let per_node = cluster.gpus_per_node.max(cluster.island);
    if per_node > 0 && !per_node.is_multiple_of(tp) && !tp.is_multiple_of(per_node) {
        return Err(Illegal::TensorSpans { tp, per_node });
    }
    Ok(())
}

fn pipeline(arch: &Arch, workload: &Workload, layout: &Layout) -> Result<(), Illegal> {
    let Layout { pp, vp, .. } = *layout;
    if pp == 1 && vp > 1 {
        return Err(Illegal::ChunksWithoutPipeline { vp });
    }
    let chunks = u64::from(pp) * u64::from(vp);
    if u64::from(arch.layers) < chunks {
        return Err(Illegal::Layers { layers: arch.layers, pp, vp });
    }
    // Interleaved stages must be equal. Without it the outer ones may have a layer less, which makes up for the
    // embedding and the head.
    if vp > 1 && !even(arch.layers, chunks) {
        return Err(Illegal::Layers { layers: arch.layers, pp, vp });
    }
    let micro_batches = layout.micro_batches(workload.global_batch);
    if vp > 1 && !micro_batches.is_multiple_of(u64::from(pp)) {
        return Err(Illegal::Interleaving { vp, pp, micro_batches });
    }
    Ok(())
}

/// Equal chunks, with the embedding or the head or both in the place of a layer if need be.
fn even(layers: u32, chunks: u64) -> bool {
    (0..=3).any(|places| (u64::from(layers) + places).is_multiple_of(chunks))
}

fn experts(arch: &Arch, layout: &Layout) -> Result<(), Illegal> {
    let Layout { ep, tp, dp, cp, .. } = *layout;
    if ep == 1 {
        return Ok(());
    }
    let Some(moe) = arch.moe else {
        return Err(Illegal::NoExperts { ep });
    };
    if !moe.experts.is_multiple_of(ep) {
        return Err(Illegal::Experts { experts: moe.experts, ep });
    }
    let ranks = u64::from(tp).saturating_mul(u64::from(cp)).saturating_mul(u64::from(dp));
    if !ranks.is_multiple_of(u64::from(ep)) {
        return Err(Illegal::ExpertRanks { ep, tp, cp, dp });
    }
    Ok(())
}

fn sequence(workload: &Workload, layout: &Layout) -> Result<(), Illegal> {
    let Layout { tp, cp, .. } = *layout;
    let seq = workload.seq;
    if cp > 1 && !seq.is_multiple_of(2 * u64::from(cp)) {
        return Err(Illegal::Context { seq, cp });
    }
    if layout.sequence_parallel && !seq.is_multiple_of(u64::from(tp) * u64::from(cp)) {
        return Err(Illegal::SequenceParallel { seq, tp, cp });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue;
    use crate::{Moe, Precision, Recompute, Sharding, Task};

    fn arch() -> Arch {
        Arch {
            name: "test".to_owned(),
            layers: 32,
            hidden: 4096,
            heads: 32,
            kv_heads: 8,
            head_dim: 128,
            ffn: 14336,
            gated: true,
            vocab: 128256,
            tied: false,
            moe: None,
            latent: None,
            window: None,
            extra: 0.0,
        }
    }

    fn layout() -> Layout {
        Layout {
            tp: 2,
            pp: 2,
            vp: 1,
            cp: 1,
            ep: 1,
            dp: 4,
            micro_batch: 2,
            sharding: Sharding::Zero1,
            sequence_parallel: true,
            recompute: Recompute::None,
        }
    }

    fn why(arch: &Arch, layout: &Layout) -> String {
        let task = Task::Pretrain;
        let workload = Workload {
            task,
            precision: Precision::Bf16,
            seq: 8192,
            global_batch: 64,
            tokens: None,
        };
        let cluster = catalogue::find("2xdgx-h100").unwrap();
        legal(arch, &workload, &cluster, layout).err().map_or(String::new(), |e| e.to_string())
    }

    #[test]
    fn each_rule_is_told_with_its_numbers() {
        let (a, l) = (arch(), layout());
        assert_eq!(why(&a, &l), "");
        let cases = [
            (Layout { dp: 0, ..l }, "dp is 0"),
            (Layout { tp: 3, ..l }, "32 attention heads do not divide by tp 3"),
            (
                Layout { dp: 8, ..l },
                "needs 32 GPUs (tp 2 × pp 2 × cp 1 × dp 8) and the cluster has 16",
            ),
            (
                Layout { micro_batch: 3, ..l },
                "64 sequences does not divide by dp 4 × micro-batch 3",
            ),
            (Layout { micro_batch: u64::MAX, ..l }, "a multiple of 18,446,744,073,709,551,615"),
            (Layout { pp: 2, vp: 9, ..l }, "32 layers cannot be cut into pp 2 × vp 9"),
            (Layout { pp: 1, vp: 2, ..l }, "vp 2 needs a pipeline"),
            (
                Layout { pp: 16, vp: 2, dp: 1, tp: 1, micro_batch: 32, ..l },
                "groups of pp 16, and there are 2",
            ),
            (Layout { ep: 2, ..l }, "the model has none"),
            (Layout { cp: 3, tp: 1, ..l }, "8,192 tokens do not divide by 2 × cp 3"),
        ];
        for (layout, words) in cases {
            let said = why(&a, &layout);
            assert!(said.contains(words), "{said:?} lacks {words:?}");
        }
        let vast = Layout { tp: 32, pp: u32::MAX, cp: u32::MAX, dp: u32::MAX, ..l };
        assert_eq!((vast.ranks(), vast.gpus()), (u64::MAX, u32::MAX));
        let mut cluster = crate::catalogue::find("dgx-h100").unwrap();
        cluster.nodes = u32::MAX;
        assert_eq!(cluster.gpus(), u32::MAX);
        let moe = Moe { experts: 128, topk: 8, ffn: 768, shared: 0, dense_layers: 0 };
        let sparse = Arch { moe: Some(moe), ..a };
        assert_eq!(why(&sparse, &Layout { ep: 8, ..l }), "");
        assert!(why(&sparse, &Layout { ep: 3, ..l }).contains("128 experts do not divide by ep 3"));
        assert!(
            why(&sparse, &Layout { ep: 16, ..l })
                .contains("ep 16 does not divide tp 2 × cp 1 × dp 4")
        );
    }
}
