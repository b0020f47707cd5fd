//! What is drawn.

use ratatui::crossterm::event::KeyCode;
use ratatui::style::{Color, Modifier};
use tutti_model::{Span, Time};

use super::super::app::{Msg, View};
use super::super::logs::{LogLine, LogMsg};
use super::super::text::width;
use super::super::theme::Theme;
use super::super::{MIN, Size};
use super::world::{self, NOW};
use super::{SIZES, buffer, press, shows, shows_not, text, write};

#[test]
fn the_cluster_at_a_glance() {
    let app = world::busy(SIZES[0], 4);
    // The clock is of the time zone.
    let text = text(&app);
    let (head, rest) = text.split_once('\n').unwrap();
    let (head, clock) = head.rsplit_once(' ').unwrap();
    assert_eq!(head, " tutti top  ada (admin) at /var/lib/tutti              simulated GPUs ");
    assert_eq!(clock.len(), "00:16:40".len());
    let want = "\
[1 cluster] 2 jobs  3 nodes  4 job                     12 running 1,204 pending
 allocated █████████··· 24 of 32        nodes     3 of 4 ready
 activity  ███████▌···· 62%             running   12, 2 starting, 0 stopping
 memory    █████▋······ 1.2/2.5T        pending   1,204
 power     ██████▍····· 12.0/22.4kW     suspended 1
 heat      ████████▌··· 71°C at most    values    all 32 GPUs tell
 ✗ n2 GPU 3: XID 79: fell off the bus
 GPUs of 4 nodes: activity ▁▂▃▄▅▆▇█ · free ✗ fenced ? no values
 r1
 n1     █▇▆▅▅▂▁·   46%   n2   d █▇▆✗▅▂▁·   46%
 r2
 n3     █▇▆▅▅▂▁·   46%   n4     █▇▆▅▅▂▁·   46%










 ↑↓ scroll  c cells  / filter nodes  tab next view  ? help  q quit";
    assert_eq!(rest, want, "{rest}");
    for size in SIZES {
        let app = world::busy(size, 4);
        shows(
            &app,
            &[
                "activity  ",
                "62%",
                "memory",
                "power",
                "12.0/22.4kW",
                "71°C at most",
                "pending   1,204",
                "running   12, 2 starting",
                "✗ n2 GPU 3: XID 79",
                "GPUs of 4 nodes: activity",
                "r1",
                "r2",
                "n1     █▇▆▅▅▂▁·",
                "n2   d █▇▆✗▅▂▁·",
                "46%",
            ],
        );
    }
}

#[test]
fn cells_show_one_thing_after_the_other() {
    let mut app = world::busy(SIZES[1], 4);
    for (mode, cells) in [
        ("allocation", "n1     ██████▄·   7/8"),
        ("memory", "n1     ▅▅▅▅▅▅▅▅   50%"),
        ("power", "n1     ▆▆▆▆▆▆▆▆ 4.0kW"),
        ("heat", "n1     ▅▅▅▅▅▆▆▆   67°"),
        ("activity", "n1     █▇▆▅▅▂▁·   46%"),
    ] {
        write(&mut app, "c");
        shows(&app, &[mode, cells]);
    }
}

#[test]
fn jobs_are_a_table_that_fits() {
    for size in SIZES {
        let mut app = world::busy(size, 4);
        write(&mut app, "2");
        world::tell(&mut app, 4, NOW);
        shows(
            &app,
            &[
                "[2 jobs]",
                "1 of 4 and more",
                "›      7 ",
                "▶ running",
                "91%",
                "4%",
                "… pending",
                "✗ failed",
                "needs 2 node",
                "…",
                "10m",
            ],
        );
        let text = text(&app);
        assert!(text.lines().all(|line| width(line) <= size.width.into()), "{text}");
        assert_eq!(text.contains("step 1,200 · loss"), size.width >= 160, "{text}");
        assert_eq!(text.contains("TEAM"), size.width >= 120, "{text}");
    }
}

#[test]
fn nodes_are_a_table_with_what_is_wrong() {
    for size in SIZES {
        let mut app = world::busy(size, 4);
        write(&mut app, "3");
        world::tell(&mut app, 4, NOW);
        shows(&app, &["[3 nodes]", "›n1", "d draining", "! GPU 3 fenced", "46%", "NOTE"]);
        press(&mut app, KeyCode::Down);
        press(&mut app, KeyCode::Enter);
        world::tell(&mut app, 4, NOW);
        shows(
            &app,
            &[
                "› n2",
                "draining",
                "by root: fan",
                "✗ GPU 3: XID 79: fell off the bus",
                "xid-79/gpu3",
                "✗ fenced",
                "job 7",
                "· free",
                "500/700W",
                "simulated",
            ],
        );
        press(&mut app, KeyCode::Esc);
        assert_eq!(app.view, View::Nodes);
    }
}

