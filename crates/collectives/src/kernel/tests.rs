use super::*;
use crate::element::{Element, bytes_of, bytes_of_mut};

fn fold<T: Element>(op: Op, acc: &[T], other: &[T]) -> Vec<T> {
    let mut out = acc.to_vec();
    Reducer::new(T::DTYPE, op).fold(bytes_of_mut(&mut out), bytes_of(other));
    out
}

#[test]
fn every_operation_of_a_float_and_an_integer() {
    assert_eq!(fold(Op::Sum, &[1.0f32, 2.0], &[0.5, -2.0]), [1.5, 0.0]);
    assert_eq!(fold(Op::Max, &[1.0f64, -2.0], &[0.5, 7.0]), [1.0, 7.0]);
    assert_eq!(fold(Op::Min, &[1i32, -2], &[5, -7]), [1, -7]);
    assert_eq!(fold(Op::Sum, &[250u8], &[10]), [4], "integers wrap around");
}

#[test]
fn a_nan_stays_a_nan_in_every_operation_and_either_place() {
    for op in [Op::Sum, Op::Max, Op::Min] {
        assert!(fold(op, &[f32::NAN], &[1.0])[0].is_nan(), "{op:?}");
        assert!(fold(op, &[1.0], &[f32::NAN])[0].is_nan(), "{op:?}");
        assert!(fold(op, &[bf16::NAN], &[bf16::ONE])[0].is_nan(), "{op:?}");
        assert!(fold(op, &[f16::ONE], &[f16::NAN])[0].is_nan(), "{op:?}");
    }
}

#[test]
fn bf16_rounds_as_the_half_crate_does() {
    let mut bits = 0x1234_5678u32;
    for _ in 0..20_000 {
        bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let x = f32::from_bits(bits);
        let (ours, theirs) = (narrow(x), bf16::from_f32(x));
        assert!(ours == theirs || (ours.is_nan() && theirs.is_nan()), "{x} {ours} {theirs}");
    }
}

#[test]
fn all_instruction_sets_give_the_same_bits() {
    let a: Vec<f32> = (0..1001).map(|i| (i as f32).sin() * 1e3).collect();
    let b: Vec<f32> = (0..1001).map(|i| (i as f32).cos() * 1e-3).collect();
    let v = <Pair<f32, Sum> as Folder>::AFTER;
    let run = |f: Fold| {
        let mut out = a.clone();
        // SAFETY: same length, whole elements; the caller checked the instruction set.
        unsafe { f(out.as_mut_ptr().cast(), b.as_ptr().cast(), out.len()) };
        out.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
    };
    let base = run(v.base);
    assert_eq!(base, run(pick(v)));
}

#[test]
fn a_mean_of_integers_rounds_toward_zero_and_takes_any_number_of_ranks() {
    let mut x = [-7i8, 7, 100];
    Reducer::new(DType::I8, Op::Mean).finish(bytes_of_mut(&mut x), 2);
    assert_eq!(x, [-3, 3, 50]);
    let mut x = [100i8];
    Reducer::new(DType::I8, Op::Mean).finish(bytes_of_mut(&mut x), 300);
    assert_eq!(x, [0]);
    let mut x = [3.0f32];
    Reducer::new(DType::F32, Op::Sum).finish(bytes_of_mut(&mut x), 2);
    assert_eq!(x, [3.0], "only a mean divides");
}

#[test]
fn the_operand_that_comes_first_in_rank_order_is_first() {
    let r = Reducer::new(DType::F32, Op::Max);
    let (mut after, mut before) = ([0.0f32], [0.0f32]);
    r.fold(bytes_of_mut(&mut after), bytes_of(&[-0.0f32]));
    r.fold_before(bytes_of_mut(&mut before), bytes_of(&[-0.0f32]));
    // max(0, -0) keeps its second operand when neither is larger.
    assert_eq!((after[0].to_bits(), before[0].to_bits()), ((-0.0f32).to_bits(), 0));
}
