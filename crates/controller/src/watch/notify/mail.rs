//! An alert as a message that `sendmail -t` reads.

use std::fmt::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tutti_model::{Alert, Day, Time, WatchAction};

/// Bytes of one encoded word of a header; all of it may be 75 characters long.
const WORD_BYTES: usize = 45;

pub fn message(to: &[String], event: &str, alert: &Alert) -> String {
    let Alert { subject, text, rule, since, .. } = alert;
    let about = match &alert.job {
        Some(job) => format!("{subject} ({} of {})", job.name, job.user),
        None => subject.to_string(),
    };
    let ended = if event == "ended" { "over: " } else { "" };
    let title = header(&format!("[tutti] {ended}{about}: {text}"));
    let mut message = format!(
        "To: {}\r\nSubject: {title}\r\nMIME-Version: 1.0\r\nContent-Type: text/plain; \
         charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n\r\n",
        to.join(", ")
    );
    let done = match alert.action {
        WatchAction::Off | WatchAction::Tell => "nothing but telling you",
        WatchAction::Warn => "the job was warned",
        WatchAction::Requeue => "the job is started again",
        WatchAction::Kill => "the job is stopped",
    };
    // Writing to a string does not fail.
    let _ = write!(
        message,
        "{ended}{about}: {text}.\r\n\r\nrule:   {}\r\nsince:  {}\r\naction: {done}\r\n\
         \r\n`tutti alerts` shows what is wrong now.\r\n",
        rule.as_str(),
        utc(*since)
    );
    message
}

/// As `2026-11-16 09:05:07 UTC`.
fn utc(at: Time) -> String {
    let secs = at.0 / 1000;
    let (hour, minute, second) = (secs / 3600 % 24, secs / 60 % 60, secs % 60);
    format!("{} {hour:02}:{minute:02}:{second:02} UTC", Day::of(at))
}

/// Plain where it can be, else in encoded words (RFC 2047).
fn header(text: &str) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.is_ascii() {
        return text;
    }
    let mut words = vec![String::new()];
    for c in text.chars() {
        if words.last().is_some_and(|word| word.len() + c.len_utf8() > WORD_BYTES) {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut() {
            word.push(c);
        }
    }
    let encoded = words.iter().map(|word| format!("=?utf-8?B?{}?=", STANDARD.encode(word)));
    encoded.collect::<Vec<_>>().join("\r\n ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_of_the_calendar() {
        assert_eq!(utc(Time(0)), "1970-01-01 00:00:00 UTC");
        // Monday, 2026-11-16, is day 20,773.
        let at = 20_773 * 86_400 + 9 * 3600 + 5 * 60 + 7;
        assert_eq!(utc(Time(at * 1000 + 999)), "2026-11-16 09:05:07 UTC");
    }

    #[test]
    fn a_name_can_not_add_a_header() {
        assert_eq!(header("a\r\nBcc: x@y"), "a  Bcc: x@y");
    }

    #[test]
    fn other_letters_are_encoded_in_words_of_bounded_length() {
        let text = "größer als erwartet, und zwar über alle Maßen: ".repeat(3);
        let encoded = header(&text);
        let decode = |word: &str| {
            assert!(word.len() <= 75, "{word}");
            let inner = word.strip_prefix("=?utf-8?B?").and_then(|w| w.strip_suffix("?="));
            String::from_utf8(STANDARD.decode(inner.unwrap()).unwrap()).unwrap()
        };
        let back: String = encoded.split("\r\n ").map(decode).collect();
        assert_eq!(back, text);
    }
}
