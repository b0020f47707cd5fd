//! Ranks as threads of one process.

use std::net::TcpListener;
use std::sync::Arc;

use tutti_collectives::{Config, World};
use tutti_trainer::comm::Mesh;
use tutti_trainer::params::Local;
use tutti_trainer::tensor;
use tutti_trainer::{Layout, ModelConfig, OptimConfig, Precision, TrainConfig, Trainer};

/// Small, and with every difficulty: eight heads for eight tensor ranks, fewer key heads than
/// that, several micro-batches. Stages that are not even are in a test of their own.
pub fn tiny() -> TrainConfig {
    TrainConfig {
        model: ModelConfig { layers: 8, dim: 16, heads: 8, kv_heads: 2, ffn: 8, tied: true },
        optim: OptimConfig { lr: 1e-2, ..OptimConfig::default() },
        steps: 50,
        batch: 8,
        micro_batch: 1,
        seq: 4,
        seed: 11,
        precision: Precision::F32,
        recompute: false,
        bucket_bytes: 8 << 10,
    }
}

/// Runs `work` on every rank and returns what they returned, in rank order.
pub fn on_ranks<R: Send>(world: usize, work: impl Fn(&World) -> R + Sync) -> Vec<R> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let listener = Arc::new(listener);
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..world)
            .map(|rank| {
                let mut config = Config::new(rank, world, ("127.0.0.1".into(), port));
                config.listener = (rank == 0).then(|| Arc::clone(&listener));
                let work = &work;
                scope.spawn(move || work(&World::connect(config).unwrap()))
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

pub fn trainer(config: &TrainConfig, layout: &Layout, world: &World) -> Trainer {
    let group = world.group();
    let place = layout.place(group.rank());
    let sharers = Local::new(&config.model, layout, place).kv_sharers;
    let mesh = Mesh::new(&group, layout, sharers, config.model.tied).unwrap();
    Trainer::new(config.clone(), layout.clone(), group.rank(), mesh, tensor::cpu()).unwrap()
}

/// Fewer micro-batches where there is no pipeline to fill: the tests are long enough.
pub fn with_micro_batches(config: &TrainConfig, dp: usize, pp: usize) -> TrainConfig {
    let micro_batches = if pp > 1 { 4 } else { 2 };
    let micro_batch = (config.batch / dp / micro_batches).max(1);
    TrainConfig { micro_batch, ..config.clone() }
}

pub fn layout(config: &TrainConfig, dp: usize, tp: usize, pp: usize, zero: bool) -> Layout {
    Layout::new(dp * tp * pp, (Some(dp), tp, pp), zero, None, config).unwrap()
}
