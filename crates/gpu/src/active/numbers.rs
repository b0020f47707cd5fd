//! The numbers that GPUs are given, and what must come out. Pure, and exact: whole numbers that are
//! small enough for every type that is used, so that no order of additions can make a difference.

use tutti_model::Wrong;

/// What stands in word `at` of memory that was filled so. The kernels compute the same.
pub fn pattern(at: u32, fill: Fill) -> u32 {
    let x = at.wrapping_mul(0x9E37_79B1).wrapping_add(fill.seed);
    let x = x ^ (x >> 15);
    let x = x.wrapping_mul(0x85EB_CA77);
    let x = x ^ (x >> 13);
    x.wrapping_mul(fill.times).wrapping_add(fill.plus)
}

/// Which numbers: `times · h(at, seed) + plus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    pub seed: u32,
    pub times: u32,
    pub plus: u32,
}

impl Fill {
    pub fn new(seed: u32) -> Fill {
        Fill { seed, times: 1, plus: 0 }
    }

    /// Every bit the other way round: `-x - 1`.
    pub fn inverse(self) -> Fill {
        let not = |x: u32| 0u32.wrapping_sub(x);
        Fill { seed: self.seed, times: not(self.times), plus: not(self.plus).wrapping_sub(1) }
    }

    /// What one GPU brings to a sum.
    pub fn of_rank(seed: u32, rank: u32) -> Fill {
        Fill { seed, times: 2 * rank + 1, plus: rank }
    }

    /// The sum over `count` of them.
    pub fn sum(seed: u32, count: u32) -> Fill {
        Fill { seed, times: count * count, plus: count * count.saturating_sub(1) / 2 }
    }
}

/// Words that are not as they were filled.
pub fn compare(words: &[u32], from: u32, fill: Fill) -> Wrong {
    let mut wrong = Wrong::default();
    for (at, &word) in (from..).zip(words) {
        let wanted = pattern(at, fill);
        if word != wanted {
            if wrong.count == 0 {
                wrong.first = format!("word {at} is {word:#010x} and must be {wanted:#010x}");
            }
            wrong.count += 1;
        }
    }
    wrong
}

/// The middle of them, and of an even number the larger one in the middle. There must be one.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The largest number in an operand, and its negative the smallest.
const LARGEST: i32 = 3;

/// Two square matrices of small whole numbers, and by what their product is known.
pub struct Operands {
    pub size: usize,
    pub a: Vec<i8>,
    pub b: Vec<i8>,
    x: Vec<i64>,
    /// `A·(B·x)`.
    abx: Vec<i64>,
}

impl Operands {
    pub fn new(size: usize) -> Operands {
        // Sums stay far below what a float with 24 bits, or an accumulator with fewer, holds exactly.
        assert!(size <= 1 << 14, "{size} is more than can be summed exactly");
        Operands::of(size, operand(size, 0x5EED_000A), operand(size, 0x5EED_000B))
    }

    pub fn of(size: usize, a: Vec<i8>, b: Vec<i8>) -> Operands {
        let weight = |at| i64::from(pattern(at, Fill::new(0x5EED_000C)) & 0x3fff) + 1;
        let x: Vec<i64> = (0..size as u32).map(weight).collect();
        let times = |matrix: &[i8], x: &[i64]| -> Vec<i64> {
            let row = |row: &[i8]| row.iter().zip(x).map(|(m, x)| i64::from(*m) * x).sum();
            matrix.chunks_exact(size).map(row).collect()
        };
        let abx = times(&a, &times(&b, &x));
        Operands { size, a, b, x, abx }
    }
}

fn operand(size: usize, seed: u32) -> Vec<i8> {
    let span = (2 * LARGEST + 1) as u32;
    let of = |at| ((pattern(at, Fill::new(seed)) >> 8) % span) as i32 - LARGEST;
    (0..(size * size) as u32).map(|at| of(at) as i8).collect()
}

