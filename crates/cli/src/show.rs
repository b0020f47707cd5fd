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

/// `1 node`, `3 nodes`.
pub fn count(n: u64, thing: &str) -> String {
    let s = match (n, thing.ends_with('s')) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{} {thing}{s}", thousands(n))
}

/// `99,950`.
pub fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// Thousandths of a GPU as GPUs: `3`, `0.25`, `1.125`.
pub fn milli(n: u64) -> String {
    let text = format!("{}.{:03}", thousands(n / 1000), n % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(thousands(7), "7");
        assert_eq!(thousands(99_950), "99,950");
        assert_eq!(thousands(1_234_567), "1,234,567");
        assert_eq!(count(1, "node"), "1 node");
        let shown: Vec<_> = [0, 1000, 250, 1125, 10_000, 2_000_500].map(milli).into();
        assert_eq!(shown, ["0", "1", "0.25", "1.125", "10", "2,000.5"]);
        assert_eq!(count(2_000, "task"), "2,000 tasks");
    }
}
