//! Scripts and styles, as they are in the binary. All of them live under one directory that is named
//! after their content: modules find each other by relative paths, and browsers may keep them for ever.

use std::io::Write;
use std::sync::LazyLock;

use flate2::Compression;
use flate2::write::GzEncoder;

/// A file as it is served.
pub struct Asset {
    pub name: &'static str,
    pub kind: &'static str,
    pub bytes: &'static [u8],
    /// The same, compressed.
    pub gzip: Vec<u8>,
}

const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

macro_rules! files {
    ($($name:literal $path:literal $kind:expr),* $(,)?) => {
        &[$(($name, $kind, include_bytes!(concat!("../assets/", $path)) as &[u8])),*]
    };
}

const FILES: &[(&str, &str, &[u8])] = files![
    "theme.js" "theme.js" SCRIPT,
    "app.js" "app.js" SCRIPT,
    "live.js" "live.js" SCRIPT,
    "keys.js" "keys.js" SCRIPT,
    "act.js" "act.js" SCRIPT,
    "morph.js" "morph.js" SCRIPT,
    "rows.js" "rows.js" SCRIPT,
    "table.js" "table.js" SCRIPT,
    "words.js" "words.js" SCRIPT,
    "cells.js" "cells.js" SCRIPT,
    "grid.js" "grid.js" SCRIPT,
    "colours.js" "colours.js" SCRIPT,
    "charts.js" "charts.js" SCRIPT,
    "logs.js" "logs.js" SCRIPT,
    "gantt.js" "gantt.js" SCRIPT,
    "app.css" "app.css" STYLE,
    "icon.svg" "icon.svg" "image/svg+xml",
    "uPlot.js" "vendor/uPlot.iife.min.js" SCRIPT,
    "uPlot.css" "vendor/uPlot.min.css" STYLE,
    "uPlot.LICENSE" "vendor/uPlot.LICENSE" PLAIN,
];

static ALL: LazyLock<Vec<Asset>> = LazyLock::new(|| {
    let asset = |&(name, kind, bytes): &(&'static str, &'static str, &'static [u8])| Asset {
        name,
        kind,
        bytes,
        gzip: gzip(bytes),
    };
    FILES.iter().map(asset).collect()
});

static HASH: LazyLock<String> = LazyLock::new(|| {
    let mut hasher = blake3::Hasher::new();
    for (name, _, bytes) in FILES {
        hasher.update(name.as_bytes()).update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
    }
    hasher.finalize().to_hex()[..16].to_owned()
});

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).and_then(|()| encoder.finish()).expect("memory takes everything")
}

/// Of all files together; the name of their directory.
pub fn hash() -> &'static str {
    &HASH
}

pub fn find(name: &str) -> Option<&'static Asset> {
    ALL.iter().find(|asset| asset.name == name)
}

/// Where a file is served.
pub fn url(name: &str) -> String {
    debug_assert!(FILES.iter().any(|(known, _, _)| *known == name), "there is no {name}");
    format!("/assets/{}/{name}", hash())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts() -> impl Iterator<Item = (&'static str, &'static str)> {
        FILES.iter().map(|(name, _, bytes)| (*name, std::str::from_utf8(bytes).unwrap()))
    }

    #[test]
    fn modules_import_files_that_are_there() {
        let mut imports = 0;
        for (name, text) in texts().filter(|(name, _)| name.ends_with(".js")) {
            for line in text.lines().filter(|line| line.starts_with("import ")) {
                let from = line.split('"').nth(1).unwrap_or_default();
                let file = from.strip_prefix("./").unwrap_or_default();
                assert!(find(file).is_some(), "{name} imports {from}");
                imports += 1;
            }
        }
        assert!(imports > 0);
    }

    #[test]
    fn nothing_of_ours_names_another_host() {
        for (name, text) in texts().filter(|(name, _)| !name.starts_with("uPlot")) {
            let text = text.replace("http://www.w3.org/2000/svg", "");
            assert!(!text.contains("//cdn") && !text.contains("http://"), "{name}");
            assert!(!text.contains("https://"), "{name}");
        }
    }

    #[test]
    fn files_are_served_whole_and_small() {
        for asset in ALL.iter() {
            let mut back = Vec::new();
            let mut decoder = flate2::read::GzDecoder::new(asset.gzip.as_slice());
            std::io::Read::read_to_end(&mut decoder, &mut back).unwrap();
            assert_eq!(back, asset.bytes, "{}", asset.name);
        }
        let sent: usize = ALL.iter().map(|asset| asset.gzip.len()).sum();
        assert!(sent < 70_000, "{sent} bytes for a first visit");
        assert_eq!(hash().len(), 16);
    }
}
