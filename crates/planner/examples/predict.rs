//! Figures for a table of runs: `cargo run --release -p tutti-planner --example predict < runs.csv`

#![allow(clippy::print_stdout)]

use std::io::Read;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let predicted = tutti_planner::predict::predict(&text)?;
    print!("{}", tutti_planner::predict::to_csv(&predicted));
    Ok(())
}
