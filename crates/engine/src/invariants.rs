//! What must hold after every step. One file per property, named after it.
//!
//! | property | file |
//! |---|---|
//! | The shares of a GPU are at most a whole one, and `used` is what the leases say | `shares_within_gpu` |
//! | An attempt has the ranks and nodes that its spec asks for | `gang_whole` |
//! | Generations are unique and below the next | `generations_unique` |
//! | What is derived equals what would be rebuilt | `index_matches` |
//! | No live lease part on a lost node | `no_lease_on_lost_node` |
//! | Every array task is in exactly one place | `array_complete` |
//! | Nothing runs before what it waits for | `dependencies_kept` |
//! | Room is kept for the living, and nobody else moves in | `claims_sane` |
//! | Teams and users pay what their attempts are charged | `ledger_matches` |
//! | No cause has used more retries than its budget since the task got further | `retries_within_budget` |
//! | Nothing goes on on a GPU that is fenced | `nothing_on_fenced_gpu` |
//! | Few nodes are taken out without anybody asking for it | `few_taken_out` |
//! | A suspended attempt holds no GPU, and its memory is counted | `suspended_lends` |
//! | Every GPU-second is in one class, and the books say what is the case | `goodput_sums` |
//! | Jobs that serve and the replicas of endpoints are the same | `replicas_known` |
//! | Endpoints want what they may have, of revisions that there are | `endpoints_sane` |
//! | Every stored text is there as long as a spec has it | `texts_known` |
//! | Ended is final, time and sequence go forward | `history_forward` (between two states) |
//! | What a person suspended does not run before it is resumed | `suspension_kept` (over a journal) |
//! | Who is stopped for a task is stopped for its start | `preemption_pays` (over a journal) |

mod array_complete;
mod claims_sane;
mod dependencies_kept;
mod endpoints_sane;
mod few_taken_out;
mod gang_whole;
mod generations_unique;
mod goodput_sums;
mod history_forward;
mod index_matches;
mod ledger_matches;
mod no_lease_on_lost_node;
mod nothing_on_fenced_gpu;
mod preemption_pays;
mod replicas_known;
mod retries_within_budget;
mod shares_within_gpu;
mod suspended_lends;
mod suspension_kept;
mod texts_known;

pub use history_forward::history_forward;
pub use preemption_pays::PreemptionPays;
pub use suspension_kept::SuspensionKept;
use tutti_model::{Attempt, Job, State, TaskId};

/// A property that does not hold, with the values that show it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{property}: {found}")]
pub struct Breach {
    pub property: &'static str,
    pub found: String,
}

type Check = (&'static str, fn(&State) -> Result<(), String>);

pub fn check_all(state: &State) -> Vec<Breach> {
    let checks: [Check; 17] = [
        ("shares_within_gpu", shares_within_gpu::check),
        ("gang_whole", gang_whole::check),
        ("generations_unique", generations_unique::check),
        ("index_matches", index_matches::check),
        ("no_lease_on_lost_node", no_lease_on_lost_node::check),
        ("array_complete", array_complete::check),
        ("dependencies_kept", dependencies_kept::check),
        ("retries_within_budget", retries_within_budget::check),
        ("claims_sane", claims_sane::check),
        ("ledger_matches", ledger_matches::check),
        ("few_taken_out", few_taken_out::check),
        ("suspended_lends", suspended_lends::check),
        ("nothing_on_fenced_gpu", nothing_on_fenced_gpu::check),
        ("goodput_sums", goodput_sums::check),
        ("replicas_known", replicas_known::check),
        ("endpoints_sane", endpoints_sane::check),
        ("texts_known", texts_known::check),
    ];
    let run = |(property, check): Check| check(state).err().map(|found| Breach { property, found });
    checks.into_iter().filter_map(run).collect()
}

/// Every attempt that holds a lease, found through the jobs and not through an index.
fn attempts(state: &State) -> impl Iterator<Item = (TaskId, &Job, &Attempt)> {
    state.jobs.values().flat_map(|job| {
        job.live_tasks().filter_map(|(id, task)| Some((id, job.as_ref(), task.attempt()?)))
    })
}
