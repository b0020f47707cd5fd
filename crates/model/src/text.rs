//! Text that users wrote, on its way to somebody's screen: a job's name must be able neither to
//! repaint an operator's terminal nor to make a line read as another.

/// A terminal or a browser obeys it or hides it instead of showing it: control characters, those that
/// turn the direction of what follows, line ends of Unicode, and what has no width and no use in a name.
/// Joiners stay: scripts and emoji need them.
pub fn is_deceptive(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{feff}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}')
}

/// Writes it so that it is seen: `\n`, `\x1b`, `\u{202e}`.
pub fn push_escaped(out: &mut String, c: char) {
    match c {
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c if (c as u32) < 0x100 => out.push_str(&format!("\\x{:02x}", c as u32)),
        c => out.push_str(&format!("\\u{{{:x}}}", c as u32)),
    }
}

/// The text with what deceives shown as escapes, on one line. The one function for everything that
/// users wrote and others read.
pub fn harmless(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match is_deceptive(c) {
            true => push_escaped(&mut out, c),
            false => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_deceives_is_shown_and_the_rest_left_alone() {
        assert_eq!(harmless("a\x1b[2J\nb\u{9b}c\x7f"), "a\\x1b[2J\\nb\\x9bc\\x7f");
        assert_eq!(harmless("x\u{202e}gpj.exe\u{2066}"), "x\\u{202e}gpj.exe\\u{2066}");
        assert_eq!(
            harmless("\u{200e}\u{200f}\u{61c}\u{2028}"),
            "\\u{200e}\\u{200f}\\u{61c}\\u{2028}"
        );
        for fine in ["train", "größer", "训练", "שלום", "👩‍🔬", "می\u{200c}خواهم"]
        {
            assert_eq!(harmless(fine), fine);
        }
    }
}
