//! Lines of the kernel's log that say that something broke. From `/dev/kmsg` or from `dmesg`.

use tutti_model::Time;

/// One record of `/dev/kmsg`: "6,1234,5678901,-;text", with continuation lines that are of no use
/// here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    pub seq: u64,
    /// Microseconds since the machine was started.
    pub since_boot: u64,
    pub text: &'a str,
}

impl<'a> Record<'a> {
    pub fn parse(record: &'a str) -> Option<Record<'a>> {
        let (head, text) = record.split_once(';')?;
        let mut fields = head.split(',');
        let _priority = fields.next()?;
        let seq = fields.next()?.parse().ok()?;
        let since_boot = fields.next()?.parse().ok()?;
        Some(Record { seq, since_boot, text: text.lines().next().unwrap_or_default() })
    }

    /// By the node's clock, if it was started at `boot`.
    pub fn at(&self, boot: Time) -> Time {
        Time(boot.0 + self.since_boot / 1000)
    }
}

/// What a line says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An error number of the NVIDIA driver.
    Xid {
        pci: String,
        xid: u32,
        /// Which program, if the driver knows.
        process: Option<String>,
        /// XID 154: what the driver asks for.
        recovery: Option<u32>,
        rest: String,
    },
    /// An error number of an NVSwitch.
    Sxid { pci: String, sxid: u32, fatal: bool, rest: String },
    /// The NVIDIA driver says that this device does not answer any more.
    OffTheBus { pci: String },
    /// AMD's driver gave a GPU a reset: it worked, or it did not.
    AmdReset { pci: String, ok: bool },
    /// An uncorrectable memory error of an AMD GPU.
    AmdUncorrectable { pci: String, text: String },
    /// A PCIe error that was not corrected.
    Pcie { pci: String, fatal: bool },
    /// The machine ran out of memory, and this program was killed.
    OutOfMemory { process: String },
    /// A disk or file system failed; `read_only`: it can't be written any more.
    Disk { device: String, read_only: bool, text: String },
}

/// What this line says, if it is one that matters.
pub fn parse(line: &str) -> Option<Event> {
    let line = without_stamp(line);
    xid(line)
        .or_else(|| sxid(line))
        .or_else(|| off_the_bus(line))
        .or_else(|| amd(line))
        .or_else(|| pcie(line))
        .or_else(|| out_of_memory(line))
        .or_else(|| disk(line))
}

/// `dmesg` puts "[ 123.456789] " before each line.
fn without_stamp(line: &str) -> &str {
    let line = line.trim();
    match line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((stamp, rest)) if stamp.trim().parse::<f64>().is_ok() || stamp.contains(':') => {
            rest.trim_start()
        }
        _ => line,
    }
}

/// The text in the brackets after `word`, and what follows the colon.
fn bracketed<'a>(line: &'a str, word: &str) -> Option<(&'a str, &'a str)> {
    let (_, rest) = line.split_once(word)?;
    let (pci, rest) = rest.strip_prefix(" (")?.split_once("): ")?;
    Some((pci.strip_prefix("PCI:").unwrap_or(pci), rest))
}

fn xid(line: &str) -> Option<Event> {
    let (pci, rest) = bracketed(line, "NVRM: Xid")?;
    let (number, rest) = rest.split_once(',').unwrap_or((rest, ""));
    let xid = number.trim().parse().ok()?;
    let rest = rest.trim().to_owned();
    let recovery = (xid == super::xid::RECOVERY).then(|| changed_to(&rest)).flatten();
    Some(Event::Xid { pci: pci.to_owned(), xid, process: process(&rest), recovery, rest })
}

/// "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)".
fn changed_to(rest: &str) -> Option<u32> {
    let value = rest.split_once(" to ")?.1.split_whitespace().next()?;
    match value.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => value.parse().ok(),
    }
}

/// "pid=1234, name=python3, ..."; either may be '<unknown>'.
fn process(rest: &str) -> Option<String> {
    let field = |key: &str| {
        let found = rest.split(',').find_map(|part| part.trim().strip_prefix(key))?;
        let value = found.trim_matches(['\'', '"']);
        (!value.is_empty() && value != "<unknown>").then(|| value.to_owned())
    };
    match (field("name="), field("pid=")) {
        (Some(name), Some(pid)) => Some(format!("{name} ({pid})")),
        (Some(one), None) | (None, Some(one)) => Some(one),
        (None, None) => None,
    }
}

/// The lines that follow each, with its data, have no severity and say nothing more.
fn sxid(line: &str) -> Option<Event> {
    let (pci, rest) = bracketed(line, ": SXid")?;
    let (number, rest) = rest.split_once(',')?;
    let sxid = number.trim().parse().ok()?;
    let rest = rest.trim();
    let (fatal, rest) = match (rest.strip_prefix("Fatal,"), rest.strip_prefix("Non-fatal,")) {
        (Some(rest), _) => (true, rest),
        (_, Some(rest)) => (false, rest),
        _ => return None,
    };
    Some(Event::Sxid { pci: pci.to_owned(), sxid, fatal, rest: rest.trim().to_owned() })
}

