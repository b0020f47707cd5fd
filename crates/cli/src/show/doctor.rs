//! `tutti doctor`.

use tutti_wire::api::{DoctorReport, FindingLevel};

use super::harmless;
use crate::style::{Ink, Style};

pub fn report(report: &DoctorReport, style: Style) -> String {
    let mut lines: Vec<String> = report
        .findings
        .iter()
        .map(|f| {
            let (word, ink) = match f.level {
                FindingLevel::Ok => ("ok", Ink::Green),
                FindingLevel::Warning => ("warning", Ink::Yellow),
                FindingLevel::Error => ("error", Ink::Red),
            };
            let word = style.paint(ink, &format!("{word:<8}"));
            format!("{word} {}: {}", harmless(&f.subject), harmless(&f.message))
        })
        .collect();
    let n = |level| report.findings.iter().filter(|f| f.level == level).count();
    lines.push(match (n(FindingLevel::Error), n(FindingLevel::Warning)) {
        (0, 0) => "all is well".to_owned(),
        (0, w) => format!("no errors, {}", super::count(w as u64, "warning")),
        (e, w) => {
            format!("{}, {}", super::count(e as u64, "error"), super::count(w as u64, "warning"))
        }
    });
    lines.join("\n")
}

pub fn has_errors(report: &DoctorReport) -> bool {
    report.findings.iter().any(|f| f.level == FindingLevel::Error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tutti_wire::api::Finding;

    #[test]
    fn findings_and_a_sum() {
        let finding = |level, message: &str| Finding {
            level,
            subject: "journal".into(),
            message: message.into(),
        };
        let mut r = DoctorReport { findings: vec![finding(FindingLevel::Ok, "12 records")] };
        assert_eq!(report(&r, Style::PLAIN), "ok       journal: 12 records\nall is well");
        r.findings.push(finding(FindingLevel::Error, "record 7 is missing"));
        assert!(report(&r, Style::PLAIN).ends_with("record 7 is missing\n1 error, 0 warnings"));
        assert!(has_errors(&r));
    }
}
