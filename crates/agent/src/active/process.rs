//! The check in a process of its own, `tutti __cuda --check`: a GPU may hang, and takes whoever asked it
//! along. What the process has said until it was given up still counts.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use tutti_gpu::active::{Asked, Line, measure};
use tutti_gpu::cuda::{CudaError, GpuUuid};
use tutti_model::{ActiveOutcome, ActivePart, ActiveSum, GpuIndex};

use super::{Measured, Measurer};
use crate::child;
use crate::suspend::serve::VERB;

/// Given to the verb, with the GPUs as JSON.
pub const ARGUMENT: &str = "--check";
/// A driver that has to wake cards first takes its time.
const PATIENCE: Duration = Duration::from_secs(60);
const PATIENCE_EACH: Duration = Duration::from_secs(5);
/// For one that has said everything.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);
/// Of what it complains about, so much is kept.
const WORDS_MAX: u64 = 4096;

/// The helper's life: checks, and says so on standard output.
pub fn serve(gpus: &[Asked]) -> Result<(), CudaError> {
    let out = Mutex::new(io::stdout());
    measure(gpus, &|line| {
        let mut text = serde_json::to_string(&line).expect("plain data");
        text.push('\n');
        let mut out = out.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // Nobody needs it any more if nobody listens.
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    })
}

/// Starts helpers.
#[derive(Clone, Debug)]
pub struct Process {
    /// This binary.
    program: PathBuf,
}

/// How the helper ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    /// With what it complained about.
    Exited(String),
    TooLong(Duration),
}

impl Process {
    pub fn new(program: PathBuf) -> Process {
        Process { program }
    }

    /// And whether the helper ended by itself.
    fn group(&self, gpus: &[Asked]) -> (Measured, bool) {
        let patience = PATIENCE + PATIENCE_EACH * gpus.len() as u32;
        let (lines, end) = match self.start(gpus) {
            Ok(child) => listen(child, patience),
            Err(error) => {
                let words = format!("{} can't be started: {error}", self.program.display());
                (Vec::new(), End::Exited(words))
            }
        };
        (assemble(gpus, &lines, &end), matches!(end, End::Exited(_)))
    }

    fn start(&self, gpus: &[Asked]) -> io::Result<Child> {
        let uuids: Vec<&str> = gpus.iter().map(|g| g.uuid.as_str()).collect();
        Command::new(&self.program)
            .args([VERB, ARGUMENT, &serde_json::to_string(gpus).expect("plain data")])
            .env("CUDA_VISIBLE_DEVICES", uuids.join(","))
            // Straight to the card: a daemon that shares it would stand between.
            .env("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent")
            .env("CUDA_CACHE_DISABLE", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
    }
}

impl Measurer for Process {
    /// Whole GPUs together. A process sees only one instance of a GPU that is cut in pieces.
    fn measure(&self, gpus: &[Asked]) -> Measured {
        let is_whole = |asked: &&Asked| GpuUuid::parse(&asked.uuid).is_some();
        let whole: Vec<Asked> = gpus.iter().filter(is_whole).cloned().collect();
        let (mut all, ended) = match whole.is_empty() {
            true => (Measured::default(), true),
            false => self.group(&whole),
        };
        let mut alone: Vec<&Asked> = gpus.iter().filter(|asked| !is_whole(asked)).collect();
        let not_run =
            |(_, outcome): &(GpuIndex, _)| matches!(outcome, ActiveOutcome::NotRun { .. });
        if ended && whole.len() > 1 && all.outcomes.iter().all(not_run) {
            // The driver hides all GPUs that are named after one that it does not find.
            all.outcomes.clear();
            alone.extend(&whole);
        }
        for one in alone {
            let (measured, _) = self.group(std::slice::from_ref(one));
            all.outcomes.extend(measured.outcomes);
        }
        if whole.is_empty() {
            let why = "instances of a GPU can't reach each other".to_owned();
            all.sum = ActiveSum::NotApplicable { why };
        }
        all
    }
}

/// Everything that it says until it ends or is ended.
fn listen(mut child: Child, patience: Duration) -> (Vec<Line>, End) {
    let deadline = Instant::now() + patience;
    let (out, heard) = channel();
    let stdout = child.stdout.take();
    let stderr = child.stderr.take();
    std::thread::spawn(move || {
        for line in stdout.into_iter().flat_map(|s| BufReader::new(s).lines()) {
            let parsed = line.ok().and_then(|line| serde_json::from_str::<Line>(&line).ok());
            if parsed.is_some_and(|line| out.send(line).is_err()) {
                return;
            }
        }
    });
    let words = std::thread::spawn(move || {
        let mut words = String::new();
        // What can't be read is not said; the exit code remains.
        let _ = stderr.map(|s| s.take(WORDS_MAX).read_to_string(&mut words));
        words.trim().to_owned()
    });
    let (lines, closed) = until(&heard, deadline);
    let ended = match closed {
        true => {
            let left = deadline.saturating_duration_since(Instant::now());
            child::finish(&mut child, left.max(LEAVE_WITHIN)).ok()
        }
        false => {
            child::end(&mut child);
            None
        }
    };
    match ended {
        Some(status) => {
            let words = words.join().unwrap_or_default();
            let words = if words.is_empty() { status.to_string() } else { words };
            (lines, End::Exited(words))
        }
        None => (lines, End::TooLong(patience)),
    }
}

/// What is said until then, and whether the speaker has ended.
fn until(heard: &Receiver<Line>, deadline: Instant) -> (Vec<Line>, bool) {
    let mut lines = Vec::new();
    loop {
        match heard.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => lines.push(line),
            Err(RecvTimeoutError::Disconnected) => return (lines, true),
            Err(RecvTimeoutError::Timeout) => return (lines, false),
        }
    }
}

