//! The arithmetic: folding one buffer into another, and dividing for a mean.
//!
//! Kernels work on bytes with a type chosen at run time, so that the algorithms are compiled once
//! and not once per element type. Each loop is compiled for AVX-512, AVX2 and the base instruction
//! set; which one runs is found once.

use std::sync::OnceLock;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::element::{DType, Op};

/// `acc = acc op other`, or `acc = other op acc` when the other one comes first in rank order.
type Fold = unsafe fn(*mut u8, *const u8, usize);

/// How to reduce a buffer: picked once per operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reducer {
    after: Fold,
    before: Fold,
    divide: Option<unsafe fn(*mut u8, usize, usize)>,
    pub size: usize,
}

impl Reducer {
    pub fn new(dtype: DType, op: Op) -> Self {
        let (after, before) = folds(dtype, op);
        let divide = (op == Op::Mean).then(|| divider(dtype));
        Self { after, before, divide, size: dtype.size() }
    }

    /// `acc = acc op other`.
    pub fn fold(&self, acc: &mut [u8], other: &[u8]) {
        self.check(acc, other);
        // SAFETY: `check` found the same length, whole elements and aligned pointers.
        unsafe { (self.after)(acc.as_mut_ptr(), other.as_ptr(), acc.len() / self.size) }
    }

    /// `acc = other op acc`: the other operand comes first.
    pub fn fold_before(&self, acc: &mut [u8], other: &[u8]) {
        self.check(acc, other);
        // SAFETY: as above.
        unsafe { (self.before)(acc.as_mut_ptr(), other.as_ptr(), acc.len() / self.size) }
    }

    /// For a step of an operation whose mean is taken at its end.
    pub fn without_mean(self) -> Self {
        Self { divide: None, ..self }
    }

    /// Divides by the number of ranks if the operation is a mean.
    pub fn finish(&self, acc: &mut [u8], ranks: usize) {
        if let Some(divide) = self.divide {
            self.check(acc, &[]);
            // SAFETY: as above.
            unsafe { divide(acc.as_mut_ptr(), acc.len() / self.size, ranks) }
        }
    }

    fn check(&self, acc: &[u8], other: &[u8]) {
        assert!(other.is_empty() || acc.len() == other.len(), "{} {}", acc.len(), other.len());
        assert!(acc.len().is_multiple_of(self.size), "{} of {}", acc.len(), self.size);
        let aligned = |p: *const u8| p.align_offset(self.size) == 0;
        assert!(aligned(acc.as_ptr()) && (other.is_empty() || aligned(other.as_ptr())));
    }
}

/// A scalar operation; blocks of it are what LLVM vectorises.
trait Binary<T> {
    fn of(a: T, b: T) -> T;
}

struct Sum;
struct Max;
struct Min;