fn off_the_bus(line: &str) -> Option<Event> {
    if !line.starts_with("NVRM:") || !line.contains("fallen off the bus") {
        return None;
    }
    Some(Event::OffTheBus { pci: address_in(line)? })
}

fn amd(line: &str) -> Option<Event> {
    let rest = line.strip_prefix("amdgpu ")?;
    let (pci, rest) = rest.split_once(": ")?;
    let rest = rest.strip_prefix("amdgpu: ").unwrap_or(rest);
    let pci = pci.to_owned();
    if rest.starts_with("GPU reset") && rest.contains("succeeded") {
        return Some(Event::AmdReset { pci, ok: true });
    }
    if let Some(code) = rest.strip_prefix("GPU reset end with ret = ") {
        let failed = code.trim() != "0";
        return failed.then_some(Event::AmdReset { pci, ok: false });
    }
    if rest.starts_with("GPU recovery disabled") || rest.starts_with("GPU reset failed") {
        return Some(Event::AmdReset { pci, ok: false });
    }
    // Counted since the driver was loaded: "0 uncorrectable" is good news.
    let broken = rest.contains("uncorrectable hardware errors detected") && !starts_with_none(rest)
        || rest.contains("ERREVENT_ATHUB_INTERRUPT");
    broken.then(|| Event::AmdUncorrectable { pci, text: rest.to_owned() })
}

fn starts_with_none(rest: &str) -> bool {
    let (before, _) = rest.split_once(" uncorrectable").unwrap_or((rest, ""));
    let count = before.trim_end_matches(" new").rsplit([' ', ',']).next();
    count == Some("0")
}

/// Corrected ones are counted by the device, and judged by their rate.
fn pcie(line: &str) -> Option<Event> {
    if !line.contains("AER: ") || !line.contains("Uncorrect") {
        return None;
    }
    let fatal = line.contains("(Fatal)") || line.contains("(Uncorrectable (Fatal))");
    // A port tells of the device below it.
    let pci =
        match line.split_once("error received: ").or(line.split_once("message received from ")) {
            Some((_, from)) => address_in(from)?,
            None => address_in(line)?,
        };
    Some(Event::Pcie { pci, fatal })
}

/// A job that reached its own limit is not the machine's trouble.
fn out_of_memory(line: &str) -> Option<Event> {
    let rest = line.strip_prefix("Out of memory: ")?;
    let (_, rest) = rest.split_once("process ").or(rest.split_once("Process "))?;
    let (pid, rest) = rest.split_once(' ')?;
    let name = rest.strip_prefix('(')?.split_once(')')?.0;
    Some(Event::OutOfMemory { process: format!("{name} ({pid})") })
}

fn disk(line: &str) -> Option<Event> {
    let found = |device: &str, read_only| {
        let device = device.trim_matches([':', ',', ')', '(', '.']).to_owned();
        (!device.is_empty()).then(|| Event::Disk { device, read_only, text: line.to_owned() })
    };
    let next_word = |rest: &str| rest.split_whitespace().next().unwrap_or_default().to_owned();
    if let Some((_, rest)) = line.split_once("I/O error, dev ") {
        return found(&next_word(rest), false);
    }
    for system in ["EXT4-fs", "XFS", "BTRFS"] {
        let Some(rest) = line.strip_prefix(system) else { continue };
        let device = rest.split_once('(')?.1.split_once(')')?.0;
        let device = device.strip_prefix("device ").unwrap_or(device);
        let shut =
            ["emounting filesystem read-only", "forced readonly", "Shutting down filesystem"];
        let read_only = shut.iter().any(|words| rest.contains(words));
        let bad = ["error", "orruption", "orrupt"].iter().any(|words| rest.contains(words));
        return if read_only || bad { found(device, read_only) } else { None };
    }
    let (device, rest) = line.strip_prefix("nvme ")?.split_once(": ")?;
    (rest.contains("controller is down") || rest.contains("Removing after probe failure"))
        .then(|| found(device, false))?
}

/// The first thing in the line that looks like "0000:1b:00.0".
fn address_in(line: &str) -> Option<String> {
    let is_address = |word: &&str| {
        let parts: Vec<&str> = word.split(':').collect();
        let hex = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_hexdigit());
        parts.len() == 3
            && parts[0].len() >= 4
            && hex(parts[0])
            && hex(parts[1])
            && hex(parts[2].split('.').next().unwrap_or_default())
    };
    let word = |w: &'_ str| w.trim_matches(|c: char| !c.is_ascii_hexdigit()).to_owned();
    let words: Vec<String> = line
        .split_whitespace()
        .map(|w| {
            let w = w.strip_prefix("PCI:").unwrap_or(w);
            word(w)
        })
        .collect();
    words.into_iter().find(|w| is_address(&w.as_str()))
}

#[cfg(test)]
mod tests;
