//! The `[service]` table: where in the text it is wrong.

use tutti_model::{JobSpec, ServiceStep, WrongService};

use crate::textfile::error::{FileError, Problem};
use crate::textfile::tree::{Node, Value};

pub(super) fn check(root: &Node, spec: &JobSpec) -> Result<(), FileError> {
    let Some(service) = spec.service.as_deref() else { return Ok(()) };
    if let Some(key) = spec.not_with_service() {
        let at = root.get(key).map_or(root.at, |entry| entry.node.at);
        let why = "not together with [service]: replicas come and go by themselves".to_owned();
        return Err(FileError::of_key(at, key, Problem::BadValue(why)));
    }
    service.check().map_err(|wrong| placed(root, wrong))
}

/// A key that is not written, since its default is to blame, has the place of what is around it.
fn placed(root: &Node, wrong: WrongService) -> FileError {
    let mut node = root.get("service").map_or(root, |entry| &entry.node);
    for step in &wrong.at.0 {
        let below = match (step, &node.value) {
            (ServiceStep::Key(name), _) => node.get(name).map(|entry| &entry.node),
            (ServiceStep::Item(at), Value::List(items)) => items.get(*at),
            (ServiceStep::Item(_), _) => None,
        };
        node = below.unwrap_or(node);
    }
    FileError::of_key(node.at, format!("service.{}", wrong.at), Problem::BadValue(wrong.why))
}

#[cfg(test)]
mod tests {
    use tutti_model::{Access, Replicas, RetryRule, RoutePolicy, Span, Weekday};

    use crate::jobfile::parse;

    const TOML: &str = r#"
name = "chat"
gpus_per_node = "h100:2"
run = "vllm serve --port $PORT"

[service]
port = 8000
health = "/healthz"
models = ["llama", "llama-8b"]
replicas = [0, 8]
target_in_flight = 32
max_in_flight = 64
policy = "prefix"
warm_up = "5m"
access = "open"
retry = "never"
files = "/models/llama"
schedule = [{ from = "22:00", until = "06:30", days = ["mon", "fri"], min = 2, utc_offset_minutes = 60 }]

[service.rollout]
canary = 10
max_errors = 1
"#;

    const YAML: &str = r#"
name: chat
gpus_per_node: h100:2
run: vllm serve --port $PORT
service:
  port: 8000
  health: /healthz
  models: [llama, llama-8b]
  replicas: [0, 8]
  target_in_flight: 32
  max_in_flight: 64
  policy: prefix
  warm_up: 5m
  access: open
  retry: never
  files: /models/llama
  schedule:
    - {from: "22:00", until: "06:30", days: [mon, fri], min: 2, utc_offset_minutes: 60}
  rollout: {canary: 10, max_errors: 1}
"#;

