//! The encoders and decoders against naive ones, and so against each other.

use super::*;
use proptest::prelude::*;

fn naive_encode(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value >= 128 {
        out.push((value % 128 + 128) as u8);
        value /= 128;
    }
    out.push(value as u8);
    out
}

/// All bits of the varint, of which there may be 70, and its size.
fn naive_decode(bytes: &[u8]) -> Option<(u128, usize)> {
    let size = 1 + bytes.iter().take(10).position(|byte| *byte < 128)?;
    let bits = bytes[..size].iter().rev();
    Some((
        bits.fold(0, |value, byte| value * 128 + u128::from(byte % 128)),
        size,
    ))
}

/// Varints of every length, padded and overlong ones, and bytes that are nearly varints.
fn nearly_varints() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![8 => 0x80..=0xffu8, 1 => any::<u8>(), 1 => 0..3u8];
    proptest::collection::vec(byte, 0..14)
}

proptest! {
    #[test]
    fn zigzag_round_trips_and_keeps_small_magnitudes_small(value: i64) {
        prop_assert_eq!(unzigzag(zigzag(value)), value);
        prop_assert!(zigzag(value) / 2 <= value.unsigned_abs());
    }

    #[test]
    fn all_encoders_give_the_same_bytes(value: u64, shift in 0u32..64) {
        let value = value >> shift;
        let expected = naive_encode(value);
        prop_assert_eq!(varint_len(value), expected.len());
        let mut buffer = [0xaa; MAX_VARINT_LEN];
        prop_assert_eq!(encode_varint(value, &mut buffer), &expected[..]);
        let mut pushed = vec![7];
        push_varint(&mut pushed, value);
        prop_assert_eq!(&pushed[1..], &expected[..]);
        let mut buffer = [0xaa; MAX_VARINT_LEN];
        let start = buffer.as_mut_ptr();
        // SAFETY: the buffer holds the longest varint.
        let end = unsafe { put_varint_without_loop(start, value) };
        prop_assert_eq!(end as usize - start as usize, expected.len());
        prop_assert_eq!(&buffer[..expected.len()], &expected[..]);
        let mut padded = vec![0xaa; expected.len()];
        put_padded_varint(&mut padded, value);
        prop_assert_eq!(padded, expected);
    }

    #[test]
    fn short_varints_are_like_all_others(value in 0..MAX_SHORT_VARINT, shift in 0u32..28) {
        let value = value >> shift;
        let (bytes, len) = short_varint(value);
        prop_assert_eq!(&bytes.to_le_bytes()[..len], &naive_encode(value.into())[..]);
    }

    #[test]
    fn padded_varints_fill_their_place_and_keep_the_bits_that_fit(value: u64, shift in 0u32..64, size in 0..=MAX_VARINT_LEN) {
        let value = value >> shift;
        let mut place = vec![0xaa; size];
        put_padded_varint(&mut place, value);
        let room = (1u128 << (7 * size)) - 1;
        let expected = (size > 0).then_some((u128::from(value) & room, size));
        prop_assert_eq!(naive_decode(&place), expected);
    }

    #[test]
    fn all_decoders_agree_on_varints(value: u64, shift in 0u32..64, behind: Vec<u8>) {
        let value = value >> shift;
        let varint = naive_encode(value);
        let bytes = [&varint[..], &behind].concat();
        let expected = (value, varint.len());
        prop_assert_eq!(decode_varint(&bytes), Ok(expected));
        prop_assert_eq!(decode_varint_wrapping(&bytes), Some(expected));
        let mut rest = &bytes[..];
        prop_assert_eq!(take_varint(&mut rest), Some(value));
        prop_assert_eq!(rest, &behind[..]);
        let is_loaded = varint.len() == 1 || varint.len() <= 8 && bytes.len() >= 8;
        prop_assert_eq!(load_varint(&bytes), is_loaded.then_some(expected));
        let is_length = varint.len() <= 2 && bytes.len() >= 4;
        prop_assert_eq!(load_length(&bytes), is_length.then_some(expected));
        for len in 0..varint.len() {
            let mut cut = &varint[..len];
            prop_assert_eq!(decode_varint(cut), Err(VarintError::Truncated));
            prop_assert_eq!(decode_varint_wrapping(cut), None);
            prop_assert_eq!((take_varint(&mut cut), cut.len()), (None, len));
        }
    }

    #[test]
    fn the_decoders_agree_with_a_naive_one_on_any_bytes(bytes in nearly_varints()) {
        let expected = naive_decode(&bytes);
        let wrapped = expected.map(|(value, size)| (value as u64, size));
        prop_assert_eq!(decode_varint_wrapping(&bytes), wrapped);
        let strict = match expected {
            Some((value, size)) => u64::try_from(value).map(|value| (value, size)).map_err(|_| VarintError::Overlong),
            None if bytes.len() < MAX_VARINT_LEN => Err(VarintError::Truncated),
            None => Err(VarintError::Overlong),
        };
        prop_assert_eq!(decode_varint(&bytes), strict);
        for loaded in [load_varint(&bytes), load_length(&bytes)] {
            prop_assert!(loaded.is_none() || loaded == wrapped);
        }
        let is_loaded = wrapped.is_some_and(|(_, size)| size == 1 || size <= 8 && bytes.len() >= 8);
        prop_assert_eq!(load_varint(&bytes).is_some(), is_loaded);
    }

    #[test]
    fn lengths_padded_to_four_bytes_are_loaded_if_they_need_two(value in 0..MAX_SHORT_VARINT, shift in 0u32..28) {
        let value = u64::from(value >> shift);
        let mut bytes = [0; 4];
        put_padded_varint(&mut bytes, value);
        prop_assert_eq!(load_length(&bytes), (varint_len(value) <= 2).then_some((value, 4)));
    }
}
