//! Runs kernels without a GPU: as much of the language as they use, one block after the other. Registers must be
//! declared, and as wide as the instruction wants them, so that a translator would take the text.

use std::collections::HashMap;

use super::PREFIX;

#[derive(Clone, Debug)]
enum Operand {
    Reg(usize),
    Number(u64),
    /// `[%r+16]`.
    At(usize, u64),
    Param(usize),
    Group(Vec<usize>),
    Special(&'static str),
    /// The offset of a variable in shared memory.
    Shared(u64),
}

struct Inst {
    /// Only if this predicate is so.
    guard: Option<(usize, bool)>,
    op: Vec<String>,
    args: Vec<Operand>,
    /// Of a branch.
    target: usize,
}

pub struct Kernel {
    code: Vec<Inst>,
    widths: Vec<u32>,
    shared: usize,
}

const SPECIAL: [&str; 5] = ["%tid.x", "%ctaid.x", "%ctaid.y", "%ntid.x", "%nctaid.x"];

/// Splits at commas that are outside of braces.
fn split(text: &str) -> Vec<String> {
    let (mut depth, mut parts) = (0, vec![String::new()]);
    for c in text.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        parts.last_mut().unwrap().push(c);
    }
    parts.into_iter().map(|p| p.trim().to_owned()).filter(|p| !p.is_empty()).collect()
}

#[derive(Default)]
struct Names {
    registers: HashMap<String, usize>,
    widths: Vec<u32>,
    params: HashMap<String, usize>,
    shared: HashMap<String, u64>,
    shared_size: usize,
}

fn width(kind: &str) -> u32 {
    match kind {
        "pred" => 1,
        "b32" | "u32" | "f32" => 32,
        "b64" | "u64" => 64,
        other => panic!("type {other}"),
    }
}

impl Names {
    fn declare(&mut self, line: &str) {
        let line = line.trim_end_matches(';');
        let (kind, names) = line.split_once(' ').unwrap();
        for name in split(names) {
            let (stem, count) = match name.split_once('<') {
                Some((stem, count)) => (stem.to_owned(), count.trim_end_matches('>').parse().ok()),
                None => (name.clone(), None),
            };
            let all: Vec<String> = match count {
                Some(count) => (0..count).map(|n: u32| format!("{stem}{n}")).collect(),
                None => vec![stem],
            };
            for name in all {
                assert!(!SPECIAL.iter().any(|s| s.starts_with(&format!("{name}."))), "{name}");
                let known = self.registers.insert(name.clone(), self.widths.len());
                assert_eq!(known, None, "{name} twice");
                self.widths.push(width(kind.trim_start_matches('.')));
            }
        }
    }

    fn register(&self, name: &str) -> usize {
        *self.registers.get(name).unwrap_or_else(|| panic!("{name} is not declared"))
    }

    fn operand(&self, text: &str) -> Operand {
        if let Some(name) = SPECIAL.iter().find(|s| **s == text) {
            return Operand::Special(name);
        }
        if let Some(inner) = text.strip_prefix('{') {
            let regs = split(inner.trim_end_matches('}'));
            return Operand::Group(regs.iter().map(|r| self.register(r)).collect());
        }
        if let Some(inner) = text.strip_prefix('[') {
            let inner = inner.trim_end_matches(']');
            let (base, off) = inner.split_once('+').unwrap_or((inner, "0"));
            return match self.params.get(base) {
                Some(at) => Operand::Param(*at),
                None => Operand::At(self.register(base), off.parse().unwrap()),
            };
        }
        if text.starts_with('%') {
            return Operand::Reg(self.register(text));
        }
        if let Some(at) = self.shared.get(text) {
            return Operand::Shared(*at);
        }
        if let Some(bits) = text.strip_prefix("0f") {
            return Operand::Number(u64::from_str_radix(bits, 16).unwrap());
        }
        let number = match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => text.parse(),
        };
        Operand::Number(number.unwrap_or_else(|_| panic!("operand {text}")))
    }
}

