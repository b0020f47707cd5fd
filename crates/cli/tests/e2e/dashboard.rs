//! The dashboard in a real browser: a job from waiting to done without loading the page again, its log
//! and charts, changes and who may make them, and nothing that keeps anybody out.

use std::fs;
use std::path::PathBuf;

use serde_json::json;
use tutti_model::{Grant, JobSpec, JobState, Role, TaskId};
use tutti_testkit::Cluster;
use tutti_wire::api::NewToken;

use crate::browser::Browser;
use crate::cluster;

/// The checker of accessibility, as `scripts/test` has put it there.
pub fn axe() -> String {
    let path = std::env::var_os("TUTTI_TEST_AXE").map(PathBuf::from).expect(
        "TUTTI_TEST_AXE names axe.min.js, from the PyPI package axe-playwright-python; scripts/test sets it",
    );
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn token(cluster: &Cluster, user: &str, role: Role) -> String {
    let grant = Grant::Access { user: user.into(), role };
    cluster.client().create_token(&NewToken { grant, expires_in: None }).unwrap().secret
}

pub fn log_in(browser: &mut Browser, base: &str, token: &str) {
    browser.go(&format!("{base}/login"));
    browser.eval(&format!("document.getElementById('token').value = {token:?}"));
    browser.click("form button");
    browser.wait(
        "document.body.dataset.role && document.getElementById('link').dataset.state === 'live'",
    );
}

/// Holds all GPUs until the file is there, doing this again and again.
fn until_file(cluster: &Cluster, name: &str, again: &str) -> TaskId {
    let file = cluster.scratch().join(name);
    let line = format!("i=0; while [ ! -e {} ]; do {again}; sleep 0.1; done", file.display());
    cluster.submit(JobSpec { gpus: Some(8), name: Some(name.into()), ..JobSpec::shell(line) })
}

fn let_go(cluster: &Cluster, name: &str) {
    fs::write(cluster.scratch().join(name), "").unwrap();
}

fn state_is(browser: &mut Browser, word: &str) {
    browser.wait(&format!(
        "document.querySelector('[data-testid=state]').textContent.includes({word:?})"
    ));
}

/// Waiting with a reason, running with log and charts, done: all in the same page.
fn from_waiting_to_done(cluster: &Cluster, browser: &mut Browser, base: &str) -> TaskId {
    until_file(cluster, "first", "true");
    let say = format!(
        "i=$((i+1)); {} progress --step $i --loss 0.$i; echo hello to the page",
        cluster.binary().display()
    );
    let id = until_file(cluster, "second", &say);
    browser.go(&format!("{base}/jobs/{id}"));
    state_is(browser, "pending");
    browser.wait("document.querySelector('[data-testid=why]').textContent.includes('8 free GPUs')");
    browser.eval("window.loadedOnce = true");
    let_go(cluster, "first");
    state_is(browser, "running");
    browser.wait("document.querySelector('[data-testid=why]') === null");
    browser.wait(
        "document.querySelector('[data-testid=log]').textContent.includes('hello to the page')",
    );
    browser.wait("document.querySelectorAll('[data-testid=ranks] li').length === 8");
    browser
        .wait("document.querySelector('[data-testid=ranks] path').getAttribute('d').length > 20");
    browser.wait("document.querySelectorAll('#training canvas').length === 2");
    // Only lines with the word are left.
    browser.eval("{ const box = document.getElementById('log-search'); box.value = 'nowhere'; box.dispatchEvent(new Event('input')); }");
    browser.wait("document.querySelectorAll('#log > :not([hidden])').length === 0");
    let_go(cluster, "second");
    state_is(browser, "completed");
    browser
        .wait("document.querySelector('[data-testid=attempts]').textContent.includes('completed')");
    assert_eq!(browser.eval("window.loadedOnce"), true, "the page was loaded again");
    id
}

fn cancel_one(cluster: &Cluster, browser: &mut Browser, base: &str) {
    let id = until_file(cluster, "third", "true");
    browser.go(&format!("{base}/jobs"));
    let row = format!("#jobs tr[data-key=\"{id}\"]");
    browser.wait(&format!("document.querySelector({row:?}).textContent.includes('running')"));
    browser.click(&format!("{row} input"));
    browser.click(".act [data-verb=cancel]");
    browser.click("dialog[open] button[value=yes]");
    browser.wait(&format!("document.querySelector({row:?}).textContent.includes('cancelled')"));
    cluster.wait_state(id, JobState::Cancelled);
}

/// The pictures of the overview, and their words.
fn look_around(browser: &mut Browser, base: &str) {
    browser.go(&format!("{base}/"));
    browser.wait("document.querySelector('#cells').height > 10");
    browser.wait("document.querySelectorAll('#pulse canvas').length >= 1");
    browser.eval("document.querySelector('#by-node summary').click()");
    browser.wait("document.querySelector('[data-testid=by-node] tbody').rows.length === 1");
    let key = "document.getElementById('grid').dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight', bubbles: true }))";
    browser.eval(&format!("document.getElementById('grid').focus(); {key}; {key}"));
    browser.wait("document.querySelector('[data-testid=cell]').textContent.startsWith('n1 GPU 1')");
    let press = |key: &str| {
        format!(
            "document.body.dispatchEvent(new KeyboardEvent('keydown', {{ key: {key:?}, bubbles: true }}))"
        )
    };
    browser.eval(&press("2"));
    browser.wait(
        "document.querySelector('[data-mode=activity]').getAttribute('aria-checked') === 'true'",
    );
    browser.eval(&press("?"));
    browser.wait("document.getElementById('help').open");
    browser.eval("document.getElementById('help').close()");
    browser.eval(&format!("{}; {}", press("g"), press("t")));
    browser.wait("location.pathname === '/teams' && document.querySelector('[data-testid=teams]')");
}

/// Two signs that look the same, in grey, in any colouring, at the smallest size and at a common one: with a job or
/// without, and whatever the value.
const ALIKE: &str = r"(async () => {
    const at = document.querySelector('script[type=module]').src.replace('app.js', '');
    const { Brush } = await import(at + 'cells.js'), { palette } = await import(at + 'colours.js');
    const ink = palette(), signs = JSON.parse(document.getElementById('grid').dataset.signs), alike = [];
    const grey = (mode, size, cell) => {
        const pen = new OffscreenCanvas(size, size).getContext('2d');
        new Brush(pen, ink, signs).draw(mode, cell, 0, 0, size);
        pen.globalCompositeOperation = 'destination-over';
        pen.fillStyle = ink.ground;
        pen.fillRect(0, 0, size, size);
        const { data } = pen.getImageData(0, 0, size, size);
        return Array.from({ length: size * size }, (_, i) => 0.21 * data[4 * i] + 0.72 * data[4 * i + 1] + 0.07 * data[4 * i + 2]);
    };
    const modes = [...document.querySelectorAll('[data-mode]')].map((button) => button.dataset.mode);
    for (const mode of modes) for (const size of [7, 14]) for (const value of [255, 0, 10, 20]) for (const busy of [0, 1]) {
        const drawn = signs.map(({ name }, holding) => {
            const job = ['held', 'shared'].includes(name) || (busy && ['fenced', 'away'].includes(name)) ? 1 : 0;
            const temp = value === 255 ? 255 : 30 + 3 * value;
            return grey(mode, size, { holding, job, activity: value, power: value, temp, health: 0 });
        });
        drawn.forEach((a, i) => drawn.slice(0, i).forEach((b, k) => {
            const differ = a.filter((level, at) => Math.abs(level - b[at]) > 30).length;
            if (differ < 4) alike.push(`${mode}: ${signs[i].name} and ${signs[k].name} at ${size}, value ${value}: ${differ}`);
        }));
    }
    return [modes.length, signs.length, alike];
})()";

