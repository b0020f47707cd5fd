//! Products of matrices, again and again, until their speed is known.

use tutti_model::{MatmulPrecision as Precision, MatmulRate};

use super::cublas::Cublas;
use super::lt::Lt;
use crate::active::api::{Address, Context};
use crate::active::numbers::{Fill, median, pattern};
use crate::cuda::CudaError;

/// An `m × k` and a `k × n` matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub m: u32,
    pub n: u32,
    pub k: u32,
}

/// What is multiplied: large squares, which show what the GPU can do; the two products of a feed-forward
/// layer of a model with 70·10⁹ parameters; and small squares, which show what is left when work is cut up.
pub const SHAPES: [Shape; 5] = [
    Shape { m: 8192, n: 8192, k: 8192 },
    Shape { m: 8192, n: 28672, k: 8192 },
    Shape { m: 8192, n: 8192, k: 28672 },
    Shape { m: 4096, n: 4096, k: 4096 },
    Shape { m: 2048, n: 2048, k: 2048 },
];
/// Seconds of one measurement, of many products; measurements, of which the median counts; and
/// measurements before, in which clocks settle.
const BATCH: f64 = 0.04;
const ROUNDS: usize = 9;
const WARM: usize = 5;
const PRODUCTS: std::ops::RangeInclusive<f64> = 1.0..=2000.0;
/// At most this part of what is free.
const PART_OF_FREE: u64 = 2;

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}×{}×{}", self.m, self.n, self.k)
    }
}

impl Shape {
    pub fn operations(self) -> f64 {
        2.0 * f64::from(self.m) * f64::from(self.n) * f64::from(self.k)
    }

    /// Bytes of both factors and of the answer, which is bf16.
    fn bytes(self, precision: Precision) -> [u64; 3] {
        let (m, n, k) = (u64::from(self.m), u64::from(self.n), u64::from(self.k));
        let each = match precision {
            Precision::Bf16 => 2,
            Precision::Fp8 => 1,
        };
        [m * k * each, k * n * each, m * n * 2]
    }
}

/// Numbers to multiply, made once for all GPUs. Zeros would be faster: they take less power.
pub struct Values {
    bf16: Vec<u8>,
    fp8: Vec<u8>,
}

/// Numbers that are made; more are the same again.
const VALUES: u32 = 4 << 20;

impl Values {
    pub fn new() -> Values {
        let random = |at| pattern(at, Fill::new(0x5EED_000D));
        let bf16 = (0..VALUES).flat_map(|at| bf16(random(at)).to_le_bytes()).collect();
        Values { bf16, fp8: (0..VALUES).map(|at| fp8(random(at))).collect() }
    }

    /// Fills memory of a GPU.
    pub fn spread(
        &self,
        context: &Context<'_>,
        precision: Precision,
        to: Address,
        bytes: u64,
    ) -> Result<(), CudaError> {
        let values = match precision {
            Precision::Bf16 => &self.bf16,
            Precision::Fp8 => &self.fp8,
        };
        let piece = values.len() as u64;
        context.upload(to, &values[..piece.min(bytes) as usize])?;
        for at in (piece..bytes).step_by(values.len()) {
            context.copy(to + at, to, piece.min(bytes - at))?;
        }
        context.wait()
    }
}

/// A number from -1 to 1.
fn bf16(random: u32) -> u16 {
    let value = f64::from(random) / f64::from(u32::MAX) * 2.0 - 1.0;
    ((value as f32).to_bits() >> 16) as u16
}

/// A number below 2, whatever its sign: without the highest bit of its exponent it is finite.
fn fp8(random: u32) -> u8 {
    (random >> 24) as u8 & 0b1011_1111
}

/// All shapes that fit, and what is to be said of those that do not.
pub fn measure(
    context: &Context<'_>,
    cublas: &Cublas,
    values: &Values,
    precision: Precision,
) -> Result<(Vec<MatmulRate>, Vec<String>), CudaError> {
    let room = context.free_memory()? / PART_OF_FREE;
    let (fit, large): (Vec<Shape>, Vec<Shape>) =
        SHAPES.iter().partition(|shape| shape.bytes(precision).iter().sum::<u64>() <= room);
    let mut problems: Vec<String> = large
        .iter()
        .map(|shape| format!("{shape} is too large for the memory that is free"))
        .collect();
    if fit.is_empty() {
        return Ok((Vec::new(), problems));
    }
    if precision == Precision::Fp8 && cublas.lt.is_none() {
        problems.push("fp8: there is no libcublasLt.so beside cuBLAS".to_owned());
        return Ok((Vec::new(), problems));
    }
    let most = |of: usize| fit.iter().map(|s| s.bytes(precision)[of]).max().unwrap_or(0);
    let buffers = [context.buffer(most(0))?, context.buffer(most(1))?, context.buffer(most(2))?];
    let places = [0, 1, 2].map(|of: usize| buffers[of].address());
    values.spread(context, precision, places[0], most(0))?;
    values.spread(context, precision, places[1], most(1))?;
    let (products, failed) = each(precision, &fit, |shape| match (precision, &cublas.lt) {
        (Precision::Fp8, Some(lt)) => fp8_seconds(context, lt, shape, places),
        _ => bf16_seconds(context, cublas, shape, places),
    });
    problems.extend(failed);
    Ok((products, problems))
}

