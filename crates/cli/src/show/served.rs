//! What endpoints did in all and what that took, in `tutti report` and `tutti endpoints --stopped`.

use tutti_model::{ServedLine, Time};
use tutti_wire::api::StoppedEndpoints;

use super::plan::short_count;
use super::report::{hours, money};
use super::table::{Grid, plain};
use super::{thousands, time};
use crate::style::{Ink, Style};

pub const NONE: &str = "no endpoint was stopped";

pub fn stopped(found: &StoppedEndpoints, now: Time, style: Style, width: Option<u16>) -> String {
    if found.endpoints.is_empty() {
        return NONE.to_owned();
    }
    table(&found.endpoints, found.currency.as_deref(), now, style, width)
}

pub fn table(
    lines: &[ServedLine],
    currency: Option<&str>,
    now: Time,
    style: Style,
    width: Option<u16>,
) -> String {
    let mut head =
        vec!["ENDPOINT", "TEAM", ">REQUESTS", ">FAILED", ">TOKENS IN", ">TOKENS OUT", ">GPU-HOURS"];
    let costs = currency.map(|c| [format!(">{c}"), format!(">{c}/M TOKENS")]);
    head.extend(costs.iter().flatten().map(String::as_str));
    head.push("STATE");
    let mut grid = Grid::new(&head, style);
    for line in lines {
        let total = &line.total;
        let mut row = vec![
            plain(line.name.clone()),
            plain(line.team.clone()),
            plain(thousands(total.requests)),
            (thousands(total.errors), if total.errors > 0 { Ink::Red } else { Ink::Plain }),
            plain(short_count(total.prompt_tokens as f64)),
            plain(short_count(total.output_tokens as f64)),
            plain(hours(line.gpu_hours)),
        ];
        if currency.is_some() {
            let costs = [line.cost, line.cost_per_million_tokens];
            row.extend(costs.map(|cost| plain(money(cost.unwrap_or(0.0)))));
        }
        row.push(match line.stopped_at {
            None => ("serving".to_owned(), Ink::Green),
            Some(at) => (format!("stopped {} ago", time::short(now.since(at))), Ink::Dim),
        });
        grid.row(row);
    }
    grid.render(width)
}

#[cfg(test)]
pub mod tests {
    use tutti_model::Served;

    use super::*;

    pub const NOW: Time = Time(100_000_000);

    pub fn line(name: &str, stopped_at: Option<Time>) -> ServedLine {
        ServedLine {
            name: name.into(),
            user: "ada".into(),
            team: "lab".into(),
            created_at: Time(0),
            stopped_at,
            total: Served {
                requests: 12_345,
                errors: 6,
                prompt_tokens: 3_000_000,
                output_tokens: 1_200,
                ..Served::default()
            },
            gpu_hours: 8.5,
            cost: Some(21.25),
            cost_per_million_tokens: Some(7.08),
        }
    }

    #[test]
    fn what_endpoints_did_is_a_line_each() {
        let gone = line("old\x1b[2J", Some(Time(NOW.0 - 3 * 3_600_000)));
        let idle = ServedLine {
            total: Served::default(),
            cost: Some(0.0),
            cost_per_million_tokens: None,
            gpu_hours: 0.0,
            ..line("idle", None)
        };
        let lines = [line("chat", None), gone, idle];
        assert_eq!(
            table(&lines, Some("EUR"), NOW, Style::PLAIN, None),
            "\
ENDPOINT    TEAM  REQUESTS  FAILED  TOKENS IN  TOKENS OUT  GPU-HOURS    EUR  EUR/M TOKENS  STATE
chat        lab     12,345       6        3 M        1200       8.50  21.25          7.08  serving
old\\x1b[2J  lab     12,345       6        3 M        1200       8.50  21.25          7.08  stopped 3h ago
idle        lab          0       0          0           0          -      -             -  serving"
        );
        let free = table(&lines[..1], None, NOW, Style::PLAIN, None);
        assert!(!free.contains("EUR") && free.ends_with("8.50  serving"), "{free}");
        assert_eq!(stopped(&StoppedEndpoints::default(), NOW, Style::PLAIN, None), NONE);
    }
}
