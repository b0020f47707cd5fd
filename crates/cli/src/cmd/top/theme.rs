//! Colours, of the sixteen that every terminal has, and the marks that say the same without them.

use ratatui::style::{Color, Modifier, Style};
use tutti_model::{JobState, NodeState};

use crate::style::Ink;

#[derive(Clone, Copy, Debug)]
pub struct Theme {
    pub colour: bool,
}

impl Theme {
    pub fn of(self, ink: Ink) -> Style {
        let colour = |colour| if self.colour { Style::new().fg(colour) } else { Style::new() };
        match ink {
            Ink::Plain => Style::new(),
            Ink::Bold => Style::new().add_modifier(Modifier::BOLD),
            Ink::Dim => Style::new().add_modifier(Modifier::DIM),
            Ink::Red => colour(Color::Red),
            Ink::Green => colour(Color::Green),
            Ink::Yellow => colour(Color::Yellow),
            Ink::Blue => colour(Color::Blue),
            Ink::Magenta => colour(Color::Magenta),
            Ink::Cyan => colour(Color::Cyan),
        }
    }

    pub fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// Must not be overlooked.
    pub fn alarm(self) -> Style {
        let style = Style::new().add_modifier(Modifier::BOLD | Modifier::REVERSED);
        if self.colour { style.fg(Color::Red) } else { style }
    }

    pub fn found(self) -> Style {
        let style = Style::new().add_modifier(Modifier::REVERSED);
        if self.colour { style.fg(Color::Yellow) } else { style }
    }
}

pub fn job_mark(state: JobState) -> &'static str {
    match state {
        JobState::Pending => "…",
        JobState::Starting => "↑",
        JobState::Running => "▶",
        JobState::Suspended => "‖",
        JobState::Stopping => "↓",
        JobState::Completed => "✓",
        JobState::Failed => "✗",
        JobState::Cancelled => "-",
    }
}

pub fn node_mark(state: NodeState) -> &'static str {
    match state {
        NodeState::Ready => " ",
        NodeState::Cleaning => "c",
        NodeState::Draining => "d",
        NodeState::Drained => "D",
        NodeState::Away => "?",
        NodeState::Lost => "✗",
    }
}

/// Of something that is held: little use of it is waste.
pub fn busy_ink(percent: u8) -> Ink {
    match percent {
        70.. => Ink::Green,
        30..70 => Ink::Yellow,
        _ => Ink::Red,
    }
}