macro_rules! float_ops {
    ($($t:ty),*) => {$(
        impl Binary<$t> for Sum { #[inline(always)] fn of(a: $t, b: $t) -> $t { a + b } }
        impl Binary<$t> for Max {
            #[inline(always)] fn of(a: $t, b: $t) -> $t { if a > b || a.is_nan() { a } else { b } }
        }
        impl Binary<$t> for Min {
            #[inline(always)] fn of(a: $t, b: $t) -> $t { if a < b || a.is_nan() { a } else { b } }
        }
    )*};
}
macro_rules! int_ops {
    ($($t:ty),*) => {$(
        impl Binary<$t> for Sum { #[inline(always)] fn of(a: $t, b: $t) -> $t { a.wrapping_add(b) } }
        impl Binary<$t> for Max { #[inline(always)] fn of(a: $t, b: $t) -> $t { a.max(b) } }
        impl Binary<$t> for Min { #[inline(always)] fn of(a: $t, b: $t) -> $t { a.min(b) } }
    )*};
}
float_ops!(f32, f64);
int_ops!(i8, u8, i32, u32, i64, u64);

/// bf16 goes through f32 with plain bit operations, which vectorise; half's own go one by one.
#[inline(always)]
fn widen(x: bf16) -> f32 {
    f32::from_bits(u32::from(x.to_bits()) << 16)
}

#[inline(always)]
fn narrow(x: f32) -> bf16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    // A NaN must stay one: rounding could carry it into infinity.
    let nan = (bits >> 16) | 0x40;
    bf16::from_bits(if x.is_nan() { nan as u16 } else { rounded as u16 })
}

impl<O: Binary<f32>> Binary<bf16> for Bf<O> {
    #[inline(always)]
    fn of(a: bf16, b: bf16) -> bf16 {
        narrow(O::of(widen(a), widen(b)))
    }
}
struct Bf<O>(std::marker::PhantomData<O>);

#[inline(always)]
unsafe fn fold_loop<T: Copy, O: Binary<T>, const BEFORE: bool>(
    acc: *mut u8,
    other: *const u8,
    count: usize,
) {
    // SAFETY: `Reducer` checked length and alignment, and the slices are disjoint borrows there.
    let (acc, other) = unsafe {
        (
            std::slice::from_raw_parts_mut(acc.cast::<T>(), count),
            std::slice::from_raw_parts(other.cast::<T>(), count),
        )
    };
    for (a, b) in acc.iter_mut().zip(other) {
        *a = if BEFORE { O::of(*b, *a) } else { O::of(*a, *b) };
    }
}

/// f16 is converted in blocks, with the processor's own instruction where it has one.
unsafe fn fold_f16<O: Binary<f32>, const BEFORE: bool>(
    acc: *mut u8,
    other: *const u8,
    count: usize,
) {
    const BLOCK: usize = 256;
    // SAFETY: as in `fold_loop`.
    let (acc, other) = unsafe {
        (
            std::slice::from_raw_parts_mut(acc.cast::<f16>(), count),
            std::slice::from_raw_parts(other.cast::<f16>(), count),
        )
    };
    let (mut x, mut y) = ([0f32; BLOCK], [0f32; BLOCK]);
    for (a, b) in acc.chunks_mut(BLOCK).zip(other.chunks(BLOCK)) {
        let (x, y) = (&mut x[..a.len()], &mut y[..a.len()]);
        a.convert_to_f32_slice(x);
        b.convert_to_f32_slice(y);
        for (x, y) in x.iter_mut().zip(&*y) {
            *x = if BEFORE { O::of(*y, *x) } else { O::of(*x, *y) };
        }
        a.convert_from_f32_slice(x);
    }
}

/// One loop, three instruction sets.
struct Variants {
    base: Fold,
    #[cfg(target_arch = "x86_64")]
    avx2: Fold,
    #[cfg(target_arch = "x86_64")]
    avx512: Fold,
}

trait Folder {
    const AFTER: Variants;
    const BEFORE: Variants;
}

struct Pair<T, O>(std::marker::PhantomData<(T, O)>);

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn fold_avx2<T: Copy, O: Binary<T>, const BEFORE: bool>(a: *mut u8, b: *const u8, n: usize) {
    // SAFETY: the caller's.
    unsafe { fold_loop::<T, O, BEFORE>(a, b, n) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn fold_avx512<T: Copy, O: Binary<T>, const BEFORE: bool>(
    a: *mut u8,
    b: *const u8,
    n: usize,
) {
    // SAFETY: the caller's.
    unsafe { fold_loop::<T, O, BEFORE>(a, b, n) }
}

impl<T: Copy, O: Binary<T>> Folder for Pair<T, O> {
    const AFTER: Variants = Variants {
        base: fold_loop::<T, O, false>,
        #[cfg(target_arch = "x86_64")]
        avx2: fold_avx2::<T, O, false>,
        #[cfg(target_arch = "x86_64")]
        avx512: fold_avx512::<T, O, false>,
    };
    const BEFORE: Variants = Variants {
        base: fold_loop::<T, O, true>,
        #[cfg(target_arch = "x86_64")]
        avx2: fold_avx2::<T, O, true>,
        #[cfg(target_arch = "x86_64")]
        avx512: fold_avx512::<T, O, true>,
    };
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Base,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

fn level() -> Level {
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(|| {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            if has!("avx512f") && has!("avx512bw") && has!("avx512vl") && has!("avx512dq") {
                return Level::Avx512;
            }
            if has!("avx2") && has!("fma") {
                return Level::Avx2;
            }
        }
        Level::Base
    })
}

fn pick(v: Variants) -> Fold {
    match level() {
        Level::Base => v.base,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => v.avx2,
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => v.avx512,
    }
}

fn both<F: Folder>() -> (Fold, Fold) {
    (pick(F::AFTER), pick(F::BEFORE))
}

fn of_type<T: Copy>(op: Op) -> (Fold, Fold)
where
    Sum: Binary<T>,
    Max: Binary<T>,
    Min: Binary<T>,
{
    match op {
        Op::Sum | Op::Mean => both::<Pair<T, Sum>>(),
        Op::Max => both::<Pair<T, Max>>(),
        Op::Min => both::<Pair<T, Min>>(),
    }
}

fn folds(dtype: DType, op: Op) -> (Fold, Fold) {
    match dtype {
        DType::F32 => of_type::<f32>(op),
        DType::F64 => of_type::<f64>(op),
        DType::I8 => of_type::<i8>(op),
        DType::U8 => of_type::<u8>(op),
        DType::I32 => of_type::<i32>(op),
        DType::U32 => of_type::<u32>(op),
        DType::I64 => of_type::<i64>(op),
        DType::U64 => of_type::<u64>(op),
        DType::Bf16 => match op {
            Op::Sum | Op::Mean => both::<Pair<bf16, Bf<Sum>>>(),
            Op::Max => both::<Pair<bf16, Bf<Max>>>(),
            Op::Min => both::<Pair<bf16, Bf<Min>>>(),
        },
        DType::F16 => match op {
            Op::Sum | Op::Mean => (fold_f16::<Sum, false>, fold_f16::<Sum, true>),
            Op::Max => (fold_f16::<Max, false>, fold_f16::<Max, true>),
            Op::Min => (fold_f16::<Min, false>, fold_f16::<Min, true>),
        },
    }
}

fn divider(dtype: DType) -> unsafe fn(*mut u8, usize, usize) {
    macro_rules! divide {
        ($t:ty, $by:expr) => {{
            unsafe fn divide(acc: *mut u8, count: usize, ranks: usize) {
                // SAFETY: `Reducer::finish` checked length and alignment.
                let acc = unsafe { std::slice::from_raw_parts_mut(acc.cast::<$t>(), count) };
                let by: fn($t, usize) -> $t = $by;
                acc.iter_mut().for_each(|x| *x = by(*x, ranks));
            }
            divide
        }};
    }
    match dtype {
        DType::F32 => divide!(f32, |x, n| x / n as f32),
        DType::F64 => divide!(f64, |x, n| x / n as f64),
        DType::Bf16 => divide!(bf16, |x, n| narrow(widen(x) / n as f32)),
        DType::F16 => divide!(f16, |x, n| f16::from_f32(x.to_f32() / n as f32)),
        // Through i128, because the number of ranks need not fit the element.
        DType::I8 => divide!(i8, |x, n| (i128::from(x) / n as i128) as i8),
        DType::U8 => divide!(u8, |x, n| (u128::from(x) / n as u128) as u8),
        DType::I32 => divide!(i32, |x, n| (i128::from(x) / n as i128) as i32),
        DType::U32 => divide!(u32, |x, n| (u128::from(x) / n as u128) as u32),
        DType::I64 => divide!(i64, |x, n| (i128::from(x) / n as i128) as i64),
        DType::U64 => divide!(u64, |x, n| (u128::from(x) / n as u128) as u64),
    }
}

#[cfg(test)]
mod tests;
