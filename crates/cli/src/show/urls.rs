//! Where an endpoint is asked, and how.

use tutti_model::{Access, ServiceSpec};
use tutti_wire::api::EndpointDetail;

/// As a browser takes it: a bare address is spoken to without TLS.
pub fn base(address: &str) -> String {
    if address.contains("://") { address.to_owned() } else { format!("http://{address}") }
}

/// One endpoint behind a router, whatever it serves.
pub fn of(address: &str, name: &str) -> String {
    format!("{}/e/{name}", base(address))
}

/// URLs and a command to try.
pub fn lines(e: &EndpointDetail) -> Vec<String> {
    let name = &e.row.name;
    let Some(first) = e.routers.first() else {
        return vec!["  no router has been heard: tutti router starts one".to_owned()];
    };
    let mut lines: Vec<String> =
        e.routers.iter().map(|r| format!("  {}", of(&r.address, name))).collect();
    let service = e.spec.service.as_deref();
    let open = service.is_some_and(|s| s.access == Access::Open);
    let here = ["127.0.0.1", "localhost", "[::1]"].iter().any(|h| first.address.contains(h));
    let key = if open || here { "" } else { " -H \"Authorization: Bearer $KEY\"" };
    lines.push(match service.is_some_and(speaks_openai) {
        true => format!(
            "  curl{key} {}/v1/chat/completions --json \
             '{{\"model\":\"{name}\",\"messages\":[{{\"role\":\"user\",\"content\":\"Hello\"}}]}}'",
            base(&first.address)
        ),
        false => format!("  curl{key} {}/", of(&first.address, name)),
    });
    if !key.is_empty() {
        lines.push("  KEY is what tutti token create --serve USER prints".to_owned());
    }
    lines
}

/// All servers of OpenAI's API have this health path, and few others. It only chooses an example.
fn speaks_openai(service: &ServiceSpec) -> bool {
    service.health == ServiceSpec::default().health
}

#[cfg(test)]
mod tests {
    use tutti_model::Time;
    use tutti_wire::api::{EndpointState, RouterRow};

    use super::*;
    use crate::show::endpoint::tests::endpoint;

    fn behind(address: &str, access: Access, health: &str) -> Vec<String> {
        let mut e = endpoint(EndpointState::Ready, Vec::new());
        let service = ServiceSpec { access, health: health.to_owned(), ..ServiceSpec::default() };
        e.spec.service = Some(Box::new(service));
        e.routers.push(RouterRow {
            router: "r".into(),
            address: address.to_owned(),
            heard_at: Time(0),
            current: true,
        });
        lines(&e)
    }

    #[test]
    fn the_example_fits_the_server() {
        let here = "http://127.0.0.1:8080";
        assert_eq!(
            behind(here, Access::Keys, "/"),
            ["  http://127.0.0.1:8080/e/chat", "  curl http://127.0.0.1:8080/e/chat/"]
        );
        assert_eq!(
            behind(here, Access::Keys, "/health")[1],
            "  curl http://127.0.0.1:8080/v1/chat/completions --json \
             '{\"model\":\"chat\",\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'"
        );
        let nowhere = lines(&endpoint(EndpointState::Ready, Vec::new()));
        assert!(nowhere[0].contains("tutti router"));
    }

    #[test]
    fn a_key_is_asked_for_only_where_one_is_needed() {
        let far = "https://gpu.example.org";
        let closed = behind(far, Access::Keys, "/");
        assert!(closed[1].contains("Bearer $KEY") && closed[2].contains("token create --serve"));
        let open = behind(far, Access::Open, "/");
        assert_eq!(open[1], "  curl https://gpu.example.org/e/chat/");
        assert_eq!(open.len(), 2);
    }
}
