//! Text tables with a head: CSV, and the `|` form of `sacct -P`.

use std::collections::BTreeMap;
use std::str::FromStr;

use tutti_model::{Span, Time};

use super::{BadLine, COUNT_MAX, Problem, SECONDS_MAX};

pub(crate) struct Table<'t> {
    head: BTreeMap<String, usize>,
    columns: usize,
    separator: char,
    quotes: bool,
    text: &'t str,
}

/// One line, split.
pub(crate) struct Row<'t> {
    pub line: usize,
    head: &'t BTreeMap<String, usize>,
    fields: Vec<String>,
}

impl<'t> Table<'t> {
    /// Fields between commas, quoted or not.
    pub fn new(text: &'t str, separator: char) -> Result<Table<'t>, BadLine> {
        Table::with(text, separator, true)
    }

    /// For writers who know no quotes: a `"` is a character like any other.
    pub fn without_quotes(text: &'t str, separator: char) -> Result<Table<'t>, BadLine> {
        Table::with(text, separator, false)
    }

    /// Names are compared in lower case, without a leading `#`.
    fn with(text: &'t str, separator: char, quotes: bool) -> Result<Table<'t>, BadLine> {
        let at = |problem| BadLine { line: 1, problem };
        // Spreadsheets mark UTF-8 with this.
        let text = text.trim_start_matches('\u{feff}');
        let first = text.lines().next().filter(|l| !l.trim().is_empty());
        let names =
            split(first.ok_or_else(|| at(Problem::NoHead))?, separator, quotes).map_err(at)?;
        let clean = |n: &String| n.trim().trim_start_matches('#').trim().to_ascii_lowercase();
        let head = names.iter().enumerate().map(|(i, n)| (clean(n), i)).collect();
        Ok(Table { head, columns: names.len(), separator, quotes, text })
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.head.keys().map(String::as_str)
    }

    pub fn has(&self, name: &str) -> bool {
        self.head.contains_key(name)
    }

    pub fn need(&self, names: &[&str]) -> Result<(), BadLine> {
        match names.iter().find(|n| !self.has(n)) {
            Some(name) => Err(BadLine { line: 1, problem: Problem::NoColumn((*name).to_owned()) }),
            None => Ok(()),
        }
    }

    /// Lines that are not blank.
    pub fn rows(&self) -> impl Iterator<Item = Result<Row<'_>, BadLine>> {
        let lines = self.text.lines().enumerate().skip(1).filter(|(_, l)| !l.trim().is_empty());
        lines.map(|(i, text)| {
            let line = i + 1;
            let at = |problem| BadLine { line, problem };
            let fields = split(text, self.separator, self.quotes).map_err(at)?;
            if fields.len() != self.columns {
                return Err(at(Problem::Fields { have: fields.len(), want: self.columns }));
            }
            Ok(Row { line, head: &self.head, fields })
        })
    }
}

impl Row<'_> {
    pub fn bad(&self, problem: Problem) -> BadLine {
        BadLine { line: self.line, problem }
    }

    /// Empty if there is no such column.
    pub fn text(&self, column: &str) -> &str {
        self.head.get(column).map_or("", |&i| self.fields[i].trim())
    }

    pub fn number<T: FromStr>(&self, column: &str) -> Result<T, BadLine> {
        let value = self.text(column);
        let number = || Problem::NotANumber { column: column.to_owned(), value: value.to_owned() };
        if value.is_empty() {
            return Err(self.bad(Problem::Empty { column: column.to_owned() }));
        }
        value.parse().map_err(|_| self.bad(number()))
    }

    pub fn number_if_any<T: FromStr>(&self, column: &str) -> Result<Option<T>, BadLine> {
        if self.text(column).is_empty() { Ok(None) } else { self.number(column).map(Some) }
    }

    /// A number of things, within reason. `2.0` counts as 2.
    pub fn count(&self, column: &str) -> Result<u32, BadLine> {
        let number: f64 = self.number(column)?;
        if !(0.0..=COUNT_MAX as f64).contains(&number) || number.fract() != 0.0 {
            let value = self.text(column).to_owned();
            let column = column.to_owned();
            return Err(self.bad(if number > COUNT_MAX as f64 {
                Problem::TooLarge { column, value, max: COUNT_MAX }
            } else {
                Problem::NotA { column, value, wanted: "a whole number" }
            }));
        }
        Ok(number as u32)
    }

    pub fn count_if_any(&self, column: &str) -> Result<Option<u32>, BadLine> {
        if self.text(column).is_empty() { Ok(None) } else { self.count(column).map(Some) }
    }

    /// Seconds, with or without decimals.
    pub fn seconds(&self, column: &str) -> Result<Span, BadLine> {
        let seconds: f64 = self.number(column)?;
        self.span(column, seconds)
    }

    pub fn span(&self, column: &str, seconds: f64) -> Result<Span, BadLine> {
        if !(0.0..=SECONDS_MAX).contains(&seconds) {
            let value = self.text(column).to_owned();
            let wanted = "a number of seconds from 0 to 1,000 years";
            return Err(self.bad(Problem::NotA { column: column.to_owned(), value, wanted }));
        }
        Ok(Span((seconds * 1000.0).round() as u64))
    }

    pub fn time(&self, column: &str) -> Result<Time, BadLine> {
        Ok(Time(self.seconds(column)?.0))
    }
}

/// Fields may be quoted, with `""` for a quote inside.
fn split(line: &str, separator: char, quotes: bool) -> Result<Vec<String>, Problem> {
    let mut fields = vec![String::new()];
    let mut quoted = false;
    let mut chars = line.trim_end_matches('\r').chars().peekable();
    while let Some(c) = chars.next() {
        let field = fields.last_mut().ok_or(Problem::NoHead)?;
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                field.push('"');
            }
            '"' if quoted => quoted = false,
            '"' if quotes && field.trim().is_empty() => quoted = true,
            c if c == separator && !quoted => fields.push(String::new()),
            c => field.push(c),
        }
    }
    if quoted { Err(Problem::OpenQuote) } else { Ok(fields) }
}
