//! A real browser, driven over the DevTools protocol. It talks to 127.0.0.1 alone, keeps its profile
//! in a directory of its own, and is gone when the test is.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tungstenite::{Message, WebSocket};
use tutti_testkit::{PATIENCE, wait_for};

const FLAGS: &[&str] = &[
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--remote-debugging-address=127.0.0.1",
    "--remote-debugging-port=0",
    "--window-size=1400,1000",
];

pub struct Browser {
    child: Child,
    socket: WebSocket<TcpStream>,
    /// The page, once it is there.
    session: Option<String>,
    calls: u64,
    /// Every event so far.
    events: Vec<Value>,
    _profile: tempfile::TempDir,
}

impl Drop for Browser {
    fn drop(&mut self) {
        // All of its processes; they may have gone already.
        let _ = killpg(Pid::from_raw(self.child.id() as i32), Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

impl Browser {
    pub fn start() -> Browser {
        let profile = tempfile::tempdir().unwrap();
        let mut child = Command::new("chromium")
            .args(FLAGS)
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("chromium is needed for this test: apt-get install chromium");
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut said = String::new();
        let address = lines.by_ref().map_while(Result::ok).find_map(|line| {
            said += &line;
            said += "\n";
            Some(line.split_once("DevTools listening on ")?.1.to_owned())
        });
        // It must not wait for somebody to read the rest.
        std::thread::spawn(move || lines.for_each(drop));
        let address = address.unwrap_or_else(|| panic!("chromium does not listen:\n{said}"));
        let host = address.trim_start_matches("ws://").split('/').next().unwrap();
        let stream = TcpStream::connect(host).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let (socket, _) = tungstenite::client(address.as_str(), stream).unwrap();
        let events = Vec::new();
        let mut browser =
            Browser { child, socket, session: None, calls: 0, events, _profile: profile };
        browser.open_page();
        browser
    }

    fn open_page(&mut self) {
        let page = self.call("Target.createTarget", json!({ "url": "about:blank" }));
        let target = page["targetId"].clone();
        let attached =
            self.call("Target.attachToTarget", json!({ "targetId": target, "flatten": true }));
        self.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Network", "Log"] {
            self.call(&format!("{domain}.enable"), json!({}));
        }
    }

    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.ask(method, params).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    fn ask(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        self.calls += 1;
        let mut request = json!({ "id": self.calls, "method": method, "params": params });
        if let Some(session) = &self.session {
            request["sessionId"] = json!(session);
        }
        self.socket.send(Message::text(request.to_string())).unwrap();
        loop {
            let message = self.socket.read().unwrap_or_else(|e| panic!("{method}: {e}"));
            let Ok(text) = message.to_text() else { continue };
            let Ok(mut answer) = serde_json::from_str::<Value>(text) else { continue };
            if answer["id"] != self.calls {
                self.events.push(answer);
                continue;
            }
            return match answer.get("error") {
                Some(error) => Err(error.clone()),
                None => Ok(answer["result"].take()),
            };
        }
    }

    /// What an expression, or a promise, comes to.
    #[track_caller]
    pub fn eval(&mut self, script: &str) -> Value {
        let params = json!({ "expression": script, "returnByValue": true, "awaitPromise": true });
        let mut answer = self.call("Runtime.evaluate", params);
        assert!(answer.get("exceptionDetails").is_none(), "{script}: {answer}");
        answer["result"]["value"].take()
    }

    /// Asks until the expression is true. While a page is being loaded there is nothing to ask.
    #[track_caller]
    pub fn wait(&mut self, script: &str) {
        let safe = format!(
            "(() => {{ try {{ return Boolean({script}); }} catch {{ return false; }} }})()"
        );
        wait_for(script, PATIENCE, || {
            let params = json!({ "expression": safe, "returnByValue": true });
            // One that comes up meanwhile takes the question with it.
            let answer = self.ask("Runtime.evaluate", params).ok()?;
            (answer["result"]["value"] == true).then_some(())
        });
    }

    /// Loads a page, and waits until its scripts have run.
    #[track_caller]
    pub fn go(&mut self, url: &str) {
        self.call("Page.navigate", json!({ "url": url }));
        let path = url.splitn(4, '/').nth(3).unwrap_or_default();
        self.wait(&format!(
            "document.readyState === 'complete' && location.href.endsWith({:?})",
            format!("/{path}")
        ));
    }

    /// Presses what is found there as a person would.
    #[track_caller]
    pub fn click(&mut self, selector: &str) {
        self.wait(&format!("document.querySelector({selector:?})"));
        self.eval(&format!("document.querySelector({selector:?}).click()"));
    }

    pub fn light(&mut self, name: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": name }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    /// Gives events time to come, and everything that should not have been said on the console.
    pub fn complaints(&mut self) -> Vec<String> {
        self.settle();
        let bad = |event: &&Value| {
            let params = &event["params"];
            match event["method"].as_str() {
                Some("Runtime.exceptionThrown") => true,
                Some("Runtime.consoleAPICalled") => {
                    params["type"] == "error" || params["type"] == "warning"
                }
                Some("Log.entryAdded") => params["entry"]["level"] == "error",
                _ => false,
            }
        };
        self.events.iter().filter(bad).map(|event| event["params"].to_string()).collect()
    }

    /// Every address that was asked for.
    pub fn requests(&mut self) -> Vec<String> {
        self.settle();
        let asked = self.events.iter().filter(|e| e["method"] == "Network.requestWillBeSent");
        asked.filter_map(|e| e["params"]["request"]["url"].as_str()).map(str::to_owned).collect()
    }

    fn settle(&mut self) {
        let frames =
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))";
        self.eval(frames);
        self.socket.get_ref().set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        while let Ok(message) = self.socket.read() {
            self.events.extend(message.to_text().ok().and_then(|t| serde_json::from_str(t).ok()));
        }
        self.socket.get_ref().set_read_timeout(Some(PATIENCE)).unwrap();
    }
}