#[test]
fn a_job_shows_its_ranks_and_marks_the_slowest() {
    for size in SIZES {
        let mut app = world::busy(size, 4);
        app.open_job("7".parse().unwrap());
        world::tell(&mut app, 4, NOW);
        shows(&app, &["[4 job 7]", "job 7  train", "▶ running", "RANK", "95%", "1,200", "1,160"]);
        let text = text(&app);
        assert!(!text.contains('▼'), "nothing is sorted here:\n{text}");
        let marked: Vec<&str> = text.lines().filter(|line| line.contains('◀')).collect();
        assert_eq!(marked.len(), 1, "{text}");
        assert!(marked[0].trim_start().starts_with("2 ") && marked[0].contains("behind"), "{text}");
        assert!(text.contains("now        16 GPUs: 91% busy"), "{text}");
        press(&mut app, KeyCode::End);
        shows(&app, &["GPU 3 of n2 was broken", "restarts: 1 after node failures"]);
    }
}

#[test]
fn a_job_that_waits_says_why_and_one_that_is_not_there_too() {
    let mut app = world::busy(SIZES[0], 4);
    app.open_job("9".parse().unwrap());
    shows(&app, &["asking for job 9"]);
    world::tell(&mut app, 4, NOW);
    shows(&app, &["job 9 is pending", "3 tasks are tried before it", "- ask for 8 GPUs on 1 node"]);
    app.open_job("77".parse().unwrap());
    world::tell(&mut app, 4, NOW);
    shows(&app, &["! there is no job 77"]);
}

#[test]
fn logs_are_told_by_rank_and_searched() {
    let mut app = world::busy(SIZES[0], 4);
    write(&mut app, "2");
    world::tell(&mut app, 4, NOW);
    let effects = write(&mut app, "l");
    let number = match &effects[..] {
        [super::Effect::Follow { number, id, .. }] if id.to_string() == "7" => *number,
        other => panic!("{other:?}"),
    };
    shows(&app, &["› logs", "log of job 7, all ranks", "nothing yet"]);
    for i in 0..100 {
        let line =
            LogLine { rank: i % 2, err: i == 50, text: format!("step {i}\tloss 訓\x1b[2J") };
        app.update(Msg::Log(number, LogMsg::Line { line, partial: false }));
    }
    shows(&app, &["[1] step 99    loss", "\\x1b[2J", "81–100 of 100 following"]);
    write(&mut app, "/STEP 50");
    shows(&app, &["search: STEP 50"]);
    press(&mut app, KeyCode::Enter);
    shows(&app, &["›[0]!step 50", "· 'STEP 50'"]);
    shows_not(&app, &["following"]);
    assert_eq!(press(&mut app, KeyCode::Esc), [], "the search goes first");
    assert_eq!(press(&mut app, KeyCode::Esc), [super::Effect::Unfollow]);
    assert_eq!(app.view, View::Jobs);
}

#[test]
fn a_lost_controller_is_said_and_what_is_shown_is_marked_old() {
    for size in SIZES {
        let mut app = world::busy(size, 4);
        shows_not(&app, &[" OLD "]);
        let later = NOW.plus(Span::secs(5));
        app.update(Msg::Tick(later));
        app.update(Msg::Lost("the controller at 127.0.0.1:7171 can't be reached: refused".into()));
        app.update(Msg::Tick(later.plus(Span::secs(18))));
        shows(&app, &[" OLD ", "! since ", ": refused", "23s old", "n1     █▇▆▅▅▂▁·"]);
        let drawn = buffer(&app, size);
        assert!(drawn[(1, 8)].modifier.contains(Modifier::DIM), "old things look old");
        world::tell(&mut app, 4, Time(NOW.0 + 30_000));
        shows_not(&app, &[" OLD ", "trying again"]);
    }
    // It hangs: no error, no answer.
    let mut app = world::busy(SIZES[0], 4);
    app.update(Msg::Tick(NOW.plus(Span::secs(14))));
    shows(&app, &[" OLD ", "does not answer", "14s old"]);
    let mut app = world::app(SIZES[0]);
    app.update(Msg::Lost("can't be reached".into()));
    shows(&app, &["nothing was heard yet", "trying again", "asking the controller"]);
    // It hangs from the start, or for a moment.
    let mut app = world::app(SIZES[0]);
    app.update(Msg::Tick(NOW));
    app.update(Msg::Tick(NOW.plus(Span::secs(4))));
    shows(&app, &["does not answer", "nothing was heard for 4s"]);
    let mut app = world::busy(SIZES[0], 4);
    app.update(Msg::Tick(NOW.plus(Span::secs(6))));
    shows(&app, &["6s old"]);
    shows_not(&app, &[" OLD "]);
}

