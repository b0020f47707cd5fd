//! `tutti report`: GPU-hours by what they were, money, who wasted most, and what endpoints did.

use tutti_model::{Report, ReportBy, ReportLine, Time, TimeClass, Waster};
use tutti_wire::api::JobGoodput;

use super::plan::seen::PlanSeen;
use super::table::{Field, Grid, plain};
use super::{harmless, served};
use crate::style::{Ink, Style};

pub fn text(report: &Report, now: Time, style: Style, width: Option<u16>) -> String {
    let head = format!("GPU-hours from {} to {} (UTC)", report.since, report.until);
    let mut parts = vec![head, lines(report, style, width)];
    if !report.unpriced.is_empty() {
        let models = report.unpriced.join(", ");
        parts.push(format!("without a price, and not in the costs: {}", harmless(&models)));
    }
    if !report.wasters.is_empty() {
        parts.push(format!("{WASTERS}\n{}", wasters(report, style, width)));
    } else if report.total.wasted_hours > 0.0 {
        parts.push("no job is known that ended in these days or goes on and wasted it".to_owned());
    } else if report.total.held_hours > 0.0 {
        parts.push("nobody wasted anything".to_owned());
    }
    if !report.served.is_empty() {
        let currency = report.currency.as_deref();
        let table = served::table(&report.served, currency, now, style, width);
        parts.push(format!("{SERVED}\n{table}"));
    }
    if report.total.total_hours == 0.0 {
        parts.push("nothing is on record for these days".to_owned());
    }
    parts.join("\n\n")
}

/// Lines have only what was wasted in these days.
const WASTERS: &str = "jobs that wasted most (amounts are of the whole job, other days included)";

const SERVED: &str = "endpoints (totals since each was made, other days included)";

/// Classes that somebody has; the others would only take room.
fn classes(report: &Report) -> Vec<TimeClass> {
    let shown =
        |class: &TimeClass| *class == TimeClass::Productive || report.total.of(*class) > 0.0;
    TimeClass::ALL.into_iter().filter(shown).collect()
}

fn title(class: TimeClass) -> &'static str {
    match class {
        TimeClass::Productive => ">PRODUCTIVE",
        TimeClass::Starting => ">STARTING",
        TimeClass::LostToFailure => ">FAILURES",
        TimeClass::LostToPreemption => ">PREEMPTED",
        TimeClass::Suspended => ">SUSPENDED",
        TimeClass::Idle => ">IDLE",
        TimeClass::Reserved => ">RESERVED",
        TimeClass::Unhealthy => ">UNHEALTHY",
        TimeClass::Free => ">FREE",
    }
}

fn lines(report: &Report, style: Style, width: Option<u16>) -> String {
    let classes = classes(report);
    let mut head = vec![match report.by {
        ReportBy::Day => "DAY",
        ReportBy::Team => "TEAM",
        ReportBy::User => "USER",
        ReportBy::Model => "GPU",
    }];
    head.extend(classes.iter().map(|class| title(*class)));
    head.extend([">ALL", ">GOODPUT"]);
    let (cost, wasted) = match &report.currency {
        Some(currency) => (format!(">{currency}"), format!(">{currency} WASTED")),
        None => Default::default(),
    };
    if report.currency.is_some() {
        head.extend([cost.as_str(), wasted.as_str()]);
    }
    let mut grid = Grid::new(&head, style);
    let mut row = |line: &ReportLine, name: String, ink: Ink| {
        let mut fields: Vec<Field> = vec![(name, ink)];
        let amount = |class: &TimeClass| (hours(line.of(*class)), tint(*class, line.of(*class)));
        fields.extend(classes.iter().map(amount));
        fields.push(plain(hours(line.total_hours)));
        fields.push(plain(goodput(line)));
        if report.currency.is_some() {
            let cost = line.cost.unwrap_or_default();
            fields.extend([plain(money(cost.total)), plain(money(cost.wasted))]);
        }
        grid.row(fields);
    };
    for line in &report.lines {
        let nobody = line.name.is_empty();
        let name = if nobody { "(nobody)".to_owned() } else { line.name.clone() };
        row(line, name, if nobody { Ink::Dim } else { Ink::Plain });
    }
    row(&report.total, "all".to_owned(), Ink::Bold);
    grid.render(width)
}

