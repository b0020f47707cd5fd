//! Prometheus' text format: families of samples, with what they mean.

use std::fmt::Write;

use tutti_model::{BUCKETS_MS, Histogram};

pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Text is handed on when there is this much of it.
const PIECE: usize = 64 << 10;

/// `name="value",...` with what the format wants escaped.
#[derive(Clone, Debug, Default)]
pub struct Labels(String);

impl Labels {
    pub fn with(mut self, name: &str, value: &str) -> Labels {
        if !self.0.is_empty() {
            self.0.push(',');
        }
        self.0.push_str(name);
        self.0.push_str("=\"");
        for c in value.chars() {
            match c {
                '\\' => self.0.push_str("\\\\"),
                '"' => self.0.push_str("\\\""),
                '\n' => self.0.push_str("\\n"),
                c => self.0.push(c),
            }
        }
        self.0.push('"');
        self
    }

    pub fn text(self) -> String {
        self.0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Gauge,
    Counter,
}

pub struct Text<'a> {
    piece: String,
    take: &'a mut dyn FnMut(String) -> bool,
    /// Nobody reads any more.
    left: bool,
}

impl<'a> Text<'a> {
    pub fn new(take: &'a mut dyn FnMut(String) -> bool) -> Text<'a> {
        Text { piece: String::with_capacity(PIECE + 1024), take, left: false }
    }

    /// A family of one name. One without samples is left out.
    pub fn family<L: AsRef<str>>(
        &mut self,
        (name, kind, help): (&str, Kind, &str),
        samples: impl Iterator<Item = (L, f64)>,
    ) {
        let mut first = true;
        for (labels, value) in samples {
            if self.left {
                return;
            }
            if std::mem::take(&mut first) {
                let kind = match kind {
                    Kind::Gauge => "gauge",
                    Kind::Counter => "counter",
                };
                self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
            }
            match labels.as_ref() {
                "" => self.line(format_args!("{name} {value}\n")),
                labels => self.line(format_args!("{name}{{{labels}}} {value}\n")),
            }
        }
    }

    /// A family of distributions, in seconds. All buckets, also those that have nothing: sums over series
    /// need the same ones in each.
    pub fn histograms<'h, L: AsRef<str>>(
        &mut self,
        (name, help): (&str, &str),
        samples: impl Iterator<Item = (L, &'h Histogram)>,
    ) {
        let mut first = true;
        for (labels, histogram) in samples {
            if self.left {
                return;
            }
            if std::mem::take(&mut first) {
                self.line(format_args!("# HELP {name} {help}\n# TYPE {name} histogram\n"));
            }
            let labels = labels.as_ref();
            let comma = if labels.is_empty() { "" } else { "," };
            let mut upto = 0;
            for (at, bound) in BUCKETS_MS.iter().enumerate() {
                upto += histogram.counts.get(at).copied().unwrap_or(0);
                let le = *bound as f64 / 1000.0;
                self.line(format_args!("{name}_bucket{{{labels}{comma}le=\"{le}\"}} {upto}\n"));
            }
            let (count, sum) = (histogram.count(), histogram.sum_us as f64 / 1e6);
            self.line(format_args!("{name}_bucket{{{labels}{comma}le=\"+Inf\"}} {count}\n"));
            let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
            self.line(format_args!("{name}_sum{labels} {sum}\n{name}_count{labels} {count}\n"));
        }
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        self.piece.write_fmt(line).expect("a string takes all");
        if self.piece.len() >= PIECE {
            let piece = std::mem::replace(&mut self.piece, String::with_capacity(PIECE + 1024));
            self.left |= !(self.take)(piece);
        }
    }

    pub fn end(self) {
        if !self.left && !self.piece.is_empty() {
            (self.take)(self.piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_and_empty_families_left_out() {
        let mut all = String::new();
        let mut take = |piece: String| {
            all += &piece;
            true
        };
        let mut text = Text::new(&mut take);
        let odd = Labels::default().with("a", "x\"y\\z\n").with("b", "2").text();
        text.family(("one", Kind::Gauge, "First."), [(odd, 0.5)].into_iter());
        text.family(("none", Kind::Gauge, "Never seen."), std::iter::empty::<(&str, f64)>());
        text.family(("two_total", Kind::Counter, "Second."), [("", 12_345_678_901.0)].into_iter());
        text.end();
        let wanted = "# HELP one First.\n# TYPE one gauge\none{a=\"x\\\"y\\\\z\\n\",b=\"2\"} 0.5\n\
                      # HELP two_total Second.\n# TYPE two_total counter\ntwo_total 12345678901\n";
        assert_eq!(all, wanted);
    }

    #[test]
    fn buckets_of_a_histogram_add_up() {
        let mut seen = Histogram::default();
        [900, 1_500, 40_000, 500_000_000].into_iter().for_each(|micros| seen.add(micros));
        let mut all = String::new();
        let mut take = |piece: String| {
            all += &piece;
            true
        };
        let mut text = Text::new(&mut take);
        text.histograms(("wait_seconds", "Waits."), [("e=\"a\"", &seen)].into_iter());
        text.end();
        for line in [
            "# TYPE wait_seconds histogram",
            "wait_seconds_bucket{e=\"a\",le=\"0.001\"} 1",
            "wait_seconds_bucket{e=\"a\",le=\"0.002\"} 2",
            "wait_seconds_bucket{e=\"a\",le=\"0.033\"} 2",
            "wait_seconds_bucket{e=\"a\",le=\"0.05\"} 3",
            "wait_seconds_bucket{e=\"a\",le=\"120\"} 3",
            "wait_seconds_bucket{e=\"a\",le=\"+Inf\"} 4",
            "wait_seconds_sum{e=\"a\"} 500.0424",
            "wait_seconds_count{e=\"a\"} 4",
        ] {
            assert!(all.lines().any(|l| l == line), "{line} is not in\n{all}");
        }
        assert_eq!(all.lines().count(), 2 + BUCKETS_MS.len() + 3);
    }

    #[test]
    fn text_comes_in_pieces_until_nobody_takes_them() {
        let mut pieces = 0;
        let mut take = |piece: String| {
            assert!(piece.len() < PIECE + 1024);
            pieces += 1;
            pieces < 3
        };
        let mut text = Text::new(&mut take);
        let many = (0..100_000).map(|i| (format!("i=\"{i}\""), f64::from(i)));
        text.family(("many", Kind::Gauge, "Many."), many);
        text.end();
        assert_eq!(pieces, 3);
    }
}