/// What the helper's words and its end mean for each GPU.
fn assemble(asked: &[Asked], lines: &[Line], end: &End) -> Measured {
    let outcomes = asked.iter().map(|a| (a.gpu, outcome(a.gpu, lines, end))).collect();
    let sum = lines.iter().find_map(|line| match line {
        Line::Sum { sum } => Some(sum.clone()),
        _ => None,
    });
    let sum = sum.unwrap_or_else(|| match (end, last_step(None, lines)) {
        (End::TooLong(limit), Some((Some(ActivePart::AllReduce), what))) => {
            ActiveSum::Failed { gpu: None, why: too_long(&what, *limit) }
        }
        (End::TooLong(_), _) => ActiveSum::NotRun { why: "it did not come to that".to_owned() },
        (End::Exited(words), _) => ActiveSum::NotRun { why: words.clone() },
    });
    Measured { outcomes, sum }
}

fn outcome(gpu: GpuIndex, lines: &[Line], end: &End) -> ActiveOutcome {
    let said = lines.iter().find_map(|line| match line {
        Line::Gpu { gpu: of, outcome } if *of == gpu => Some(outcome.clone()),
        _ => None,
    });
    if let Some(said) = said {
        return said;
    }
    match (end, last_step(Some(gpu), lines)) {
        // It was at work, and nobody else can have held it up.
        (End::TooLong(limit), Some((Some(what), words))) => {
            ActiveOutcome::Failed { what, why: too_long(&words, *limit) }
        }
        (End::TooLong(limit), step) => {
            let words = step.or_else(|| last_step(None, lines)).map(|(_, words)| words);
            let words = words.unwrap_or_else(|| "starting".to_owned());
            ActiveOutcome::NotRun { why: too_long(&words, *limit) }
        }
        (End::Exited(words), _) => ActiveOutcome::NotRun { why: words.clone() },
    }
}

fn too_long(what: &str, limit: Duration) -> String {
    format!("{what}: did not end within {} s", limit.as_secs())
}

