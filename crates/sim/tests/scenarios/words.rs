//! The small words of a scenario: numbers, times, sizes, nodes.

use tutti_model::{Bytes, GpuIndex, Span, TaskId, Time};

/// When scenarios begin: 2026, so that nothing is close to zero.
pub const EPOCH: Time = Time(1_767_225_600_000);

pub type Read<T> = Result<T, String>;

/// Words of a line. What stands in quotes is one word, and `#` begins a comment.
pub fn split(line: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while !rest.is_empty() && !rest.starts_with('#') {
        let end = match rest.strip_prefix('"') {
            Some(quoted) => quoted.find('"').map_or(rest.len(), |n| n + 2),
            None => rest.find(char::is_whitespace).unwrap_or(rest.len()),
        };
        words.push(&rest[..end]);
        rest = rest[end..].trim_start();
    }
    words
}

/// The line without its comment.
pub fn without_comment(line: &str) -> &str {
    let mut quoted = false;
    for (at, c) in line.char_indices() {
        match c {
            '"' => quoted = !quoted,
            '#' if !quoted && (at == 0 || line[..at].ends_with(char::is_whitespace)) => {
                return line[..at].trim_end();
            }
            _ => {}
        }
    }
    line.trim_end()
}

/// `name ...: attribute, attribute`.
pub fn named_attributes(line: &str) -> Read<(&str, Vec<&str>)> {
    let (name, rest) =
        line.split_once(':').ok_or_else(|| format!("'{line}' has no ':' after the name"))?;
    let attributes = rest.split(',').map(str::trim).filter(|a| !a.is_empty());
    Ok((name.trim(), attributes.collect()))
}

pub fn text(word: &str) -> String {
    word.trim_matches('"').to_owned()
}

pub fn number<N: std::str::FromStr>(word: &str) -> Read<N> {
    word.parse().map_err(|_| format!("'{word}' is no number"))
}

/// `0.25` is 250.
pub fn thousandths(word: &str) -> Read<u32> {
    let part: f64 = number(word)?;
    Ok((part * 1000.0).round() as u32)
}

pub fn span(word: &str) -> Read<Span> {
    word.parse().map_err(|e| format!("{e}"))
}

/// A time counted from the begin of the scenario.
pub fn time(word: &str) -> Read<Time> {
    Ok(EPOCH.plus(span(word)?))
}

pub fn bytes(number: &str, unit: &str) -> Read<Bytes> {
    format!("{number}{unit}").parse().map_err(|e| format!("{e}"))
}

pub fn task(word: &str) -> Read<TaskId> {
    word.parse().map_err(|e| format!("{e}"))
}

pub fn tasks(words: &[&str]) -> Read<Vec<TaskId>> {
    words.iter().map(|w| task(w)).collect()
}

/// `n1 n3..n5` is n1, n3, n4 and n5; `4..6` is 4, 5 and 6.
pub fn names(words: &[&str]) -> Read<Vec<String>> {
    let mut all = Vec::new();
    for word in words {
        let Some((first, last)) = word.split_once("..") else {
            all.push((*word).to_owned());
            continue;
        };
        let stem = first.trim_end_matches(|c: char| c.is_ascii_digit());
        let (from, upto): (u32, u32) = (
            number(&first[stem.len()..])?,
            number(last.strip_prefix(stem).ok_or_else(|| format!("'{word}' is no range"))?)?,
        );
        all.extend((from..=upto).map(|n| format!("{stem}{n}")));
    }
    Ok(all)
}

/// A node, and which of its GPUs: `n1`, or `n1:0,1,4-7`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spot {
    pub node: String,
    pub gpus: Option<Vec<GpuIndex>>,
}

pub fn spots(words: &[&str]) -> Read<Vec<Spot>> {
    let mut all = Vec::new();
    for word in words {
        match word.split_once(':') {
            None => {
                let nodes = names(&[word])?;
                all.extend(nodes.into_iter().map(|node| Spot { node, gpus: None }));
            }
            Some((node, list)) => {
                all.push(Spot { node: node.to_owned(), gpus: Some(indices(list)?) });
            }
        }
    }
    Ok(all)
}

fn indices(list: &str) -> Read<Vec<GpuIndex>> {
    let mut all = Vec::new();
    for item in list.split(',') {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        let (first, last): (u16, u16) = (number(first)?, number(last)?);
        all.extend((first..=last).map(GpuIndex));
    }
    Ok(all)
}

/// `0-3,6`.
pub fn show_indices(gpus: &[GpuIndex]) -> String {
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for gpu in gpus {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == gpu.0 => *last = gpu.0,
            _ => ranges.push((gpu.0, gpu.0)),
        }
    }
    let show = |(a, b): &(u16, u16)| if a == b { a.to_string() } else { format!("{a}-{b}") };
    ranges.iter().map(show).collect::<Vec<_>>().join(",")
}

/// A time as the scenario counts it.
pub fn since_epoch(time: Time) -> String {
    time.since(EPOCH).to_string()
}
