//! What can be known to be wrong with an endpoint's job file, whatever the cluster.

use tutti_model::JobSpec;

use crate::reject::{EndpointRefused, Rejected};

const NAME_CHARS_MAX: usize = 63;

/// The name of the endpoint, if all is well.
pub(super) fn check_service(spec: &JobSpec) -> Result<&str, Rejected> {
    let service = spec.service.as_deref().ok_or(EndpointRefused::NotAService)?;
    let name = spec.name.as_deref().ok_or(EndpointRefused::NoName)?;
    let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let odd = name.starts_with('-') || name.chars().all(|c| c.is_ascii_digit());
    if odd || name.len() > NAME_CHARS_MAX || !name.chars().all(fine) {
        return Err(EndpointRefused::BadName(name.to_owned()).into());
    }
    if let Some(key) = spec.not_with_service() {
        return Err(EndpointRefused::Excluded { key }.into());
    }
    service.check().map_err(EndpointRefused::from)?;
    Ok(name)
}