impl Kernel {
    pub fn parse(text: &str, name: &str) -> Kernel {
        let entry = format!(".entry {PREFIX}{name}(");
        let start = text.find(&entry).expect("the kernel is there");
        let text = &text[start..];
        let (head, body) = text.split_once("\n{\n").unwrap();
        let body = &body[..body.find("\n}").unwrap()];
        let mut names = Names::default();
        let params = head.split_once('(').unwrap().1.split_once(')').unwrap().0;
        for (at, param) in split(params).iter().enumerate() {
            names.params.insert(param.rsplit(' ').next().unwrap().to_owned(), at);
        }
        let (mut code, mut labels, mut branches) = (Vec::new(), HashMap::new(), Vec::new());
        for line in body.lines().map(str::trim).filter(|l| !l.is_empty()) {
            if let Some(label) = line.strip_suffix(':') {
                labels.insert(label.to_owned(), code.len());
            } else if let Some(rest) = line.strip_prefix(".reg ") {
                names.declare(rest);
            } else if let Some(rest) = line.strip_prefix(".shared .align 16 .b8 ") {
                let (name, size) = rest.trim_end_matches("];").split_once('[').unwrap();
                names.shared.insert(name.to_owned(), names.shared_size as u64);
                names.shared_size += size.parse::<usize>().unwrap();
            } else {
                let (inst, branch) = instruction(line, &names);
                branches.extend(branch.map(|label| (code.len(), label)));
                code.push(inst);
            }
        }
        for (at, label) in branches {
            code[at].target = labels[&label];
        }
        Kernel { code, widths: names.widths, shared: names.shared_size }
    }
}

fn instruction(line: &str, names: &Names) -> (Inst, Option<String>) {
    let line = line.strip_suffix(';').unwrap_or_else(|| panic!("'{line}' has no end"));
    let (guard, rest) = match line.strip_prefix('@') {
        Some(rest) => {
            let (p, rest) = rest.split_once(' ').unwrap();
            let wanted = !p.starts_with('!');
            (Some((names.register(p.trim_start_matches('!')), wanted)), rest)
        }
        None => (None, line),
    };
    let (op, args) = rest.split_once(' ').unwrap_or((rest, ""));
    let op: Vec<String> = op.split('.').map(str::to_owned).collect();
    let mut inst = Inst { guard, op, args: Vec::new(), target: 0 };
    if inst.op[0] == "bra" {
        return (inst, Some(args.to_owned()));
    }
    inst.args = split(args).iter().map(|a| names.operand(a)).collect();
    (inst, None)
}

/// Memory of the imagined card, and a kernel to run there.
pub struct Machine<'a> {
    pub kernel: &'a Kernel,
    pub memory: &'a mut Vec<u8>,
    pub params: Vec<u64>,
    pub grid: (u32, u32),
    pub threads: u32,
}

struct Thread {
    regs: Vec<u64>,
    pc: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    Barrier,
    Mma,
    End,
}

