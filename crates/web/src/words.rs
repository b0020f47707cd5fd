//! Times, lengths and amounts as people read them. The text is what a reader without scripts sees;
//! the attributes let the script say it in the reader's own time zone, and go on counting.

use maud::{Markup, html};
use tutti_model::{Bytes, Forecast, JobState, NodeState, ReplicaPhase, Span, TaskId, Time};
use tutti_wire::api::EndpointState;

/// The two largest units: `3d 4h`, `2h 5m`, `12s`.
pub fn span(span: Span) -> String {
    let secs = span.0 / 1000;
    let units = [("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)];
    let Some(first) = units.iter().position(|(_, size)| secs >= *size) else {
        return if span.0 == 0 { "0s".to_owned() } else { format!("{}ms", span.0) };
    };
    let (unit, size) = units[first];
    let mut text = format!("{}{unit}", secs / size);
    if let Some((unit, smaller)) = units.get(first + 1) {
        let rest = secs % size / smaller;
        if rest > 0 {
            text += &format!(" {rest}{unit}");
        }
    }
    text
}

pub fn bytes(bytes: Bytes) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    for (unit, shift) in units {
        if bytes.0 >> shift > 0 {
            let amount = bytes.0 as f64 / (1u64 << shift) as f64;
            let digits = usize::from(amount < 100.0 && amount.fract() > 0.05);
            return format!("{amount:.digits$} {unit}");
        }
    }
    format!("{} B", bytes.0)
}

pub use tutti_model::{count, thousands as number};

pub fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// The same where little counts: `0.4 %`, `12 %`.
pub fn fine_percent(share: f64) -> String {
    match share * 100.0 {
        p if p > 0.0 && p < 9.95 => format!("{p:.1} %"),
        p => format!("{p:.0} %"),
    }
}

/// How often a second: `0`, `0.4`, `7.3`, `1,204`.
pub fn rate(per_second: f64) -> String {
    match per_second {
        r if r < 0.05 => "0".to_owned(),
        r if r < 9.95 => format!("{r:.1}"),
        r => number(r.round() as u64),
    }
}

/// How long somebody waited for an answer: `12 ms`, `1.4 s`, `2m 5s`.
pub fn wait(wait: Span) -> String {
    match wait.0 {
        ms if ms < 1000 => format!("{ms} ms"),
        ms if ms < 60_000 => format!("{:.1} s", ms as f64 / 1000.0),
        _ => span(wait),
    }
}

/// `640 W`, `4.9 kW`: no finer than the eye can follow, so that a row is not sent for every watt.
pub fn watts(watts: f64) -> String {
    match watts {
        w if w >= 1000.0 => format!("{:.1} kW", w / 1000.0),
        w => format!("{:.0} W", (w / 10.0).round() * 10.0),
    }
}

/// Thousandths of GPUs: `2`, `2.5`.
pub fn milli(milli: u64) -> String {
    match (milli / 1000, milli % 1000) {
        (whole, 0) => number(whole),
        (whole, rest) => format!("{whole}.{}", format!("{rest:03}").trim_end_matches('0')),
    }
}

/// The same where only the size counts: `7.5`.
pub fn tenths(of_milli: u64) -> String {
    milli((of_milli + 50) / 100 * 100)
}

const ISO: &str = "%Y-%m-%dT%H:%M:%SZ";
const SHORT: &str = "%Y-%m-%d %H:%M UTC";

fn utc(at: Time, form: &str) -> String {
    let at = i64::try_from(at.0).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    at.map_or_else(String::new, |at| at.strftime(form).to_string())
}

/// A point in time inside a sentence.
pub fn stamp(at: Time) -> String {
    utc(at, SHORT)
}

/// A point in time.
pub fn when(at: Time) -> Markup {
    html! {
        time datetime=(utc(at, ISO)) data-t=(at.0) { (utc(at, SHORT)) }
    }
}

/// How long ago: the script counts. The text is the point in time, so that a row does not change only
/// because time passes.
pub fn ago(at: Time) -> Markup {
    counted(at, html! { time datetime=(utc(at, ISO)) data-since=(at.0) { (utc(at, SHORT)) } })
}

/// How long until then, in the same way.
pub fn ahead(at: Time) -> Markup {
    counted(at, html! { time datetime=(utc(at, ISO)) data-until=(at.0) { (utc(at, SHORT)) } })
}

/// When something is expected to start, as a sentence goes on: `any moment, in 29m at the latest`. The
/// script leaves the latest time out once that is any moment, too.
pub fn expected(forecast: Forecast) -> Markup {
    let late = forecast.late.filter(|late| *late > forecast.early);
    html! {
        (ahead(forecast.early))
        @if let Some(late) = late { span.late { ", " (ahead(late)) " at the latest" } }
    }
}

/// Nobody counts from a time that never was.
fn counted(at: Time, markup: Markup) -> Markup {
    if at.0 == 0 {
        html! { "–" }
    } else {
        markup
    }
}

/// A state with its sign: never colour alone.
pub fn job_state(state: JobState) -> Markup {
    let sign = match state {
        JobState::Pending => "○",
        JobState::Starting => "◔",
        JobState::Running => "●",
        JobState::Suspended => "‖",
        JobState::Stopping => "◕",
        JobState::Completed => "✓",
        JobState::Failed => "✕",
        JobState::Cancelled => "⊘",
    };
    badge(state.as_str(), sign, state.as_str())
}

pub fn node_state(state: NodeState) -> Markup {
    let sign = match state {
        NodeState::Ready => "●",
        NodeState::Cleaning => "◔",
        NodeState::Draining => "◑",
        NodeState::Drained => "○",
        NodeState::Away => "?",
        NodeState::Lost => "✕",
    };
    badge(state.as_str(), sign, state.as_str())
}

pub fn endpoint_state(state: EndpointState) -> Markup {
    let sign = match state {
        EndpointState::Ready => "●",
        EndpointState::Partial => "◐",
        EndpointState::Starting => "◔",
        EndpointState::Asleep => "○",
        EndpointState::Failing => "✕",
        EndpointState::Stopping => "◕",
    };
    badge(state.as_str(), sign, state.as_str())
}

pub fn replica_phase(phase: ReplicaPhase) -> Markup {
    match phase {
        ReplicaPhase::Coming => badge("starting", "◔", "coming"),
        ReplicaPhase::Ready => badge("ready", "●", "ready"),
        ReplicaPhase::Draining { .. } => badge("draining", "◑", "draining"),
    }
}

pub fn badge(class: &str, sign: &str, text: &str) -> Markup {
    html! { span.badge.(class) { span.sign aria-hidden="true" { (sign) } (text) } }
}

pub fn job_link(id: TaskId) -> Markup {
    html! { a href={ "/jobs/" (id) } { (id) } }
}

pub fn node_link(name: &str) -> Markup {
    html! { a href={ "/nodes/" (encoded(name)) } { (name) } }
}

pub fn endpoint_link(name: &str) -> Markup {
    html! { a href={ "/endpoints/" (encoded(name)) } { (name) } }
}

/// Text as one part of an address, whatever it contains.
pub fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out += &format!("%{byte:02X}");
        }
    }
    out
}

