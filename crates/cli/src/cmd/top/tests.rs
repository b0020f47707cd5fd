//! Frames of a model, at the sizes that people have.

mod frames;
mod keys;
mod world;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::app::{App, Effect, Msg};
use super::{Size, draw, once};

const SIZES: [Size; 3] = [
    Size { width: 80, height: 24 },
    Size { width: 120, height: 40 },
    Size { width: 200, height: 60 },
];

fn text(app: &App) -> String {
    once::frame(app).unwrap()
}

fn buffer(app: &App, size: Size) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(size.width, size.height)).unwrap();
    terminal.draw(|frame| draw::draw(app, frame)).unwrap();
    terminal.backend().buffer().clone()
}

fn press(app: &mut App, code: KeyCode) -> Vec<Effect> {
    app.update(Msg::Key(KeyEvent::new(code, KeyModifiers::NONE)))
}

/// Each character is a key.
fn write(app: &mut App, keys: &str) -> Vec<Effect> {
    keys.chars().flat_map(|c| press(app, KeyCode::Char(c))).collect()
}

#[track_caller]
fn shows(app: &App, wanted: &[&str]) {
    let text = text(app);
    for word in wanted {
        assert!(text.contains(word), "no '{word}' in\n{text}");
    }
}

#[track_caller]
fn shows_not(app: &App, unwanted: &[&str]) {
    let text = text(app);
    for word in unwanted {
        assert!(!text.contains(word), "'{word}' in\n{text}");
    }
}

#[test]
fn a_frame_has_room_for_what_it_shows() {
    assert_eq!(super::size("80x24"), Ok(super::MIN));
    assert_eq!(super::size("79x24").unwrap_err(), "79x24 is too small: it takes 80x24");
    assert!(super::size("wide").unwrap_err().contains("120x40"));
}
