use std::os::unix::fs::MetadataExt;

use proptest::prelude::*;
use rcgen::{BasicConstraints, ExtendedKeyUsagePurpose, IsCa, KeyPair, SanType};

use super::*;

fn ca() -> (tempfile::TempDir, Ca) {
    let dir = tempfile::tempdir().unwrap();
    let ca = Ca::create_in(dir.path()).unwrap();
    (dir, ca)
}

fn identity(ca: &Ca, node: &str) -> NodeIdentity {
    let key = NodeKey::generate().unwrap();
    let certificate = ca.sign_node_csr(&key.csr().unwrap(), node).unwrap();
    key.certified(&certificate, ca.pem()).unwrap()
}

#[test]
fn a_ca_is_loaded_as_it_was_made() {
    let (dir, made) = ca();
    let loaded = Ca::load_or_create(dir.path()).unwrap();
    assert_eq!(made.fingerprint(), loaded.fingerprint());
    assert_eq!(loaded.fingerprint().to_string().len(), 64);
    assert!(loaded.fingerprint().to_string().starts_with(&loaded.pin().to_string()));
    assert_eq!(loaded.pin().to_string().parse::<CaPin>().unwrap(), made.pin());
    // Signed with the loaded key, known to the CA made before.
    assert_eq!(identity(&loaded, "a").ca(), made.der());
}

#[test]
fn keys_are_for_the_owner_alone_and_never_overwritten() {
    let (dir, ca) = ca();
    ServerIdentity::ensure_in(dir.path(), &ca, &[]).unwrap();
    let node = dir.path().join("node.pem");
    identity(&ca, "a").save(&node).unwrap();
    for name in ["ca.key", "server.key", "node.pem"] {
        let mode = std::fs::metadata(dir.path().join(name)).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    assert!(matches!(Ca::create_in(dir.path()), Err(PkiError::File { what: "create", .. })));
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(left.len(), 5, "no temporary file is left: {left:?}");
}

#[test]
fn half_a_ca_is_not_silently_replaced() {
    for lost in ["ca.pem", "ca.key"] {
        let (dir, _) = ca();
        std::fs::remove_file(dir.path().join(lost)).unwrap();
        let error = Ca::load_or_create(dir.path()).unwrap_err();
        assert!(matches!(error, PkiError::HalfMade { .. }), "{error}");
        assert!(error.to_string().contains(lost));
    }
}

#[test]
fn a_ca_with_a_foreign_key_is_refused() {
    let ((dir, _), (other, _)) = (ca(), ca());
    std::fs::copy(other.path().join("ca.key"), dir.path().join("ca.key")).unwrap();
    assert!(matches!(Ca::load(dir.path()), Err(PkiError::KeyMismatch(_))));
}

#[test]
fn a_node_is_named_by_its_certificate() {
    let (_dir, ca) = ca();
    for name in ["n1", "gpu-07.rack_3", "Knoten.ä-ö", "a+2Fb", "ann@x", "_x", "日本"] {
        let identity = identity(&ca, name);
        assert_eq!(node_name_of(identity.certificate()).as_deref(), Some(name));
        assert_eq!(identity.node(), name);
    }
    for name in ["", "a\nb", "a\0", ".", "..", "-x", "a/b", "a b", &"x".repeat(65)] {
        let csr = NodeKey::generate().unwrap().csr().unwrap();
        assert!(matches!(ca.sign_node_csr(&csr, name), Err(PkiError::BadNodeName(_))), "{name:?}");
    }
    assert_eq!(node_name_of(ca.der()), None);
    let server = ServerIdentity::issue(&ca, &[]).unwrap();
    assert_eq!(node_name_of(&server.chain().unwrap()[0]), None);
}

/// A request that asks for everything gets a node's certificate and nothing more.
#[test]
fn only_the_key_is_taken_from_a_request() {
    let (_dir, ca) = ca();
    let key = KeyPair::generate().unwrap();
    let mut greedy = CertificateParams::new(vec!["controller.example".to_owned()]).unwrap();
    greedy.subject_alt_names.push(SanType::URI("tutti:node:victim".try_into().unwrap()));
    greedy.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    greedy.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let csr = greedy.serialize_request(&key).unwrap().pem().unwrap();

    let pem = ca.sign_node_csr(&csr, "n1").unwrap();
    let der = certificates(&pem, "it").unwrap().remove(0);
    assert_eq!(node_name_of(&der).as_deref(), Some("n1"));
    assert!(belongs(&der, &key).unwrap());
    let cert = parse(&der).unwrap();
    assert!(!cert.is_ca());
    let usage = cert.extended_key_usage().unwrap().unwrap().value;
    assert!(usage.client_auth && !usage.server_auth && !usage.any);
    assert_eq!(cert.subject_alternative_name().unwrap().unwrap().value.general_names.len(), 1);
}

#[test]
fn a_request_must_be_signed_by_its_key() {
    let (_dir, ca) = ca();
    let csr = NodeKey::generate().unwrap().csr().unwrap();
    let mut der = x509_parser::pem::parse_x509_pem(csr.as_bytes()).unwrap().1.contents;
    *der.last_mut().unwrap() ^= 1;
    let body = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, der);
    let forged =
        format!("-----BEGIN CERTIFICATE REQUEST-----\n{body}\n-----END CERTIFICATE REQUEST-----\n");
    assert!(matches!(ca.sign_node_csr(&forged, "n1"), Err(PkiError::Crypto { .. })));
    assert!(ca.sign_node_csr("", "n1").is_err());
    assert!(ca.sign_node_csr(ca.pem(), "n1").is_err());
}

