//! What each GPU of a job does, as small pictures side by side.

use maud::{Markup, html};
use tutti_wire::api::RankRow;

use crate::words;

/// One GPU of the job over the last minutes.
#[derive(Clone, Debug, PartialEq)]
pub struct RankCurve {
    /// The rank that uses it, where each has its own.
    pub rank: Option<u32>,
    pub node: String,
    pub gpu: u16,
    /// Shares of time, 0 to 1.
    pub points: Vec<Option<f32>>,
    pub mean: Option<f32>,
}

const WIDTH: f32 = 120.0;
const HEIGHT: f32 = 32.0;
/// Less than this part of the usual is behind.
const BEHIND: f32 = 0.9;

/// Who is behind: the rank with the lowest step or, where nobody counts steps, the GPU that does
/// clearly least.
fn slowest(curves: &[RankCurve], ranks: &[RankRow]) -> Option<usize> {
    if curves.len() < 2 {
        return None;
    }
    let last = ranks.iter().min_by_key(|rank| rank.step);
    let first = ranks.iter().map(|rank| rank.step).max();
    if let Some(rank) = last.filter(|last| Some(last.step) < first) {
        return curves.iter().position(|curve| curve.rank == Some(rank.rank));
    }
    let mut means: Vec<f32> = curves.iter().filter_map(|curve| curve.mean).collect();
    means.sort_by(f32::total_cmp);
    let usual = *means.get(means.len() / 2)?;
    let (at, least) = curves
        .iter()
        .enumerate()
        .filter_map(|(at, curve)| Some((at, curve.mean?)))
        .min_by(|a, b| a.1.total_cmp(&b.1))?;
    (least < usual * BEHIND).then_some(at)
}

pub fn draw(curves: &[RankCurve], ranks: &[RankRow]) -> Markup {
    let slowest = slowest(curves, ranks);
    html! {
        ul.multiples data-testid="ranks" {
            @for (at, curve) in curves.iter().enumerate() {
                @let is_slowest = slowest == Some(at);
                li.slowest[is_slowest] {
                    span.label {
                        @if let Some(rank) = curve.rank { b { (rank) } " " }
                        span.sub { (curve.node) ":" (curve.gpu) }
                        @if is_slowest { " " (words::badge("slowest", "▼", "slowest")) }
                    }
                    svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } preserveAspectRatio="none"
                        aria-hidden="true" {
                        path d=(path(&curve.points)) {}
                    }
                    span.value {
                        @if let Some(mean) = curve.mean {
                            (words::percent(mean.into()))
                        } @else { "–" }
                    }
                }
            }
        }
    }
}

/// The area under the curve; gaps are gaps.
fn path(points: &[Option<f32>]) -> String {
    let step = WIDTH / (points.len().saturating_sub(1).max(1)) as f32;
    let mut d = String::new();
    let mut at = 0;
    for run in points.chunk_by(|a, b| a.is_some() == b.is_some()) {
        if run[0].is_some() {
            let from = at as f32 * step;
            d += &format!("M{from:.1} {HEIGHT}");
            for (i, share) in run.iter().flatten().enumerate() {
                let (x, y) =
                    (from + i as f32 * step, HEIGHT - share.clamp(0.0, 1.0) * (HEIGHT - 1.0));
                d += &format!("L{x:.1} {y:.1}");
            }
            d += &format!("L{:.1} {HEIGHT}Z", from + (run.len() - 1) as f32 * step);
        }
        at += run.len();
    }
    d
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(rank: u32, mean: f32) -> RankCurve {
        RankCurve {
            rank: Some(rank),
            node: "n1".into(),
            gpu: rank as u16,
            points: vec![Some(mean); 3],
            mean: Some(mean),
        }
    }

    fn row(rank: u32, step: u64) -> RankRow {
        RankRow { rank, node: None, step, loss: None, tokens: None, pace: None, age: None }
    }

    #[test]
    fn the_slowest_is_marked_by_steps_else_by_activity() {
        let curves = [curve(0, 0.9), curve(1, 0.91), curve(2, 0.4)];
        assert_eq!(slowest(&curves, &[]), Some(2));
        assert_eq!(slowest(&curves, &[row(0, 7), row(1, 5), row(2, 7)]), Some(1));
        let even = [curve(0, 0.9), curve(1, 0.88)];
        assert_eq!(slowest(&even, &[row(0, 7), row(1, 7)]), None);
        assert_eq!(slowest(&curves[..1], &[]), None);
        let text = draw(&curves, &[]).into_string();
        assert_eq!(text.matches("slowest").count(), 3, "a class, a badge and its word: {text}");
    }

    #[test]
    fn gaps_are_not_drawn_over() {
        let d = path(&[Some(1.0), None, Some(0.5), Some(0.5)]);
        assert_eq!(d.matches('M').count(), 2, "{d}");
        assert_eq!(path(&[]), "");
        assert_eq!(path(&[None, None]), "");
    }
}
