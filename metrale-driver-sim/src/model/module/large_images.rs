// SPDX-License-Identifier: MIT OR Apache-2.0
//! Small images that declare much: loaded at the cost of what they hold, or refused with a word about it.

use metrale_driver_sys::CUDA_ERROR_NOT_SUPPORTED;
use metrale_driver_sys::image::ptx::MAX_DECLARATIONS;

use super::*;

const H200: Target = Target { compute_capability: (9, 0), driver_version: 13000 };
const HEAD: &str = ".version 8.0\n.target sm_90\n.address_size 64\n";

fn refused(image: &[u8], words: &str) {
    let refusal = load(image, &H200).unwrap_err();
    assert_eq!(refusal.status, CUDA_ERROR_NOT_SUPPORTED, "{}", refusal.log);
    assert!(refusal.log.starts_with("the software driver does not load this image: "), "{}", refusal.log);
    assert!(refusal.log.contains(words), "{}", refusal.log);
}

/// A fatbin of entries for sm_80: kind, flags, bytes when unpacked, payload.
fn fatbin(entries: &[(u16, u64, u64, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for &(kind, flags, unpacked, payload) in entries {
        let mut header = [0_u8; 64];
        header[0..2].copy_from_slice(&kind.to_le_bytes());
        header[4..8].copy_from_slice(&64_u32.to_le_bytes());
        header[8..16].copy_from_slice(&(payload.len() as u64).to_le_bytes());
        header[26..28].copy_from_slice(&8_u16.to_le_bytes());
        header[28..32].copy_from_slice(&80_u32.to_le_bytes());
        header[40..48].copy_from_slice(&flags.to_le_bytes());
        header[56..64].copy_from_slice(&unpacked.to_le_bytes());
        body.extend_from_slice(&header);
        body.extend_from_slice(payload);
    }
    let mut image = FATBIN_MAGIC.to_vec();
    image.extend_from_slice(&[1, 0, 16, 0]);
    image.extend_from_slice(&(body.len() as u64).to_le_bytes());
    image.extend_from_slice(&body);
    image
}

#[test]
fn values_far_apart_load_until_there_are_too_many() {
    let text = |rows: usize, stride: usize| {
        format!("{HEAD}.global .b8 a[{rows}][{stride}] = {{{}}};\n", vec!["{7}"; rows].join(","))
    };
    let module = load(text(3, 8 << 20).as_bytes(), &H200).unwrap();
    let pieces: Vec<_> = module.globals[0].initial.pieces().map(|piece| piece.0).collect();
    assert_eq!(pieces, [0, 8 << 20, 16 << 20]);
    load(text(1000, BLOCK).as_bytes(), &H200).unwrap();
    refused(text(1100, BLOCK).as_bytes(), "initial values in 1100 blocks of 64 KiB");
    // The same values close together, and more of them, take no more than they are.
    load(text(100_000, 64).as_bytes(), &H200).unwrap();
}

#[test]
fn more_than_is_read_is_not_loaded_in_part() {
    let names: Vec<String> = (0..=MAX_DECLARATIONS).map(|index| format!("a{index}")).collect();
    let text = format!("{HEAD}.global .b8 {};\n", names.join(","));
    refused(text.as_bytes(), "line 4: more than 524288 declarations");
}

#[test]
fn a_payload_that_unpacks_to_much_is_not_unpacked() {
    const LZ4: u64 = 0x2011;
    // A literal, then one match of all the rest.
    let bomb = |bytes: usize| {
        let rest = bytes - 1 - 5 - 19;
        let mut block = vec![0x1f, b' ', 1, 0];
        block.resize(4 + rest / 255, 0xff);
        block.push((rest % 255) as u8);
        block.extend_from_slice(b"\x50     ");
        block
    };
    let one = |bytes: usize| fatbin(&[(1, LZ4, bytes as u64, &bomb(bytes))]);
    // Spaces are no PTX, but they were unpacked.
    assert_eq!(load(&one(1 << 20), &H200).unwrap_err().status, CUDA_ERROR_INVALID_IMAGE);
    refused(&one(64 << 20), "it states 67108864 bytes when unpacked");
    // A size that is stated and cannot be true takes no memory either.
    let refusal = load(&fatbin(&[(1, LZ4, u64::MAX, b"    ")]), &H200).unwrap_err();
    assert_eq!(refusal.status, CUDA_ERROR_INVALID_IMAGE);
    assert!(refusal.log.contains("4 bytes cannot hold the 18446744073709551615"), "{}", refusal.log);
    refused(&fatbin(&[(1, 0x8011, u64::MAX, b"    ")]), "it states 18446744073709551615 bytes");
}

#[test]
fn a_fatbin_inside_a_fatbin_is_no_text() {
    let text = format!("{HEAD}.visible .entry k() {{ ret; }}\n");
    // An entry's own target is read, the text's is not asked.
    let mut image = fatbin(&[(1, 0x11, 0, text.as_bytes())]);
    load(&image, &H200).unwrap();
    for _ in 0..3 {
        image = fatbin(&[(1, 0x11, 0, &image)]);
        let refusal = load(&image, &H200).unwrap_err();
        assert_eq!(refusal.status, CUDA_ERROR_INVALID_IMAGE);
        assert!(refusal.log.contains("this is a fatbin"), "{}", refusal.log);
    }
}

#[test]
fn the_entries_of_a_fatbin_are_named_up_to_a_number() {
    let refusal = load(&fatbin(&vec![(9, 0, 0, b"".as_slice()); 1000]), &H200).unwrap_err();
    assert_eq!(refusal.status, CUDA_ERROR_NO_BINARY_FOR_GPU);
    assert!(refusal.log.ends_with("an entry of kind 9 for sm_80, and 984 more"), "{}", refusal.log);
}
