//! What must be asked of name services and file systems before a part can start. Those may hang,
//! on a dead file server for instance, and the node's heartbeat must not hang with them: they are
//! asked on threads, for a limited time, and what they said is remembered for a while.

use std::collections::HashMap;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, mpsc};
use tutti_model::{Blame, Launch, LeaseId, PartError};

use crate::plan::Identity;
use crate::user::{self, Account};

/// The node is to blame when it takes longer.
const WITHIN: Duration = Duration::from_secs(5);
/// A change of groups, or of the node's own address, is seen after this long.
const KEEP_NAMES: Duration = Duration::from_secs(60);
/// A directory that was there so lately is still there; if not, the rank says so.
const KEEP_DIR: Duration = Duration::from_secs(5);
const DIRS_MAX: usize = 1024;
/// Threads that may hang at the same time.
const THREADS: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Question {
    user: String,
    workdir: Option<String>,
}

#[derive(Debug)]
pub struct Answer {
    question: Question,
    found: Result<(Account, IpAddr), PartError>,
}

pub struct Lookups {
    node: String,
    address: String,
    accounts: HashMap<String, (Instant, Account)>,
    /// By user and path: what one may see, another may not.
    dirs: HashMap<(String, String), Instant>,
    at: Option<(Instant, IpAddr)>,
    /// Who waits for which answer.
    waiting: HashMap<Question, Vec<LeaseId>>,
    within: Duration,
    threads: Arc<Semaphore>,
    answers_in: mpsc::UnboundedSender<Answer>,
    answers: mpsc::UnboundedReceiver<Answer>,
}

impl Lookups {
    pub fn new(node: &str, address: &str) -> Lookups {
        let (answers_in, answers) = mpsc::unbounded_channel();
        Lookups {
            node: node.to_owned(),
            address: address.to_owned(),
            accounts: HashMap::new(),
            dirs: HashMap::new(),
            at: None,
            waiting: HashMap::new(),
            within: WITHIN,
            threads: Arc::new(Semaphore::new(THREADS)),
            answers_in,
            answers,
        }
    }

    /// True if all that the part needs was looked up lately; otherwise that is begun, and the part
    /// is named by [`Lookups::take`] later. A thousand jobs a second ask for the same few.
    pub fn is_known(&mut self, launch: &Launch) -> bool {
        let user = self.accounts.get(&launch.user);
        let dir = launch.spec.workdir.as_ref();
        if user.is_some_and(|(at, _)| at.elapsed() < KEEP_NAMES)
            && self.at.is_some_and(|(at, _)| at.elapsed() < KEEP_NAMES)
            && dir.is_none_or(|dir| self.is_there(&launch.user, dir))
        {
            return true;
        }
        let question = Question { user: launch.user.clone(), workdir: dir.cloned() };
        if let Some(waiting) = self.waiting.get_mut(&question) {
            waiting.push(launch.lease);
        } else {
            self.waiting.insert(question.clone(), vec![launch.lease]);
            self.ask(question);
        }
        false
    }

    /// Asks for an account that nobody waits for. It is known later, or asked for again.
    pub fn want(&mut self, user: &str) {
        let question = Question { user: user.to_owned(), workdir: None };
        if !self.waiting.contains_key(&question) {
            self.waiting.insert(question.clone(), Vec::new());
            self.ask(question);
        }
    }

    fn is_there(&self, user: &str, dir: &str) -> bool {
        let seen = self.dirs.get(&(user.to_owned(), dir.to_owned()));
        seen.is_some_and(|at| at.elapsed() < KEEP_DIR)
    }

    fn ask(&self, question: Question) {
        let (node, address) = (self.node.clone(), self.address.clone());
        let (threads, answers) = (self.threads.clone(), self.answers_in.clone());
        let within = self.within;
        tokio::spawn(async move {
            let asked = question.clone();
            let late = PartError { message: question.too_long(&node), blame: Blame::Node };
            let look = async move {
                let permit = threads.acquire_owned().await;
                let answer = tokio::task::spawn_blocking(move || {
                    // Held for as long as the thread is, also when nobody waits any more.
                    let _permit = permit;
                    asked.look(&node, &address)
                });
                answer.await
            };
            let found = match tokio::time::timeout(within, look).await {
                Ok(Ok(found)) => found,
                // The thread panicked, or nothing came in time.
                Ok(Err(_)) | Err(_) => Err(late),
            };
            // The node is gone only when the agent is.
            let _ = answers.send(Answer { question, found });
        });
    }

    pub async fn next(&mut self) -> Option<Answer> {
        self.answers.recv().await
    }

    /// Remembers what was found; the parts that waited for it, and what stands in their way.
    pub fn take(&mut self, answer: Answer) -> (Vec<LeaseId>, Result<(), PartError>) {
        let Answer { question, found } = answer;
        let leases = self.waiting.remove(&question).unwrap_or_default();
        let found = found.map(|(account, at)| self.remember(question, account, at));
        (leases, found)
    }

    fn remember(&mut self, question: Question, account: Account, at: IpAddr) {
        let now = Instant::now();
        self.accounts.insert(question.user.clone(), (now, account));
        self.at = Some((now, at));
        if let Some(dir) = question.workdir {
            if self.dirs.len() >= DIRS_MAX {
                self.dirs.clear();
            }
            self.dirs.insert((question.user, dir), now);
        }
    }