#[test]
fn without_colour_nothing_is_lost_and_with_it_sixteen_suffice() {
    let sixteen = |c: Color| !matches!(c, Color::Rgb(..) | Color::Indexed(_));
    for view in ["1", "2", "3"] {
        let mut app = world::busy(SIZES[1], 4);
        write(&mut app, view);
        world::tell(&mut app, 4, NOW);
        let coloured = buffer(&app, SIZES[1]);
        assert!(coloured.content().iter().all(|cell| sixteen(cell.fg) && sixteen(cell.bg)));
        assert!(coloured.content().iter().any(|cell| cell.fg != Color::Reset));
        app.theme = Theme { colour: false };
        let plain = buffer(&app, SIZES[1]);
        let reset = |c: Color| c == Color::Reset;
        assert!(plain.content().iter().all(|cell| reset(cell.fg) && reset(cell.bg)));
        let symbols = |b: &ratatui::buffer::Buffer| -> Vec<String> {
            b.content().iter().map(|cell| cell.symbol().to_owned()).collect()
        };
        assert_eq!(symbols(&plain), symbols(&coloured));
    }
}

#[test]
fn a_terminal_that_is_too_small_is_told_so() {
    for (width, height) in [(79, 24), (80, 23), (20, 3), (1, 1)] {
        let size = Size { width, height };
        let mut app = world::busy(SIZES[0], 4);
        app.update(Msg::Resize(size));
        let text = text(&app);
        assert!(width < 20 || text.contains("tutti top needs 80x2"), "{text}");
        assert_eq!(write(&mut app, "k2"), [], "keys do nothing unseen");
        assert_eq!(write(&mut app, "q"), [super::Effect::Quit(0)]);
    }
    let mut app = world::busy(SIZES[0], 4);
    app.update(Msg::Resize(MIN));
    shows(&app, &["[1 cluster]"]);
    // A frame of another size than the model's, as between a resize and its event.
    let drawn = buffer(&app, Size { width: 90, height: 30 });
    assert_eq!(drawn.area.height, 30);
    let drawn = buffer(&world::busy(SIZES[2], 4), SIZES[0]);
    assert_eq!(drawn.area.height, 24);
}

#[test]
fn help_says_every_key() {
    let mut app = world::busy(SIZES[0], 4);
    write(&mut app, "2");
    world::tell(&mut app, 4, NOW);
    for keys in ["1", "2", "3", "4", "l"] {
        write(&mut app, keys);
        let text = text(&app);
        assert!(text.ends_with("? help  q quit"), "the foot is whole:\n{text}");
    }
    write(&mut app, "1");
    write(&mut app, "?");
    shows(&app, &["kill: cancel the job", "user:ada", "any key goes back"]);
    write(&mut app, "k");
    shows_not(&app, &["any key goes back"]);
}

/// A thousand nodes: only those in sight are asked for, and scrolling gets to all of them.
#[test]
fn a_large_cluster_is_asked_for_in_parts() {
    let mut app = world::busy(SIZES[2], 1000);
    let first = app.wanted().cells;
    assert!(first.len() > 200 && first.len() < 500, "{}", first.len());
    shows(&app, &["GPUs of 1,000 nodes (scroll)", "6,000 of 8,000"]);
    press(&mut app, KeyCode::End);
    let last = app.wanted().cells;
    assert!(last.contains(&"n1000".to_owned()) && !last.contains(&"n1".to_owned()));
    write(&mut app, "3");
    assert_eq!(app.wanted().cells.len(), 55);
    press(&mut app, KeyCode::End);
    world::tell(&mut app, 1000, NOW);
    shows(&app, &["1,000 of 1,000", "›n1000"]);
    // To sort by what they do, all of them have to be known.
    write(&mut app, "sss");
    assert_eq!(app.wanted().cells.len(), 1000);
}