fn every_sign_is_another(browser: &mut Browser, base: &str) {
    browser.go(&format!("{base}/"));
    for light in ["light", "dark"] {
        browser.light(light);
        assert_eq!(browser.eval(ALIKE), json!([5, 6, []]), "{light}");
    }
}

/// Pages that a person with a screen reader, or without colour vision, can't use.
fn barriers(browser: &mut Browser, axe: &str, page: &str) -> Vec<String> {
    browser.eval(&format!("{axe}; undefined"));
    let found = browser.eval(
        "axe.run(document, { resultTypes: ['violations'] }).then((found) => found.violations
            .filter((rule) => ['serious', 'critical'].includes(rule.impact))
            .map((rule) => `${rule.id}: ${rule.nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(' | ')}`))",
    );
    let list = found.as_array().cloned().unwrap_or_default();
    list.iter().map(|rule| format!("{page}: {}", rule.as_str().unwrap_or_default())).collect()
}

pub fn no_barriers(browser: &mut Browser, base: &str, pages: &[String], axe: &str) {
    let mut all = Vec::new();
    for light in ["light", "dark"] {
        browser.light(light);
        for page in pages {
            browser.go(&format!("{base}{page}"));
            browser.wait("!document.body.dataset.live || document.getElementById('link').dataset.state === 'live'");
            // Tables beside pictures are part of the page.
            browser.eval("document.querySelectorAll('details').forEach((details) => { details.open = true; })");
            all.extend(barriers(browser, axe, &format!("{page} ({light})")));
        }
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}

fn a_viewer_only_looks(cluster: &Cluster, browser: &mut Browser, base: &str, running: TaskId) {
    browser.go(&format!("{base}/"));
    browser.click("form[action=\"/logout\"] button");
    browser.wait("location.pathname === '/login' && document.getElementById('token')");
    log_in(browser, base, &token(cluster, "vera", Role::Viewer));
    for page in [format!("/jobs/{running}"), "/jobs".into(), "/queue".into(), "/nodes".into()] {
        browser.go(&format!("{base}{page}"));
        assert_eq!(browser.eval("document.querySelectorAll('[data-verb]').length"), 0, "{page}");
        let seen =
            "[...document.querySelectorAll('.pick')].filter((cell) => cell.offsetParent).length";
        assert_eq!(browser.eval(seen), 0, "{page}");
    }
    let complaints = browser.complaints();
    assert_eq!(complaints, [] as [String; 0], "the console has errors");
    // Nor by hand.
    let status = browser.eval(&format!(
        "fetch('/api/v1/jobs/{running}/cancel', {{ method: 'POST', headers: {{ 'X-Tutti-CSRF': document.body.dataset.csrf }} }}).then((answer) => answer.status)"
    ));
    assert_eq!(status, json!(403));
    cluster.wait_state(running, JobState::Running);
    let_go(cluster, "fourth");
}

#[test]
fn people_use_the_dashboard() {
    let axe = axe();
    let cluster = cluster(1);
    let base = format!("http://{}", cluster.client().endpoint().authority());
    let mut browser = Browser::start();
    browser.light("dark");
    let admin = fs::read_to_string(cluster.dir().join("admin.token")).unwrap();
    log_in(&mut browser, &base, admin.trim());

    let done = from_waiting_to_done(&cluster, &mut browser, &base);
    cancel_one(&cluster, &mut browser, &base);
    look_around(&mut browser, &base);
    every_sign_is_another(&mut browser, &base);
    let held = cluster.submit(JobSpec { gpus: Some(8), hold: true, ..JobSpec::shell("true") });
    let running = until_file(&cluster, "fourth", "true");
    cluster.wait_state(running, JobState::Running);
    let pages = [
        "/",
        "/queue",
        "/jobs",
        "/endpoints",
        "/nodes",
        "/nodes/n1",
        "/teams",
        "/cost",
        "/alerts",
        "/timeline",
    ];
    let mut pages: Vec<String> = pages.map(str::to_owned).into();
    pages.extend([done, held, running].map(|id| format!("/jobs/{id}")));
    no_barriers(&mut browser, &base, &pages, &axe);

    a_viewer_only_looks(&cluster, &mut browser, &base, running);
    browser.go(&format!("{base}/"));
    browser.click("form[action=\"/logout\"] button");
    browser.wait("location.pathname === '/login' && document.getElementById('token')");
    for light in ["light", "dark"] {
        browser.light(light);
        assert_eq!(barriers(&mut browser, &axe, light), [] as [String; 0]);
    }
    let outside: Vec<String> = browser
        .requests()
        .into_iter()
        .filter(|url| !url.starts_with(&base) && !url.starts_with("data:") && url != "about:blank")
        .collect();
    assert_eq!(outside, [] as [String; 0], "requests to elsewhere");
}

const QUEUED: usize = 120;

/// Keys of the rows in the order in which a screen reader comes to them.
const KEYS: &str =
    "[...document.querySelectorAll('#queue tbody tr')].map((row) => row.dataset.key)";

fn queue_is(browser: &mut Browser, ids: &[TaskId]) {
    let keys: Vec<String> = ids.iter().map(ToString::to_string).collect();
    browser.wait(&format!("JSON.stringify({KEYS}) === {:?}", json!(keys).to_string()));
}

/// Moved in line by somebody else; the row says so.
fn prioritise(browser: &mut Browser, id: TaskId, priority: &str) {
    let body = json!({ "priority": priority }).to_string();
    let status = browser.eval(&format!(
        "fetch('/api/v1/jobs/{id}/priority', {{ method: 'POST', body: {body:?}, headers: {{ 'X-Tutti-CSRF': document.body.dataset.csrf, 'Content-Type': 'application/json' }} }}).then((answer) => answer.status)"
    ));
    assert_eq!(status, json!(200));
    let row = format!("#queue tr[data-key=\"{id}\"]");
    browser.wait(&format!("document.querySelector({row:?}).textContent.includes({priority:?})"));
}

/// A row as the test has left it: the same element, with what the test has put on it.
fn is_marked(browser: &mut Browser, id: TaskId) -> bool {
    let row = format!("#queue tr[data-key=\"{id}\"]");
    browser.eval(&format!("document.querySelector({row:?}).dataset.mark === 'here'")) == true
}

#[test]
fn a_long_list_changes_in_place() {
    let cluster = cluster(1);
    let base = format!("http://{}", cluster.client().endpoint().authority());
    let waits = |n: usize| {
        let name = Some(format!("waits-{n}"));
        cluster.submit(JobSpec { gpus: Some(8), hold: true, name, ..JobSpec::shell("true") })
    };
    let mut ids: Vec<TaskId> = (0..QUEUED).map(waits).collect();
    let mut browser = Browser::start();
    let admin = fs::read_to_string(cluster.dir().join("admin.token")).unwrap();
    log_in(&mut browser, &base, admin.trim());
    browser.go(&format!("{base}/queue"));
    queue_is(&mut browser, &ids);
    // From here on what comes is an update, and not what was there.
    prioritise(&mut browser, ids[0], "high");
    browser.eval("document.querySelectorAll('#queue tbody tr').forEach((row) => { row.dataset.mark = 'here'; }); window.loadedOnce = true");

    // Somebody selects a row far down and stays in it.
    let (mine, other, cancelled) = (ids[90], ids[95], ids[5]);
    let pick = format!("#queue tr[data-key=\"{mine}\"] .pick input");
    browser.eval(&format!("{{ const box = document.querySelector({pick:?}); box.focus(); box.click(); scrollTo(0, 700); }}"));
    prioritise(&mut browser, other, "high");
    cluster.cli(&["cancel", &cancelled.to_string()]).ok();
    ids.retain(|id| *id != cancelled);
    ids.push(waits(QUEUED));
    queue_is(&mut browser, &ids);
    let here = format!("document.activeElement === document.querySelector({pick:?})");
    assert_eq!(browser.eval(&here), true, "focus went elsewhere");
    assert_eq!(browser.eval(&format!("document.querySelector({pick:?}).checked")), true);
    assert_eq!(browser.eval("document.querySelector('[data-picked]').textContent"), "1 selected");
    for id in &ids[..QUEUED - 1] {
        assert!(is_marked(&mut browser, *id), "the row of {id} is another element");
    }
    assert!(!is_marked(&mut browser, ids[QUEUED - 1]), "the last one is new");

    // And while somebody writes a filter.
    browser.eval("{ const box = document.getElementById('filter'); box.focus(); box.value = 'waits-9'; box.setSelectionRange(3, 5); box.dispatchEvent(new Event('input', { bubbles: true })); }");
    let shown = "document.querySelectorAll('#queue tbody tr:not([hidden])').length";
    browser.wait(&format!("{shown} === 11"));
    prioritise(&mut browser, other, "low");
    let box_is = "(({ id, value, selectionStart, selectionEnd }) => [id, value, selectionStart, selectionEnd])(document.activeElement)";
    assert_eq!(browser.eval(box_is), json!(["filter", "waits-9", 3, 5]));
    assert_eq!(browser.eval(shown), 11);
    assert!(is_marked(&mut browser, other) && is_marked(&mut browser, mine));
    assert_eq!(browser.eval("window.loadedOnce"), true);
    assert_eq!(browser.complaints(), [] as [String; 0]);
}
