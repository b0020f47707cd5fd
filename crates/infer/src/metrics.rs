//! What happens, in numbers that Prometheus reads. Levels that routers look at have vLLM's names.

use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tutti_model::Histogram;
use tutti_model::serving::BUCKETS_MS;

use crate::schedule::Reuse;

#[derive(Default)]
pub struct Metrics(Mutex<Counts>);

#[derive(Clone, Default)]
pub struct Counts {
    pub running: usize,
    pub waiting: usize,
    /// Part of the positions that sequences under way hold.
    pub cache_used: f64,
    pub prompt_tokens: u64,
    pub output_tokens: u64,
    pub steps: u64,
    pub finished_stop: u64,
    pub finished_length: u64,
    pub cancelled: u64,
    /// Sequences that ended because what was computed was no number.
    pub broken: u64,
    pub refused: u64,
    pub reuse: Reuse,
    pub first_token: Histogram,
    pub per_token: Histogram,
    /// A pass that made one token for each sequence.
    pub decode_step: Histogram,
}

impl Metrics {
    pub fn change(&self, f: impl FnOnce(&mut Counts)) {
        f(&mut self.lock());
    }

    pub fn counts(&self) -> Counts {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// The text form.
pub fn render(counts: &Counts, model: &str) -> String {
    let model = model.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let mut page = Page { text: String::new(), label: format!("model_name=\"{model}\"") };
    page.one("gauge", "vllm:num_requests_running", "Sequences under way.", counts.running as f64);
    page.one("gauge", "vllm:num_requests_waiting", "Sequences that wait.", counts.waiting as f64);
    let help = "Part of the cache that sequences under way hold, 0 to 1.";
    page.one("gauge", "vllm:kv_cache_usage_perc", help, counts.cache_used);
    for (name, help, value) in [
        ("prompt_tokens_total", "Tokens of prompts.", counts.prompt_tokens),
        ("output_tokens_total", "Tokens that were made.", counts.output_tokens),
        ("steps_total", "Passes that made a token for each sequence.", counts.steps),
        ("cancelled_total", "Sequences whose client left.", counts.cancelled),
        ("refused_total", "Requests refused because too many waited.", counts.refused),
        ("prefix_prompts_total", "Prompts that were looked up.", counts.reuse.prompts),
        ("prefix_hits_total", "Prompts whose beginning was there.", counts.reuse.hits),
        ("prefix_tokens_total", "Tokens that were not computed again.", counts.reuse.tokens),
    ] {
        page.one("counter", &format!("tutti_infer_{name}"), help, value as f64);
    }
    page.head("counter", "tutti_infer_finished_total", "Sequences that are done, by reason.");
    let reasons = [
        ("stop", counts.finished_stop),
        ("length", counts.finished_length),
        ("broken", counts.broken),
    ];
    for (reason, value) in reasons {
        page.line("tutti_infer_finished_total", &format!(",reason=\"{reason}\""), value as f64);
    }
    for (name, help, histogram) in [
        ("time_to_first_token", "From the request to its first token.", &counts.first_token),
        ("time_per_token", "Between two tokens of a sequence.", &counts.per_token),
        ("decode_step", "One pass for all sequences.", &counts.decode_step),
    ] {
        page.histogram(&format!("tutti_infer_{name}_seconds"), help, histogram);
    }
    page.text
}

struct Page {
    text: String,
    label: String,
}

const TO_A_STRING: &str = "writing to a string does not fail";

impl Page {
    fn head(&mut self, kind: &str, name: &str, help: &str) {
        writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}").expect(TO_A_STRING);
    }

    fn line(&mut self, name: &str, labels: &str, value: f64) {
        writeln!(self.text, "{name}{{{}{labels}}} {value}", self.label).expect(TO_A_STRING);
    }

    fn one(&mut self, kind: &str, name: &str, help: &str, value: f64) {
        self.head(kind, name, help);
        self.line(name, "", value);
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head("histogram", name, help);
        let mut sum = 0;
        for (at, bound) in BUCKETS_MS.iter().enumerate() {
            sum += histogram.counts.get(at).copied().unwrap_or(0);
            let label = format!(",le=\"{}\"", *bound as f64 / 1000.0);
            self.line(&format!("{name}_bucket"), &label, sum as f64);
        }
        let count = histogram.count() as f64;
        self.line(&format!("{name}_bucket"), ",le=\"+Inf\"", count);
        self.line(&format!("{name}_sum"), "", histogram.sum_us as f64 / 1e6);
        self.line(&format!("{name}_count"), "", count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routers_find_the_levels_they_know() {
        let mut counts = Counts { running: 3, waiting: 2, cache_used: 0.25, ..Counts::default() };
        counts.first_token.add(4_000);
        counts.first_token.add(999_000_000);
        let text = render(&counts, "a\"b");
        for line in [
            "vllm:num_requests_running{model_name=\"a\\\"b\"} 3",
            "vllm:num_requests_waiting{model_name=\"a\\\"b\"} 2",
            "vllm:kv_cache_usage_perc{model_name=\"a\\\"b\"} 0.25",
            "tutti_infer_time_to_first_token_seconds_bucket{model_name=\"a\\\"b\",le=\"0.005\"} 1",
            "tutti_infer_time_to_first_token_seconds_bucket{model_name=\"a\\\"b\",le=\"+Inf\"} 2",
            "tutti_infer_time_to_first_token_seconds_sum{model_name=\"a\\\"b\"} 999.004",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }
}