/// The rates of the shapes that were multiplied, and a sentence for each reason why others were not.
fn each(
    precision: Precision,
    shapes: &[Shape],
    seconds: impl Fn(Shape) -> Result<f64, CudaError>,
) -> (Vec<MatmulRate>, Vec<String>) {
    let mut products = Vec::new();
    let mut failed: Vec<(String, Vec<Shape>)> = Vec::new();
    for shape in shapes {
        let Shape { m, n, k } = *shape;
        match seconds(*shape) {
            Ok(seconds) => {
                let rate = (shape.operations() / seconds) as u64;
                products.push(MatmulRate { precision, m, n, k, rate });
            }
            Err(error) => {
                let why = error.to_string();
                match failed.iter_mut().find(|(known, _)| *known == why) {
                    Some((_, of)) => of.push(*shape),
                    None => failed.push((why, vec![*shape])),
                }
            }
        }
    }
    let words = |(why, of): (String, Vec<Shape>)| {
        let name = precision.as_str();
        match of.len() == shapes.len() {
            true => format!("{name}: {why}"),
            false => {
                let of: Vec<String> = of.iter().map(Shape::to_string).collect();
                format!("{name}, {}: {why}", of.join(" and "))
            }
        }
    };
    (products, failed.into_iter().map(words).collect())
}

fn bf16_seconds(
    context: &Context<'_>,
    cublas: &Cublas,
    shape: Shape,
    places: [Address; 3],
) -> Result<f64, CudaError> {
    let started = cublas.start(context)?;
    seconds(context, || started.bf16(shape, places))
}

fn fp8_seconds(
    context: &Context<'_>,
    lt: &Lt,
    shape: Shape,
    places: [Address; 3],
) -> Result<f64, CudaError> {
    let prepared = lt.prepare(context, shape)?;
    seconds(context, || prepared.run(places))
}

/// The median time of one, in seconds.
fn seconds(
    context: &Context<'_>,
    run: impl Fn() -> Result<(), CudaError>,
) -> Result<f64, CudaError> {
    // The first one loads kernels.
    run()?;
    context.wait()?;
    let once = context.timed(&run)?;
    let count = products_for(once);
    let batch = || context.timed(|| (0..count).try_for_each(|_| run()));
    for _ in 0..WARM {
        batch()?;
    }
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        times.push(batch()? / f64::from(count));
    }
    Ok(median(&mut times))
}

/// How many products make a measurement.
fn products_for(once: f64) -> u32 {
    (BATCH / once.max(1e-9)).ceil().clamp(*PRODUCTS.start(), *PRODUCTS.end()) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_finite_and_not_all_alike() {
        let of_bf16 = |random| f32::from_bits(u32::from(bf16(random)) << 16);
        assert_eq!((of_bf16(0), of_bf16(u32::MAX)), (-1.0, 1.0));
        assert!(of_bf16(u32::MAX / 2).abs() < 1e-6);
        for random in (0..=255u32).map(|byte| byte << 24) {
            assert_ne!(fp8(random) & 0x7f, 0x7f, "not a number: {random:#x}");
        }
        let values = Values::new();
        assert_eq!((values.bf16.len(), values.fp8.len()), (8 << 20, 4 << 20));
        let zeros = values.fp8.iter().filter(|byte| **byte & 0x7f == 0).count();
        assert!(zeros < values.fp8.len() / 20, "{zeros}");
    }

    #[test]
    fn work_and_room_follow_from_the_shape() {
        let shape = Shape { m: 2, n: 3, k: 5 };
        assert_eq!(shape.operations(), 60.0);
        assert_eq!(shape.bytes(Precision::Bf16), [20, 30, 12]);
        assert_eq!(shape.bytes(Precision::Fp8), [10, 15, 12]);
    }

    #[test]
    fn a_shape_that_fails_takes_no_other_with_it() {
        let shapes = [1, 2, 3, 4].map(|side| Shape { m: side, n: side, k: side });
        let error = |code| CudaError::Driver {
            call: "gemm",
            code,
            name: "not supported".to_owned(),
            words: "no".to_owned(),
        };
        let (products, problems) = each(Precision::Fp8, &shapes, |shape| match shape.m {
            1 => Ok(0.5),
            3 => Err(error(14)),
            _ => Err(error(15)),
        });
        assert_eq!(products.iter().map(|p| (p.m, p.rate)).collect::<Vec<_>>(), [(1, 4)]);
        let wanted = [
            "fp8, 2×2×2 and 4×4×4: gemm: not supported (15): no",
            "fp8, 3×3×3: gemm: not supported (14): no",
        ];
        assert_eq!(problems, wanted);
        let (_, all) = each(Precision::Bf16, &shapes, |_| Err(error(15)));
        assert_eq!(all, ["bf16: gemm: not supported (15): no"], "told once");
    }

    #[test]
    fn fast_products_are_measured_many_at_once() {
        assert_eq!(products_for(0.02), 2);
        assert_eq!(products_for(0.3), 1);
        assert_eq!(products_for(0.0), 2000);
    }

    #[test]
    fn tensor_cores_want_multiples_of_sixteen() {
        assert!(SHAPES.iter().all(|s| [s.m, s.n, s.k].iter().all(|side| side % 16 == 0)));
    }
}
