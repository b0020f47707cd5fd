use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::DirBuilderExt;
use std::time::Duration;

use tutti_model::{Bytes, Command, Epoch, Greeting, JobSpec, JobState, NodeFacts};
use tutti_testkit::{Cli, Cluster, PATIENCE, is_root, me, wait_until};
use tutti_wire::api::{JoinRequest, LogQuery};
use tutti_wire::client::{Client, ClusterRef, Endpoint};
use tutti_wire::frame::{self, Decoder};
use tutti_wire::pki::{NodeIdentity, NodeKey};
use tutti_wire::stream::{PROTOCOL, ToAgent, ToController};
use tutti_wire::tls::{Purpose, Trust, client_config};

use crate::cluster;

fn token(cluster: &Cluster, args: &[&str]) -> (String, String) {
    let words = [&["token", "create", "--json"], args].concat();
    let made: serde_json::Value = serde_json::from_str(&cluster.cli(&words).ok()).unwrap();
    let text = |key: &str| made[key].as_str().unwrap().to_owned();
    (text("id"), text("secret"))
}

#[test]
fn roles_allow_what_they_say_and_revoked_tokens_nothing() {
    let cluster = cluster(1);
    let (viewer_id, viewer) = token(&cluster, &["--role", "viewer", "--user", &me()]);
    let (_, user) = token(&cluster, &["--role", "user", "--user", &me()]);
    let (_, other) = token(&cluster, &["--role", "user", "--user", "somebody"]);
    let with = |secret: &str, args: &[&str]| cluster.cli(args).env("TUTTI_TOKEN", secret).call();

    with(&viewer, &["ps"]).exited(0);
    with(&viewer, &["submit", "--wrap", "true"]).exited(4).says(&["viewer"]);
    with(&viewer, &["run", "--", "true"]).exited(4);
    let id = with(&user, &["submit", "--wrap", "exec sleep 600"]).succeeded();
    with(&viewer, &["cancel", &id]).exited(4);
    with(&other, &["cancel", &id]).exited(4);
    with(&user, &["drain", "n1"]).exited(4);
    with(&user, &["token", "create"]).exited(4);
    with(&user, &["cancel", &id]).exited(0);

    cluster.cli(&["token", "revoke", &viewer_id]).ok();
    with(&viewer, &["ps"]).exited(4).says(&["token"]);
    let forged = viewer[..viewer.len() - 4].to_owned() + "0000";
    with(&forged, &["ps"]).exited(4);
    let (_, brief) = token(&cluster, &["--role", "viewer", "--user", "x", "--expires", "1s"]);
    wait_until("the token has expired", PATIENCE, || with(&brief, &["ps"]).code == 4);
    let list = cluster.cli(&["token", "list"]).ok();
    assert!(!list.contains(&user[user.len() - 64..]), "a list shows no secret");
}

#[test]
fn a_join_token_works_once_and_for_its_node() {
    let cluster = cluster(1);
    let join = |secret: &str, node: &str| -> Result<NodeIdentity, i32> {
        let endpoint = Endpoint { tls: true, ..cluster.client().endpoint() };
        let found = ClusterRef { endpoint, token: secret.parse().unwrap(), data_dir: None };
        let key = NodeKey::generate().unwrap();
        let request = JoinRequest { node: node.to_owned(), csr: key.csr().unwrap() };
        let response = Client::connect(&found).join(&request).map_err(|e| e.exit_code())?;
        Ok(key.certified(&response.certificate, &response.ca).unwrap())
    };
    let (_, once) = token(&cluster, &["--join", "--node", "n7"]);
    assert_eq!(join(&once, "n8").err(), Some(4), "for another node");
    join(&once, "n7").unwrap();
    assert_eq!(join(&once, "n7").err(), Some(4), "used up");
    let admin = std::fs::read_to_string(cluster.dir().join("admin.token")).unwrap();
    assert!(join(admin.trim(), "n9").is_err(), "an access token lets no agent join");

    // An agent says what to do.
    let dir = cluster.scratch().join("nodes/n7");
    let agent = |args: &[&str], join: &str| {
        let fixed = ["agent", "--controller", cluster.dir().to_str().unwrap()];
        let fixed = [&fixed[..], &["--data-dir", dir.to_str().unwrap()], args].concat();
        Cli::new(cluster.binary(), &fixed).env("TUTTI_JOIN_TOKEN", join).call()
    };
    let used = agent(&["--name", "n7"], &once);
    assert_ne!(used.code, 0, "{used}");
    used.says(&["token"]);
    let none = agent(&["--name", "n7"], "");
    assert_ne!(none.code, 0, "{none}");
    none.says(&["tutti token create --join", "--token-file"]);
}

