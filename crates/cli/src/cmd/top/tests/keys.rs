//! What keys do.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use tutti_model::Span;

use super::super::Size;
use super::super::app::{App, Effect, Msg, View};
use super::super::logs::{LogLine, LogMsg};
use super::world::{self, NOW};
use super::{SIZES, press, shows, shows_not, text, write};

fn jobs() -> App {
    let mut app = world::busy(SIZES[1], 4);
    write(&mut app, "2");
    world::tell(&mut app, 4, NOW);
    app
}

fn order(app: &App) -> Vec<u64> {
    app.job_keys().iter().map(|id| id.job.0).collect()
}

#[test]
fn views_are_reached_by_number_tab_and_arrow() {
    let mut app = world::busy(SIZES[0], 4);
    for (keys, view) in [("2", View::Jobs), ("3", View::Nodes), ("1", View::Cluster)] {
        write(&mut app, keys);
        assert_eq!(app.view, view);
    }
    write(&mut app, "4");
    assert_eq!(app.view, View::Cluster);
    shows(&app, &["no job is chosen"]);
    for view in [View::Jobs, View::Nodes] {
        press(&mut app, KeyCode::Tab);
        assert_eq!(app.view, view);
    }
    press(&mut app, KeyCode::Left);
    world::tell(&mut app, 4, NOW);
    assert_eq!(app.view, View::Jobs);
    write(&mut app, "4");
    assert_eq!((app.view, app.job), (View::Job, "7".parse().ok()));
    press(&mut app, KeyCode::Esc);
    assert_eq!(app.view, View::Jobs);
    press(&mut app, KeyCode::BackTab);
    assert_eq!(app.view, View::Cluster);
}

#[test]
fn a_job_is_cancelled_after_a_question() {
    let mut app = jobs();
    assert_eq!(write(&mut app, "jk"), []);
    shows(&app, &["cancel job 8 (訓練", "of babbage, running, 8 GPUs)? y or n"]);
    // No answer, then no.
    assert_eq!(write(&mut app, "xqk"), []);
    shows(&app, &["cancel job 8"]);
    assert_eq!(write(&mut app, "y"), [Effect::Cancel("8".parse().unwrap())]);
    app.update(Msg::Said { text: "a viewer may not cancel".into(), bad: true });
    shows(&app, &["! a viewer may not cancel"]);
    app.update(Msg::Tick(NOW.plus(Span::secs(60))));
    shows_not(&app, &["a viewer may not"]);
    let mut app = world::busy(SIZES[0], 4);
    write(&mut app, "ky");
    shows(&app, &["no job is chosen"]);
}

#[test]
fn filters_are_asked_for_while_they_are_typed() {
    let mut app = jobs();
    write(&mut app, "/user:ada tr");
    let wanted = app.wanted().jobs.unwrap().filter;
    assert_eq!((wanted.user.as_deref(), wanted.name.as_deref()), (Some("ada"), Some("tr")));
    shows(&app, &["filter: user:ada tr▏"]);
    press(&mut app, KeyCode::Backspace);
    press(&mut app, KeyCode::Enter);
    assert_eq!(app.jobs.filter, "user:ada t");
    shows(&app, &["· filter: user:ada t"]);
    write(&mut app, "/ state:dead");
    shows(&app, &["state:dead▏ no such state: dead"]);
    press(&mut app, KeyCode::Enter);
    shows(&app, &["filter: user:ada t state:dead · no such state: dead"]);
    write(&mut app, "/");
    " state:dead".chars().for_each(|_| drop(press(&mut app, KeyCode::Backspace)));
    press(&mut app, KeyCode::Enter);
    shows_not(&app, &["no such state"]);
    // Given up: what was there before.
    write(&mut app, "fxyz");
    press(&mut app, KeyCode::Esc);
    assert_eq!(app.jobs.filter, "user:ada t");
    press(&mut app, KeyCode::Esc);
    assert_eq!((app.jobs.filter.as_str(), app.view), ("", View::Jobs));

    write(&mut app, "3/drain");
    press(&mut app, KeyCode::Enter);
    world::tell(&mut app, 4, NOW);
    assert_eq!(app.node_keys(), ["n2"]);
    shows(&app, &["1 of 1", "filter: drain (of 4)"]);
    assert_eq!(app.wanted().cells, ["n2"]);
    write(&mut app, "/ nothing");
    shows(&app, &["no node is like that"]);
}

