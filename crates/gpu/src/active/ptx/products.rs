//! Products of square matrices, whose size is a multiple of the tile. Plain, and fast enough to keep all
//! of a card busy.
//!
//! Both: a block of 256 threads computes a tile of 128 × 128, along the operands piece by piece:
//! each piece goes to shared memory, and from there to the registers of whoever needs it.

use std::fmt::Write;

/// Single precision. A piece is 8 deep, and a thread computes 8 × 8 numbers.
pub fn matmul() -> String {
    [MATMUL_START, &piece(), MATMUL_END, &rows()].concat()
}

/// `%sta`, `%stb`: where the thread puts what it loads; `%lda`, `%ldb`: where it reads. The piece of A
/// lies in shared memory with its rows as columns.
const MATMUL_START: &str =
    ".visible .entry tutti_matmul(.param .u64 p_a, .param .u64 p_b, .param .u64 p_c, .param .u32 p_size)
.maxntid 256, 1, 1
{
  .shared .align 16 .b8 tile_a[4096];
  .shared .align 16 .b8 tile_b[4096];
  .reg .pred %more;
  .reg .b32 %size, %thread, %bx, %by, %r0, %r1, %r2, %r3, %sta, %stb, %lda, %ldb, %k;
  .reg .b64 %a, %b, %c, %off, %deeper, %down;
  .reg .f32 %acc<64>, %p<8>, %q<8>, %x<4>, %y<4>;
  ld.param.u64 %a, [p_a];
  cvta.to.global.u64 %a, %a;
  ld.param.u64 %b, [p_b];
  cvta.to.global.u64 %b, %b;
  ld.param.u64 %c, [p_c];
  cvta.to.global.u64 %c, %c;
  ld.param.u32 %size, [p_size];
  mov.u32 %thread, %tid.x;
  mov.u32 %bx, %ctaid.x;
  mov.u32 %by, %ctaid.y;
  shr.u32 %r0, %thread, 1;
  and.b32 %r1, %thread, 1;
  shl.b32 %r1, %r1, 2;
  shl.b32 %r2, %by, 7;
  add.u32 %r2, %r2, %r0;
  mad.lo.u32 %r2, %r2, %size, %r1;
  mul.wide.u32 %off, %r2, 4;
  add.u64 %a, %a, %off;
  shl.b32 %r3, %r1, 7;
  add.u32 %r3, %r3, %r0;
  shl.b32 %r3, %r3, 2;
  mov.u32 %sta, tile_a;
  add.u32 %sta, %sta, %r3;
  shr.u32 %r0, %thread, 5;
  and.b32 %r1, %thread, 31;
  shl.b32 %r1, %r1, 2;
  shl.b32 %r2, %bx, 7;
  add.u32 %r2, %r2, %r1;
  mad.lo.u32 %r2, %r0, %size, %r2;
  mul.wide.u32 %off, %r2, 4;
  add.u64 %b, %b, %off;
  shl.b32 %r3, %r0, 7;
  add.u32 %r3, %r3, %r1;
  shl.b32 %r3, %r3, 2;
  mov.u32 %stb, tile_b;
  add.u32 %stb, %stb, %r3;
  shr.u32 %r0, %thread, 4;
  and.b32 %r1, %thread, 15;
  shl.b32 %r2, %r0, 5;
  mov.u32 %lda, tile_a;
  add.u32 %lda, %lda, %r2;
  shl.b32 %r2, %r1, 4;
  mov.u32 %ldb, tile_b;
  add.u32 %ldb, %ldb, %r2;
  shl.b32 %r2, %by, 7;
  shl.b32 %r3, %r0, 3;
  add.u32 %r2, %r2, %r3;
  shl.b32 %r3, %bx, 7;
  mad.lo.u32 %r2, %r2, %size, %r3;
  shl.b32 %r3, %r1, 2;
  add.u32 %r2, %r2, %r3;
  mul.wide.u32 %off, %r2, 4;
  add.u64 %c, %c, %off;
  mul.wide.u32 %deeper, %size, 32;
  mul.wide.u32 %down, %size, 4;
";

fn piece() -> String {
    let mut text = zeros("%acc");
    text += "  mov.u32 %k, 0;
NEXT:
  ld.global.v4.f32 {%x0, %x1, %x2, %x3}, [%a];
  ld.global.v4.f32 {%y0, %y1, %y2, %y3}, [%b];
  bar.sync 0;
  st.shared.f32 [%sta], %x0;
  st.shared.f32 [%sta+512], %x1;
  st.shared.f32 [%sta+1024], %x2;
  st.shared.f32 [%sta+1536], %x3;
  st.shared.v4.f32 [%stb], {%y0, %y1, %y2, %y3};
  bar.sync 0;
";
    for deep in 0..8 {
        let at = deep * 512;
        let _ = write!(
            text,
            "  ld.shared.v4.f32 {{%p0, %p1, %p2, %p3}}, [%lda+{at}];
  ld.shared.v4.f32 {{%p4, %p5, %p6, %p7}}, [%lda+{}];
  ld.shared.v4.f32 {{%q0, %q1, %q2, %q3}}, [%ldb+{at}];
  ld.shared.v4.f32 {{%q4, %q5, %q6, %q7}}, [%ldb+{}];
",
            at + 16,
            at + 256
        );
        for (i, j) in (0..64).map(|n| (n / 8, n % 8)) {
            let acc = i * 8 + j;
            let _ = writeln!(text, "  fma.rn.f32 %acc{acc}, %p{i}, %q{j}, %acc{acc};");
        }
    }
    text
}

const MATMUL_END: &str = "  add.u64 %a, %a, 32;
  add.u64 %b, %b, %deeper;
  add.u32 %k, %k, 8;
  setp.lt.u32 %more, %k, %size;
  @%more bra NEXT;
";

/// Four numbers at the thread's column, and four 64 further right.
fn rows() -> String {
    let mut text = String::new();
    for row in 0..8 {
        let four = |from: u32| -> String {
            let names: Vec<String> = (from..from + 4).map(|n| format!("%acc{n}")).collect();
            names.join(", ")
        };
        let _ = write!(
            text,
            "  st.global.v4.f32 [%c], {{{}}};
  st.global.v4.f32 [%c+256], {{{}}};
  add.u64 %c, %c, %down;
",
            four(row * 8),
            four(row * 8 + 4)
        );
    }
    text + "  ret;\n}\n\n"
}

fn zeros(name: &str) -> String {
    (0..64).map(|n| format!("  mov.f32 {name}{n}, 0f00000000;\n")).collect()
}

/// Half precision on tensor cores, summed in single precision; the second operand comes with its
/// rows as columns. A piece is 32 deep, a row of it 80 bytes apart from the next so that threads do not
/// get in each other's way. Of eight warps each computes 64 × 32 numbers, as 4 × 4 tiles of 16 × 8.
pub fn tensor() -> String {
    let mut text = String::from(TENSOR_START);
    text += &zeros("%d");
    text += TENSOR_LOAD;
    for deep in [0, 32] {
        for tile in 0..4 {
            let at = tile * 16 * 80 + deep;
            for (reg, plus) in [0, 640, 16, 656].into_iter().enumerate() {
                let (reg, at) = (tile * 4 + reg, at + plus);
                let _ = writeln!(text, "  ld.shared.b32 %fa{reg}, [%lda+{at}];");
            }
            let at = tile * 8 * 80 + deep;
            for (reg, plus) in [0, 16].into_iter().enumerate() {
                let (reg, at) = (tile * 2 + reg, at + plus);
                let _ = writeln!(text, "  ld.shared.b32 %fb{reg}, [%ldb+{at}];");
            }
        }
        for (i, j) in (0..16).map(|n| (n / 4, n % 4)) {
            text += &mma(i, j);
        }
    }
    text += TENSOR_END;
    for tile in 0..4 {
        for half in 0..2 {
            for j in 0..4 {
                let d = (tile * 4 + j) * 4 + half * 2;
                let (at, next) = (j * 32, d + 1);
                let _ = writeln!(text, "  st.global.v2.f32 [%c+{at}], {{%d{d}, %d{next}}};");
            }
            text += "  add.u64 %c, %c, %down;\n";
        }
    }
    text + "  ret;\n}\n\n"
}

fn mma(i: usize, j: usize) -> String {
    let list = |name: &str, from: usize, count: usize| -> String {
        let names: Vec<String> = (from..from + count).map(|n| format!("%{name}{n}")).collect();
        names.join(", ")
    };
    let (d, a, b) = (list("d", (i * 4 + j) * 4, 4), list("fa", i * 4, 4), list("fb", j * 2, 2));
    format!(
        "  mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{{d}}}, {{{a}}}, {{{b}}}, {{{d}}};\n"
    )
}

const TENSOR_START: &str =
    ".visible .entry tutti_tensor(.param .u64 p_a, .param .u64 p_b, .param .u64 p_c, .param .u32 p_size)
.maxntid 256, 1, 1
{
  .shared .align 16 .b8 tile_a[10240];
  .shared .align 16 .b8 tile_b[10240];
  .reg .pred %more;
  .reg .b32 %size, %thread, %bx, %by, %r0, %r1, %r2, %r3, %sta, %stb, %lda, %ldb, %k;
  .reg .b32 %group, %four, %wm, %wn;
  .reg .b64 %a, %b, %c, %off, %down;
  .reg .b32 %fa<16>, %fb<8>, %x<8>, %y<8>;
  .reg .f32 %d<64>;
  ld.param.u64 %a, [p_a];
  cvta.to.global.u64 %a, %a;
  ld.param.u64 %b, [p_b];
  cvta.to.global.u64 %b, %b;
  ld.param.u64 %c, [p_c];
  cvta.to.global.u64 %c, %c;
  ld.param.u32 %size, [p_size];
  mov.u32 %thread, %tid.x;
  mov.u32 %bx, %ctaid.x;
  mov.u32 %by, %ctaid.y;
  shr.u32 %r0, %thread, 1;
  and.b32 %r1, %thread, 1;
  shl.b32 %r1, %r1, 4;
  shl.b32 %r2, %by, 7;
  add.u32 %r2, %r2, %r0;
  mad.lo.u32 %r2, %r2, %size, %r1;
  mul.wide.u32 %off, %r2, 2;
  add.u64 %a, %a, %off;
  shl.b32 %r2, %bx, 7;
  add.u32 %r2, %r2, %r0;
  mad.lo.u32 %r2, %r2, %size, %r1;
  mul.wide.u32 %off, %r2, 2;
  add.u64 %b, %b, %off;
  mul.lo.u32 %r3, %r0, 80;
  shl.b32 %r1, %r1, 1;
  add.u32 %r3, %r3, %r1;
  mov.u32 %sta, tile_a;
  add.u32 %sta, %sta, %r3;
  mov.u32 %stb, tile_b;
  add.u32 %stb, %stb, %r3;
  and.b32 %r0, %thread, 31;
  shr.u32 %group, %r0, 2;
  and.b32 %four, %thread, 3;
  shr.u32 %wm, %thread, 7;
  shl.b32 %wm, %wm, 6;
  shr.u32 %wn, %thread, 5;
  and.b32 %wn, %wn, 3;
  shl.b32 %wn, %wn, 5;
  shl.b32 %r3, %four, 2;
  add.u32 %r0, %wm, %group;
  mad.lo.u32 %r0, %r0, 80, %r3;
  mov.u32 %lda, tile_a;
  add.u32 %lda, %lda, %r0;
  add.u32 %r0, %wn, %group;
  mad.lo.u32 %r0, %r0, 80, %r3;
  mov.u32 %ldb, tile_b;
  add.u32 %ldb, %ldb, %r0;
  shl.b32 %r0, %by, 7;
  add.u32 %r0, %r0, %wm;
  add.u32 %r0, %r0, %group;
  shl.b32 %r1, %bx, 7;
  add.u32 %r1, %r1, %wn;
  shl.b32 %r2, %four, 1;
  add.u32 %r1, %r1, %r2;
  mad.lo.u32 %r0, %r0, %size, %r1;
  mul.wide.u32 %off, %r0, 4;
  add.u64 %c, %c, %off;
  mul.wide.u32 %down, %size, 32;
";

const TENSOR_LOAD: &str = "  mov.u32 %k, 0;
NEXT:
  ld.global.v4.b32 {%x0, %x1, %x2, %x3}, [%a];
  ld.global.v4.b32 {%x4, %x5, %x6, %x7}, [%a+16];
  ld.global.v4.b32 {%y0, %y1, %y2, %y3}, [%b];
  ld.global.v4.b32 {%y4, %y5, %y6, %y7}, [%b+16];
  bar.sync 0;
  st.shared.v4.b32 [%sta], {%x0, %x1, %x2, %x3};
  st.shared.v4.b32 [%sta+16], {%x4, %x5, %x6, %x7};
  st.shared.v4.b32 [%stb], {%y0, %y1, %y2, %y3};
  st.shared.v4.b32 [%stb+16], {%y4, %y5, %y6, %y7};
  bar.sync 0;
";

const TENSOR_END: &str = "  add.u64 %a, %a, 64;
  add.u64 %b, %b, 64;
  add.u32 %k, %k, 32;
  setp.lt.u32 %more, %k, %size;
  @%more bra NEXT;
";
