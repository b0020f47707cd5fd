//! The kernels themselves, run on an imagined card.

mod machine;

use machine::{Kernel, Machine};

use super::*;
use crate::active::numbers::{Fill, Operands, half, pattern};

const GROUPS: u64 = 40;
const OUT: u64 = 4096;
const OTHER: u64 = 8192;

fn words(memory: &[u8], from: u64, count: u64) -> Vec<u32> {
    let bytes = &memory[from as usize..(from + count * 4) as usize];
    bytes.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn put(memory: &mut [u8], from: u64, values: impl IntoIterator<Item = u32>) {
    for (at, value) in (from as usize..).step_by(4).zip(values) {
        memory[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
}

fn run(name: &str, memory: &mut Vec<u8>, params: Vec<u64>) {
    let kernel = Kernel::parse(&basic(), name);
    // Fewer threads than groups: each has several.
    let mut machine = Machine { kernel: &kernel, memory, params, grid: (2, 1), threads: 8 };
    machine.run((0, 0));
    machine.run((1, 0));
}

fn told(memory: &[u8]) -> (u64, u64) {
    let at = |from: u64| {
        let from = from as usize;
        u64::from_le_bytes(memory[from..from + 8].try_into().unwrap())
    };
    (at(OUT), at(OUT + 8))
}

fn ready() -> Vec<u8> {
    let mut memory = vec![0; 16 << 10];
    memory[OUT as usize + 8..OUT as usize + 16].fill(0xff);
    memory
}

/// Names of instructions are reserved words.
#[test]
fn no_name_is_that_of_an_instruction() {
    for text in [basic(), tensor()] {
        let entries = text.matches(".entry ").count();
        assert!(entries > 0 && text.matches(&format!(".entry {PREFIX}")).count() == entries);
        let labels = text.lines().filter_map(|line| line.strip_suffix(':'));
        assert!(labels.clone().count() > 0);
        labels.for_each(|label| assert_eq!(label, label.to_uppercase()));
    }
}

#[test]
fn memory_is_filled_as_it_must_be_and_one_bit_is_found() {
    let fill = Fill { seed: 77, times: 5, plus: 3 };
    let numbers = [fill.seed, fill.times, fill.plus].map(u64::from);
    let mut memory = ready();
    run("fill", &mut memory, [&[0, GROUPS], &numbers[..]].concat());
    let wanted: Vec<u32> = (0..GROUPS as u32 * 4).map(|at| pattern(at, fill)).collect();
    assert_eq!(words(&memory, 0, GROUPS * 4), wanted);
    assert!(memory[GROUPS as usize * 16..OUT as usize].iter().all(|b| *b == 0), "no further");
    let verify = [&[0, GROUPS], &numbers[..], &[OUT]].concat();
    run("verify", &mut memory, verify.clone());
    assert_eq!(told(&memory), (0, u64::MAX));
    memory[4 * 130 + 1] ^= 0x10;
    memory[4 * 87] ^= 0x01;
    run("verify", &mut memory, verify);
    assert_eq!(told(&memory), (2, 87));
}

#[test]
fn pieces_are_compared_and_added() {
    let mut memory = ready();
    put(&mut memory, 0, 0..GROUPS as u32 * 4);
    put(&mut memory, OTHER, 0..GROUPS as u32 * 4);
    run("compare", &mut memory, vec![0, GROUPS, OTHER, OUT]);
    assert_eq!(told(&memory), (0, u64::MAX));
    put(&mut memory, OTHER + 4 * 50, [u32::MAX]);
    run("compare", &mut memory, vec![0, GROUPS, OTHER, OUT]);
    assert_eq!(told(&memory), (1, 50));
    run("add", &mut memory, vec![0, GROUPS, OTHER]);
    let sums = words(&memory, 0, GROUPS * 4);
    assert_eq!((sums[49], sums[50], sums[159]), (98, 49, 318));
}

/// One tile of a product of two by two.
fn tile(text: &str, name: &str, a: Vec<u8>, b: Vec<u8>, block: (u32, u32)) {
    const SIZE: usize = 2 * TILE as usize;
    let operands = Operands::new(SIZE);
    let (at_b, at_c) = (a.len() as u64, (a.len() + b.len()) as u64);
    let mut memory = [a, b, vec![0xff; SIZE * SIZE * 4]].concat();
    let kernel = Kernel::parse(text, name);
    let params = vec![0, at_b, at_c, SIZE as u64];
    let mut machine =
        Machine { kernel: &kernel, memory: &mut memory, params, grid: (2, 2), threads: THREADS };
    machine.run(block);
    let c = words(&memory, at_c, (SIZE * SIZE) as u64);
    let tile = TILE as usize;
    let (x, y) = (block.0 as usize, block.1 as usize);
    for (at, bits) in c.into_iter().enumerate() {
        let (i, j) = (at / SIZE, at % SIZE);
        if (i / tile, j / tile) != (y, x) {
            assert_eq!(bits, u32::MAX, "({i}, {j}) belongs to another block");
            continue;
        }
        let row = &operands.a[i * SIZE..(i + 1) * SIZE];
        let sum: i32 = row
            .iter()
            .enumerate()
            .map(|(k, a)| i32::from(*a) * i32::from(operands.b[k * SIZE + j]))
            .sum();
        assert_eq!(f32::from_bits(bits), sum as f32, "({i}, {j})");
    }
}

#[test]
fn a_tile_of_a_product_is_right() {
    let operands = Operands::new(2 * TILE as usize);
    let bytes = |values: &[i8]| values.iter().flat_map(|v| f32::from(*v).to_le_bytes()).collect();
    tile(&basic(), "matmul", bytes(&operands.a), bytes(&operands.b), (1, 0));
}

#[test]
fn a_tile_of_a_product_on_tensor_cores_is_right() {
    let size = 2 * TILE as usize;
    let operands = Operands::new(size);
    let a = operands.a.iter().flat_map(|v| half(*v).to_le_bytes()).collect();
    let turned = (0..size * size).map(|at| operands.b[at % size * size + at / size]);
    let b = turned.flat_map(|v| half(v).to_le_bytes()).collect();
    tile(&tensor(), "tensor", a, b, (0, 1));
}
