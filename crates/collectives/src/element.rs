//! What can be sent and reduced: the element types and the operations on them.

use half::{bf16, f16};

/// How elements of all ranks become one.
///
/// `Mean` is the sum divided by the number of ranks, after the sum. Integers wrap around when the
/// sum overflows, and their mean rounds toward zero. `Max` and `Min` of floats hand a NaN on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    Sum,
    Max,
    Min,
    Mean,
}

/// The element types, as they travel in a message header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DType {
    F32,
    F64,
    Bf16,
    F16,
    I8,
    U8,
    I32,
    U32,
    I64,
    U64,
}

impl DType {
    pub const ALL: [Self; 10] = [
        Self::F32,
        Self::F64,
        Self::Bf16,
        Self::F16,
        Self::I8,
        Self::U8,
        Self::I32,
        Self::U32,
        Self::I64,
        Self::U64,
    ];

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::Bf16 | Self::F16 => 2,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F64 | Self::I64 | Self::U64 => 8,
        }
    }
}

/// A type whose slices can be sent between ranks.
///
/// # Safety
/// The type must be the plain-old-data type that `DTYPE` names: every bit pattern is a value, and
/// there is no padding.
pub unsafe trait Element: Copy + Send + Sync + 'static {
    const DTYPE: DType;
    const ZERO: Self;
}

macro_rules! elements {
    ($($type:ty = $dtype:ident, $zero:expr;)*) => {$(
        // SAFETY: a primitive (or half's transparent u16) of exactly the size that DTYPE says.
        unsafe impl Element for $type {
            const DTYPE: DType = DType::$dtype;
            const ZERO: Self = $zero;
        }
    )*};
}

elements! {
    f32 = F32, 0.0;
    f64 = F64, 0.0;
    bf16 = Bf16, bf16::ZERO;
    f16 = F16, f16::ZERO;
    i8 = I8, 0;
    u8 = U8, 0;
    i32 = I32, 0;
    u32 = U32, 0;
    i64 = I64, 0;
    u64 = U64, 0;
}

/// The bytes of a slice of elements.
pub(crate) fn bytes_of<T: Element>(slice: &[T]) -> &[u8] {
    // SAFETY: `Element` promises that there is no padding, and u8 has no alignment.
    unsafe { std::slice::from_raw_parts(slice.as_ptr().cast(), size_of_val(slice)) }
}

/// The same, writable: every bit pattern is a value.
pub(crate) fn bytes_of_mut<T: Element>(slice: &mut [T]) -> &mut [u8] {
    // SAFETY: as above; `Element` promises that whatever is written is a value.
    unsafe { std::slice::from_raw_parts_mut(slice.as_mut_ptr().cast(), size_of_val(slice)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_types() {
        fn check<T: Element>() {
            assert_eq!(T::DTYPE.size(), size_of::<T>());
        }
        check::<f32>();
        check::<f64>();
        check::<bf16>();
        check::<f16>();
        check::<i8>();
        check::<u8>();
        check::<i32>();
        check::<u32>();
        check::<i64>();
        check::<u64>();
    }
}
