//! Lists of hosts as people write them: `n[1-16]`, `gpu[01-08,11]`, `r[1-2]n[1-4]`, `a,b`.

use std::collections::{BTreeMap, BTreeSet};

/// Names that one text may stand for; a guard against `n[1-99999999]`.
const NAMES_MAX: usize = 100_000;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadHosts {
    #[error("'{0}' is no list of nodes: write n7, n[1-16] or gpu[01-08,11]")]
    Form(String),
    #[error("'{0}' stands for more than {NAMES_MAX} nodes")]
    TooMany(String),
}

/// Every name that the text stands for.
pub(super) fn expand(text: &str) -> Result<Vec<String>, BadHosts> {
    let mut names = Vec::new();
    for item in split_outside(text) {
        names.extend(expand_item(item.trim(), text)?);
        if names.len() > NAMES_MAX {
            return Err(BadHosts::TooMany(text.to_owned()));
        }
    }
    Ok(names)
}

/// At commas that are not inside brackets.
fn split_outside(text: &str) -> Vec<&str> {
    let mut depth = 0usize;
    text.split(|c| {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
    .collect()
}

fn expand_item(item: &str, whole: &str) -> Result<Vec<String>, BadHosts> {
    let bad = || BadHosts::Form(whole.to_owned());
    let mut names = vec![String::new()];
    let mut rest = item;
    while let Some((before, after)) = rest.split_once('[') {
        let (inside, left) = after.split_once(']').ok_or_else(bad)?;
        let numbers = numbers(inside, names.len()).ok_or_else(bad)?;
        let numbers = numbers.ok_or_else(|| BadHosts::TooMany(whole.to_owned()))?;
        let with = |name: &String| {
            let stem = format!("{name}{before}");
            numbers.iter().map(move |n| format!("{stem}{n}")).collect::<Vec<_>>()
        };
        names = names.iter().flat_map(with).collect();
        rest = left;
    }
    names.iter_mut().for_each(|n| n.push_str(rest));
    let odd =
        |n: &String| n.is_empty() || n.contains(|c: char| c.is_whitespace() || "[]".contains(c));
    if names.iter().any(odd) { Err(bad()) } else { Ok(names) }
}

/// `1-3,7` as numbers; a leading zero pads all of a range. The inner none: too many, when each is
/// put behind `times` names.
fn numbers(list: &str, times: usize) -> Option<Option<Vec<String>>> {
    let digits = |s: &str| {
        let fits = !s.is_empty() && s.len() <= 18 && s.bytes().all(|b| b.is_ascii_digit());
        fits.then(|| s.parse::<u64>().ok()).flatten()
    };
    let mut all = Vec::new();
    for item in list.split(',').map(str::trim) {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        let (a, b) = (digits(first)?, digits(last)?);
        if b < a {
            return None;
        }
        let room = NAMES_MAX / times.max(1) - all.len().min(NAMES_MAX / times.max(1));
        if b - a >= room as u64 {
            return Some(None);
        }
        let width = if first.starts_with('0') { first.len() } else { 0 };
        all.extend((a..=b).map(|n| format!("{n:0width$}")));
    }
    Some(Some(all))
}

/// The same names in few texts.
pub fn compress<'n>(names: impl IntoIterator<Item = &'n String>) -> Vec<String> {
    let mut plain = BTreeSet::new();
    let mut numbered: BTreeMap<(&str, usize), BTreeSet<u64>> = BTreeMap::new();
    for name in names {
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let digits = &name[stem.len()..];
        match digits.parse::<u64>() {
            Ok(n) if digits.len() <= 18 => {
                numbered.entry((stem, digits.len())).or_default().insert(n);
            }
            _ => {
                plain.insert(name.clone());
            }
        }
    }
    let mut out: Vec<String> = plain.into_iter().collect();
    let mut open: Option<Range<'_>> = None;
    for ((stem, width), numbers) in numbered {
        for n in numbers {
            match &mut open {
                Some(range) if range.takes(stem, width, n) => {
                    (range.last, range.last_width) = (n, width)
                }
                _ => out.extend(open.replace(Range::one(stem, width, n)).map(|r| r.text())),
            }
        }
    }
    out.extend(open.map(|r| r.text()));
    out
}

struct Range<'n> {
    stem: &'n str,
    first: u64,
    first_width: usize,
    last: u64,
    last_width: usize,
}

impl<'n> Range<'n> {
    fn one(stem: &'n str, width: usize, n: u64) -> Self {
        Range { stem, first: n, first_width: width, last: n, last_width: width }
    }

    /// `n9` goes on with `n10`, but `n09` goes on with `n10` only as two digits.
    fn takes(&self, stem: &str, width: usize, n: u64) -> bool {
        let padded = self.first_width > 1 && self.first < 10u64.pow(self.first_width as u32 - 1);
        let next_width = if padded { self.first_width } else { n.to_string().len() };
        self.stem == stem && self.last + 1 == n && width == next_width
    }

    fn text(&self) -> String {
        let Range { stem, first, first_width, last, last_width } = self;
        if first == last {
            return format!("{stem}{first:0first_width$}");
        }
        format!("{stem}[{first:0first_width$}-{last:0last_width$}]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranges_expand() {
        for (text, want) in [
            ("n7", "n7"),
            ("n[1-3]", "n1 n2 n3"),
            ("n[08-11]", "n08 n09 n10 n11"),
            ("gpu[01,05-06]", "gpu01 gpu05 gpu06"),
            ("r[1-2]n[1-2]x", "r1n1x r1n2x r2n1x r2n2x"),
            ("a, n[1,2],b", "a n1 n2 b"),
            ("n[9-10]", "n9 n10"),
        ] {
            assert_eq!(expand(text).unwrap().join(" "), want, "{text}");
        }
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for text in
            ["", "a,,b", "n[", "n[]", "n[1-]", "n[3-1]", "n[a]", "n]", "n[1]]", "a b", "n[-1]"]
        {
            assert!(matches!(expand(text), Err(BadHosts::Form(_))), "{text}");
        }
        for text in ["n[1-100001]", "a[1-1000]b[1-1000]", "n[0-999999999999999999]"] {
            assert!(matches!(expand(text), Err(BadHosts::TooMany(_))), "{text}");
        }
    }

    #[test]
    fn neighbours_become_ranges() {
        let names = |list: &str| list.split(' ').map(str::to_owned).collect::<BTreeSet<_>>();
        for (list, want) in [
            ("n1 n2 n3 n9 n10 n11 head", "head n[1-3] n[9-11]"),
            ("n08 n09 n10 n11", "n[08-11]"),
            ("n9 n010", "n9 n010"),
            ("n099 n100", "n[099-100]"),
            ("n0 n1 n00", "n[0-1] n00"),
            ("x", "x"),
        ] {
            assert_eq!(compress(&names(list)).join(" "), want, "{list}");
        }
    }

    proptest! {
        #[test]
        fn what_is_compressed_expands_to_the_same(
            names in prop::collection::btree_set("[a-c]{0,2}[0-9]{0,3}x?".prop_filter("not empty", |n| !n.is_empty()), 0..60),
        ) {
            let texts = compress(&names);
            let back: BTreeSet<String> = texts.iter().flat_map(|t| expand(t).unwrap()).collect();
            prop_assert_eq!(back, names);
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[n0-9\\[\\],-]{0,20}|\\PC{0,20}") {
            let _ = expand(&text);
        }
    }
}