#[test]
fn certificates_hold_from_a_little_before_now_and_are_renewed_in_time() {
    let (_dir, ca) = ca();
    let identity = identity(&ca, "a");
    let validity = identity.validity().unwrap();
    let now = SystemTime::now();
    assert!(validity.from < now - CLOCK_SKEW / 2);
    assert!(validity.remaining(now) > 89 * DAY && validity.remaining(now) <= 90 * DAY);
    assert!(!validity.two_thirds_over(now));
    assert!(!validity.two_thirds_over(now + 59 * DAY));
    assert!(validity.two_thirds_over(now + 61 * DAY));
    assert!(validity.two_thirds_over(now + 1000 * DAY));
    assert_eq!(validity.remaining(now + 1000 * DAY), Duration::ZERO);

    let next = ca.sign_node_csr(&identity.renewal().unwrap(), "a").unwrap();
    let before = identity.certificate().clone();
    let renewed = identity.renewed(&next).unwrap();
    assert_ne!(renewed.certificate(), &before);
    assert_eq!(renewed.node(), "a");
}

#[test]
fn an_identity_is_loaded_as_it_was_saved() {
    let (dir, ca) = ca();
    let path = dir.path().join("node.pem");
    let saved = identity(&ca, "a");
    saved.save(&path).unwrap();
    let loaded = NodeIdentity::load(&path).unwrap();
    assert_eq!(loaded.certificate(), saved.certificate());
    assert_eq!(loaded.ca(), ca.der());
    assert_eq!(loaded.ca_pin(), ca.pin());
    assert!(!format!("{loaded:?}").contains("PRIVATE"));

    let whole = std::fs::read_to_string(&path).unwrap();
    for cut in [0, 10, whole.len() / 4, whole.len() / 2, whole.len() - 40] {
        std::fs::write(&path, &whole[..cut]).unwrap();
        assert!(NodeIdentity::load(&path).is_err(), "cut at {cut}");
    }
}

#[test]
fn a_certificate_for_another_key_is_refused() {
    let (_dir, ca) = ca();
    let other = identity(&ca, "a");
    let other = certificates_pem(&other);
    assert!(matches!(
        NodeKey::generate().unwrap().certified(&other, ca.pem()),
        Err(PkiError::KeyMismatch(_))
    ));
}

fn certificates_pem(identity: &NodeIdentity) -> String {
    let body = base64::Engine::encode(
        &base64::engine::general_purpose::STANDARD,
        identity.certificate().as_ref(),
    );
    format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n")
}

#[test]
fn the_server_certificate_is_kept_while_it_serves() {
    let (dir, ca) = ca();
    let names = |n: &[&str]| n.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
    let leaf = |names: Vec<String>| {
        let id = ServerIdentity::ensure_in(dir.path(), &ca, &names).unwrap();
        id.chain().unwrap().remove(0)
    };
    let first = leaf(names(&["Head.example", "10.0.0.1"]));
    assert_eq!(first, leaf(names(&["head.example"])), "fewer names are covered");
    let second = leaf(names(&["10.0.0.2", "fd00:0::1"]));
    assert_ne!(first, second);
    assert_eq!(second, leaf(names(&["fd00::1"])), "the same address in another spelling");

    let (other, _) = self::ca();
    std::fs::copy(other.path().join("ca.key"), dir.path().join("server.key")).unwrap();
    assert_ne!(second, leaf(vec![]), "the key did not belong to it");

    let other = Ca::load(other.path()).unwrap();
    let moved = ServerIdentity::ensure_in(dir.path(), &other, &[]).unwrap();
    assert_eq!(&moved.chain().unwrap()[1], other.der());
}

#[test]
fn names_that_no_certificate_can_hold_are_refused() {
    let (_dir, ca) = ca();
    for name in ["", "a b", "-", "host:80", "http://x"] {
        let issued = ServerIdentity::issue(&ca, &[name.to_owned()]);
        assert!(matches!(issued, Err(PkiError::BadServerName(_))), "{name}");
    }
}

#[test]
fn replacing_needs_no_window() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("secret");
    replace_file(&path, b"one", 0o600).unwrap();
    replace_file(&path, b"two", 0o600).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"two");
    assert!(write_new_file(&path, b"three", 0o600).is_err());
    assert!(replace_file(&dir.path().join("no/such/dir"), b"", 0o600).is_err());
}

proptest! {
    #[test]
    fn random_certificates_and_requests_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        prop_assert_eq!(node_name_of(&bytes), None);
        prop_assert!(Validity::of(&bytes).is_err());
        let text = String::from_utf8_lossy(&bytes);
        prop_assert!(certificates(&text, "it").is_err());
        prop_assert!(private_key(&text, "it").is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn damaged_requests_never_panic(at in 0usize..1000, byte in any::<u8>(), cut in 0usize..1000) {
        static CA: std::sync::LazyLock<(tempfile::TempDir, Ca)> = std::sync::LazyLock::new(ca);
        let csr = NodeKey::generate().unwrap().csr().unwrap();
        let mut der = x509_parser::pem::parse_x509_pem(csr.as_bytes()).unwrap().1.contents;
        let at = at % der.len();
        der[at] = byte;
        der.truncate(1 + cut % der.len());
        let body = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, der);
        let pem = format!(
            "-----BEGIN CERTIFICATE REQUEST-----\n{body}\n-----END CERTIFICATE REQUEST-----\n"
        );
        let _ = CA.1.sign_node_csr(&pem, "n1");
    }
}