/// Somebody reads a node's key and starts an agent of their own with it.
#[test]
fn a_stolen_key_is_noticed_and_taken_away() {
    let mut cluster = cluster(2);
    let stolen = cluster.scratch().join("thief");
    std::fs::DirBuilder::new().mode(0o700).create(&stolen).unwrap();
    std::fs::copy(cluster.node_dir("n1").join("node.pem"), stolen.join("node.pem")).unwrap();
    let (controller, data) = (cluster.dir().to_str().unwrap(), stolen.to_str().unwrap());
    let words = ["agent", "--controller", controller, "--name", "n1", "--data-dir", data];
    let thief = Cli::new(cluster.binary(), &[&words[..], &["--simulate"]].concat()).spawn();
    let said = |verb: &[&str], word: &str| {
        // Doctor's exit code tells of what it found.
        wait_until(&format!("{verb:?} says {word}"), PATIENCE, || {
            cluster.cli(verb).call().out.contains(word)
        });
    };
    said(&["nodes"], "two agents hold its key");
    said(&["alerts"], "shared_key");
    said(&["doctor"], "two agents hold its key");
    // The agent that was there first stays, and so does the other node.
    let log = cluster.log("n1");
    assert!(!log.contains("refuses this node"), "{log}");
    let other = cluster.submit(JobSpec::new(Command::Argv(vec!["true".to_owned()])));
    assert_eq!(cluster.wait_end(other).state, JobState::Completed);

    let list = cluster.cli(&["nodes", "remove", "n1"]).call();
    list.exited(0).says(&["its key opens nothing"]);
    assert!(!cluster.cli(&["nodes"]).ok().contains("n1 "));
    wait_until("its agent knows", PATIENCE, || cluster.log("n1").contains("was removed"));
    cluster.cli(&["nodes", "remove", "n1"]).call().exited(3).says(&["no node 'n1'"]);
    drop(thief);
    cluster.kill_agent("n1");
    std::fs::remove_file(cluster.node_dir("n1").join("node.pem")).unwrap();
    cluster.start_agent("n1");
    cluster.wait_node("n1", tutti_model::NodeState::Ready);
    // A token on the command line is warned of; what is no name is refused.
    let join = cluster.join_token("n9");
    let bad = ["agent", "--controller", cluster.dir().to_str().unwrap(), "--join", &join];
    let bad = Cli::new(cluster.binary(), &[&bad[..], &["--name=-x"]].concat()).call();
    assert_ne!(bad.code, 0, "{bad}");
    bad.says(&["'-x' is no name"]);
    let seen = ["agent", "--controller", "127.0.0.1:1", "--join", "nonsense", "--name", "n9"];
    let seen = Cli::new(cluster.binary(), &seen).call();
    seen.says(&["on the command line", "--token-file"]);
}

