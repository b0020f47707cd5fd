//! Bars of blocks.

/// Fills of parts that stand side by side; neighbours differ.
const FILLS: [char; 4] = ['█', '▓', '▒', '░'];

pub fn fill(part: usize) -> char {
    FILLS[part % FILLS.len()]
}

/// So much of `width`, with at least one block if there is anything.
pub fn plain(share: f64, width: usize) -> String {
    let full = (share.clamp(0.0, 1.0) * width as f64).round() as usize;
    let full = if share > 0.0 { full.max(1) } else { 0 };
    format!("{}{}", "█".repeat(full), "·".repeat(width - full))
}

/// Columns of each part, which together are `width` where the parts make up `whole`, and less where they are less.
pub fn columns(parts: &[f64], whole: f64, width: usize) -> Vec<usize> {
    let whole = whole.max(parts.iter().sum()).max(f64::MIN_POSITIVE);
    // Ends are rounded, not lengths: so they never add up to more than there is.
    let mut end = 0.0;
    let mut at = 0;
    let mut out = Vec::with_capacity(parts.len());
    for part in parts {
        end += part.max(0.0);
        let next = ((end / whole) * width as f64).round() as usize;
        out.push(next - at);
        at = next;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_it_says() {
        assert_eq!(plain(0.5, 8), "████····");
        assert_eq!(plain(0.001, 4), "█···");
        assert_eq!(plain(1.7, 4), "████");
        assert_eq!(plain(0.0, 3), "···");
    }

    #[test]
    fn parts_fill_the_width_and_never_more() {
        for width in [1, 7, 40, 120] {
            let thirds = columns(&[1.0, 1.0, 1.0], 3.0, width);
            assert_eq!(thirds.iter().sum::<usize>(), width);
        }
        assert_eq!(columns(&[1.0, 1.0], 4.0, 40), [10, 10]);
        assert_eq!(columns(&[0.0, 3.0], 2.0, 10), [0, 10]);
        assert_eq!(columns(&[], 2.0, 10), Vec::<usize>::new());
    }
}
