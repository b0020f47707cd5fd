//! One line of JSON.

use tutti_model::ProgressLine;

#[derive(Debug, thiserror::Error)]
pub enum BadLine {
    #[error("it is no JSON object")]
    NoObject,
    #[error("it does not follow docs/guide/progress.md: {0}")]
    Json(#[from] serde_json::Error),
}

/// None for a blank line.
pub fn read_line(line: &[u8]) -> Result<Option<ProgressLine>, BadLine> {
    let line = line.trim_ascii();
    if line.is_empty() {
        return Ok(None);
    }
    // A list would be read as the fields in their order.
    if !line.starts_with(b"{") {
        return Err(BadLine::NoObject);
    }
    match serde_json::from_slice(line) {
        Ok(line) => Ok(Some(line)),
        Err(error) => match diverged(line) {
            Some(line) => Ok(Some(line)),
            None => Err(error.into()),
        },
    }
}

/// Python writes a loss that is no number as `NaN` or `Infinity`, which is no JSON. That is when
/// progress is looked at most.
fn diverged(line: &[u8]) -> Option<ProgressLine> {
    let text = std::str::from_utf8(line).ok()?;
    if !text.contains("NaN") && !text.contains("Infinity") {
        return None;
    }
    let mut plain = text.to_owned();
    for word in ["NaN", "-Infinity", "Infinity"] {
        plain = plain.replace(word, "null");
    }
    let mut line: ProgressLine = serde_json::from_str(&plain).ok()?;
    if line.loss.is_none() && plain.contains("\"loss\"") {
        line.loss = Some(f64::NAN);
    }
    Some(line)
}
