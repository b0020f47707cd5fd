//! A curve in one line: its first value, bars, its last value.

const COLUMNS: usize = 40;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Empty while there is too little to draw.
pub fn of(values: &[f64]) -> String {
    let (Some(first), Some(last)) = (values.first(), values.last()) else { return String::new() };
    if values.len() < 3 {
        return String::new();
    }
    let columns = COLUMNS.min(values.len());
    let mean = |column: usize| {
        let part = &values[column * values.len() / columns..(column + 1) * values.len() / columns];
        part.iter().sum::<f64>() / part.len() as f64
    };
    let means: Vec<f64> = (0..columns).map(mean).collect();
    let (low, high) = means.iter().fold((f64::MAX, f64::MIN), |(l, h), m| (l.min(*m), h.max(*m)));
    let bar = |mean: &f64| match high - low {
        0.0 => BARS[0],
        span => BARS[((mean - low) / span * 7.0).round() as usize],
    };
    let bars: String = means.iter().map(bar).collect();
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