/// Whether `c` is the product, by its rows: multiplies with a vector from the right, `C·x` against
/// `A·(B·x)`. That is far less work than a product. A row with one wrong number in it never passes; one with
/// several passes by a chance of one in thousands.
pub fn check_product(operands: &Operands, c: &[f32]) -> Wrong {
    let mut wrong = Wrong::default();
    let rows = c.chunks_exact(operands.size).zip(&operands.abx);
    for (at, (row, wanted)) in rows.enumerate() {
        if row_of_product(row, &operands.x) != Some(*wanted) {
            if wrong.count == 0 {
                wrong.first = format!("row {at} of the product is wrong");
            }
            wrong.count += 1;
        }
    }
    wrong
}

/// None if something in it is not a whole number.
fn row_of_product(row: &[f32], x: &[i64]) -> Option<i64> {
    let mut sum = 0i64;
    for (value, x) in row.iter().zip(x) {
        if value.fract() != 0.0 || value.abs() > 1e9 {
            return None;
        }
        sum += *value as i64 * x;
    }
    Some(sum)
}

/// The bits of a small whole number as a half float.
pub fn half(value: i8) -> u16 {
    let sign = if value < 0 { 0x8000 } else { 0 };
    let size = u16::from(value.unsigned_abs());
    if size == 0 {
        return sign;
    }
    let power = size.ilog2() as u16;
    let fraction = (size << (10 - power)) & 0x3ff;
    sign | ((15 + power) << 10) | fraction
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_differ_by_word_and_seed_and_turn_round() {
        let fill = Fill::new(7);
        assert_ne!(pattern(0, fill), pattern(1, fill));
        assert_ne!(pattern(0, fill), pattern(0, Fill::new(8)));
        for at in [0, 1, 77, u32::MAX] {
            assert_eq!(pattern(at, fill.inverse()), !pattern(at, fill));
        }
    }

    #[test]
    fn of_two_the_larger_one_is_in_the_middle() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [2.0, 1.0]), 2.0);
    }

    #[test]
    fn one_bit_is_found_and_named() {
        let fill = Fill::new(1);
        let mut words: Vec<u32> = (100..200).map(|at| pattern(at, fill)).collect();
        assert!(compare(&words, 100, fill).is_right());
        words[23] ^= 1 << 30;
        let wrong = compare(&words, 100, fill);
        assert_eq!(wrong.count, 1);
        assert!(wrong.first.starts_with("word 123 is "), "{}", wrong.first);
    }

    #[test]
    fn what_ranks_bring_adds_up() {
        for count in 1..=16 {
            for at in [0, 5, 1 << 20] {
                let sum = (0..count)
                    .map(|rank| pattern(at, Fill::of_rank(9, rank)))
                    .fold(0u32, u32::wrapping_add);
                assert_eq!(sum, pattern(at, Fill::sum(9, count)));
            }
        }
    }

    fn product(operands: &Operands) -> Vec<f32> {
        let size = operands.size;
        let mut c = vec![0.0; size * size];
        for (at, out) in c.iter_mut().enumerate() {
            let (i, j) = (at / size, at % size);
            for k in 0..size {
                *out += f32::from(operands.a[i * size + k]) * f32::from(operands.b[k * size + j]);
            }
        }
        c
    }

    #[test]
    fn a_product_with_one_wrong_number_does_not_pass() {
        let operands = Operands::new(48);
        let c = product(&operands);
        assert!(c.iter().any(|v| *v != 0.0));
        assert!(check_product(&operands, &c).is_right());
        for (at, value) in [(0, 1.0), (48 * 48 - 1, -2.0), (1000, 0.5), (7, f32::NAN)] {
            let mut bad = c.clone();
            bad[at] += value;
            let wrong = check_product(&operands, &bad);
            let first = format!("row {} of the product is wrong", at / 48);
            assert_eq!((wrong.count, wrong.first), (1, first));
        }
        let mut bad = c.clone();
        bad.iter_mut().for_each(|v| *v = 0.0);
        assert_eq!(check_product(&operands, &bad).count, 48);
    }

    #[test]
    fn halves_are_what_they_say() {
        let bits = [(0, 0), (1, 0x3c00), (-1, 0xbc00), (2, 0x4000), (3, 0x4200), (-3, 0xc200)];
        for (value, wanted) in bits {
            assert_eq!(half(value), wanted, "{value}");
        }
    }
}
