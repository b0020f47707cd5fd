//! Text for people, made from the API's shapes. Pure: time and colour are arguments.

pub mod active;
pub mod alerts;
pub mod curve;
pub mod doctor;
pub mod endpoint;
pub mod endpoints;
pub mod gpus;
pub mod job;
pub mod jobs;
pub mod node;
pub mod nodes;
pub mod plan;
pub mod policy;
pub mod progress;
pub mod quota;
pub mod report;
pub mod reservations;
pub mod served;
pub mod table;
pub mod time;
pub mod tokens;
pub mod topology;
pub mod urls;
pub mod why;

pub use tutti_model::text::harmless;
pub use tutti_model::{count, thousands};

/// Thousandths of a GPU as GPUs: `3`, `0.25`, `1.125`.
pub fn milli(n: u64) -> String {
    let text = format!("{}.{:03}", thousands(n / 1000), n % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousandths_are_gpus() {
        let shown: Vec<_> = [0, 1000, 250, 1125, 10_000, 2_000_500].map(milli).into();
        assert_eq!(shown, ["0", "1", "0.25", "1.125", "10", "2,000.5"]);
    }
}
