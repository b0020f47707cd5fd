//! The words that each runtime is started with.

use std::path::Path;

use super::*;
use crate::testing::TempDir;

fn inside() -> Inside {
    let words = |list: &[&str]| list.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
    Inside {
        part: "/data/parts/1@1".into(),
        image: "nvcr.io/nvidia/pytorch:25.06-py3".into(),
        variables: words(&["HOME", "PATH", "RANK", "TMPDIR", "MINE"]),
        own: words(&["MINE"]),
        paths: vec![("/home/ada".into(), false), ("/usr/bin/tutti".into(), true)],
        workdir: "/home/ada/train".into(),
        gpus: vec![Given {
            index: GpuIndex(3),
            uuid: "GPU-33".into(),
            vendor: Vendor::Nvidia,
            files: words(&["/dev/nvidia3"]),
        }],
        control_files: words(&["/dev/nvidiactl"]),
        as_root: false,
        env_files: None,
    }
}

fn found(runtime: Runtime, cdi: &str) -> Found {
    let path = Path::new("/usr/bin").join(runtime.name());
    Found { runtime, path, init: true, cdi: cdi.to_owned() }
}

fn text(runtime: Runtime, cdi: &str, inside: &Inside) -> String {
    command(&found(runtime, cdi), inside).unwrap().join(" ")
}

#[test]
fn podman_stays_in_the_parts_group_and_gets_devices_by_cdi() {
    let wanted = |device: &str| {
        format!(
            "/usr/bin/podman --cgroup-manager=cgroupfs run --rm --cgroups=disabled --network=host \
             --ipc=host --security-opt=label=disable --security-opt=no-new-privileges --interactive \
             --init --userns=keep-id --label=tutti.part=/data/parts/1@1 --env=HOME --env=RANK --env=MINE \
             --volume=/home/ada:/home/ada --volume=/usr/bin/tutti:/usr/bin/tutti:ro{device} \
             --workdir=/home/ada/train --entrypoint= nvcr.io/nvidia/pytorch:25.06-py3"
        )
    };
    let by_index = "kind: nvidia.com/gpu\ndevices:\n- name: \"3\"\n";
    let both = format!("{by_index}- name: GPU-33\n");
    let inside = inside();
    let one = |name: &str| wanted(&format!(" --device=nvidia.com/gpu={name}"));
    assert_eq!(text(Runtime::Podman, by_index, &inside), one("3"));
    assert_eq!(text(Runtime::Podman, &both, &inside), one("GPU-33"));
    let without = Inside { gpus: Vec::new(), ..inside.clone() };
    assert_eq!(text(Runtime::Podman, "", &without), wanted(""));
    let error = command(&found(Runtime::Podman, ""), &inside).unwrap_err();
    assert!(error.contains("nvidia-ctk cdi generate"), "{error}");
    // A job may bring its own; the host's stays outside.
    let own = Inside { own: vec!["PATH".into()], ..without.clone() };
    assert!(text(Runtime::Podman, "", &own).contains("--env=PATH"));
    let root = Inside { as_root: true, ..without };
    assert!(!text(Runtime::Podman, "", &root).contains("keep-id"));
}

#[test]
fn podman_with_more_rights_than_the_job_gets_variables_from_a_file() {
    let files = Some("/run/x/env".into());
    let inside = Inside { gpus: Vec::new(), env_files: files, ..inside() };
    let text = text(Runtime::Podman, "", &inside);
    assert!(text.contains(" --env-file=/run/x/env/ ") && !text.contains("--env="), "{text}");
}

#[test]
fn what_fits_no_line_of_a_file_is_named() {
    let odd = |vars: &[(&'static str, &'static str)]| fits_no_line(vars.iter().copied());
    assert_eq!(odd(&[("A", "b c = \"d\" #"), ("B", "")]), None);
    assert_eq!(odd(&[("A", "b"), ("KEY", "one\nLD_PRELOAD=/x")]), Some("KEY"));
    assert_eq!(odd(&[("A", "b\r")]), Some("A"));
    assert_eq!(odd(&[("#A", "b")]), Some("#A"));
    assert_eq!(odd(&[("A B", "b")]), Some("A B"));
}

