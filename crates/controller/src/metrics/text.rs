//! Prometheus' text format: families of samples, with what they mean.

use std::fmt::Write;

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
