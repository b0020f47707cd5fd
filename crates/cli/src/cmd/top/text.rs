//! Text in columns of a terminal: widths are of what is seen, not of bytes or characters.

use ratatui::style::Style;
use ratatui::text::Span;

use crate::show::harmless;

pub fn width(text: &str) -> usize {
    if text.is_ascii() { text.len() } else { Span::raw(text).width() }
}

/// At most so wide; what is cut off is an ellipsis. Nothing in it is obeyed by the terminal.
pub fn clip(text: &str, max: usize) -> String {
    let text = harmless(text);
    if width(&text) <= max {
        return text;
    }
    let mut out = String::new();
    let mut used = 0;
    for piece in Span::raw(text.as_str()).styled_graphemes(Style::new()) {
        let more = width(piece.symbol);
        if used + more + 1 > max {
            break;
        }
        used += more;
        out.push_str(piece.symbol);
    }
    if max > 0 {
        out.push('…');
    }
    out
}

/// Exactly so wide, flush left.
pub fn left(text: &str, wide: usize) -> String {
    let text = clip(text, wide);
    let blanks = wide.saturating_sub(width(&text));
    text + &" ".repeat(blanks)
}

/// Exactly so wide, flush right.
pub fn right(text: &str, wide: usize) -> String {
    let text = clip(text, wide);
    let blanks = wide.saturating_sub(width(&text));
    " ".repeat(blanks) + &text
}

/// Lines of at most so wide, broken between words where there are any.
pub fn wrap(text: &str, wide: usize) -> Vec<String> {
    let wide = wide.max(8);
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split(' ') {
        let blank = usize::from(!line.is_empty());
        if !line.is_empty() && width(&line) + blank + width(word) > wide {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
        while width(&line) > wide {
            let head = cut(&line, wide);
            let rest = line.split_off(head);
            lines.push(std::mem::replace(&mut line, rest));
        }
    }
    lines.push(line);
    lines
}

/// Where a text is to be cut so that its head is at most so wide; at least one character.
fn cut(text: &str, wide: usize) -> usize {
    let mut used = 0;
    for (at, c) in text.char_indices() {
        used += width(c.encode_utf8(&mut [0; 4]));
        if used > wide && at > 0 {
            return at;
        }
    }
    text.len()
}

/// What is beyond so many columns from the left.
pub fn from_column(text: &str, column: usize) -> &str {
    let mut used = 0;
    for (at, c) in text.char_indices() {
        if used >= column {
            return &text[at..];
        }
        used += width(c.encode_utf8(&mut [0; 4]));
    }
    ""
}

/// `██████▌···`: a share of the width, to an eighth of a character.
pub fn bar(share: f32, wide: usize) -> String {
    const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
    let eighths = (share * wide as f32 * 8.0).round() as usize;
    let (full, part) = (eighths / 8, PARTS[eighths % 8]);
    let rest = wide - full - usize::from(!part.is_empty());
    format!("{}{part}{}", "█".repeat(full), "·".repeat(rest))
}

/// One character for 0 to 100.
pub fn level(percent: u8) -> char {
    const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    LEVELS[(usize::from(percent.min(100)) * 7 + 50) / 100]
}

/// `0-3,7`.
pub fn ranges(numbers: &[u16]) -> String {
    let runs = numbers.chunk_by(|a, b| a.checked_add(1) == Some(*b));
    let words: Vec<String> = runs
        .map(|run| match run {
            [one] => one.to_string(),
            [first, .., last] => format!("{first}-{last}"),
            [] => String::new(),
        })
        .collect();
    words.join(",")
}

pub fn percent(share: f32) -> String {
    format!("{:.0}%", share * 100.0)
}

/// `3.1/5.0T`: both in the unit of the larger.
pub fn of(used: f64, all: f64, units: &[&str], step: f64) -> String {
    let mut unit = 0;
    let (mut used, mut all) = (used, all);
    while all >= step && unit + 1 < units.len() {
        (used, all) = (used / step, all / step);
        unit += 1;
    }
    let digits = usize::from(all < 100.0 && unit > 0);
    format!("{used:.digits$}/{all:.digits$}{}", units[unit])
}

pub fn memory(used: u64, all: u64) -> String {
    const GIB: f64 = (1u64 << 30) as f64;
    of(used as f64 / GIB, all as f64 / GIB, &["G", "T", "P"], 1024.0)
}

pub fn power(watts: f32, limit: Option<f32>) -> String {
    match limit {
        Some(limit) => of(watts.into(), limit.into(), &["W", "kW", "MW"], 1000.0),
        None if watts >= 1000.0 => format!("{:.1}kW", watts / 1000.0),
        None => format!("{watts:.0}W"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_as_wide_as_they_look() {
        assert_eq!(left("train", 8), "train   ");
        assert_eq!(left("a-very-long-name", 8), "a-very-…");
        assert_eq!(right("12", 4), "  12");
        // Each of these takes two columns.
        assert_eq!(clip("訓練訓練", 5), "訓練…");
        assert_eq!(left("訓練訓練", 6), "訓練… ");
        assert_eq!(clip("e\u{301}e\u{301}e\u{301}", 2), "e\u{301}…");
        assert_eq!(clip("\x1b[2J", 9), "\\x1b[2J");
        assert_eq!((clip("abc", 1), clip("abc", 0)), ("…".to_owned(), String::new()));
        assert_eq!(from_column("訓練x", 2), "練x");
        assert_eq!(from_column("ab", 7), "");
    }

    #[test]
    fn lines_break_between_words() {
        assert_eq!(wrap("needs 2 nodes with 8 GPUs", 12), ["needs 2", "nodes with 8", "GPUs"]);
        assert_eq!(wrap("a 12345678901234567", 8), ["a", "12345678", "90123456", "7"]);
        assert_eq!(wrap("", 8), [""]);
    }

    #[test]
    fn bars_are_whole() {
        assert_eq!(bar(0.0, 4), "····");
        assert_eq!(bar(0.5, 4), "██··");
        assert_eq!(bar(0.53, 4), "██▏·");
        assert_eq!(bar(7.0, 4), "████");
        assert_eq!(bar(f32::NAN, 2), "··");
        assert_eq!((level(0), level(50), level(95), level(255)), ('▁', '▅', '█', '█'));
    }

    #[test]
    fn numbers_in_a_row_are_a_range() {
        assert_eq!(ranges(&[0, 1, 2, 3, 7, 9, 10]), "0-3,7,9-10");
        assert_eq!((ranges(&[5]), ranges(&[])), ("5".to_owned(), String::new()));
    }

    #[test]
    fn amounts_have_one_unit() {
        assert_eq!(memory(62 << 30, 80 << 30), "62/80G");
        assert_eq!(memory(3 << 40, 5 << 40), "3.0/5.0T");
        assert_eq!(power(648.9, Some(700.0)), "649/700W");
        assert_eq!(power(18_200.0, Some(44_800.0)), "18.2/44.8kW");
        assert_eq!(power(1500.0, None), "1.5kW");
    }
}
