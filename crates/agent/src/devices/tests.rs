//! The program answers as the rules do, whatever they are.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, Debug)]
struct Request {
    kind: Kind,
    major: u32,
    minor: u32,
    access: Access,
}

/// What the rules mean.
fn judge(rules: &Rules, asked: Request) -> bool {
    let applies = |rule: &&Rule| {
        let same = rule.kind == asked.kind
            && rule.major == asked.major
            && rule.minor.is_none_or(|minor| minor == asked.minor);
        same && match rule.verdict {
            Verdict::Allow => asked.access.0 & !rule.access.0 == 0,
            Verdict::Deny => asked.access.0 & rule.access.0 != 0,
        }
    };
    let verdict = rules.list.iter().find(applies).map_or(rules.otherwise, |rule| rule.verdict);
    verdict == Verdict::Allow
}

/// A machine for the few instructions that are used, as the kernel runs them.
fn run(program: &[Instruction], asked: Request) -> bool {
    let kind = match asked.kind {
        Kind::Block => 1,
        Kind::Char => 2,
    };
    let request = [kind | u32::from(asked.access.0) << 16, asked.major, asked.minor];
    let mut registers = [0u64; 11];
    let mut at = 0usize;
    loop {
        let i = program[at];
        at += 1;
        let (to, from) = (usize::from(i.registers & 15), usize::from(i.registers >> 4));
        // Sign-extended, as 64-bit instructions take it.
        let value = i64::from(i.value) as u64;
        let aim = |jump: bool| if jump { at + usize::try_from(i.offset).unwrap() } else { at };
        match i.code {
            code::LOAD_WORD => {
                assert_eq!(from, 1, "only the request can be read");
                registers[to] = u64::from(request[usize::try_from(i.offset).unwrap() / 4]);
            }
            code::MOVE => registers[to] = value,
            code::MOVE_REGISTER => registers[to] = registers[from],
            code::AND => registers[to] &= value,
            code::SHIFT_RIGHT => registers[to] >>= value,
            code::JUMP => at = aim(true),
            code::JUMP_IF_OTHER => at = aim(registers[to] != value),
            code::JUMP_IF_OTHER_REGISTER => at = aim(registers[to] != registers[from]),
            code::JUMP_IF_ANY => at = aim(registers[to] & value != 0),
            code::EXIT => return registers[0] != 0,
            other => panic!("{other:#x} is not an instruction of ours"),
        }
    }
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![Just(Kind::Block), Just(Kind::Char)]
}

fn verdict() -> impl Strategy<Value = Verdict> {
    prop_oneof![Just(Verdict::Allow), Just(Verdict::Deny)]
}

/// Few numbers, so that rules and requests meet; and the largest that there are.
fn number(max: u32) -> impl Strategy<Value = u32> {
    prop_oneof![8 => 0..4u32, 1 => Just(max), 1 => 0..=max]
}

fn rule() -> impl Strategy<Value = Rule> {
    (verdict(), kind(), number(0xfff), proptest::option::of(number(0xf_ffff)), 1..8u8).prop_map(
        |(verdict, kind, major, minor, access)| Rule {
            verdict,
            kind,
            major,
            minor,
            access: Access(access),
        },
    )
}

fn request() -> impl Strategy<Value = Request> {
    (kind(), number(0xfff), number(0xf_ffff), 1..8u8).prop_map(|(kind, major, minor, access)| {
        Request { kind, major, minor, access: Access(access) }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn the_program_answers_as_the_rules_do(
        list in proptest::collection::vec(rule(), 0..12),
        otherwise in verdict(),
        requests in proptest::collection::vec(request(), 1..40),
    ) {
        let rules = Rules { list, otherwise };
        let program = rules.program();
        for asked in requests {
            prop_assert_eq!(run(&program, asked), judge(&rules, asked), "{:?} of {:?}", asked, rules);
        }
    }
}

#[test]
fn a_part_opens_its_own_gpu_and_no_other() {
    use Kind::Char;
    let list = vec![
        Rule::new(Verdict::Allow, Char, 195, Some(3)),
        Rule::new(Verdict::Allow, Char, 195, Some(255)),
        Rule::new(Verdict::Deny, Char, 195, None),
    ];
    let rules = Rules { list, otherwise: Verdict::Allow };
    let program = rules.program();
    let opens = |kind, major, minor| {
        run(
            &program,
            Request { kind, major, minor, access: Access(Access::READ.0 | Access::WRITE.0) },
        )
    };
    assert!(opens(Char, 195, 3) && opens(Char, 195, 255));
    assert!(!opens(Char, 195, 0) && !opens(Char, 195, 254));
    // The same numbers, but a disk; and what everybody needs.
    assert!(opens(Kind::Block, 195, 0) && opens(Char, 1, 3));
    let made = Request { kind: Char, major: 195, minor: 0, access: Access::MKNOD };
    assert!(!run(&program, made));
}

#[test]
fn rules_read_as_the_kernel_writes_them() {
    let rule = Rule::new(Verdict::Deny, Kind::Char, 195, None);
    assert_eq!(rule.to_string(), "deny c 195:* rwm");
    let rule = Rule { access: Access::READ, ..Rule::new(Verdict::Allow, Kind::Block, 7, Some(1)) };
    assert_eq!(rule.to_string(), "allow b 7:1 r");
}
