use super::*;

fn file(path: &str, bytes: u64) -> FileEntry {
    let hash = TreeHash { root: blake3::hash(b"x"), chunks: Vec::new() };
    FileEntry { path: path.into(), bytes, hash, copies: Vec::new() }
}

fn piece(at: u64, offset: &[u64], extent: &[u64]) -> Piece {
    Piece { file: 0, at, region: Region::new(offset, extent) }
}

fn sample() -> Manifest {
    let tensor = |name: &str, at| TensorEntry {
        name: name.into(),
        dtype: Dtype::F32,
        shape: vec![4, 2],
        pieces: vec![piece(at, &[0, 0], &[2, 2]), piece(at + 16, &[2, 0], &[2, 2])],
    };
    Manifest {
        kind: Kind::Sharded,
        step: 3,
        attempt: Attempt { owner: "12".into(), generation: 4 },
        created_ms: 1,
        world: 2,
        pinned: None,
        meta: serde_json::json!({"mesh": {"dp": 2}, "lr": 0.1}),
        chunk: CHUNK,
        files: vec![file("step-000000000003/a-0-g1/rank-0.safetensors", 64)],
        tensors: vec![tensor("a", 0), tensor("b", 32)],
    }
}

fn problem(change: impl Fn(&mut Manifest)) -> String {
    let mut manifest = sample();
    change(&mut manifest);
    unseal(&seal(&Entry::Published(manifest))).unwrap_err().to_string()
}

#[test]
fn it_reads_back_and_is_json() {
    let entry = Entry::Published(sample());
    let bytes = seal(&entry);
    assert_eq!(unseal(&bytes).unwrap(), entry);
    let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(value["entry"]["state"], "published");
    let retracted = Entry::Retracted(sample());
    assert_eq!(unseal(&seal(&retracted)).unwrap(), retracted);
}

#[test]
fn no_flipped_bit_goes_unseen() {
    let entry = Entry::Published(sample());
    let bytes = seal(&entry);
    for at in 0..bytes.len() {
        for bit in [0, 3, 7] {
            let mut bad = bytes.clone();
            bad[at] ^= 1 << bit;
            // The version is not under the seal: a smaller one is still read as what it is.
            let same = unseal(&bad).is_ok_and(|read| read == entry);
            assert!(unseal(&bad).is_err() || same, "byte {at} bit {bit}");
        }
    }
    for len in 0..bytes.len() {
        assert!(unseal(&bytes[..len]).is_err(), "{len}");
    }
}

#[test]
fn a_newer_version_is_refused_by_name() {
    let text = String::from_utf8(seal(&Entry::Published(sample()))).unwrap();
    let newer = text.replacen("\"tutti_checkpoint\":1", "\"tutti_checkpoint\":2", 1);
    let error = unseal(newer.as_bytes()).unwrap_err();
    assert_eq!(error.to_string(), "it is of version 2, this program reads up to 1");
}

#[test]
fn what_is_inconsistent_is_refused() {
    type Change = fn(&mut Manifest);
    let cases: [(&str, Change); 8] = [
        ("tensor a: 4 of its 8 elements are in no piece", |m| drop(m.tensors[0].pieces.pop())),
        ("tensor b: the pieces at [0, 0] and [1, 0] overlap", |m| {
            m.tensors[1].pieces[1].region.offset[0] = 1;
        }),
        ("tensor a: a piece at [3, 0] of [2, 2] is outside its shape [4, 2]", |m| {
            m.tensors[0].pieces[1].region.offset[0] = 3;
        }),
        ("tensor b: a piece at [2, 0] of [2, 2] lies beyond the end of its file", |m| {
            m.files[0].bytes -= 1;
        }),
        ("tensor a: its name appears twice", |m| m.tensors[1].name = "a".into()),
        ("it names ../x, which is not a path inside the location", |m| {
            m.files[0].path = "../x".into();
        }),
        ("it names step-000000000004/x, which is not a path inside the location", |m| {
            m.files[0].path = "step-000000000004/x".into();
        }),
        ("it cuts files into chunks of 7 bytes; this program only knows 4194304", |m| m.chunk = 7),
    ];
    for (want, change) in cases {
        assert_eq!(problem(change), want);
    }
}