#[test]
fn lists_are_sorted_and_turned_round() {
    let mut app = jobs();
    assert_eq!(order(&app), [7, 8, 9, 5]);
    write(&mut app, "s");
    assert_eq!(order(&app), [5, 7, 8, 9]);
    assert_eq!(app.jobs.list.selected().map(|id| id.job.0), Some(5), "from the top again");
    shows(&app, &["by id", "ID▼"]);
    write(&mut app, "S");
    assert_eq!(order(&app), [9, 8, 7, 5]);
    shows(&app, &["ID▲"]);
    write(&mut app, "rsssss");
    shows(&app, &["by gpus (of these)"]);
    write(&mut app, "ss");
    world::tell(&mut app, 4, NOW);
    // Who does least comes first; who has no GPUs, last.
    assert_eq!(order(&app)[..2], [8, 7]);
    assert!(app.wanted().jobs.unwrap().rows >= 1000);
    write(&mut app, "s");
    assert_eq!(order(&app), [7, 8, 9, 5]);
    write(&mut app, "3s");
    assert_eq!(app.node_keys()[0], "n2", "the worst first");
}

#[test]
fn the_cursor_stays_with_its_job() {
    let mut app = jobs();
    write(&mut app, "jj");
    assert_eq!(app.chosen(), "9".parse().ok());
    app.data.jobs.rows.remove(0);
    app.settle();
    assert_eq!(app.chosen(), "9".parse().ok());
    press(&mut app, KeyCode::End);
    press(&mut app, KeyCode::Down);
    assert_eq!(app.chosen(), "5".parse().ok());
    press(&mut app, KeyCode::Home);
    press(&mut app, KeyCode::Up);
    assert_eq!(app.chosen(), "8".parse().ok());
    let wanted = app.wanted().jobs.unwrap();
    assert_eq!((wanted.rows, wanted.ended, wanted.tasks), (100, false, false));
    write(&mut app, "at");
    let wanted = app.wanted().jobs.unwrap();
    assert!(wanted.ended && wanted.tasks);
}

#[test]
fn ranks_of_a_log_are_chosen() {
    let mut app = jobs();
    write(&mut app, "l");
    let effects = {
        write(&mut app, "r0-3,7");
        press(&mut app, KeyCode::Enter)
    };
    match &effects[..] {
        [Effect::Follow { number: 2, ranks: Some(ranks), .. }] => assert_eq!(ranks, "0-3,7"),
        other => panic!("{other:?}"),
    }
    shows(&app, &["ranks 0-3,7"]);
    // Of the log before: no longer shown.
    let line = LogLine { rank: 0, err: false, text: "of the first".into() };
    app.update(Msg::Log(1, LogMsg::Line { line, partial: false }));
    shows_not(&app, &["of the first"]);
    // Here, k and l move.
    assert_eq!(write(&mut app, "kl"), []);
    assert_eq!((app.view, app.logs.left), (View::Logs, 8));
}

#[test]
fn signals_end_it_with_their_number() {
    let mut app = jobs();
    assert_eq!(app.update(Msg::End(15)), [Effect::Quit(143)]);
    let key = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(app.update(Msg::Key(key)), [Effect::Quit(0)]);
}

/// Any keys in any order, at any size, with and without data: there is always a frame.
#[test]
fn no_keys_break_it() {
    let mut seed: u64 = 7;
    let mut random = |n: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % n
    };
    let codes = [
        KeyCode::Enter,
        KeyCode::Esc,
        KeyCode::Tab,
        KeyCode::BackTab,
        KeyCode::Up,
        KeyCode::Down,
        KeyCode::Left,
        KeyCode::Right,
        KeyCode::PageUp,
        KeyCode::PageDown,
        KeyCode::Home,
        KeyCode::End,
        KeyCode::Backspace,
        KeyCode::Delete,
    ];
    let letters: Vec<char> = "1234?/fsSrklatcnNFgGhj yNe訓:0".chars().collect();
    let mut app = world::app(SIZES[0]);
    for round in 0..3_000 {
        match random(12) {
            0 => world::tell(&mut app, random(20) as usize + 1, NOW),
            1 => drop(app.update(Msg::Lost("gone".into()))),
            2 => {
                let size = Size { width: 70 + random(140) as u16, height: 20 + random(45) as u16 };
                app.update(Msg::Resize(size));
            }
            3 => {
                let text = format!("line {round} of 訓練");
                let line = LogLine { rank: random(3) as u32, err: false, text };
                app.update(Msg::Log(random(9), LogMsg::Line { line, partial: random(2) == 0 }));
            }
            4..7 => drop(press(&mut app, codes[random(codes.len() as u64) as usize])),
            _ => {
                drop(press(&mut app, KeyCode::Char(letters[random(letters.len() as u64) as usize])))
            }
        }
        if round % 3 == 0 {
            assert!(!text(&app).is_empty());
        }
    }
}