    /// For parts that an earlier agent prepared: theirs may start at any time. Waits.
    pub fn look_up_now(&mut self, user: &str) {
        let question = Question { user: user.to_owned(), workdir: None };
        if self.accounts.contains_key(user) {
            return;
        }
        let (send, receive) = std::sync::mpsc::channel();
        let (asked, node, address) = (question.clone(), self.node.clone(), self.address.clone());
        std::thread::spawn(move || {
            // Nobody waits for an answer that comes too late.
            let _ = send.send(asked.look(&node, &address));
        });
        match receive.recv_timeout(WITHIN) {
            Ok(Ok((account, at))) => self.remember(question, account, at),
            Ok(Err(error)) => tracing::error!("{}", error.message),
            Err(_) => tracing::error!("{}", question.too_long(&self.node)),
        }
    }

    /// The account that a job of this user runs under. Looked up when the part was prepared.
    pub fn account(&self, user: &str) -> Result<Account, PartError> {
        let known = self.accounts.get(user).map(|(_, account)| account.clone());
        known.ok_or_else(|| PartError {
            message: format!("user '{user}' could not be looked up on node {}", self.node),
            blame: Blame::Node,
        })
    }

    /// This node's own address. Looked up when the part was prepared.
    pub fn address(&self) -> Option<IpAddr> {
        self.at.map(|(_, at)| at)
    }
}

impl Question {
    fn too_long(&self, node: &str) -> String {
        let secs = WITHIN.as_secs();
        let dir = self.workdir.as_ref().map(|d| format!(" and the working directory '{d}'"));
        let (user, dir) = (&self.user, dir.unwrap_or_default());
        format!("looking up user '{user}'{dir} took more than {secs} s on node {node}")
    }

    /// Blocks for as long as name services and file systems do.
    fn look(&self, node: &str, address: &str) -> Result<(Account, IpAddr), PartError> {
        let account = user::look_up(&self.user, node)?;
        if let Some(dir) = &self.workdir {
            check_workdir(dir, node, account.identity.as_ref())?;
        }
        let here = |e: &dyn std::fmt::Display| PartError {
            message: format!("the address '{address}' of node {node} can't be looked up: {e}"),
            blame: Blame::Node,
        };
        let mut found = (address, 0).to_socket_addrs().map_err(|e| here(&e))?;
        let at = found.next().ok_or_else(|| here(&"it has no address"))?;
        Ok((account, at.ip()))
    }
}

/// With the eyes of the job's user, or the answer would say what is in directories that are closed to
/// them. Only what is certain: what can't be looked at is for the rank to find out.
fn check_workdir(dir: &str, node: &str, identity: Option<&Identity>) -> Result<(), PartError> {
    let look = || std::fs::metadata(dir);
    let found = match identity {
        Some(identity) => identity.act(look).unwrap_or_else(Err),
        None => look(),
    };
    let problem = match found {
        Ok(found) if found.is_dir() => return Ok(()),
        Ok(_) => "is not a directory",
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => "does not exist",
        Err(_) => return Ok(()),
    };
    let message = format!("the working directory '{dir}' {problem} on node {node}");
    Err(PartError { message, blame: Blame::Job })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::launch;

    #[tokio::test]
    async fn parts_that_ask_the_same_wait_for_one_answer() {
        let mut lookups = Lookups::new("n1", "127.0.0.1");
        let (first, second) = (launch("1", 1), launch("2", 2));
        assert!(!lookups.is_known(&first));
        assert!(!lookups.is_known(&second));
        let answer = lookups.next().await.unwrap();
        let (leases, found) = lookups.take(answer);
        assert_eq!((leases, found), (vec![first.lease, second.lease], Ok(())));
        assert!(lookups.is_known(&launch("3", 3)), "no thread for the third");
        assert_eq!(lookups.address(), Some("127.0.0.1".parse().unwrap()));
        assert!(lookups.account("root").is_ok());
    }

    #[test]
    fn a_working_directory_is_looked_for_with_the_users_eyes() {
        use std::os::unix::fs::PermissionsExt;
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (home, shut) = (dir.path().join("home"), dir.path().join("shut"));
        for (path, mode) in [(dir.path(), 0o755), (&home, 0o755), (&shut, 0o700)] {
            std::fs::create_dir_all(path).unwrap();
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        std::fs::create_dir(shut.join("secret")).unwrap();
        std::fs::write(shut.join("file"), "").unwrap();
        let somebody = Identity { uid: 61_001, gid: 61_001, groups: vec![61_001] };
        let look = |path: std::path::PathBuf, identity| {
            check_workdir(path.to_str().unwrap(), "n1", identity).map_err(|e| e.message)
        };
        // All the same, whatever is there.
        for name in ["secret", "file", "none"] {
            assert_eq!(look(shut.join(name), Some(&somebody)), Ok(()), "{name}");
        }
        let said = look(home.join("none"), Some(&somebody)).unwrap_err();
        assert!(said.ends_with("home/none' does not exist on node n1"), "{said}");
        assert!(look(shut.join("none"), None).is_err(), "root's own job may know");
    }

    #[test]
    fn what_one_user_has_seen_another_has_not() {
        let mut lookups = Lookups::new("n1", "127.0.0.1");
        let question = |user: &str| Question { user: user.into(), workdir: Some("/w".into()) };
        lookups.remember(question("alice"), Account::fake("alice"), "127.0.0.1".parse().unwrap());
        assert!(lookups.is_there("alice", "/w") && !lookups.is_there("bob", "/w"));
    }

    #[tokio::test]
    async fn an_answer_that_does_not_come_is_the_nodes_fault() {
        let mut lookups = Lookups::new("n1", "127.0.0.1");
        lookups.within = Duration::from_millis(1);
        let _all_hang = lookups.threads.clone().acquire_many_owned(THREADS as u32).await.unwrap();
        assert!(!lookups.is_known(&launch("1", 1)));
        let answer = lookups.next().await.unwrap();
        let error = lookups.take(answer).1.unwrap_err();
        assert_eq!(error.message, "looking up user 'root' took more than 5 s on node n1");
        assert_eq!(error.blame, Blame::Node);
    }
}
