use proptest::prelude::*;
use serde::{Deserialize, Serialize};

use super::*;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Old {
    seq: u64,
    name: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct New {
    seq: u64,
    name: String,
    #[serde(default)]
    extra: Option<Vec<u32>>,
}

fn old() -> Old {
    Old { seq: 7, name: "train".into() }
}

#[test]
fn older_and_newer_programs_read_each_other() {
    for bytes in [encode(&old()).unwrap(), encode_packed(&old()).unwrap()] {
        let new: New = decode(&bytes).unwrap();
        assert_eq!(new, New { seq: 7, name: "train".into(), extra: None });
    }
    let new = New { seq: 7, name: "train".into(), extra: Some(vec![1, 2]) };
    assert_eq!(decode::<Old>(&encode(&new).unwrap()).unwrap(), old());
}

#[test]
fn errors_say_which() {
    let good = encode(&old()).unwrap();
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        decode::<Old>(&bytes).unwrap_err()
    };
    assert!(matches!(decode::<Old>(&good[..6]), Err(CodecError::TooShort(6))));
    assert!(matches!(with(0, b'x'), CodecError::NotOurs(b'x')));
    let newer = with(1, 9);
    assert!(matches!(newer, CodecError::UnknownVersion { found: 9 }));
    assert!(newer.to_string().contains('9'), "{newer}");
    assert!(newer.to_string().contains("made by a newer tutti"), "{newer}");
    assert!(matches!(with(good.len() - 1, 0), CodecError::Checksum { .. }));
    assert!(matches!(with(2, LZ4), CodecError::Checksum { .. }));
    assert!(matches!(decode::<Vec<u8>>(&good), Err(CodecError::Undecodable(_))));
    let mut longer = good.clone();
    longer.push(0xc0);
    seal(&mut longer);
    assert!(matches!(decode::<Old>(&longer), Err(CodecError::Trailing(1))));
}

/// Written by the first version. It must be readable for ever.
#[test]
fn version_1_still_reads() {
    let plain = b"t\x01\x00\xda\xe2`\xdd\x82\xa3seq\x07\xa4name\xa5train";
    let packed = b"t\x01\x01D\xbe\x11\xac\x04\"M\x18`@\x82\x11\x00\x00\x80\x82\xa3seq\x07\xa4name\xa5train\x00\x00\x00\x00";
    assert_eq!(decode::<Old>(plain).unwrap(), old());
    assert_eq!(decode::<Old>(packed).unwrap(), old());
}

#[test]
fn repeated_field_names_pack_well() {
    let many: Vec<New> =
        (0..1000).map(|seq| New { seq, name: format!("job-{seq}"), extra: None }).collect();
    let (plain, packed) = (encode(&many).unwrap(), encode_packed(&many).unwrap());
    assert!(packed.len() * 2 < plain.len(), "{} of {}", packed.len(), plain.len());
    assert_eq!(decode::<Vec<New>>(&packed).unwrap(), many);
}

proptest! {
    #[test]
    fn any_change_is_noticed(at in 0usize..10_000, bit in 0u8..8, packed: bool) {
        let mut bytes = if packed { encode_packed(&old()) } else { encode(&old()) }.unwrap();
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        prop_assert!(decode::<Old>(&bytes).is_err());
    }

    #[test]
    fn random_bytes_are_an_error(mut bytes: Vec<u8>, sealed: bool, body in 0u8..3) {
        if sealed && bytes.len() >= HEADER {
            bytes[..3].copy_from_slice(&[MAGIC, VERSION, body]);
            seal(&mut bytes);
        }
        prop_assert!(decode::<New>(&bytes).is_err());
    }
}
