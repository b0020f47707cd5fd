//! The programs that run on GPUs, as text that the driver translates for the card that is there. No
//! toolkit is needed, neither here nor on the node.
//!
//! Written for the oldest cards that drivers still know, except for the product on tensor cores. What
//! is repeated is written by loops here.

mod products;

use std::fmt::Write;

/// Of every kernel's name: names of instructions are taken, `add` for instance.
pub const PREFIX: &str = "tutti_";
/// Of a block, in every kernel.
pub const THREADS: u32 = 256;
/// A block of `matmul` and of `tensor` computes so many rows and columns.
pub const TILE: u32 = 128;

/// `fill`, `verify`, `compare`, `add` and `matmul`.
pub fn basic() -> String {
    let kernels = [fill(), verify(), compare(), add(), products::matmul()];
    head("6.0", "sm_50") + &kernels.concat()
}

/// `tensor`: needs compute capability 8.0.
pub fn tensor() -> String {
    head("7.0", "sm_80") + &products::tensor()
}

fn head(version: &str, target: &str) -> String {
    format!(".version {version}\n.target {target}\n.address_size 64\n\n")
}

/// Every thread takes each `%step`th group of four words below `%n`, from its own number on.
const MINE: &str = "  .reg .pred %more, %differs;
  .reg .b32 %i, %n, %step, %t0, %t1, %word, %bits, %seed, %times, %plus;
  .reg .b32 %v0, %v1, %v2, %v3, %w0, %w1, %w2, %w3, %wrong, %at;
  .reg .b64 %base, %other, %off, %addr, %out, %count, %first;
  mov.u32 %t0, %ctaid.x;
  mov.u32 %t1, %ntid.x;
  mov.u32 %i, %tid.x;
  mad.lo.u32 %i, %t0, %t1, %i;
  mov.u32 %t0, %nctaid.x;
  mul.lo.u32 %step, %t0, %t1;
  ld.param.u64 %base, [p_base];
  cvta.to.global.u64 %base, %base;
  ld.param.u32 %n, [p_n];
";

const FILLED: &str = "  ld.param.u32 %seed, [p_seed];
  ld.param.u32 %times, [p_times];
  ld.param.u32 %plus, [p_plus];
";

const OTHER: &str = "  ld.param.u64 %other, [p_other];
  cvta.to.global.u64 %other, %other;
";

const OUT: &str = "  ld.param.u64 %out, [p_out];
  cvta.to.global.u64 %out, %out;
  mov.u32 %wrong, 0;
  mov.u32 %at, 0xFFFFFFFF;
";

/// A kernel that does `body` for each group, at `%base + %off`, and then `end`.
fn each(name: &str, params: &str, start: &str, body: &str, end: &str) -> String {
    format!(
        ".visible .entry {PREFIX}{name}(.param .u64 p_base, .param .u32 p_n, {params})
{{
{MINE}{start}NEXT:
  setp.ge.u32 %more, %i, %n;
  @%more bra LAST;
  mul.wide.u32 %off, %i, 16;
  add.u64 %addr, %base, %off;
{body}  add.u32 %i, %i, %step;
  bra NEXT;
LAST:
{end}  ret;
}}

"
    )
}

/// `%w0` to `%w3`: what the four words of group `%i` must be. See `numbers::pattern`.
fn wanted() -> String {
    let mut text = String::from("  shl.b32 %word, %i, 2;\n");
    for at in 0..4 {
        let _ = write!(
            text,
            "  add.u32 %t0, %word, {at};
  mul.lo.u32 %t0, %t0, 0x9E3779B1;
  add.u32 %t0, %t0, %seed;
  shr.u32 %bits, %t0, 15;
  xor.b32 %t0, %t0, %bits;
  mul.lo.u32 %t0, %t0, 0x85EBCA77;
  shr.u32 %bits, %t0, 13;
  xor.b32 %t0, %t0, %bits;
  mad.lo.u32 %w{at}, %t0, %times, %plus;
"
        );
    }
    text
}

/// Counts what differs in `%v` and `%w`, and remembers the number of the first word.
fn count() -> String {
    let mut text = String::from("  shl.b32 %word, %i, 2;\n");
    for at in 0..4 {
        let _ = write!(
            text,
            "  setp.ne.u32 %differs, %v{at}, %w{at};
  @%differs add.u32 %wrong, %wrong, 1;
  @%differs min.u32 %at, %at, %word;
  add.u32 %word, %word, 1;
"
        );
    }
    text
}

/// Adds what a thread has counted to the two numbers at `%out`: how many, and the first.
const TELL: &str = "  setp.eq.u32 %differs, %wrong, 0;
  @%differs bra TOLD;
  cvt.u64.u32 %count, %wrong;
  cvt.u64.u32 %first, %at;
  red.global.add.u64 [%out], %count;
  red.global.min.u64 [%out+8], %first;
TOLD:
";

const LOAD: &str = "  ld.global.v4.u32 {%v0, %v1, %v2, %v3}, [%addr];\n";
const LOAD_OTHER: &str = "  add.u64 %addr, %other, %off;
  ld.global.v4.u32 {%w0, %w1, %w2, %w3}, [%addr];
";

fn fill() -> String {
    let params = ".param .u32 p_seed, .param .u32 p_times, .param .u32 p_plus";
    let body = wanted() + "  st.global.v4.u32 [%addr], {%w0, %w1, %w2, %w3};\n";
    each("fill", params, FILLED, &body, "")
}

fn verify() -> String {
    let params = ".param .u32 p_seed, .param .u32 p_times, .param .u32 p_plus, .param .u64 p_out";
    let body = [LOAD, &wanted(), &count()].concat();
    each("verify", params, &[FILLED, OUT].concat(), &body, TELL)
}

/// Whether two pieces of memory are the same, bit for bit.
fn compare() -> String {
    let body = [LOAD, LOAD_OTHER, &count()].concat();
    let params = ".param .u64 p_other, .param .u64 p_out";
    each("compare", params, &[OTHER, OUT].concat(), &body, TELL)
}

/// Adds the words of another piece of memory to those of this one.
fn add() -> String {
    let mut body = [LOAD, LOAD_OTHER].concat();
    for at in 0..4 {
        let _ = writeln!(body, "  add.u32 %v{at}, %v{at}, %w{at};");
    }
    body += "  add.u64 %addr, %base, %off;\n  st.global.v4.u32 [%addr], {%v0, %v1, %v2, %v3};\n";
    each("add", ".param .u64 p_other", OTHER, &body, "")
}

#[cfg(test)]
mod tests;
