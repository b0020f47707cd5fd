//! What endpoints did in all and what that took: those that are there, and those that were stopped.

use tutti_model::{Endpoint, PastEndpoint, Prices, Served, ServedLine, State, Time};
use tutti_wire::api::{ServedView, StoppedEndpoints};

use super::job_line;
use super::report::Wanted;
use crate::serving::{Pending, Routers};

const GPU_MS_PER_HOUR: f64 = 3_600_000.0;
/// So many are named in a report.
const LINES_MAX: usize = 20;

/// Of replicas that are gone the state knows, of those that are there their jobs do.
pub fn served(state: &State, endpoint: &Endpoint, pending: &Pending, now: Time) -> ServedView {
    let mut total = endpoint.served.clone();
    total.add(&pending.beyond(&endpoint.served));
    let lines: Vec<_> = endpoint.replicas.keys().map(|id| job_line(state, *id, now)).collect();
    let hours = lines.iter().map(|line| line.held_hours).sum();
    let cost = lines.iter().filter_map(|line| line.cost).map(|cost| cost.held).sum();
    view(total, (hours, cost), &state.policy.prices)
}

/// `running`: hours and cost of the replicas that are there.
fn view(total: Served, running: (f64, f64), prices: &Prices) -> ServedView {
    let gpu_hours = total.gpu_ms as f64 / GPU_MS_PER_HOUR + running.0;
    let cost = (!prices.is_none()).then(|| total.cost_micro as f64 / 1e6 + running.1);
    let tokens = total.prompt_tokens + total.output_tokens;
    ServedView {
        gpu_hours,
        cost,
        currency: cost.map(|_| prices.currency.clone()),
        cost_per_million_tokens: cost.filter(|_| tokens > 0).map(|c| c * 1e6 / tokens as f64),
        total,
    }
}

/// Of a report: those that it is about, with all that they ever did.
pub fn served_lines(
    state: &State,
    routers: &Routers,
    wanted: &Wanted,
    now: Time,
) -> Vec<ServedLine> {
    let concerns = |team: &str, user: &str| wanted.concerns(&state.policy, team, user);
    let here = state.endpoints.values();
    let here = here.filter(|e| concerns(&e.team, &e.user) && wanted.is_of_time(e.created_at, None));
    let here = here.map(|e| {
        let view = served(state, e, &routers.pending(&e.name), now);
        line([&e.name, &e.user, &e.team], e.created_at, None, view)
    });
    let past = state.past_endpoints.iter().filter(|p| concerns(&p.team, &p.user));
    let past = past.filter(|p| wanted.is_of_time(p.created_at, Some(p.stopped_at)));
    let past = past.map(|p| past_line(p, &state.policy.prices));
    let mut lines: Vec<ServedLine> = here.chain(past).collect();
    lines.sort_by(|a, b| {
        let by_hours = b.gpu_hours.total_cmp(&a.gpu_hours);
        // Names return.
        by_hours.then_with(|| (&a.name, a.created_at).cmp(&(&b.name, b.created_at)))
    });
    lines.truncate(LINES_MAX);
    lines
}

/// All that are remembered, the newest first.
pub fn stopped_endpoints(state: &State) -> StoppedEndpoints {
    let prices = &state.policy.prices;
    let endpoints = state.past_endpoints.iter().map(|past| past_line(past, prices)).collect();
    StoppedEndpoints { currency: (!prices.is_none()).then(|| prices.currency.clone()), endpoints }
}

fn past_line(past: &PastEndpoint, prices: &Prices) -> ServedLine {
    let view = view(past.served.clone(), (0.0, 0.0), prices);
    line([&past.name, &past.user, &past.team], past.created_at, Some(past.stopped_at), view)
}