/// Speaks with the controller as an agent of this protocol would, and returns its answer.
fn greet(cluster: &Cluster, protocol: u32) -> ToAgent {
    let (_, secret) = token(cluster, &["--join", "--node", "old"]);
    let endpoint = Endpoint { tls: true, ..cluster.client().endpoint() };
    let address = (endpoint.host.clone(), endpoint.port);
    let found = ClusterRef { endpoint, token: secret.parse().unwrap(), data_dir: None };
    let key = NodeKey::generate().unwrap();
    let request = JoinRequest { node: "old".to_owned(), csr: key.csr().unwrap() };
    let response = Client::connect(&found).join(&request).unwrap();
    let identity = key.certified(&response.certificate, &response.ca).unwrap();

    let trust = Trust::Ca(identity.ca_pem().to_owned());
    let config = client_config(&trust, Purpose::Agent(&identity)).unwrap();
    let name = address.0.clone().try_into().unwrap();
    let connection = rustls::ClientConnection::new(config, name).unwrap();
    let socket = TcpStream::connect((address.0.as_str(), address.1)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut stream = rustls::StreamOwned::new(connection, socket);
    let facts = NodeFacts {
        name: "old".to_owned(),
        address: "127.0.77.99".to_owned(),
        cpus: 1,
        mem: Bytes::gib(1),
        gpus: Vec::new(),
        simulated: true,
        isolation: "process group".to_owned(),
        agent_version: "0.0.1".to_owned(),
        labels: Default::default(),
        ..NodeFacts::default()
    };
    let greeting = Box::new(Greeting::new(facts, Vec::new()));
    let (epoch, renew, instance) = (Epoch(0), None, None);
    let hello = ToController::Hello { protocol, greeting, epoch, renew, instance };
    stream.write_all(&frame::encode(&hello).unwrap()).unwrap();
    let (mut decoder, mut chunk) = (Decoder::new(), [0; 4096]);
    loop {
        let n = stream.read(&mut chunk).unwrap();
        assert_ne!(n, 0, "closed without an answer");
        decoder.push(&chunk[..n]);
        if let Some(answer) = decoder.take().unwrap() {
            return answer;
        }
    }
}

#[test]
fn an_agent_of_another_protocol_is_told_what_to_install() {
    let cluster = cluster(1);
    for protocol in [0, PROTOCOL + 1, u32::MAX] {
        let ToAgent::Refused { reason } = greet(&cluster, protocol) else {
            panic!("protocol {protocol} was taken")
        };
        for word in [&protocol.to_string(), "install tutti", env!("CARGO_PKG_VERSION")] {
            assert!(reason.contains(word), "{word} is missing: {reason}");
        }
    }
    let answer = greet(&cluster, PROTOCOL);
    assert!(matches!(answer, ToAgent::Welcome { .. }), "{answer:?}");
}

/// Whoever may submit asks root's agent for paths one by one, and must not learn from its answers which
/// of them there are.
#[test]
#[allow(clippy::print_stderr)]
fn a_working_directory_says_nothing_about_closed_directories() {
    if !is_root() {
        eprintln!("SKIPPED: an agent that is not root sees what its jobs see");
        return;
    }
    let cluster = cluster(1);
    let closed = cluster.scratch().join("closed");
    std::fs::DirBuilder::new().mode(0o700).create(&closed).unwrap();
    std::fs::create_dir(closed.join("there")).unwrap();
    std::fs::write(closed.join("file"), "").unwrap();
    let ask = |name: &str| {
        let mut spec = JobSpec::shell("true");
        spec.workdir = Some(closed.join(name).display().to_string());
        let id = cluster.submit_as(spec, "nobody");
        let row = cluster.wait_end(id);
        let log = cluster.log_of(id, &LogQuery::default());
        let log: Vec<String> = log.into_iter().map(|l| l.text.replace(name, "X")).collect();
        (row.state, row.exit_code, row.note.replace(name, "X"), log)
    };
    let there = ask("there");
    assert_eq!(there.0, JobState::Failed);
    for name in ["none", "file", "none/deeper"] {
        assert_eq!(ask(name), there, "{name}");
    }
    // What the user may see is still said at once.
    let mut spec = JobSpec::shell("true");
    spec.workdir = Some(cluster.scratch().join("none").display().to_string());
    let row = cluster.wait_end(cluster.submit_as(spec, "nobody"));
    assert!(row.note.contains("does not exist"), "{}", row.note);
}

#[test]
#[allow(clippy::print_stderr)]
fn jobs_run_as_their_user() {
    if !is_root() {
        eprintln!("SKIPPED: an agent that is not root runs everything as itself");
        return;
    }
    let cluster = cluster(1);
    for user in ["nobody", "daemon"] {
        let id = cluster.submit_as(JobSpec::shell("id -un; echo $USER $TUTTI_USER"), user);
        let row = cluster.wait_end(id);
        assert_eq!((row.state, row.user.as_str()), (JobState::Completed, user), "{row:?}");
        let log = cluster.log_of(id, &LogQuery::default());
        let lines: Vec<&str> = log.iter().map(|l| l.text.as_str()).collect();
        assert_eq!(lines, [user, &format!("{user} {user}")]);
    }
    // The same by a token, as a user would; and no way to be somebody else.
    let (_, secret) = token(&cluster, &["--role", "user", "--user", "nobody"]);
    let run = cluster.cli(&["run", "--", "sh", "-c", "id -un; id -u; cat /etc/shadow"]);
    let done = run.env("TUTTI_TOKEN", &secret).call();
    assert!(done.out.starts_with("nobody\n"), "{done}");
    assert_ne!(done.code, 0, "{done}");
    let client = cluster.client_with(&secret);
    let root = tutti_wire::api::Submit {
        spec: JobSpec::shell("id -un"),
        user: Some("root".to_owned()),
        key: None,
    };
    assert_eq!(client.submit(&root).unwrap_err().exit_code(), 4);
    // A directory of the path that the user may not enter is passed over, as shells do.
    let closed = cluster.scratch().join("closed");
    std::fs::DirBuilder::new().mode(0o700).create(&closed).unwrap();
    let mut missing = JobSpec::new(Command::Argv(vec!["no-such-program".to_owned()]));
    missing.env.insert("PATH".to_owned(), format!("{}:/bin", closed.display()));
    let id = cluster.submit_as(missing, "nobody");
    assert_eq!(cluster.wait_end(id).exit_code, Some(127));
    let stranger = cluster.submit_as(JobSpec::shell("true"), "no-such-user");
    let row = cluster.wait_end(stranger);
    assert_eq!(row.state, JobState::Failed);
    assert!(row.note.contains("no-such-user"), "{}", row.note);
}
