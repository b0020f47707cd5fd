use tutti_wire::jobfile;

use super::*;

fn parsed(text: &str) -> JobSpec {
    jobfile::parse(Some("x.toml"), text.as_bytes()).unwrap().spec
}

#[test]
fn a_file_without_a_service_says_what_to_do() {
    let fail = need_service(&parsed("run = 'x'"), "train.toml".as_ref()).unwrap_err();
    assert_eq!(fail.exit, 2);
    assert!(fail.message.starts_with("train.toml has no [service] table"), "{fail}");
    assert!(fail.hint.unwrap().contains("tutti submit train.toml"));
    assert_eq!(need_service(&parsed("run = 'x'\n[service]"), "x".as_ref()), Ok(()));
}

#[test]
fn a_file_that_is_not_there_says_what_to_give() {
    let fail = |path: &str| misnamed(Fail::usage("no"), path.as_ref()).hint;
    assert!(fail("chat").unwrap().contains("tutti endpoints"));
    assert_eq!((fail("-"), fail(env!("CARGO_MANIFEST_DIR"))), (None, None));
}

#[test]
fn a_name_is_the_flags_the_keys_or_the_files() {
    let (bare, named) = (parsed("run = 'x'"), parsed("name = 'chat'\nrun = 'x'"));
    let of = |flag: Option<&str>, spec: &JobSpec, path: &str| {
        name(flag.map(str::to_owned), spec, path.as_ref())
    };
    assert_eq!(of(Some("a"), &named, "b.toml").unwrap(), "a");
    assert_eq!(of(None, &named, "b.toml").unwrap(), "chat");
    assert_eq!(of(None, &bare, "/x/My_Model-7B.toml").unwrap(), "my-model-7b");
    for path in ["-", "_.toml"] {
        let fail = of(None, &bare, path).unwrap_err();
        assert!(fail.hint.unwrap().contains("--name"));
    }
}

/// Every recipe is a file that `tutti serve` takes.
#[test]
fn recipes_are_endpoints() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/serve");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "toml") {
            continue;
        }
        let parsed = read(&path).unwrap_or_else(|fail| panic!("{fail}"));
        need_service(&parsed.spec, &path).unwrap();
        assert_eq!(parsed.warnings, Vec::<String>::new(), "{}", path.display());
        let tutti_model::Command::Shell(line) = &*parsed.spec.run else { panic!("{path:?}") };
        let knows = line.contains("$PORT") || line.contains("tutti infer");
        assert!(knows, "{path:?} listens where nobody asks");
        names.push(name(None, &parsed.spec, &path).unwrap());
    }
    names.sort();
    assert_eq!(names, ["files", "infer", "sglang", "tgi", "triton", "vllm"]);
}
