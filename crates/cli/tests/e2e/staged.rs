//! `tutti sim --serve`: every page over a simulated day, in a real browser, and nothing to change.

use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use tutti_testkit::{Cli, LiveCli, PATIENCE, wait_until};

use crate::TUTTI;
use crate::browser::Browser;
use crate::dashboard::log_in;

fn tutti(args: &[&str]) -> Cli {
    Cli::new(Path::new(TUTTI), args)
}

/// Where a show is, and the directory with its token.
fn staged(more: &[&str]) -> (LiveCli, String, PathBuf) {
    let day = ["sim", "--format", "day", "--cluster", "8xdgx-h100", "--serve", "127.0.0.1:0"];
    let mut show = tutti(&[&day, more].concat()).spawn();
    let note = show.next_line();
    assert!(note.starts_with("simulated: ") && note.contains("8 nodes with 64 GPUs"), "{note}");
    let line = show.next_line();
    let address = line.split_once("dashboard at ").unwrap().1.split_once("/,").unwrap().0;
    let token = PathBuf::from(line.rsplit_once(' ').unwrap().1);
    (show, address.to_owned(), token.parent().unwrap().to_owned())
}

#[test]
fn a_simulated_day_is_on_every_page() {
    let (show, base, dir) = staged(&["--at", "10h"]);
    let token = fs::read_to_string(dir.join("admin.token")).unwrap();
    let mut browser = Browser::start();
    log_in(&mut browser, &base, token.trim());
    browser.wait("document.querySelector('.badge.simulated')");
    browser.wait("document.querySelector('#pulse canvas')");
    let live = "document.getElementById('link').dataset.state === 'live'";
    for (path, there) in [
        ("/queue", "document.querySelector('h1')"),
        ("/jobs", "document.querySelectorAll('tbody tr').length > 5"),
        // The first to be submitted is a training that goes on and says how far it is.
        ("/jobs?q=llm-70b-pretrain", "document.querySelectorAll('tbody tr').length == 1"),
        ("/jobs/6", "document.querySelector('[data-testid=story]')"),
        ("/nodes", "document.querySelectorAll('tbody tr').length == 8"),
        ("/nodes/dgx-h100-1", "document.querySelector('canvas')"),
        ("/teams", "document.body.textContent.includes('biology')"),
        ("/cost", "document.querySelector('table')"),
        ("/alerts", "document.querySelectorAll('[data-testid=alert-rules] tbody tr').length == 13"),
        ("/timeline", "document.querySelector('canvas')"),
    ] {
        browser.go(&format!("{base}{path}"));
        browser.wait(&format!("{live} && {there}"));
    }
    browser.go(&format!("{base}/jobs?q=llm-70b-pretrain"));
    browser.click("tbody a[href^='/jobs/']");
    browser.wait("document.querySelector('#training canvas') && document.querySelector('[data-testid=ranks]')");
    assert_eq!(browser.complaints(), [] as [String; 0]);

    let at = dir.display().to_string();
    let nodes = tutti(&["nodes", "--cluster", &at]).ok();
    assert!(nodes.contains("dgx-h100-8") && nodes.contains("simulated"), "{nodes}");
    tutti(&["submit", "--cluster", &at, "--", "true"]).call().exited(4);
    show.signal(Signal::SIGTERM);
    show.finish().exited(0);
    assert!(!dir.exists(), "its data dir is removed");
}

#[test]
fn time_goes_on_at_the_pace_that_is_asked_for() {
    let (show, _, dir) = staged(&["--at", "9h", "--pace", "600"]);
    let at = dir.display().to_string();
    let submitted = || {
        let rows = tutti(&["ps", "--all", "--json", "--cluster", &at]).ok();
        rows.matches("\"submitted_at\"").count()
    };
    let first = submitted();
    wait_until("more jobs are submitted", PATIENCE, || submitted() > first);
    show.signal(Signal::SIGTERM);
    show.finish().exited(0);
}
