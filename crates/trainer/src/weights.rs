//! The weights of a checkpoint, whole and on the host: what serving needs of a run.
//!
//! Any layout may have saved them. The moments of the optimiser are not read.

use tutti_checkpoint::{Error as StoreError, Loaded, Options, Selector, Store};

use crate::checkpoint::{CheckpointError, Meta, from_bytes, in_store};
use crate::config::{ModelConfig, TrainConfig};
use crate::layout::Layout;
use crate::params::{Param, Piece, Roles, parameters};

/// A model that was trained.
pub struct Weights {
    pub step: u64,
    pub config: TrainConfig,
    pub params: Vec<Param>,
    pub roles: Roles,
    /// One matrix per parameter, row by row.
    pub values: Vec<Vec<f32>>,
    /// What was not as hoped when it was looked for.
    pub warnings: Vec<String>,
}

impl Weights {
    /// The newest checkpoint that can be read, or that of one step.
    pub fn open(location: &str, step: Option<u64>) -> Result<Weights, CheckpointError> {
        let key = Options::from_env().key;
        let store = Store::open(location, Options { key, ..Options::default() })
            .map_err(|e| in_store(location, e))?;
        let selector = step.map_or(Selector::Latest, Selector::Step);
        let mut foreign = None;
        let read = store.load_with(selector, |loaded| match config(loaded) {
            Ok(config) => read(loaded, config).map(Some),
            Err(source) => {
                foreign = Some((loaded.step(), source));
                Ok(None)
            }
        });
        let (read, report) = read.map_err(|e| in_store(location, e))?;
        match (read, foreign) {
            (Some(weights), _) => Ok(Weights { warnings: report.lines(), ..weights }),
            (None, Some((step, source))) => {
                Err(CheckpointError::NotOurs { step, location: location.to_owned(), source })
            }
            (None, None) => unreachable!("what is not read is foreign"),
        }
    }

    /// First values, as a run with this seed would start from.
    pub fn initial(config: TrainConfig) -> Weights {
        let (params, roles) = whole(&config.model);
        let values = params.iter().map(|param| {
            let mut values = vec![0.0; param.len()];
            for piece in &param.pieces {
                piece.init(config.seed, &mut values[piece.at..piece.at + piece.len()]);
            }
            values
        });
        let values = values.collect();
        Weights { step: 0, config, params, roles, values, warnings: Vec::new() }
    }
}

/// All parameters on one rank.
fn whole(model: &ModelConfig) -> (Vec<Param>, Roles) {
    let layout = Layout { dp: 1, tp: 1, pp: 1, zero: false, stages: vec![model.layers] };
    parameters(model, &layout, layout.place(0))
}

fn config(loaded: &Loaded) -> Result<TrainConfig, serde_json::Error> {
    serde_json::from_value::<Meta>(loaded.meta().clone()).map(|meta| meta.config)
}

fn read(loaded: &Loaded, config: TrainConfig) -> Result<Weights, StoreError> {
    let (params, roles) = whole(&config.model);
    let mut values = Vec::with_capacity(params.len());
    for param in &params {
        let mut matrix = vec![0.0; param.len()];
        for piece in &param.pieces {
            let data = loaded.slice(
                &format!("model.{}", piece.name),
                &dims(piece, piece.offset),
                &dims(piece, piece.extent),
            )?;
            from_bytes(&data.bytes, &mut matrix[piece.at..piece.at + piece.len()]);
        }
        values.push(matrix);
    }
    Ok(Weights { step: loaded.step(), config, params, roles, values, warnings: Vec::new() })
}

fn dims(piece: &Piece, pair: [usize; 2]) -> Vec<u64> {
    let pair = pair.map(|n| n as u64);
    if piece.vector { pair[1..].to_vec() } else { pair.to_vec() }
}