fn last_step(gpu: Option<GpuIndex>, lines: &[Line]) -> Option<(Option<ActivePart>, String)> {
    lines.iter().rev().find_map(|line| match line {
        Line::Step { gpu: of, part, what } if *of == gpu => Some((*part, what.clone())),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tutti_model::ActiveFigures;

    fn asked() -> Vec<Asked> {
        (0..3).map(|n| Asked { gpu: GpuIndex(n), uuid: format!("GPU-{n}") }).collect()
    }

    fn step(gpu: Option<u16>, part: Option<ActivePart>, what: &str) -> Line {
        Line::Step { gpu: gpu.map(GpuIndex), part, what: what.to_owned() }
    }

    #[test]
    fn who_hangs_is_named_and_who_was_done_is_done() {
        let lines = [
            step(None, None, "starting the CUDA driver"),
            step(Some(0), Some(ActivePart::Memory), "copying memory"),
            step(Some(1), Some(ActivePart::Matmul), "multiplying matrices"),
            step(Some(2), None, "opening the GPU"),
            Line::Gpu { gpu: GpuIndex(0), outcome: ActiveOutcome::Done(ActiveFigures::default()) },
        ];
        let measured = assemble(&asked(), &lines, &End::TooLong(Duration::from_secs(75)));
        let [first, second, third] = &measured.outcomes[..] else { panic!("{measured:?}") };
        assert!(matches!(first.1, ActiveOutcome::Done(_)));
        let why = "multiplying matrices: did not end within 75 s".to_owned();
        assert_eq!(second.1, ActiveOutcome::Failed { what: ActivePart::Matmul, why });
        let why = "opening the GPU: did not end within 75 s".to_owned();
        assert_eq!(third.1, ActiveOutcome::NotRun { why });
        assert!(matches!(measured.sum, ActiveSum::NotRun { .. }));
    }

    #[test]
    fn a_helper_that_fails_speaks_against_no_gpu() {
        let words = "libcuda.so.1 can't be loaded".to_owned();
        let end = End::Exited(words.clone());
        let measured = assemble(&asked(), &[], &end);
        let wanted = ActiveOutcome::NotRun { why: words };
        assert!(measured.outcomes.iter().all(|(_, outcome)| *outcome == wanted));
    }

    #[test]
    fn a_gpu_that_is_gone_does_not_hide_the_others() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("helper");
        let uuid = |n: u16| format!("GPU-00000000-0000-0000-0000-00000000000{n}");
        let outcome = ActiveOutcome::Done(ActiveFigures::default());
        let line = serde_json::to_string(&Line::Gpu { gpu: GpuIndex(1), outcome }).unwrap();
        let script = format!(
            "#!/bin/sh\n[ \"$CUDA_VISIBLE_DEVICES\" = {} ] || {{ echo not found >&2; exit 1; }}\n\
             echo '{line}'\n",
            uuid(1)
        );
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let asked: Vec<Asked> = (0..2).map(|n| Asked { gpu: GpuIndex(n), uuid: uuid(n) }).collect();
        let measured = Process::new(program).measure(&asked);
        let [first, second] = &measured.outcomes[..] else { panic!("{measured:?}") };
        assert_eq!(first.1, ActiveOutcome::NotRun { why: "not found".into() });
        assert!(matches!(second.1, ActiveOutcome::Done(_)), "{second:?}");
        assert!(matches!(measured.sum, ActiveSum::NotRun { .. }));
    }

    #[test]
    fn what_a_process_says_is_heard_and_one_that_stays_is_ended() {
        let child = |script: &str| {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", script]).stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().unwrap()
        };
        let said = serde_json::to_string(&step(None, None, "starting")).unwrap();
        let (lines, end) = listen(
            child(&format!("echo '{said}'; echo no driver >&2; exit 1")),
            Duration::from_secs(60),
        );
        assert_eq!(lines, [step(None, None, "starting")]);
        assert_eq!(end, End::Exited("no driver".into()));
        let (lines, end) = listen(child("exec sleep 600"), Duration::from_millis(50));
        assert_eq!((lines.len(), end), (0, End::TooLong(Duration::from_millis(50))));
    }
}