fn line(
    names: [&String; 3],
    created_at: Time,
    stopped_at: Option<Time>,
    view: ServedView,
) -> ServedLine {
    let [name, user, team] = names.map(Clone::clone);
    let ServedView { total, gpu_hours, cost, cost_per_million_tokens, .. } = view;
    ServedLine {
        name,
        user,
        team,
        created_at,
        stopped_at,
        total,
        gpu_hours,
        cost,
        cost_per_million_tokens,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tutti_model::{Day, EndpointReport, Policy, Price, ReportBy, RouterReport, Team, Traffic};

    use super::*;

    const HOUR_MS: u64 = 3_600_000;

    fn took(gpu_hours: u64) -> Served {
        Served {
            requests: 10,
            prompt_tokens: 1_500_000,
            output_tokens: 500_000,
            gpu_ms: gpu_hours * HOUR_MS,
            cost_micro: gpu_hours * 2_500_000,
            ..Served::default()
        }
    }

    fn here(name: &str, user: &str, created: Day, gpu_hours: u64) -> Endpoint {
        let json = serde_json::json!({
            "name": name, "user": user, "team": "lab", "created_at": created.begins(),
            "revisions": {}, "current": 1, "want": 0, "replicas": {},
        });
        Endpoint { served: took(gpu_hours), ..serde_json::from_value(json).unwrap() }
    }

    fn past(name: &str, team: &str, stopped: Day, gpu_hours: u64) -> PastEndpoint {
        PastEndpoint {
            name: name.into(),
            user: "ada".into(),
            team: team.into(),
            created_at: Day(1).begins(),
            stopped_at: stopped.begins(),
            served: took(gpu_hours),
        }
    }

    fn state() -> State {
        let price = Price { micros: 2_500_000, shape: None };
        let gpus = [("h100".to_owned(), price)].into();
        let lab = Team { parent: Some("org".into()), ..Team::default() };
        let policy = Policy {
            prices: Prices { gpus, ..Prices::default() },
            teams: [("lab".to_owned(), lab), ("org".to_owned(), Team::default())].into(),
            ..Policy::default()
        };
        let mut state = State { policy: Arc::new(policy), ..State::default() };
        for endpoint in [here("chat", "ada", Day(5), 4), here("late", "bob", Day(30), 1)] {
            state.endpoints.insert(endpoint.name.clone(), endpoint);
        }
        for gone in [
            past("chat", "lab", Day(3), 9),
            past("embed", "ops", Day(10), 6),
            past("score", "lab", Day(20), 2),
        ] {
            state.past_endpoints.add(gone);
        }
        state
    }

    fn wanted(since: u32, until: u32) -> Wanted {
        let (since, until) = (Day(since), Day(until));
        Wanted { by: ReportBy::Team, since, until, team: None, user: None }
    }

    fn names(state: &State, wanted: &Wanted) -> Vec<String> {
        let lines = served_lines(state, &Routers::default(), wanted, Day(40).begins());
        lines.into_iter().map(|line| line.name).collect()
    }

    #[test]
    fn a_report_has_those_that_are_there_and_those_that_were_stopped() {
        let state = state();
        assert_eq!(names(&state, &wanted(0, 40)), ["chat", "embed", "chat", "score", "late"]);
        assert_eq!(names(&state, &wanted(9, 19)), ["embed", "chat"], "stopped in these days");
        assert_eq!(names(&state, &wanted(21, 29)), ["chat"]);
        let of = |team: Option<&str>, user: Option<&str>| {
            let [team, user] = [team, user].map(|name| name.map(str::to_owned));
            names(&state, &Wanted { team, user, ..wanted(0, 40) })
        };
        assert_eq!(of(Some("org"), None), ["chat", "chat", "score", "late"], "those under it");
        assert_eq!(of(Some("ops"), None), ["embed"]);
        assert_eq!(of(None, Some("bob")), ["late"]);
        assert_eq!(of(Some("ops"), Some("bob")), [""; 0]);
    }

    #[test]
    fn lines_have_all_that_it_did_and_what_that_cost() {
        let routers = Routers::default();
        let traffic = Traffic { requests: 3, ..Traffic::default() };
        let said = EndpointReport { traffic, ..EndpointReport::default() };
        let endpoints = [("chat".to_owned(), said)].into();
        let report = RouterReport { router: "a".into(), endpoints, ..RouterReport::default() };
        routers.note(report, Day(40).begins()).unwrap();
        let lines = served_lines(&state(), &routers, &wanted(0, 40), Day(40).begins());
        let facts = |line: &ServedLine| (line.stopped_at, line.total.requests, line.cost);
        assert_eq!(facts(&lines[0]), (Some(Day(3).begins()), 10, Some(22.5)), "another chat");
        assert_eq!(facts(&lines[2]), (None, 13, Some(10.0)), "with what the state lacks");
        assert_eq!((lines[2].gpu_hours, lines[2].cost_per_million_tokens), (4.0, Some(5.0)));
        let free = State { policy: Arc::default(), ..state() };
        let lines = served_lines(&free, &routers, &wanted(0, 40), Day(40).begins());
        assert_eq!((lines[0].cost, lines[0].cost_per_million_tokens), (None, None));
    }

    #[test]
    fn few_are_named_and_all_are_listed() {
        let mut state = state();
        (0..50).for_each(|n| state.past_endpoints.add(past(&format!("e{n}"), "lab", Day(21), n)));
        let names = names(&state, &wanted(0, 40));
        assert_eq!((names.len(), names[0].as_str()), (LINES_MAX, "e49"));
        let listed = stopped_endpoints(&state);
        assert_eq!((listed.endpoints.len(), listed.currency.as_deref()), (53, Some("USD")));
        let ends = [listed.endpoints.first(), listed.endpoints.last()].map(|l| l.unwrap());
        assert_eq!(
            ends.map(|line| (line.name.as_str(), line.gpu_hours)),
            [("e49", 49.0), ("chat", 9.0)]
        );
    }
}
