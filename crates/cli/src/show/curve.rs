//! A curve in one line: its first value, bars, its last value.

const COLUMNS: usize = 40;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Empty while there is too little to draw.
pub fn of(values: &[f64]) -> String {
    draw(values, range(&means(values)))
}

/// Two parts of one curve, on one scale.
pub fn halves(values: [&[f64]; 2]) -> [String; 2] {
    let range = range(&values.map(means).concat());
    values.map(|part| draw(part, range))
}

fn means(values: &[f64]) -> Vec<f64> {
    let columns = COLUMNS.min(values.len());
    let mean = |column: usize| {
        let part = &values[column * values.len() / columns..(column + 1) * values.len() / columns];
        part.iter().sum::<f64>() / part.len() as f64
    };
    (0..columns).map(mean).collect()
}

fn range(means: &[f64]) -> (f64, f64) {
    means.iter().fold((f64::MAX, f64::MIN), |(low, high), m| (low.min(*m), high.max(*m)))
}

fn draw(values: &[f64], (low, high): (f64, f64)) -> String {
    let (Some(first), Some(last)) = (values.first(), values.last()) else { return String::new() };
    if values.len() < 3 {
        return String::new();
    }
    let bar = |mean: &f64| match high - low {
        0.0 => BARS[0],
        span => BARS[((mean - low) / span * 7.0).round() as usize],
    };
    let bars: String = means(values).iter().map(bar).collect();
    format!("{} {bars} {}", number(*first), number(*last))
}

/// Four digits that count.
pub fn number(n: f64) -> String {
    match n.abs() {
        0.0 => "0".to_owned(),
        size if !(1e-3..1e5).contains(&size) => format!("{n:.3e}"),
        size => format!("{n:.*}", (3 - size.log10().floor() as i32).max(0) as usize),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_share_a_scale() {
        let [before, after] = halves([&[8.0, 6.0, 4.0], &[4.0, 2.0, 1.0]]);
        assert_eq!(before, "8.000 █▆▄ 4.000");
        assert_eq!(after, "4.000 ▄▂▁ 1.000");
        assert_eq!(of(&[4.0, 2.0, 1.0]), "4.000 █▃▁ 1.000");
    }
}
