//! What can be known to be wrong with a `[service]` table, whatever the cluster.

use tutti_model::{JobSpec, Replicas, ScheduledMin, ServiceSpec};

use crate::reject::{EndpointRefused, Rejected};

const NAME_CHARS_MAX: usize = 63;
const REPLICAS_MAX: u32 = 1000;
const MODELS_MAX: usize = 100;
const WORD_CHARS_MAX: usize = 200;
const SCHEDULE_MAX: usize = 100;
const DAY_MINUTES: i32 = 24 * 60;

/// The name of the endpoint, if all is well.
pub(super) fn check_service(spec: &JobSpec) -> Result<&str, Rejected> {
    let service = spec.service.as_deref().ok_or(EndpointRefused::NotAService)?;
    let name = spec.name.as_deref().ok_or(EndpointRefused::NoName)?;
    let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let odd = name.starts_with('-') || name.chars().all(|c| c.is_ascii_digit());
    if odd || name.len() > NAME_CHARS_MAX || !name.chars().all(fine) {
        return Err(EndpointRefused::BadName(name.to_owned()).into());
    }
    let excluded = [
        ("array", spec.array.is_some()),
        ("stdin", spec.stdin),
        ("after", !spec.after.is_empty()),
        ("hold", spec.hold),
        ("elastic", spec.elastic.is_some()),
    ];
    if let Some((key, _)) = excluded.into_iter().find(|(_, there)| *there) {
        return Err(EndpointRefused::Excluded { key }.into());
    }
    check_bounds(service.replicas)?;
    check_wakes(service, service.replicas)?;
    check_counts(service)?;
    check_words(service)?;
    check_rollout(service)?;
    check_schedule(&service.schedule)?;
    Ok(name)
}

pub(super) fn check_bounds(bounds: Replicas) -> Result<(), Rejected> {
    let Replicas { min, max } = bounds;
    if max == 0 {
        return Err(EndpointRefused::NoReplicas.into());
    }
    if min > max {
        return Err(EndpointRefused::BadReplicas { min, max }.into());
    }
    if max > REPLICAS_MAX {
        return Err(bad("replicas", format!("{max} are too many: at most {REPLICAS_MAX}")));
    }
    Ok(())
}

/// What sleeps is woken by a request that waits.
pub(super) fn check_wakes(service: &ServiceSpec, bounds: Replicas) -> Result<(), Rejected> {
    match service.queue == 0 && bounds.min == 0 {
        true => Err(bad("queue", "0 lets no request wait, so none could wake a sleeping endpoint")),
        false => Ok(()),
    }
}

fn bad(key: &'static str, problem: impl Into<String>) -> Rejected {
    EndpointRefused::BadService { key, problem: problem.into() }.into()
}

fn check_counts(service: &ServiceSpec) -> Result<(), Rejected> {
    if service.port == Some(0) {
        return Err(bad("port", "0 is no port: leave it out to have a free one picked"));
    }
    if service.target_in_flight == 0 {
        return Err(bad("target_in_flight", "0 requests at a time answer nothing"));
    }
    if service.max_in_flight == Some(0) {
        return Err(bad("max_in_flight", "0 requests at a time answer nothing"));
    }
    if service.warm_up.0 == 0 {
        return Err(bad("warm_up", "nothing is ready at once: give it some time"));
    }
    Ok(())
}

fn check_words(service: &ServiceSpec) -> Result<(), Rejected> {
    let odd = |c: char| c.is_whitespace() || c.is_control();
    if !service.health.starts_with('/') || service.health.contains(odd) {
        let problem = format!("'{}' is no path: it starts with '/'", service.health);
        return Err(bad("health", problem));
    }
    let token = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if service.sticky_header.is_empty() || !service.sticky_header.chars().all(token) {
        let problem = format!("'{}' is no name of a header", service.sticky_header);
        return Err(bad("sticky_header", problem));
    }
    if service.models.len() > MODELS_MAX {
        return Err(bad("models", format!("at most {MODELS_MAX} names are taken")));
    }
    let name = |m: &&String| {
        m.is_empty() || m.chars().count() > WORD_CHARS_MAX || m.chars().any(char::is_control)
    };
    if let Some(model) = service.models.iter().find(name) {
        return Err(bad("models", format!("'{model}' is no name of a model")));
    }
    if service.files.as_deref().is_some_and(|f| !f.starts_with('/')) {
        return Err(bad("files", "must start with '/'"));
    }
    Ok(())
}

fn check_rollout(service: &ServiceSpec) -> Result<(), Rejected> {
    let rule = &service.rollout;
    if rule.surge > REPLICAS_MAX {
        let problem = format!("{} are too many: at most {REPLICAS_MAX}", rule.surge);
        return Err(bad("rollout.surge", problem));
    }
    if rule.canary > 100 {
        return Err(EndpointRefused::BadCanary(rule.canary).into());
    }
    if !rule.max_errors.is_finite() || rule.max_errors < 0.0 {
        return Err(bad("rollout.max_errors", "is a number of per cent, 0 or more"));
    }
    if !rule.max_slowdown.is_finite() || rule.max_slowdown < 1.0 {
        return Err(bad("rollout.max_slowdown", "is how many times as long, 1 or more"));
    }
    Ok(())
}

fn check_schedule(schedule: &[ScheduledMin]) -> Result<(), Rejected> {
    let refuse = |problem: String| Err(EndpointRefused::BadSchedule(problem).into());
    if schedule.len() > SCHEDULE_MAX {
        return refuse(format!("at most {SCHEDULE_MAX} entries are taken"));
    }
    for entry in schedule {
        if entry.from == entry.until {
            return refuse(format!("{} to {} is no time", entry.from, entry.until));
        }
        if !(1 - DAY_MINUTES..DAY_MINUTES).contains(&entry.utc_offset_minutes) {
            let minutes = entry.utc_offset_minutes;
            return refuse(format!("{minutes} minutes ahead of UTC is no place on earth"));
        }
    }
    Ok(())
}