    const JSON: &str = r#"{
  "name": "chat", "gpus_per_node": "h100:2", "run": "vllm serve --port $PORT",
  "service": {
    "port": 8000, "health": "/healthz", "models": ["llama", "llama-8b"], "replicas": [0, 8],
    "target_in_flight": 32, "max_in_flight": 64, "policy": "prefix", "warm_up": "5m",
    "access": "open", "retry": "never", "files": "/models/llama",
    "schedule": [{"from": "22:00", "until": "06:30", "days": ["mon", "fri"], "min": 2,
                  "utc_offset_minutes": 60}],
    "rollout": {"canary": 10, "max_errors": 1}
  }
}"#;

    #[test]
    fn a_service_is_the_same_in_three_formats() {
        let read = |name, text: &str| parse(Some(name), text.as_bytes()).unwrap().spec;
        let spec = read("a.toml", TOML);
        assert_eq!(read("a.yaml", YAML), spec);
        assert_eq!(read("a.json", JSON), spec);
        let service = spec.service.unwrap();
        assert_eq!((service.port, service.replicas), (Some(8000), Replicas { min: 0, max: 8 }));
        assert_eq!((service.policy, service.access), (RoutePolicy::Prefix, Access::Open));
        assert_eq!((service.retry, service.warm_up), (RetryRule::Never, Span::secs(300)));
        assert_eq!((service.rollout.canary, service.rollout.max_errors), (10, 1.0));
        let hours = &service.schedule[0];
        assert_eq!((hours.from.0, hours.until.0, hours.min), (22 * 60, 390, 2));
        assert_eq!(hours.days, [Weekday::Mon, Weekday::Fri]);
        let least = read("a.toml", "run = 'x'\n[service]\nreplicas = 3").service.unwrap();
        assert_eq!(least.replicas, Replicas { min: 3, max: 3 });
        assert_eq!(least.queue, tutti_model::ServiceSpec::default().queue);
    }

    fn told(lines: &str) -> String {
        let text = format!("run = 'x'\n[service]\n{lines}");
        let error = parse(Some("a.toml"), text.as_bytes()).expect_err(lines);
        error.hint().map_or(error.to_string(), |hint| format!("{error}\n  {hint}"))
    }

    #[test]
    fn mistakes_are_told_with_their_place() {
        for (lines, want) in [
            ("replicas = [4, 2]", "3:12: service.replicas: [4, 2] is no range: write [min, max]"),
            ("replicas = 0", "3:12: service.replicas: 0 would never answer anything"),
            ("replicas = 'many'", "3:12: service.replicas: a number of replicas, or [min, max]"),
            ("\ntarget_in_flight = 0", "4:20: service.target_in_flight: must be at least 1"),
            ("max_in_flight = 0", "3:17: service.max_in_flight: must be at least 1"),
            ("port = 0", "3:8: service.port: 0 is no port"),
            ("port = 22", "3:8: service.port: 22 belongs to the system: ports from 1024 on are"),
            ("port = 99999", "3:8: service.port: wants a whole number, not negative"),
            ("health = 'health'", "3:10: service.health: 'health' is no path: it starts with /"),
            ("replicas = [0, 2]\nqueue = 0", "4:9: service.queue: must be at least 1"),
            ("sticky_header = 'a b'", "3:17: service.sticky_header: 'a b' is no header's name"),
            ("models = ['a', '']", "3:16: service.models[1]: a model has a name"),
            ("models = ['a', 'a']", "3:16: service.models[1]: 'a' is there twice"),
            ("rollout = { canary = 101 }", "3:22: service.rollout.canary: 101 is no part"),
            ("files = 'llama'", "3:9: service.files: 'llama' is no path on every node"),
            ("warm_up = '0s'", "3:11: service.warm_up: nothing is ready at once"),
            ("rollout = { max_slowdown = 0.5 }", "3:28: service.rollout.max_slowdown: must be at"),
            ("warm_up = 'soon'", "3:11: service.warm_up: 'soon' is not a length of time"),
            ("policy = 'prefixes'", "3:10: service.policy: 'prefixes' is not known here, did you"),
            ("replica = 2", "3:1: service.replica: unknown key, did you mean 'replicas'?"),
            ("rollout = { cannary = 1 }", "3:13: service.rollout.cannary: unknown key, did you"),
        ] {
            let told = told(lines);
            assert!(told.starts_with(&format!("a.toml:{want}")), "{lines}: {told}");
        }
    }

    #[test]
    fn what_is_served_can_not_be_an_array() {
        let text = "run = 'x'\narray = '0-9'\n[service]\nport = 80";
        let error = parse(Some("a.toml"), text.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with("a.toml:2:9: array: not together with [service]"), "{error}");
    }

    #[test]
    fn hours_must_make_sense() {
        let hours = |item: &str| told(&format!("replicas = [0, 4]\nschedule = [{item}]"));
        let item = "{ from = '08:00', until = '20:00', min = 5 }";
        let more = "a.toml:4:54: service.schedule[0].min: 5 is more than the 4 of 'replicas'";
        assert_eq!(hours(item), more);
        let never = hours("{ from = '08:00', until = '08:00', min = 1 }");
        assert!(never.contains("service.schedule[0].until: the same as 'from'"), "{never}");
        let clock = hours("{ from = '8', until = '08:00', min = 1 }");
        assert!(clock.contains("service.schedule[0].from: '8' is no time of day"), "{clock}");
        let far = "{ from = '01:00', until = '02:00', min = 1, utc_offset_minutes = -900 }";
        assert!(hours(far).contains("-900 minutes: no clock is that far"));
    }
}
