//! From the state to what people see. Looks only; the shapes are `wire::api`.

mod endpoint;
mod gpu;
mod job;
mod kept;
mod load;
mod node;
mod page;
mod report;
mod served;
mod words;

pub use endpoint::{endpoint_detail, endpoint_row, endpoint_rows, endpoint_state};
pub use gpu::{gpu_rows, held_gpus, node_names};
pub use job::{detail, ended_row, progress, row, suspensions, without_secrets};
pub use kept::{KeptByNode, kept};
pub use load::{HeldGpu, HeldNode, Holdings, holdings};
pub use node::{cluster, counted, node_row, trouble};
pub use page::{ARCHIVE, BadFilter, Filter, Page, ROWS_MAX};
pub use report::{LeftWasters, Sums, Wanted, add_wasters, job_line, report};
pub use served::{served, served_lines, stopped_endpoints};
pub use words::{cause_words, end_note};
