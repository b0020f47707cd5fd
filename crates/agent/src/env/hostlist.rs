//! Names of nodes as Slurm writes them: `n[1-4,7],gpu01`. The order is kept, because it is the order
//! of ranks.

/// The names in their order, with runs of neighbours in brackets.
pub fn compress<'n>(names: impl IntoIterator<Item = &'n str>) -> String {
    let mut groups: Vec<Group<'n>> = Vec::new();
    for name in names {
        let (stem, digits) = split(name);
        match groups.last_mut() {
            Some(last) if last.stem == stem && !digits.is_empty() && !last.ranges.is_empty() => {
                last.add(digits);
            }
            _ => groups.push(Group::new(stem, digits)),
        }
    }
    groups.iter().map(Group::text).collect::<Vec<_>>().join(",")
}

/// What comes before the number at the end, and that number. Brackets or commas in a name can't be
/// written in a list, so such a name counts as text.
fn split(name: &str) -> (&str, &str) {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    match &name[stem.len()..] {
        digits if digits.len() <= 18 => (stem, digits),
        _ => (name, ""),
    }
}

struct Group<'n> {
    stem: &'n str,
    /// First and last, as they were written; of the same width unless neither has leading zeros.
    ranges: Vec<(&'n str, &'n str)>,
}

impl<'n> Group<'n> {
    fn new(stem: &'n str, digits: &'n str) -> Group<'n> {
        let ranges = if digits.is_empty() { Vec::new() } else { vec![(digits, digits)] };
        Group { stem, ranges }
    }

    fn add(&mut self, digits: &'n str) {
        match self.ranges.last_mut() {
            Some((_, last)) if follows(last, digits) => *last = digits,
            _ => self.ranges.push((digits, digits)),
        }
    }

    fn text(&self) -> String {
        let range = |(first, last): &(&str, &str)| match first == last {
            true => (*first).to_owned(),
            false => format!("{first}-{last}"),
        };
        let ranges: Vec<String> = self.ranges.iter().map(range).collect();
        match &self.ranges[..] {
            [] => self.stem.to_owned(),
            [(one, last)] if one == last => format!("{}{one}", self.stem),
            _ => format!("{}[{}]", self.stem, ranges.join(",")),
        }
    }
}

fn follows(last: &str, next: &str) -> bool {
    let number = |s: &str| s.parse::<u64>().ok();
    let padded = |s: &str| s.len() > 1 && s.starts_with('0');
    let same_form = last.len() == next.len() || !(padded(last) || padded(next));
    same_form && number(last).and_then(|n| n.checked_add(1)) == number(next)
}

/// `8(x2),4`: how many on each node, in order.
pub fn counts(each: impl IntoIterator<Item = u32>) -> String {
    let mut runs: Vec<(u32, usize)> = Vec::new();
    for n in each {
        match runs.last_mut() {
            Some((last, times)) if *last == n => *times += 1,
            _ => runs.push((n, 1)),
        }
    }
    let text = |(n, times): &(u32, usize)| match times {
        1 => n.to_string(),
        _ => format!("{n}(x{times})"),
    };
    runs.iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_are_as_slurm_writes_them() {
        for (names, list) in [
            (&["n1"][..], "n1"),
            (&["n1", "n2", "n3", "n4", "n7"], "n[1-4,7]"),
            (&["n8", "n9", "n10"], "n[8-10]"),
            (&["n08", "n09", "n10"], "n[08-10]"),
            (&["n9", "n010"], "n[9,010]"),
            (&["a", "b2", "b3", "a"], "a,b[2-3],a"),
            (&["r1n1", "r1n2", "r2n1"], "r1n[1-2],r2n1"),
            (&["n3", "n2", "n1"], "n[3,2,1]"),
            (&["10.0.0.9", "10.0.0.10"], "10.0.0.[9-10]"),
        ] {
            assert_eq!(compress(names.iter().copied()), list);
        }
        assert_eq!(counts([8, 8, 4, 8]), "8(x2),4,8");
    }

    /// Written from Slurm's description, to check against.
    fn expand(list: &str) -> Vec<String> {
        let mut names = Vec::new();
        let mut rest = list;
        while !rest.is_empty() {
            let open = rest.find('[');
            let comma = rest.find(',').unwrap_or(rest.len());
            match open.filter(|open| *open < comma) {
                None => {
                    names.push(rest[..comma].to_owned());
                    rest = rest.get(comma + 1..).unwrap_or("");
                }
                Some(open) => {
                    let close = rest.find(']').unwrap();
                    for item in rest[open + 1..close].split(',') {
                        let (a, b) = item.split_once('-').unwrap_or((item, item));
                        let width = if a.starts_with('0') { a.len() } else { 0 };
                        let (from, to): (u64, u64) = (a.parse().unwrap(), b.parse().unwrap());
                        names.extend((from..=to).map(|n| format!("{}{n:0width$}", &rest[..open])));
                    }
                    rest = rest.get(close + 2..).unwrap_or("");
                }
            }
        }
        names
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_the_order_stays(
            names in prop::collection::vec("(n|gpu|a-)(0|00)?[0-9]{1,3}|login", 1..20)
        ) {
            let list = compress(names.iter().map(String::as_str));
            prop_assert_eq!(expand(&list), names, "{}", list);
        }
    }
}
