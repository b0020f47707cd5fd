//! Lists in columns of fixed width, so that nothing jumps while values change.

use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::super::text::{left, right};
use super::super::theme::Theme;
use crate::show::table::Field;
use crate::style::Ink;

/// The last column has at least this, or others have to go.
const LAST_MIN: usize = 16;
/// Beyond this, the last column gives room to those that can use it.
const LAST_GOOD: usize = 44;

/// The last column takes what is left.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub head: &'static str,
    pub right: bool,
    pub wide: usize,
    /// Those with the least go first where there is too little room; 9 always stays.
    pub keep: u8,
    /// How much wider it may get.
    pub grow: usize,
}

pub const fn column(head: &'static str, wide: usize, keep: u8) -> Column {
    Column { head, right: false, wide, keep, grow: 0 }
}

pub const fn number(head: &'static str, wide: usize, keep: u8) -> Column {
    Column { head, right: true, wide, keep, grow: 0 }
}

pub const fn growing(head: &'static str, wide: usize, keep: u8, grow: usize) -> Column {
    Column { head, right: false, wide, keep, grow }
}

pub struct Table<'a> {
    pub columns: &'a [Column],
    /// The head of the column that it is sorted by, and whether the other way round.
    pub sorted: (&'a str, bool),
    pub rows: Vec<Vec<Field>>,
    pub selected: Option<usize>,
}

impl Table<'_> {
    /// The head and the rows.
    pub fn lines(self, wide: u16, theme: Theme) -> Vec<Line<'static>> {
        let wide = usize::from(wide);
        let (shown, widths, gap) = self.layout(wide);
        let blank = " ".repeat(gap);
        let cell = |text: &str, place: usize| {
            let (at, wide) = (shown[place], widths[place]);
            if self.columns[at].right { right(text, wide) } else { left(text, wide) }
        };
        let mark = |head: &str| match self.sorted {
            (by, reverse) if by == head && !by.is_empty() => {
                format!("{head}{}", if reverse { "▲" } else { "▼" })
            }
            _ => head.to_owned(),
        };
        let heads: Vec<String> = shown
            .iter()
            .enumerate()
            .map(|(place, at)| cell(&mark(self.columns[*at].head), place))
            .collect();
        let mut lines = vec![Line::styled(
            left(&format!(" {}", heads.join(&blank)), wide),
            theme.of(Ink::Bold),
        )];
        for (i, row) in self.rows.iter().enumerate() {
            let selected = self.selected == Some(i);
            // Not by colour alone.
            let mut spans = vec![Span::raw(if selected { "›" } else { " " })];
            for (place, at) in shown.iter().enumerate() {
                if place > 0 {
                    spans.push(Span::raw(blank.clone()));
                }
                let (text, ink) = &row[*at];
                spans.push(Span::styled(cell(text, place), theme.of(*ink)));
            }
            let style = if selected { theme.selected() } else { Style::new() };
            lines.push(Line::from(spans).style(style));
        }
        lines
    }

    /// Which columns there is room for, how wide they are, and what is between them.
    fn layout(&self, wide: usize) -> (Vec<usize>, Vec<usize>, usize) {
        let gap = if wide >= 100 { 2 } else { 1 };
        let last = self.columns.len() - 1;
        let mut shown: Vec<usize> = (0..self.columns.len()).collect();
        let used = |shown: &[usize]| -> usize {
            1 + shown
                .iter()
                .filter(|at| **at != last)
                .map(|at| self.columns[*at].wide + gap)
                .sum::<usize>()
        };
        while used(&shown) + LAST_MIN > wide {
            let weakest = shown
                .iter()
                .enumerate()
                .filter(|(_, at)| **at != last && self.columns[**at].keep < 9)
                .min_by_key(|(_, at)| self.columns[**at].keep);
            match weakest.map(|(place, _)| place) {
                Some(place) => drop(shown.remove(place)),
                None => break,
            }
        }
        let mut rest = wide.saturating_sub(used(&shown));
        let widths = shown.iter().map(|at| {
            let column = &self.columns[*at];
            let more = column.grow.min(rest.saturating_sub(LAST_GOOD));
            rest -= more;
            column.wide + more
        });
        let mut widths: Vec<usize> = widths.collect();
        if let Some(width) = widths.last_mut() {
            *width = rest;
        }
        (shown, widths, gap)
    }
}
