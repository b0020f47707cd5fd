//! Which of the files that its operator names are on this machine.

use std::path::Path;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::Node;

/// How often they are looked for.
const EVERY: Duration = Duration::from_secs(15);

pub struct Files {
    there: watch::Receiver<Vec<String>>,
    /// The controller is yet to be told.
    news: bool,
}

impl Files {
    /// In a thread of its own: a dead file system may keep it waiting for ever.
    pub fn watch(named: &[String]) -> Files {
        Files::look(named, EVERY)
    }

    fn look(named: &[String], every: Duration) -> Files {
        let (tell, there) = watch::channel(Vec::new());
        if !named.is_empty() {
            let named = named.to_vec();
            let look = move || {
                while !tell.is_closed() {
                    let found = present(&named);
                    tell.send_if_modified(|there| std::mem::replace(there, found) != *there);
                    std::thread::sleep(every);
                }
            };
            if let Err(error) = std::thread::Builder::new().name("files".into()).spawn(look) {
                tracing::error!(%error, "nobody looks for the files of --files");
            }
        }
        Files { there, news: false }
    }

    /// Others are there now.
    pub async fn changed(&mut self) {
        match self.there.changed().await {
            Ok(()) => self.news = true,
            // Nobody looks.
            Err(_) => std::future::pending().await,
        }
    }

    /// All that are there, to be told.
    pub fn tell(&mut self) -> Vec<String> {
        self.news = false;
        self.there.borrow_and_update().clone()
    }
}

fn present(named: &[String]) -> Vec<String> {
    named.iter().filter(|path| Path::new(path).exists()).cloned().collect()
}

impl Node {
    /// What a machine has is said in the greeting, so the stream is opened anew; but not while somebody
    /// reads a log or has a shell through it.
    pub(super) fn tell_files(&mut self, now: Instant) {
        if self.files.news && self.requests.are_none() {
            tracing::info!("other files are here than before; connecting anew");
            self.files.news = false;
            self.connect_anew(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_there_is_told_and_what_comes_and_goes() {
        let dir = std::env::temp_dir().join(format!("tutti-files-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (here, later) = (dir.display().to_string(), dir.join("later"));
        let named = [later.display().to_string(), here.clone()];
        let mut files = Files::look(&named, Duration::from_millis(1));
        files.changed().await;
        assert_eq!(files.tell(), [here]);
        std::fs::write(&later, "a model").unwrap();
        files.changed().await;
        assert_eq!(files.tell(), named);
        std::fs::remove_dir_all(&dir).unwrap();
        while !files.tell().is_empty() {
            files.changed().await;
        }
    }
}
