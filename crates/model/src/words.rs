//! Numbers and names in sentences: one rule for every crate that writes for people.

/// `1 node`, `3 nodes`, `1,024 processes`.
pub fn count(n: u64, thing: &str) -> String {
    let s = match (n, thing.ends_with('s')) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{} {thing}{s}", thousands(n))
}

/// `99,950`.
pub fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// The longest name of a job, team or label.
pub const NAME_CHARS_MAX: usize = 200;

/// What is wrong with the name of an environment variable, if anything. A shell could neither set nor
/// read one with white space in it, and programs that print their environment would forge lines.
pub fn variable_name_problem(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        Some("a variable needs a name before '='")
    } else if name.contains('=') {
        Some("the name of a variable can't contain '='")
    } else if name.chars().any(char::is_whitespace) {
        Some("the name of a variable can't contain white space")
    } else if name.chars().any(char::is_control) {
        Some("the name of a variable can't contain control characters")
    } else {
        None
    }
}

/// What is wrong with the name of a job or team, if anything.
pub fn name_problem(name: &str) -> Option<String> {
    if name.trim().is_empty() {
        Some("is empty: write a name, or leave it out".to_owned())
    } else if name.chars().any(char::is_control) {
        Some("has control characters".to_owned())
    } else {
        let chars = name.chars().count();
        (chars > NAME_CHARS_MAX)
            .then(|| format!("has {chars} characters, at most {NAME_CHARS_MAX} are accepted"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_one_is_singular() {
        assert_eq!(thousands(7), "7");
        assert_eq!(thousands(99_950), "99,950");
        assert_eq!(thousands(1_234_567), "1,234,567");
        assert_eq!(count(0, "GPU"), "0 GPUs");
        assert_eq!(count(1, "node"), "1 node");
        assert_eq!(count(1, "process"), "1 process");
        assert_eq!(count(2_000, "process"), "2,000 processes");
    }

    #[test]
    fn a_variable_has_a_name_that_a_shell_can_say() {
        for name in ["A", "PATH", "a.b", "BASH_FUNC_f%%", "ü"] {
            assert_eq!(variable_name_problem(name), None, "{name}");
        }
        for name in ["", "=", "A=B", "A B", " A", "A\t", "A\nB=1", "A\u{1b}", "A\u{a0}B"] {
            assert!(variable_name_problem(name).is_some(), "{name:?}");
        }
    }

    #[test]
    fn a_name_is_something_that_people_can_read() {
        for name in ["a", "two words", "ü", &"n".repeat(NAME_CHARS_MAX)] {
            assert_eq!(name_problem(name), None, "{name}");
        }
        for name in ["", " ", "\t", "a\nb", &"n".repeat(NAME_CHARS_MAX + 1)] {
            assert!(name_problem(name).is_some(), "{name:?}");
        }
    }
}