#[test]
fn of_a_jobs_variables_podman_takes_only_what_names_no_program() {
    let env = ["LD_PRELOAD=/x.so", "HTTPS_PROXY=http://p", "PATH=/x", "CONTAINERS_CONF=/x"];
    let env = env.map(str::to_owned);
    assert_eq!(for_pulling(&env).collect::<Vec<_>>(), ["HTTPS_PROXY=http://p"]);
}

#[test]
fn amds_cards_are_files_to_podman() {
    let mut inside = inside();
    inside.gpus[0].vendor = Vendor::Amd;
    inside.gpus[0].files = vec!["/dev/dri/renderD128".into()];
    inside.control_files = vec!["/dev/kfd".into()];
    let text = text(Runtime::Podman, "", &inside);
    assert!(text.contains("--device=/dev/dri/renderD128 --device=/dev/kfd"), "{text}");
}

#[test]
fn apptainer_takes_names_of_registries_and_files() {
    let inside = inside();
    let wanted = "/usr/bin/apptainer exec --writable-tmpfs --nv --bind /home/ada:/home/ada \
                  --bind /usr/bin/tutti:/usr/bin/tutti:ro --pwd /home/ada/train \
                  docker://nvcr.io/nvidia/pytorch:25.06-py3";
    assert_eq!(text(Runtime::Apptainer, "", &inside), wanted);
    for image in ["/images/a.sif", "library://ada/a", "./a.sif"] {
        let inside = Inside { image: image.into(), ..inside.clone() };
        assert!(text(Runtime::Apptainer, "", &inside).ends_with(&format!("train {image}")));
    }
}

#[test]
fn enroot_takes_files_alone() {
    let mut inside = inside();
    let error = command(&found(Runtime::Enroot, ""), &inside).unwrap_err();
    assert!(error.contains("enroot import docker://nvcr.io"), "{error}");
    inside.image = "/images/a.sqsh".into();
    let wanted = "/usr/bin/enroot start --rw --mount /home/ada:/home/ada \
                  --mount /usr/bin/tutti:/usr/bin/tutti:ro --env HOME --env RANK --env MINE \
                  --env NVIDIA_VISIBLE_DEVICES=GPU-33 /images/a.sqsh \
                  /bin/sh -c cd \"$1\" && shift && exec \"$@\" sh /home/ada/train";
    assert_eq!(text(Runtime::Enroot, "", &inside), wanted);
    inside.gpus.clear();
    assert!(text(Runtime::Enroot, "", &inside).contains("NVIDIA_VISIBLE_DEVICES=void"));
}

#[test]
fn what_a_node_has_is_found_on_its_path() {
    use std::os::unix::fs::PermissionsExt;
    let dir = TempDir::new("runtimes");
    let put = |file: &str, mode: u32, text: &str| {
        let path = dir.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    put("opt/bin/apptainer", 0o755, "");
    put("usr/bin/podman", 0o755, "");
    put("usr/bin/enroot", 0o644, "not a program");
    put("etc/cdi/nvidia.yaml", 0o644, "kind: nvidia.com/gpu");
    let found = find("/usr/bin:/opt/bin", dir.path());
    let names: Vec<&str> = found.iter().map(|f| f.runtime.name()).collect();
    assert_eq!(names, ["podman", "apptainer"]);
    assert!(found[0].cdi.contains("nvidia.com") && !found[0].init);
    assert_eq!(choose(&found, None).unwrap().runtime, Runtime::Podman);
    assert_eq!(choose(&found, Some(Runtime::Apptainer)).unwrap().runtime, Runtime::Apptainer);
    assert_eq!(choose(&found, Some(Runtime::Enroot)), None);
}
