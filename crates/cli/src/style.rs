//! Colour, sparingly, and only where a person looks.

use tutti_model::{JobState, NodeState};

/// Whether to colour, decided once per output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    colour: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ink {
    Plain,
    Bold,
    Dim,
    Red,
    Green,
    Yellow,
    Blue,
    Cyan,
    Magenta,
}

impl Style {
    pub const PLAIN: Style = Style { colour: false };

    pub fn of_stdout() -> Style {
        Style { colour: crate::terminal::stdout_is_terminal() && colour_wanted() }
    }

    pub fn of_stderr() -> Style {
        Style { colour: crate::terminal::stderr_is_terminal() && colour_wanted() }
    }

    pub fn is_coloured(self) -> bool {
        self.colour
    }

    pub fn paint(self, ink: Ink, text: &str) -> String {
        let code = match ink {
            Ink::Plain => return text.to_owned(),
            Ink::Bold => "1",
            Ink::Dim => "2",
            Ink::Red => "31",
            Ink::Green => "32",
            Ink::Yellow => "33",
            Ink::Blue => "34",
            Ink::Magenta => "35",
            Ink::Cyan => "36",
        };
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// `NO_COLOR` set to anything but nothing turns colour off (no-color.org).
pub fn colour_wanted() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
        && std::env::var_os("TERM").is_none_or(|t| t != "dumb")
}

pub fn of_job(state: JobState) -> Ink {
    match state {
        JobState::Pending | JobState::Suspended => Ink::Yellow,
        JobState::Starting | JobState::Stopping => Ink::Cyan,
        JobState::Running => Ink::Green,
        JobState::Completed | JobState::Cancelled => Ink::Dim,
        JobState::Failed => Ink::Red,
    }
}

pub fn of_node(state: NodeState) -> Ink {
    match state {
        NodeState::Ready => Ink::Green,
        NodeState::Cleaning | NodeState::Draining | NodeState::Away => Ink::Yellow,
        NodeState::Drained => Ink::Dim,
        NodeState::Lost => Ink::Red,
    }
}

/// One colour per rank, so that interleaved lines can be told apart.
pub fn of_rank(rank: u32) -> Ink {
    [Ink::Cyan, Ink::Green, Ink::Yellow, Ink::Magenta, Ink::Blue][rank as usize % 5]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_means_plain() {
        assert_eq!(Style::PLAIN.paint(Ink::Red, "x"), "x");
        assert_eq!(Style { colour: true }.paint(Ink::Red, "x"), "\x1b[31mx\x1b[0m");
    }
}