fn tint(class: TimeClass, hours: f64) -> Ink {
    match class {
        _ if hours == 0.0 => Ink::Dim,
        TimeClass::Productive => Ink::Green,
        TimeClass::LostToFailure | TimeClass::LostToPreemption => Ink::Red,
        TimeClass::Idle => Ink::Yellow,
        _ => Ink::Plain,
    }
}

fn wasters(report: &Report, style: Style, width: Option<u16>) -> String {
    let mut head = vec!["JOB", "USER", "TEAM", ">HELD", ">WASTED"];
    let wasted = report.currency.as_ref().map(|currency| format!(">{currency}"));
    head.extend(wasted.as_deref());
    head.extend(["MOSTLY", "NAME"]);
    let mut grid = Grid::new(&head, style);
    for Waster { id, name, user, team, line } in &report.wasters {
        let mut row = vec![
            plain(id.to_string()),
            plain(user.clone()),
            plain(team.clone()),
            plain(hours(line.held_hours)),
            plain(hours(line.wasted_hours)),
        ];
        row.extend(wasted.as_ref().map(|_| plain(money(line.cost.unwrap_or_default().wasted))));
        row.push(plain(mostly(line)));
        row.push(plain(name.clone().unwrap_or_default()));
        grid.row(row);
    }
    grid.render(width)
}

/// The largest class of what was wasted.
fn mostly(line: &ReportLine) -> &'static str {
    let wasted = line.gpu_hours.iter().filter(|(class, _)| class.is_waste());
    let worst = wasted.max_by(|a, b| a.1.total_cmp(b.1));
    worst.map_or("", |(class, _)| class.words())
}

/// Small amounts keep their digits: a short job is not nothing.
pub fn hours(hours: f64) -> String {
    match hours {
        0.0 => "-".to_owned(),
        h if h < 0.01 => format!("{h:.4}"),
        h if h < 100.0 => format!("{h:.2}"),
        h => format!("{h:.0}"),
    }
}

pub fn money(amount: f64) -> String {
    if amount == 0.0 { "-".to_owned() } else { format!("{amount:.2}") }
}

fn goodput(line: &ReportLine) -> String {
    line.goodput.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", share * 100.0))
}

/// For spreadsheets: a line for each line, and the sum of all at the end.
pub fn csv(report: &Report) -> String {
    let mut head = vec![report.by.as_str()];
    head.extend(TimeClass::ALL.map(TimeClass::as_str));
    head.extend(["all", "held", "wasted", "unsaved", "goodput", "currency"]);
    head.extend(["cost", "cost_held", "cost_wasted"]);
    let mut out = head.join(",");
    let currency = report.currency.as_deref().unwrap_or_default();
    let named = report.lines.iter().map(|line| (line.name.as_str(), line));
    for (name, line) in named.chain([("TOTAL", &report.total)]) {
        let mut fields = vec![quoted(name)];
        fields.extend(TimeClass::ALL.map(|class| format!("{:.6}", line.of(class))));
        let sums = [line.total_hours, line.held_hours, line.wasted_hours, line.unsaved_hours];
        fields.extend(sums.map(|sum| format!("{sum:.6}")));
        fields.push(line.goodput.map_or_else(String::new, |g| format!("{g:.6}")));
        fields.push(quoted(currency));
        let money = |of: fn(&tutti_model::Cost) -> f64| {
            line.cost.as_ref().map_or_else(String::new, |cost| format!("{:.2}", of(cost)))
        };
        fields.extend([money(|c| c.total), money(|c| c.held), money(|c| c.wasted)]);
        out.push('\n');
        out += &fields.join(",");
    }
    out
}

