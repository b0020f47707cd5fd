//! Lines on `$TUTTI_PROGRESS`. Nobody may be listening: then nothing happens.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tutti_model::{ProgressLine, Rank};

/// After a failure, so long until the next try: a step must not pay for an agent that is away.
const RETRY: Duration = Duration::from_secs(5);

/// Where a rank's lines go.
pub struct Progress {
    rank: Rank,
    path: Option<PathBuf>,
    stream: Option<UnixStream>,
    not_before: Option<Instant>,
}

impl Progress {
    /// Says nothing when there is no path.
    pub fn new(rank: usize, path: Option<PathBuf>) -> Self {
        let rank = Rank(u32::try_from(rank).expect("a gang has fewer ranks than that"));
        Progress { rank, path, stream: None, not_before: None }
    }

    pub fn from_env(rank: usize) -> Self {
        let path = std::env::var_os("TUTTI_PROGRESS").filter(|path| !path.is_empty());
        Self::new(rank, path.map(PathBuf::from))
    }

    /// Never fails and never waits: a line that does not get through is lost, and the next one
    /// that does says more anyway.
    pub fn say(&mut self, line: ProgressLine) {
        if self.path.is_none() || self.not_before.is_some_and(|time| Instant::now() < time) {
            return;
        }
        let line = ProgressLine { rank: Some(self.rank), ..line };
        let mut text = serde_json::to_string(&line).expect("a line is plain data");
        text.push('\n');
        if self.write(text.as_bytes()).is_err() {
            // Half a line may be out: only a new connection starts a new line.
            self.stream = None;
            self.not_before = Some(Instant::now() + RETRY);
        }
    }

    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        if self.stream.is_none() {
            let path = self.path.as_ref().expect("asked before");
            let stream = UnixStream::connect(path)?;
            stream.set_nonblocking(true)?;
            self.stream = Some(stream);
        }
        self.stream.as_mut().expect("just connected").write_all(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn lines_arrive_with_the_rank_and_a_missing_listener_is_no_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("progress");
        let mut progress = Progress::new(3, Some(path.clone()));
        progress.say(ProgressLine { step: Some(1), ..ProgressLine::default() });
        assert!(progress.not_before.is_some());

        let listener = UnixListener::bind(&path).unwrap();
        let mut progress = Progress::new(3, Some(path));
        progress.say(ProgressLine { step: Some(7), loss: Some(2.5), ..ProgressLine::default() });
        let (stream, _) = listener.accept().unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        let line: ProgressLine = serde_json::from_str(&line).unwrap();
        assert_eq!((line.rank, line.step, line.loss), (Some(Rank(3)), Some(7), Some(2.5)));
        drop(listener);
        progress.say(ProgressLine::default());
    }
}
