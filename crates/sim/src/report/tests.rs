use tutti_model::{NodeId, Time};

use super::*;
use crate::replay::{Sample, Stint};

fn job(name: &str, submit: u64, start: u64, end: u64, gpus: u64) -> JobRun {
    let stint = Stint {
        from: Time(start * 1000),
        until: Time(end * 1000),
        nodes: vec![NodeId(1)],
        milli: gpus * 1000,
    };
    JobRun {
        name: name.to_owned(),
        user: "ada".to_owned(),
        team: format!("t{}", gpus % 2),
        milli: gpus * 1000,
        submit: Time(submit * 1000),
        start: Some(Time(start * 1000)),
        end: Some(Time(end * 1000)),
        fate: Fate::Completed,
        attempts: 1,
        preemptions: 0,
        node_failures: 0,
        lost: 0,
        thrown: Default::default(),
        racks: Some((2, 1)),
        stints: vec![stint],
    }
}

/// Ten seconds of four GPUs, then ten of one; two jobs wait at first.
fn example() -> Run {
    let mut jobs = vec![job("a", 0, 0, 10, 4), job("<b&\"c\">", 0, 10, 20, 1)];
    jobs.push(JobRun {
        fate: Fate::Refused("no".to_owned()),
        stints: Vec::new(),
        ..job("r", 0, 0, 0, 1)
    });
    (jobs[2].start, jobs[2].end, jobs[2].racks) = (None, None, None);
    let sample = |at, held, waiting| Sample { at: Time(at), held, waiting };
    Run {
        jobs,
        samples: vec![sample(0, 4000, 2), sample(10_000, 1000, 0), sample(20_000, 0, 0)],
        gpus: 4,
        nodes: vec![("n1".to_owned(), 4)],
        failures: 0,
        events: 12,
        ..Run::default()
    }
}

#[test]
fn figures_by_hand() {
    let f = figures("fifo", 1, &example());
    assert_eq!((f.jobs, f.completed, f.refused, f.spread_jobs), (3, 2, 1, 2));
    assert_eq!((f.avg_jct_s, f.median_jct_s, f.p99_jct_s), (15.0, 20.0, 20.0));
    assert_eq!((f.avg_wait_s, f.makespan_s), (5.0, 20.0));
    assert!((f.utilisation - 0.625).abs() < 1e-9, "{}", f.utilisation);
    assert!((f.queue_avg - 1.0).abs() < 1e-9);
    assert!((f.gpu_hours - 50.0 / 3600.0).abs() < 1e-9);
    assert!((f.teams["t0"].share - 0.8).abs() < 1e-9);
    assert_eq!(f.refusals["no"], 1);
    let json = serde_json::to_value(&f).unwrap();
    for key in ["avg_jct_s", "makespan_s", "p99_jct_s", "policy", "utilisation"] {
        assert!(json.get(key).is_some(), "{key}");
    }
}

/// Every job is in one of the parts, on every surface.
#[test]
fn the_parts_make_up_all_jobs() {
    let mut run = example();
    let fates = [Fate::Failed, Fate::Stuck, Fate::Hopeless, Fate::Stuck];
    run.jobs.extend(fates.map(|fate| JobRun { fate, ..job("x", 0, 0, 1, 1) }));
    let f = figures("fifo", 1, &run);
    assert_eq!((f.completed, f.failed, f.refused, f.stuck, f.hopeless), (2, 1, 1, 2, 1));
    let json = serde_json::to_value(&f).unwrap();
    let of = |key: &str| json[key].as_u64().unwrap();
    let parts = ["completed", "failed", "refused", "stuck", "hopeless"];
    assert_eq!(parts.map(of).iter().sum::<u64>(), of("jobs"));
    let page = page("x", &[(f, run)]);
    let cell = |label: &str| -> u64 {
        let after = page.split(&format!("<td>{label}</td><td>")).nth(1).unwrap();
        after.split('<').next().unwrap().parse().unwrap()
    };
    let labels = ["completed", "failed", "refused", "stuck", "never end, so often nodes fail"];
    assert_eq!(labels.map(cell).iter().sum::<u64>(), cell("jobs"));
}

#[test]
fn steps_hold_means() {
    let s = series(&example(), 4);
    assert_eq!(
        (s.step_s, s.utilisation, s.waiting),
        (5.0, vec![1.0, 1.0, 0.25, 0.25], vec![2.0, 2.0, 0.0, 0.0])
    );
    assert_eq!(series(&Run::default(), 4), Series::default());
}

#[test]
fn the_csv_has_a_line_per_job_and_quotes() {
    let run = example();
    let text = jobs_csv([("fifo", 1, &run)]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4);
    let columns = lines[0].split(',').count();
    assert_eq!(lines[1].split(',').count(), columns);
    assert!(lines[1].starts_with("fifo,1,a,ada,t0,4,0.000,0.000,10.000,0.000,10.000,completed,1,"));
    assert!(
        lines[2].contains("<b&\"c\">") || lines[2].contains("\"<b&\"\"c\"\">\""),
        "{}",
        lines[2]
    );
}

/// Every tag is closed in order; only void tags close themselves.
fn assert_well_formed(html: &str) {
    let body = html.split_once("</style>").map_or(html, |(_, after)| after);
    let mut open: Vec<&str> = vec!["html", "head"];
    for tag in body.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').expect("a tag ends");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !tag.ends_with('/') {
            open.push(tag.split_whitespace().next().expect("a tag has a name"));
        }
    }
    assert_eq!(open, Vec::<&str>::new());
}

#[test]
fn the_page_is_whole_and_needs_nobody() {
    let run = example();
    let other = figures("srtf", 2, &run);
    let html = page("what if <4> more", &[(figures("fifo", 1, &run), run.clone()), (other, run)]);
    assert_well_formed(&html);
    for outside in ["http://", "https://", "src=", "@import", "url(", "<script"] {
        assert!(!html.contains(outside), "{outside}");
    }
    for part in [
        "<svg",
        "prefers-color-scheme: dark",
        "what if &lt;4&gt; more",
        "&lt;b&amp;",
        "fifo, seed 1",
    ] {
        assert!(html.contains(part), "{part}");
    }
    assert_eq!(html.matches("<svg").count(), 6);
}

#[test]
fn an_empty_run_still_makes_a_page() {
    let run = Run::default();
    assert_well_formed(&page("nothing", &[(figures("fifo", 1, &run), run)]));
}