/// Things are imagined, and said to be.
pub fn simulated() -> Markup {
    html! {
        span.badge.simulated title="Devices and their values are imagined; processes are real" {
            "simulated"
        }
    }
}

/// All of the cluster is imagined, and so is the time.
pub fn staged(now: Time) -> Markup {
    let title = "This cluster exists in a simulation only, and this is its clock";
    html! {
        span.badge.simulated title=(title) {
            "simulated" time datetime=(utc(now, ISO)) data-clock="" { (utc(now, SHORT)) }
        }
    }
}

/// A bar that says its value to everybody.
pub fn meter(label: &str, part: u64, whole: u64) -> Markup {
    html! {
        meter aria-label=(label) min="0" max=(whole.max(1)) value=(part.min(whole)) {
            (part) " of " (whole)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_short() {
        let secs = |s| span(Span::secs(s));
        assert_eq!(
            [secs(12), secs(65), secs(7500), secs(277_200)],
            ["12s", "1m 5s", "2h 5m", "3d 5h"]
        );
        assert_eq!([span(Span(0)), span(Span(250)), secs(3600)], ["0s", "250ms", "1h"]);
        assert_eq!(bytes(Bytes::gib(80)), "80 GiB");
        assert_eq!(bytes(Bytes(1536 << 20)), "1.5 GiB");
        assert_eq!([number(7), number(1234), number(1_234_567)], ["7", "1,234", "1,234,567"]);
        assert_eq!([watts(72.4), watts(996.0), watts(4_930.0)], ["70 W", "1000 W", "4.9 kW"]);
        assert_eq!([milli(2000), milli(2500), milli(250)], ["2", "2.5", "0.25"]);
        assert_eq!([tenths(7_456), tenths(43_038), tenths(20)], ["7.5", "43", "0"]);
        assert_eq!([rate(0.01), rate(0.42), rate(9.96), rate(1204.4)], ["0", "0.4", "10", "1,204"]);
        let waits = [Span(12), Span(1440), Span(125_000)].map(wait);
        assert_eq!(waits, ["12 ms", "1.4 s", "2m 5s"]);
        assert_eq!([0.0, 0.004, 0.123].map(fine_percent), ["0 %", "0.4 %", "12 %"]);
        assert_eq!([count(1, "node"), count(2, "node")], ["1 node", "2 nodes"]);
    }

    #[test]
    fn a_name_stays_one_part_of_an_address() {
        assert_eq!(encoded("dgx-h100_1.lab~"), "dgx-h100_1.lab~");
        assert_eq!(encoded("a&b=c d/é?#%+"), "a%26b%3Dc%20d%2F%C3%A9%3F%23%25%2B");
        let link = node_link("a/b&c").into_string();
        assert_eq!(link, "<a href=\"/nodes/a%2Fb%26c\">a/b&amp;c</a>");
    }

    #[test]
    fn times_have_a_form_for_machines() {
        let text = when(Time(1_794_810_318_000)).into_string();
        assert!(text.contains("datetime=\"2026-11-16T"), "{text}");
        assert!(text.contains("data-t=\"1794810318000\""), "{text}");
        let (soon, before) = (ahead(Time(5)).into_string(), ago(Time(7)).into_string());
        assert!(soon.contains("data-until=\"5\"") && before.contains("data-since=\"7\""));
    }

    /// What is between the tags, which is what the script leaves as it is.
    fn around_times(markup: &Markup) -> String {
        let text = markup.0.replace("</time>", "<time");
        text.split("<time").step_by(2).map(|piece| format!("{piece}…")).collect()
    }

    #[test]
    fn an_estimate_reads_as_part_of_a_sentence() {
        let told = |early, late: Option<u64>| {
            expected(Forecast { early: Time(early), late: late.map(Time) })
        };
        let both = around_times(&told(5000, Some(9000)));
        assert_eq!(both, "…<span class=\"late\">, … at the latest</span>…");
        for late in [None, Some(5000)] {
            assert_eq!(told(5000, late).0, ahead(Time(5000)).0, "{late:?}");
        }
    }
}
