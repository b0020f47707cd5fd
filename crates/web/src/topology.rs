//! Where a job runs, drawn: racks, their nodes, the GPUs of each by NVLink island.

use maud::{Markup, html};
use tutti_model::Place;

use crate::words;

/// Nodes drawn before the rest is counted.
pub const NODES_MAX: usize = 128;

/// A node of the picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spot {
    pub node: String,
    pub place: Place,
    /// Each GPU with its island, and whether the job has it.
    pub gpus: Vec<Card>,
    /// The first rank and how many there are.
    pub ranks: (u32, u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Card {
    pub index: u16,
    pub island: Option<u16>,
    pub mine: bool,
}

/// Empty for a job that has no node.
pub fn draw(spots: &[Spot]) -> Markup {
    let mut racks: Vec<(String, Vec<&Spot>)> = Vec::new();
    for spot in spots.iter().take(NODES_MAX) {
        let name = rack_name(&spot.place);
        match racks.iter_mut().find(|(rack, _)| *rack == name) {
            Some((_, nodes)) => nodes.push(spot),
            None => racks.push((name, vec![spot])),
        }
    }
    html! {
        @if !spots.is_empty() {
            ul.racks {
                @for (rack, nodes) in &racks {
                    li.rack {
                        @if !rack.is_empty() { span.sub { (rack) } }
                        ul { @for spot in nodes { (node(spot)) } }
                    }
                }
            }
            @if spots.len() > NODES_MAX { p.sub { "and " (spots.len() - NODES_MAX) " more nodes" } }
        }
    }
}

fn rack_name(place: &Place) -> String {
    [place.site.as_deref(), place.rack.as_deref()]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(" / ")
}

fn node(spot: &Spot) -> Markup {
    let mine: Vec<String> =
        spot.gpus.iter().filter(|card| card.mine).map(|card| card.index.to_string()).collect();
    let (first, ranks) = spot.ranks;
    let ranks = match ranks {
        0 => String::new(),
        1 => format!("rank {first}"),
        n => format!("ranks {first}–{}", first + n - 1),
    };
    html! {
        li.spot {
            (words::node_link(&spot.node)) " " span.sub { (ranks) }
            @if !spot.gpus.is_empty() {
                span.cards role="img"
                    aria-label={ "GPUs " (mine.join(", ")) " of " (spot.gpus.len()) } {
                    @for island in spot.gpus.chunk_by(|a, b| a.island == b.island) {
                        span.island { @for card in island { span.card.mine[card.mine] {} } }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn racks_nodes_islands_and_cards() {
        let card = |index, mine| Card { index, island: Some(index / 2), mine };
        let spot = |node: &str, rack: &str, first| Spot {
            node: node.into(),
            place: Place { rack: Some(rack.into()), ..Place::default() },
            gpus: vec![card(0, false), card(1, false), card(2, true), card(3, true)],
            ranks: (first, 2),
        };
        let text =
            draw(&[spot("n1", "r1", 0), spot("n2", "r1", 2), spot("n3", "r2", 4)]).into_string();
        assert_eq!(text.matches("class=\"rack\"").count(), 2, "{text}");
        assert_eq!(text.matches("class=\"island\"").count(), 6, "{text}");
        assert_eq!(text.matches("card mine").count(), 6, "{text}");
        assert!(text.contains("ranks 2–3") && text.contains("GPUs 2, 3 of 4"), "{text}");
        assert_eq!(draw(&[]).into_string(), "");
    }
}