impl Machine<'_> {
    pub fn run(&mut self, block: (u32, u32)) {
        let mut shared = vec![0xffu8; self.kernel.shared];
        let fresh = || Thread { regs: vec![0xDEAD_BEEF; self.kernel.widths.len()], pc: 0 };
        let mut threads: Vec<Thread> = (0..self.threads).map(|_| fresh()).collect();
        loop {
            let mut stops = Vec::new();
            for warp in 0..threads.len().div_ceil(32) {
                stops.push(self.warp(&mut threads, warp, block, &mut shared));
            }
            assert!(stops.iter().all(|s| *s == stops[0]), "all meet at a barrier, or end");
            if stops[0] == Stop::End {
                return;
            }
            threads.iter_mut().for_each(|t| t.pc += 1);
        }
    }

    /// Until the warp waits at a barrier, or ends.
    fn warp(
        &mut self,
        threads: &mut [Thread],
        warp: usize,
        block: (u32, u32),
        shared: &mut [u8],
    ) -> Stop {
        let lanes = warp * 32..(warp * 32 + 32).min(threads.len());
        loop {
            let stops: Vec<Stop> = lanes
                .clone()
                .map(|at| self.thread(&mut threads[at], at as u64, block, shared))
                .collect();
            assert!(stops.iter().all(|s| *s == stops[0]), "a warp does not part");
            if stops[0] != Stop::Mma {
                return stops[0];
            }
            self.mma(&mut threads[lanes.clone()]);
            threads[lanes.clone()].iter_mut().for_each(|t| t.pc += 1);
        }
    }

    fn thread(&mut self, t: &mut Thread, id: u64, block: (u32, u32), shared: &mut [u8]) -> Stop {
        loop {
            let kernel = self.kernel;
            let inst = &kernel.code[t.pc];
            if inst.guard.is_some_and(|(p, wanted)| (t.regs[p] != 0) != wanted) {
                t.pc += 1;
                continue;
            }
            match inst.op[0].as_str() {
                "bar" => return Stop::Barrier,
                "mma" => return Stop::Mma,
                "ret" => return Stop::End,
                "bra" => {
                    t.pc = inst.target;
                    continue;
                }
                "ld" | "st" | "red" => self.access(t, inst, shared),
                _ => self.compute(t, inst, id, block),
            }
            t.pc += 1;
        }
    }

    /// Loads, stores and additions in memory; parameters are loaded, too.
    fn access(&mut self, t: &mut Thread, inst: &Inst, shared: &mut [u8]) {
        let bits = width(inst.op.last().unwrap());
        let (value, place) = match inst.op[0].as_str() {
            "ld" => (&inst.args[0], &inst.args[1]),
            _ => (&inst.args[1], &inst.args[0]),
        };
        let regs = match value {
            Operand::Group(regs) => regs.clone(),
            Operand::Reg(reg) => vec![*reg],
            other => panic!("{other:?}"),
        };
        regs.iter().for_each(|reg| self.wide(*reg, bits));
        if let Operand::Param(at) = place {
            t.regs[regs[0]] = self.params[*at];
            return;
        }
        let Operand::At(base, off) = place else { panic!("{place:?}") };
        let space = inst.op[1].as_str();
        self.wide(*base, if space == "shared" { 32 } else { 64 });
        let memory: &mut [u8] = if space == "shared" { shared } else { self.memory };
        let (size, from) = (bits as usize / 8, (t.regs[*base] + off) as usize);
        assert_eq!(from % (size * regs.len()), 0, "alignment of {:?}", inst.op);
        for (n, reg) in regs.iter().enumerate() {
            let bytes = &mut memory[from + n * size..from + (n + 1) * size];
            let mut old = [0; 8];
            old[..size].copy_from_slice(bytes);
            let (old, new) = (u64::from_le_bytes(old), t.regs[*reg]);
            let stored = match (inst.op[0].as_str(), inst.op[2].as_str()) {
                ("ld", _) => {
                    t.regs[*reg] = old;
                    continue;
                }
                ("red", "add") => old.wrapping_add(new),
                ("red", "min") => old.min(new),
                _ => new,
            };
            bytes.copy_from_slice(&stored.to_le_bytes()[..size]);
        }
    }

    fn wide(&self, reg: usize, bits: u32) {
        assert_eq!(self.kernel.widths[reg], bits, "width of register {reg}");
    }

    fn value(&self, t: &Thread, operand: &Operand, bits: u32, id: u64, block: (u32, u32)) -> u64 {
        match operand {
            Operand::Reg(reg) => {
                self.wide(*reg, bits);
                t.regs[*reg]
            }
            Operand::Number(n) => *n,
            Operand::Shared(at) => *at,
            Operand::Special("%tid.x") => id,
            Operand::Special("%ctaid.x") => block.0.into(),
            Operand::Special("%ctaid.y") => block.1.into(),
            Operand::Special("%ntid.x") => self.threads.into(),
            Operand::Special("%nctaid.x") => self.grid.0.into(),
            other => panic!("{other:?}"),
        }
    }

    fn compute(&mut self, t: &mut Thread, inst: &Inst, id: u64, block: (u32, u32)) {
        let name = inst.op[0].as_str();
        let bits = width(inst.op.last().unwrap());
        let Operand::Reg(to) = inst.args[0] else { panic!("{:?}", inst.op) };
        let v = |n: usize| self.value(t, &inst.args[n], bits, id, block);
        let cut = |x: u64| if bits == 32 { x & 0xffff_ffff } else { x };
        let (out, result) = match (name, inst.op[1].as_str()) {
            ("mov", _) | ("cvta", _) => (bits, v(1)),
            ("cvt", "u64") => (64, v(1)),
            ("add", _) => (bits, cut(v(1).wrapping_add(v(2)))),
            ("min", _) => (bits, v(1).min(v(2))),
            ("mul", "lo") => (bits, cut(v(1).wrapping_mul(v(2)))),
            ("mul", "wide") => (64, v(1) * v(2)),
            ("mad", "lo") => (bits, cut(v(1).wrapping_mul(v(2)).wrapping_add(v(3)))),
            ("shl", _) => (bits, cut(v(1) << v(2))),
            ("shr", _) => (bits, v(1) >> v(2)),
            ("and", _) => (bits, v(1) & v(2)),
            ("xor", _) => (bits, v(1) ^ v(2)),
            ("setp", "ge") => (1, u64::from(v(1) >= v(2))),
            ("setp", "lt") => (1, u64::from(v(1) < v(2))),
            ("setp", "ne") => (1, u64::from(v(1) != v(2))),
            ("setp", "eq") => (1, u64::from(v(1) == v(2))),
            ("fma", "rn") => {
                let [a, b, c] = [1, 2, 3].map(|n| f32::from_bits(v(n) as u32));
                (32, a.mul_add(b, c).to_bits().into())
            }
            other => panic!("{other:?}"),
        };
        self.wide(to, out);
        t.regs[to] = result;
    }

    /// `mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32`, by NVIDIA's description of who has what.
    fn mma(&self, lanes: &mut [Thread]) {
        let inst = &self.kernel.code[lanes[0].pc];
        assert!(lanes.len() == 32 && lanes.iter().all(|t| t.pc == lanes[0].pc));
        let groups: Vec<&Vec<usize>> = inst
            .args
            .iter()
            .map(|a| if let Operand::Group(regs) = a { regs } else { panic!("{a:?}") })
            .collect();
        let halves = |t: &Thread, reg: usize| {
            self.wide(reg, 32);
            [t.regs[reg] as u16, (t.regs[reg] >> 16) as u16].map(whole)
        };
        let (mut a, mut b) = ([[0.0f32; 16]; 16], [[0.0f32; 8]; 16]);
        for (lane, t) in lanes.iter().enumerate() {
            let (group, four) = (lane / 4, lane % 4);
            for (n, reg) in groups[1].iter().enumerate() {
                let row = group + if n % 2 == 1 { 8 } else { 0 };
                let column = four * 2 + if n >= 2 { 8 } else { 0 };
                [a[row][column], a[row][column + 1]] = halves(t, *reg);
            }
            for (n, reg) in groups[2].iter().enumerate() {
                let row = four * 2 + n * 8;
                [b[row][group], b[row + 1][group]] = halves(t, *reg);
            }
        }
        for (lane, t) in lanes.iter_mut().enumerate() {
            for (n, (to, from)) in groups[0].iter().zip(groups[3]).enumerate() {
                let (row, column) = (lane / 4 + n / 2 * 8, lane % 4 * 2 + n % 2);
                let c = f32::from_bits(t.regs[*from] as u32);
                let sum: f32 = (0..16).map(|k| a[row][k] * b[k][column]).sum();
                t.regs[*to] = (c + sum).to_bits().into();
            }
        }
    }
}

/// A half float that is zero or a normal number.
fn whole(bits: u16) -> f32 {
    let size = f32::from(bits & 0x3ff) / 1024.0 + 1.0;
    let power = i32::from((bits >> 10) & 0x1f) - 15;
    let value = if bits & 0x7fff == 0 { 0.0 } else { size * 2f32.powi(power) };
    if bits & 0x8000 != 0 { -value } else { value }
}