fn quoted(text: &str) -> String {
    // A spreadsheet would take such a name for a formula.
    let formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let mark = if formula { "'" } else { "" };
    if formula || text.contains([',', '"', '\n', '\r']) {
        format!("\"{mark}{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

/// One line for `tutti show`.
pub fn short(line: &ReportLine) -> Option<String> {
    line.goodput?;
    let wasted = if line.wasted_hours > 0.0 {
        format!(", {} wasted, mostly {}", hours(line.wasted_hours), mostly(line))
    } else {
        String::new()
    };
    let unsaved = if line.unsaved_hours > 0.0 {
        format!(", {} not safe yet", hours(line.unsaved_hours))
    } else {
        String::new()
    };
    Some(format!("{} of {} GPU-hours{wasted}{unsaved}", goodput(line), hours(line.held_hours)))
}

/// Its GPU-hours by class, and what they cost.
fn job_hours(line: &ReportLine, currency: Option<&str>) -> Vec<(&'static str, String)> {
    if line.held_hours == 0.0 {
        return vec![("", "it has not had a GPU".to_owned())];
    }
    let mut facts = Vec::new();
    for class in TimeClass::ALL {
        let of_class = line.of(class);
        if of_class > 0.0 {
            let share = 100.0 * of_class / line.held_hours;
            facts.push((class.words(), format!("{} GPU-hours ({share:.1} %)", hours(of_class))));
        }
    }
    if line.unsaved_hours > 0.0 {
        let unsaved = format!("{} GPU-hours of the productive", hours(line.unsaved_hours));
        facts.push(("not safe yet", unsaved));
    }
    if let (Some(currency), Some(cost)) = (currency, line.cost) {
        let money = format!("{:.2} {currency}, {:.2} of it wasted", cost.held, cost.wasted);
        facts.push(("cost", harmless(&money)));
    }
    facts
}

/// What one job made of what it had.
pub fn job(job: &JobGoodput, plan: Option<&PlanSeen>, style: Style) -> String {
    let mut out = match &job.line {
        Some(line) => {
            let share = style.paint(Ink::Bold, &goodput(line));
            vec![format!("job {}  goodput {share}", job.id)]
        }
        None => vec![
            format!("job {}", job.id),
            format!("  GPU-hours are kept for whole arrays: tutti report {} has them", job.id.job),
        ],
    };
    let mut add = |key: &str, value: String| out.push(format!("  {key:<20}{value}"));
    for (key, value) in job.line.iter().flat_map(|line| job_hours(line, job.currency.as_deref())) {
        add(key, value);
    }
    if let Some(seen) = plan {
        add("planned", seen.words());
    }
    for gpu in &job.idle {
        let ranks = match gpu.ranks {
            (first, last) if first == last => format!("rank {first}"),
            (first, last) => format!("ranks {first}-{last}"),
        };
        add("idle now", format!("GPU {} of {} ({ranks})", gpu.gpu, harmless(&gpu.node)));
    }
    for (key, mem) in [("GPU memory", job.gpu_mem), ("memory", job.mem)] {
        if let Some(mem) = mem {
            let size = |bytes: tutti_model::Bytes| indicatif::BinaryBytes(bytes.0);
            let of = (mem.asked.0 > 0).then(|| format!(", of {}", size(mem.asked)));
            add(key, format!("{} used at most{}", size(mem.peak), of.unwrap_or_default()));
        }
    }
    if let Some(cpus) = job.cpus {
        add("CPUs", format!("{:.1} used at most, of {}", cpus.peak, cpus.asked));
    }
    out.extend(job.advice.iter().map(|text| format!("  {}", style.paint(Ink::Yellow, text))));
    out.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::served::tests::{NOW, line as served_line};
    use tutti_model::{Cost, Day, JobId, TaskId};

    fn line(name: &str, productive: f64, idle: f64, free: f64) -> ReportLine {
        let all =
            [(TimeClass::Productive, productive), (TimeClass::Idle, idle), (TimeClass::Free, free)];
        let held = productive + idle;
        ReportLine {
            name: name.into(),
            gpu_hours: all.into_iter().filter(|(_, hours)| *hours > 0.0).collect(),
            total_hours: held + free,
            held_hours: held,
            wasted_hours: idle,
            unsaved_hours: 0.0,
            goodput: (held > 0.0).then(|| productive / held),
            cost: Some(Cost { total: 2.0 * (held + free), held: 2.0 * held, wasted: 2.0 * idle }),
        }
    }

    fn report() -> Report {
        let waster = Waster {
            id: JobId(7),
            name: Some("a, \"b\"".into()),
            user: "ada".into(),
            team: "lab".into(),
            line: line("", 6.0, 2.0, 0.0),
        };
        Report {
            since: Day(20_000),
            until: Day(20_001),
            by: ReportBy::Team,
            currency: Some("EUR".into()),
            unpriced: vec!["b200".into()],
            total: line("", 6.0, 2.0, 8.0),
            lines: vec![line("lab,x", 6.0, 2.0, 0.0), line("", 0.0, 0.0, 8.0)],
            wasters: vec![waster],
            served: Vec::new(),
        }
    }

    #[test]
    fn what_nobody_has_takes_no_column() {
        let text = text(&report(), NOW, Style::PLAIN, None);
        assert!(text.contains("PRODUCTIVE") && !text.contains("SUSPENDED"), "{text}");
        assert!(text.contains("75.0 %") && text.contains("(nobody)"), "{text}");
        assert!(text.contains("EUR WASTED") && text.contains("b200"), "{text}");
        assert!(text.contains("held but idle"), "{text}");
    }

    #[test]
    fn endpoints_are_told_of_if_there_are_any() {
        let mut found = report();
        assert!(!text(&found, NOW, Style::PLAIN, None).contains("ENDPOINT"));
        found.served = vec![served_line("chat", None)];
        let said = text(&found, NOW, Style::PLAIN, None);
        assert!(said.contains("endpoints (totals since each was made"), "{said}");
        assert!(said.contains("EUR/M TOKENS") && said.ends_with("serving"), "{said}");
    }

    #[test]
    fn csv_is_quoted_and_has_all_classes() {
        let csv = csv(&report());
        let rows: Vec<&str> = csv.lines().collect();
        assert_eq!(rows.len(), 4, "{csv}");
        assert!(rows[1].starts_with("\"lab,x\",6.000000,"), "{csv}");
        assert!(rows[3].starts_with("TOTAL,") && rows[3].ends_with("32.00,16.00,4.00"), "{csv}");
    }

    #[test]
    fn a_name_is_no_formula() {
        assert_eq!(quoted("=1+1"), "\"'=1+1\"");
        assert_eq!(quoted("@SUM(A1,\"x\")"), "\"'@SUM(A1,\"\"x\"\")\"");
        assert_eq!((quoted("-x"), quoted("+x")), ("\"'-x\"".into(), "\"'+x\"".into()));
        assert_eq!((quoted("a=b"), quoted("lab-x")), ("a=b".into(), "lab-x".into()));
    }

    #[test]
    fn wasters_are_of_whole_jobs_and_nobody_is_said_only_if_it_is_so() {
        let mut found = report();
        assert!(text(&found, NOW, Style::PLAIN, None).contains("of the whole job"));
        found.wasters.clear();
        let said = text(&found, NOW, Style::PLAIN, None);
        assert!(said.contains("no job is known") && !said.contains("nobody wasted"), "{said}");
        found.total = line("", 6.0, 0.0, 8.0);
        let said = text(&found, NOW, Style::PLAIN, None);
        assert!(said.contains("nobody wasted anything"), "{said}");
    }

    #[test]
    fn one_job_in_words() {
        let job_line = line("", 6.0, 2.0, 0.0);
        assert_eq!(
            short(&job_line).as_deref(),
            Some("75.0 % of 8.00 GPU-hours, 2.00 wasted, mostly held but idle")
        );
        assert_eq!(short(&line("", 0.0, 0.0, 0.0)), None);
        let goodput = JobGoodput {
            id: TaskId::single(JobId(7)),
            line: Some(job_line),
            currency: Some("EUR".into()),
            idle: Vec::new(),
            gpu_mem: None,
            mem: None,
            cpus: None,
            advice: vec!["ask for fewer".into()],
        };
        let seen = PlanSeen { planned_step_s: 2.0, seen_step_s: 1.5, ratio: 0.75 };
        let text = job(&goodput, Some(&seen), Style::PLAIN);
        let planned = format!("{:<20}2.00 s a step, seen 1.50 s (−25 %)", "planned");
        assert!(text.contains(&planned), "{text}");
        assert!(!job(&goodput, None, Style::PLAIN).contains("planned"));
        let task = JobGoodput { id: TaskId::of_array(JobId(7), 3), line: None, ..goodput.clone() };
        let of_task = job(&task, None, Style::PLAIN);
        assert!(of_task.contains("tutti report 7 has them"), "{of_task}");
        assert!(!of_task.contains('%') && !of_task.contains("EUR"), "{of_task}");
        assert!(
            text.contains("16.00 EUR, 4.00 of it wasted") && text.contains("ask for fewer"),
            "{text}"
        );
    }
}
