//! What vLLM and SGLang say of themselves in Prometheus' text format.

use tutti_model::OwnLoad;

/// A server's own word.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ServerMetrics {
    pub load: OwnLoad,
    /// Tokens that its key-value cache holds, if it says.
    pub cache_tokens: Option<u64>,
}

/// Reads a `/metrics` page; none if nothing on it is known. Engines behind one port are added up.
pub fn parse_metrics(text: &str) -> Option<ServerMetrics> {
    let mut found = Found::default();
    text.lines().filter_map(sample).for_each(|sample| found.add(&sample));
    found.finish()
}

struct Sample<'a> {
    name: &'a str,
    labels: &'a str,
    value: f64,
}

#[derive(Default)]
struct Found {
    any: bool,
    running: f64,
    waiting: f64,
    kv_used: Option<f64>,
    cache_tokens: f64,
    used_tokens: f64,
}

impl Found {
    fn add(&mut self, sample: &Sample<'_>) {
        let value = sample.value;
        match sample.name {
            "vllm:num_requests_running" | "sglang:num_running_reqs" => self.running += value,
            "vllm:num_requests_waiting" | "sglang:num_queue_reqs" => self.waiting += value,
            "vllm:kv_cache_usage_perc" | "vllm:gpu_cache_usage_perc" | "sglang:token_usage" => {
                self.kv_used = Some(self.kv_used.unwrap_or(0.0).max(value));
            }
            "vllm:cache_config_info" => {
                let number = |key| label(sample.labels, key).and_then(|v| v.parse::<f64>().ok());
                let tokens = number("num_gpu_blocks").zip(number("block_size"));
                self.cache_tokens += tokens.map_or(0.0, |(blocks, size)| blocks * size);
                return;
            }
            "sglang:max_total_num_tokens" => self.cache_tokens += value,
            "sglang:num_used_tokens" => self.used_tokens += value,
            _ => return,
        }
        self.any = true;
    }

    fn finish(self) -> Option<ServerMetrics> {
        let cache_tokens = match self.kv_used {
            _ if self.cache_tokens > 0.0 => Some(self.cache_tokens as u64),
            // A small part of the cache says little of the whole.
            Some(used) if used > 0.05 && self.used_tokens > 0.0 => {
                Some((self.used_tokens / used) as u64)
            }
            _ => None,
        };
        self.any.then_some(ServerMetrics {
            load: OwnLoad {
                running: self.running as u32,
                waiting: self.waiting as u32,
                kv_used: self.kv_used,
            },
            cache_tokens,
        })
    }
}

/// `name{labels} value [timestamp]`; none for comments, nonsense, and values that are no numbers.
fn sample(line: &str) -> Option<Sample<'_>> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let end = line.find(['{', ' ', '\t'])?;
    let (name, rest) = line.split_at(end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => rest.split_at(closing_brace(rest)?),
        None => ("", rest),
    };
    let value = rest.trim_start_matches('}').split_whitespace().next()?;
    let value: f64 = value.parse().ok()?;
    (value.is_finite() && value >= 0.0).then_some(Sample { name, labels, value })
}

/// Not one inside a label's value.
fn closing_brace(text: &str) -> Option<usize> {
    let (mut quoted, mut escaped) = (false, false);
    text.bytes().position(|byte| {
        let is_end = byte == b'}' && !quoted;
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => quoted = !quoted,
            _ => {}
        }
        is_end
    })
}

fn label<'a>(labels: &'a str, key: &str) -> Option<&'a str> {
    let mut rest = labels;
    loop {
        let at = rest.find(key)?;
        let before = rest[..at].trim_end().bytes().last();
        let after = &rest[at + key.len()..];
        if before.is_none_or(|byte| byte == b',')
            && let Some(value) = after.strip_prefix("=\"")
        {
            return value.split('"').next();
        }
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vllm_is_read() {
        let text = "# HELP vllm:num_requests_running Number of requests.\n\
            # TYPE vllm:num_requests_running gauge\n\
            vllm:num_requests_running{engine=\"0\",model_name=\"a}b\"} 3.0\n\
            vllm:num_requests_running{engine=\"1\",model_name=\"a}b\"} 4.0\n\
            vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 2.0\n\
            vllm:kv_cache_usage_perc{engine=\"0\"} 0.25\n\
            vllm:kv_cache_usage_perc{engine=\"1\"} 0.75 1700000000\n\
            vllm:cache_config_info{block_size=\"16\",cache_dtype=\"auto\",num_gpu_blocks=\"1000\",num_gpu_blocks_override=\"None\"} 1.0\n\
            vllm:num_requests_running_total 99\n";
        let read = parse_metrics(text).unwrap();
        assert_eq!(read.load, OwnLoad { running: 7, waiting: 2, kv_used: Some(0.75) });
        assert_eq!(read.cache_tokens, Some(16_000));
    }

    #[test]
    fn older_vllm_and_sglang_are_read() {
        let old = parse_metrics("vllm:num_requests_running 1\nvllm:gpu_cache_usage_perc 0.5\n");
        assert_eq!(old.unwrap().load.kv_used, Some(0.5));
        let text = "sglang:num_running_reqs{model_name=\"m\"} 12\nsglang:num_queue_reqs 5\n\
            sglang:token_usage 0.5\nsglang:num_used_tokens 50000\n";
        let read = parse_metrics(text).unwrap();
        assert_eq!(read.load, OwnLoad { running: 12, waiting: 5, kv_used: Some(0.5) });
        assert_eq!(read.cache_tokens, Some(100_000));
    }

    #[test]
    fn nonsense_is_nothing() {
        for text in ["", "hello", "<html>", "vllm:num_requests_running NaN", "a{b=\"c 1", "x{} "] {
            assert_eq!(parse_metrics(text), None, "{text:?}");
        }
        assert_eq!(
            parse_metrics("vllm:num_requests_running{a=\"\\\"}\"} 2").unwrap().load.running,
            2
        );
    }
}
