//! Tables without borders: a head, two blanks between columns, the last column cut to the width.

use comfy_table::{
    Attribute, Cell, CellAlignment, Color, ColumnConstraint, ContentArrangement, Table, presets,
};

use super::harmless;
use crate::style::{Ink, Style};

/// Blanks between columns.
const GAP: u16 = 2;
const LAST_MIN: u16 = 8;

pub struct Grid {
    table: Table,
    style: Style,
    columns: usize,
}

/// One cell: its text and its ink.
pub type Field = (String, Ink);

pub fn plain(text: impl Into<String>) -> Field {
    (text.into(), Ink::Plain)
}

impl Grid {
    /// Columns whose head starts with `>` are flush right.
    pub fn new(head: &[&str], style: Style) -> Grid {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
        if style.is_coloured() {
            table.enforce_styling();
        } else {
            table.force_no_tty();
        }
        table.set_header(head.iter().map(|h| {
            let cell = Cell::new(h.trim_start_matches('>'));
            if style.is_coloured() { cell.add_attribute(Attribute::Bold) } else { cell }
        }));
        for (i, h) in head.iter().enumerate() {
            let column = table.column_mut(i).expect("the head makes the columns");
            column.set_padding((0, if i + 1 == head.len() { 0 } else { GAP }));
            if h.starts_with('>') {
                column.set_cell_alignment(CellAlignment::Right);
            }
            if i + 1 < head.len() {
                column.set_constraint(ColumnConstraint::ContentWidth);
            }
        }
        Grid { table, style, columns: head.len() }
    }

    pub fn row(&mut self, fields: impl IntoIterator<Item = Field>) {
        let style = self.style;
        let cells = fields.into_iter().map(|(text, ink)| {
            let cell = Cell::new(harmless(&text));
            if style.is_coloured() { ink_cell(cell, ink) } else { cell }
        });
        let mut row = comfy_table::Row::from(cells);
        row.max_height(1);
        self.table.add_row(row);
    }

    /// The width is the terminal's, or without limit in a pipe.
    pub fn render(mut self, width: Option<u16>) -> String {
        // The last column takes what the others leave; where that is nothing, the terminal wraps.
        let widths = self.table.column_max_content_widths();
        let others: u16 = widths[..self.columns - 1].iter().map(|w| w + GAP).sum();
        match width.filter(|w| *w >= others + LAST_MIN) {
            Some(width) => {
                self.table.set_width(width);
            }
            None => {
                self.table.set_content_arrangement(ContentArrangement::Disabled);
            }
        }
        self.table.lines().map(|l| l.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
    }
}

fn ink_cell(cell: Cell, ink: Ink) -> Cell {
    match ink {
        Ink::Plain => cell,
        Ink::Bold => cell.add_attribute(Attribute::Bold),
        Ink::Dim => cell.add_attribute(Attribute::Dim),
        Ink::Red => cell.fg(Color::DarkRed),
        Ink::Green => cell.fg(Color::DarkGreen),
        Ink::Yellow => cell.fg(Color::DarkYellow),
        Ink::Blue => cell.fg(Color::DarkBlue),
        Ink::Magenta => cell.fg(Color::DarkMagenta),
        Ink::Cyan => cell.fg(Color::DarkCyan),
    }
}

/// Of stdout, if it is a terminal.
pub fn terminal_width() -> Option<u16> {
    Table::new().set_content_arrangement(ContentArrangement::Dynamic).width()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_has_no_borders_and_is_cut_to_the_width() {
        let grid = || {
            let mut g = Grid::new(&[">ID", "NAME", "NOTE"], Style::PLAIN);
            g.row([plain("7"), plain("a"), plain("short")]);
            g.row([plain("1234"), plain("finetune"), plain("waits for 16 GPUs; 3 are free")]);
            g
        };
        assert_eq!(
            grid().render(None),
            "  ID  NAME      NOTE\n   7  a         short\n1234  finetune  waits for 16 GPUs; 3 are free"
        );
        let narrow = grid().render(Some(30));
        assert!(narrow.lines().all(|l| l.chars().count() <= 30), "{narrow}");
        assert_eq!(narrow.lines().count(), 3, "{narrow}");
        assert_eq!(grid().render(Some(200)), grid().render(None));
        assert_eq!(grid().render(Some(10)), grid().render(None));
    }

    #[test]
    fn names_can_t_paint_the_screen() {
        let mut g = Grid::new(&["NAME"], Style::PLAIN);
        g.row([plain("evil\x1b[2J\nname")]);
        assert_eq!(g.render(None), "NAME\nevil\\x1b[2J\\nname");
    }
}
