//! Which devices the processes of a part may open, as rules, and the program that the kernel runs
//! for every `open` and `mknod` of theirs.
//!
//! ```text
//! rules, in order:  allow c 195:0   allow c 195:255   deny c 195:*   deny c 226:*   else allow
//!                        own GPU        its driver      all other GPUs and their drivers
//! ```
//!
//! The first rule that applies decides. Making the program is pure; `bpf` hands it to the kernel,
//! and `files` finds the numbers.

pub mod bpf;
pub mod files;

use std::fmt;

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    Block,
    Char,
}

/// What a process wants to do, or a rule speaks of: a set of bits, as the kernel has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Access(u8);

impl Access {
    #[cfg(test)]
    pub const MKNOD: Access = Access(1);
    #[cfg(test)]
    pub const READ: Access = Access(2);
    #[cfg(test)]
    pub const WRITE: Access = Access(4);
    pub const ALL: Access = Access(7);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Verdict {
    /// Applies when it covers all that is asked for.
    Allow,
    /// Applies when it touches anything that is asked for.
    Deny,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Rule {
    pub verdict: Verdict,
    pub kind: Kind,
    pub major: u32,
    /// None: all of them.
    pub minor: Option<u32>,
    pub access: Access,
}

/// Rules in order, and what holds when none of them applies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    pub list: Vec<Rule>,
    pub otherwise: Verdict,
}

/// One instruction, as the kernel reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    pub code: u8,
    /// Destination in the low half, source in the high one.
    pub registers: u8,
    pub offset: i16,
    pub value: i32,
}

/// What is used of the kernel's instruction set.
pub mod code {
    pub const LOAD_WORD: u8 = 0x61;
    pub const MOVE: u8 = 0xb7;
    pub const AND: u8 = 0x57;
    pub const SHIFT_RIGHT: u8 = 0x77;
    pub const MOVE_REGISTER: u8 = 0xbf;
    pub const JUMP: u8 = 0x05;
    pub const JUMP_IF_OTHER: u8 = 0x55;
    pub const JUMP_IF_OTHER_REGISTER: u8 = 0x5d;
    pub const JUMP_IF_ANY: u8 = 0x45;
    pub const EXIT: u8 = 0x95;
}

/// Registers: the answer, the request, and its four words taken apart.
const ANSWER: u8 = 0;
const REQUEST: u8 = 1;
const KIND: u8 = 2;
const ACCESS: u8 = 3;
const MAJOR: u8 = 4;
const MINOR: u8 = 5;
const SCRATCH: u8 = 6;

fn op(code: u8, to: u8, from: u8, offset: i16, value: i32) -> Instruction {
    Instruction { code, registers: to | from << 4, offset, value }
}

impl Rules {
    /// The program that answers as these rules do.
    pub fn program(&self) -> Vec<Instruction> {
        let mut out = vec![
            // The first word has the kind in its low half and the access in the high one.
            op(code::LOAD_WORD, KIND, REQUEST, 0, 0),
            op(code::MOVE_REGISTER, ACCESS, KIND, 0, 0),
            op(code::AND, KIND, 0, 0, 0xffff),
            op(code::SHIFT_RIGHT, ACCESS, 0, 0, 16),
            op(code::LOAD_WORD, MAJOR, REQUEST, 4, 0),
            op(code::LOAD_WORD, MINOR, REQUEST, 8, 0),
        ];
        for rule in &self.list {
            out.extend(rule.instructions());
        }
        out.extend(answer(self.otherwise));
        out
    }
}

impl Rule {
    pub fn new(verdict: Verdict, kind: Kind, major: u32, minor: Option<u32>) -> Rule {
        Rule { verdict, kind, major, minor, access: Access::ALL }
    }

    /// Answers, or falls through to what follows.
    fn instructions(&self) -> Vec<Instruction> {
        let kind = match self.kind {
            Kind::Block => 1,
            Kind::Char => 2,
        };
        // Numbers of devices have at most 20 bits.
        let mut tests = vec![vec![op(code::JUMP_IF_OTHER, KIND, 0, 0, kind)]];
        tests.push(vec![op(code::JUMP_IF_OTHER, MAJOR, 0, 0, self.major as i32)]);
        if let Some(minor) = self.minor {
            tests.push(vec![op(code::JUMP_IF_OTHER, MINOR, 0, 0, minor as i32)]);
        }
        if self.access != Access::ALL {
            tests.push(self.access_test());
        }
        let body: Vec<Instruction> =
            tests.into_iter().flatten().chain(answer(self.verdict)).collect();
        let end = body.len();
        let aimed = body.into_iter().enumerate().map(|(at, mut i)| {
            // Jumps without an aim leave the rule. Offsets count from the next instruction.
            let leaves =
                matches!(i.code, code::JUMP_IF_OTHER | code::JUMP_IF_OTHER_REGISTER | code::JUMP);
            if leaves {
                i.offset = (end - at - 1) as i16;
            }
            i
        });
        aimed.collect()
    }

    fn access_test(&self) -> Vec<Instruction> {
        let access = i32::from(self.access.0);
        match self.verdict {
            Verdict::Allow => vec![
                op(code::MOVE_REGISTER, SCRATCH, ACCESS, 0, 0),
                op(code::AND, SCRATCH, 0, 0, access),
                op(code::JUMP_IF_OTHER_REGISTER, SCRATCH, ACCESS, 0, 0),
            ],
            Verdict::Deny => {
                vec![op(code::JUMP_IF_ANY, ACCESS, 0, 1, access), op(code::JUMP, 0, 0, 0, 0)]
            }
        }
    }
}

fn answer(verdict: Verdict) -> [Instruction; 2] {
    let value = match verdict {
        Verdict::Allow => 1,
        Verdict::Deny => 0,
    };
    [op(code::MOVE, ANSWER, 0, 0, value), op(code::EXIT, 0, 0, 0, 0)]
}

/// As in the kernel's own lists: `deny c 195:* rwm`.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.verdict {
            Verdict::Allow => "allow",
            Verdict::Deny => "deny",
        };
        let kind = match self.kind {
            Kind::Block => 'b',
            Kind::Char => 'c',
        };
        write!(f, "{verdict} {kind} {}:", self.major)?;
        match self.minor {
            Some(minor) => write!(f, "{minor} ")?,
            None => write!(f, "* ")?,
        }
        let bits = [(2, 'r'), (4, 'w'), (1, 'm')];
        bits.iter()
            .filter(|(bit, _)| self.access.0 & bit != 0)
            .try_for_each(|(_, c)| write!(f, "{c}"))
    }
}

#[cfg(test)]
mod tests;
