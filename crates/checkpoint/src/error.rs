//! What can go wrong with a checkpoint.

use crate::layout::Attempt;
use crate::location::LocationError;
use crate::manifest::ManifestError;
use crate::tier::TierError;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Location(#[from] LocationError),
    #[error(transparent)]
    Place(#[from] TierError),
    #[cfg(feature = "cloud")]
    #[error(transparent)]
    Object(#[from] crate::tier::ObjectError),
    #[error("the manifest of step {step} in {place} can't be used")]
    Manifest {
        step: u64,
        place: String,
        #[source]
        source: Box<ManifestError>,
    },

    #[error("this store was opened for reading; give it a writer to save with")]
    ReadOnly,
    #[error("tensor {name}: {bytes} bytes were given, {extent:?} of {dtype} are {wanted}")]
    Length { name: String, bytes: u64, extent: Vec<u64>, dtype: crate::Dtype, wanted: u64 },
    #[error("tensor {name}: a piece at {offset:?} of {extent:?} is outside the shape {shape:?}")]
    Outside { name: String, offset: Vec<u64>, extent: Vec<u64>, shape: Vec<u64> },
    #[error("tensor {name} at {offset:?} was added twice by rank {rank}")]
    AddedTwice { name: String, offset: Vec<u64>, rank: u32 },
    #[error("the thread that saved step {step} is gone")]
    Panicked { step: u64 },

    #[error("rank {rank} sent a report of step {found}, step {step} is to be published")]
    OtherStep { rank: u32, found: u64, step: u64 },
    #[error("rank {rank} reported as {found}, this publisher is {own}")]
    OtherAttempt { rank: u32, found: Attempt, own: Attempt },
    #[error(
        "step {step} needs one report from each of {world} ranks; those of {ranks:?} are {what}"
    )]
    Ranks { step: u64, world: u32, ranks: Vec<u32>, what: &'static str },
    #[error("tensor {name} is {first} for rank {first_rank}, but {second} for rank {second_rank}")]
    Disagree { name: String, first: String, first_rank: u32, second: String, second_rank: u32 },
    #[error(
        "tensor {name} at {offset:?}: ranks {first_rank} and {second_rank} both wrote it, and not the same bytes"
    )]
    Conflict { name: String, offset: Vec<u64>, first_rank: u32, second_rank: u32 },
    #[error(
        "{path}, written by rank {rank}, can't be seen in {place} from here; all ranks must write to one place"
    )]
    NotHere { path: String, rank: u32, place: String },
    #[error("what the ranks wrote for step {step} does not make a checkpoint")]
    Incomplete {
        step: u64,
        #[source]
        source: Box<ManifestError>,
    },

    #[error("step {step} was already published by {winner}; this one is dropped")]
    Lost { step: u64, winner: Attempt },
    #[error("{own} is fenced off: {newer} has published step {step}; stop this attempt")]
    Fenced { own: Attempt, newer: Attempt, step: u64 },

    #[error("there is no checkpoint in {place}")]
    Nothing { place: String },
    #[error("there is no checkpoint of step {step} in {place}")]
    NoSuchStep { step: u64, place: String },
    #[error("no checkpoint in {place} can be loaded: {}", tried.join("; "))]
    NothingLoads { place: String, tried: Vec<String> },
    #[error("step {step}: no good copy of {path}: {}", tried.join("; "))]
    NoGoodCopy { step: u64, path: String, tried: Vec<String> },
    #[error(
        "step {step}: whether there is a good copy of {path} can't be known now: {}; try again when all places answer",
        tried.join("; ")
    )]
    NoAnswer { step: u64, path: String, tried: Vec<String> },
    #[error("step {step} has no tensor {name}")]
    NoTensor { step: u64, name: String },
    #[error("step {step} holds files of another framework, not tensors; restore it instead")]
    Foreign { step: u64 },

    #[error("step {step} is pinned ({why}); unpin it first")]
    Pinned { step: u64, why: String },
    #[error("step {step} is the newest complete checkpoint; removing it would lose the work")]
    Newest { step: u64 },
    #[error("step {step} was changed by somebody else meanwhile; try again")]
    Raced { step: u64 },
}

impl Error {
    /// Whether the checkpoint itself is at fault, so that an older one may be better.
    pub fn is_damage(&self) -> bool {
        matches!(self, Error::NoGoodCopy { .. } | Error::Manifest { .. })
    }
}
