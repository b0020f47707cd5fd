//! Where the file of a day is.

use std::path::{Path, PathBuf};

use tutti_model::Day;

/// How the name of a file that is whole ends.
pub(crate) const ENDING: &str = ".parquet";

/// `2026/2026-11-16.parquet` below the folder of a table.
pub(crate) fn path(table: &Path, day: Day) -> PathBuf {
    let (year, _, _) = day.date();
    table.join(format!("{year:04}")).join(format!("{day}{ENDING}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn years_have_folders() {
        let path = path(Path::new("/a/jobs"), "2026-11-16".parse().unwrap());
        assert_eq!(path, Path::new("/a/jobs/2026/2026-11-16.parquet"));
    }
}
