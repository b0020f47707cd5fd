//! Comma-separated values, quotes and all.

use super::PredictError;

pub(super) struct Table {
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// One line of a table, by its columns' names.
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    columns: &'a [String],
    cells: &'a [String],
}

impl<'a> Row<'a> {
    /// What stands in a column; nothing where there is no such column.
    pub(super) fn get(&self, column: &str) -> &'a str {
        let place = self.columns.iter().position(|c| c == column);
        place.and_then(|i| self.cells.get(i)).map_or("", |cell| cell.trim())
    }
}

impl Table {
    pub(super) fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.rows.iter().map(|cells| Row { columns: &self.columns, cells })
    }
}

pub(super) fn read(text: &str) -> Result<Table, PredictError> {
    let mut lines = split(text.trim_start_matches('\u{feff}'))?.into_iter();
    let columns: Vec<String> =
        lines.next().ok_or(PredictError::Empty)?.iter().map(|c| c.trim().to_owned()).collect();
    for needed in ["accelerator", "gpus", "seq_len"] {
        if !columns.iter().any(|c| c == needed) {
            return Err(PredictError::NoColumn(needed));
        }
    }
    Ok(Table { columns, rows: lines.collect() })
}

/// Cells of every line that is not empty. Quotes may hold commas, line ends and doubled quotes.
fn split(text: &str) -> Result<Vec<Vec<String>>, PredictError> {
    let mut lines = Vec::new();
    let mut cells = Vec::new();
    let mut cell = String::new();
    let mut quote = None;
    let mut line = 1;
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        line += usize::from(letter == '\n');
        match (letter, quote) {
            ('"', Some(_)) if letters.peek() == Some(&'"') => {
                letters.next();
                cell.push('"');
            }
            ('"', Some(_)) => quote = None,
            (_, Some(_)) => cell.push(letter),
            ('"', None) if cell.is_empty() => quote = Some(line),
            (',', None) => cells.push(std::mem::take(&mut cell)),
            ('\r', None) if letters.peek() == Some(&'\n') => {}
            ('\n', None) => {
                cells.push(std::mem::take(&mut cell));
                lines.push(std::mem::take(&mut cells));
            }
            (_, None) => cell.push(letter),
        }
    }
    if let Some(line) = quote {
        return Err(PredictError::OpenQuote(line));
    }
    cells.push(cell);
    lines.push(cells);
    lines.retain(|cells| cells.iter().any(|c| !c.trim().is_empty()));
    Ok(lines)
}

/// A cell as it is written.
pub(super) fn quoted(cell: &str) -> String {
    if cell.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_hold_commas_lines_and_quotes() {
        let lines = split("a,\"b,\"\"c\"\"\nd\"\r\n\r\n1,\n").unwrap();
        assert_eq!(lines, [vec!["a", "b,\"c\"\nd"], vec!["1", ""]]);
        assert_eq!(quoted("b,\"c\""), "\"b,\"\"c\"\"\"");
    }

    #[test]
    fn a_quote_that_never_ends_is_told_with_its_line() {
        assert_eq!(split("a\n\"b").unwrap_err(), PredictError::OpenQuote(2));
    }
}
