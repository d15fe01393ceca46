//! Cuts the payload of a chunk into fragments. Called for every chunk written (to find out how much of it is
//! well-formed) and again for every fragment read (patches may have changed the bytes since).
//!
//! A fragment is a length as a varint, often padded to four bytes, and that many bytes. The input is hostile;
//! every answer lies within the payload.

use ferretto_wire::{decode_varint_wrapping, load_length};

use super::record::Flags;

/// A length that a trace writer stores in place of the real one when it gave up on the packet, and maybe on later ones, because it could not get a
/// new chunk (`kPacketSizeDropPacket` of the shared memory ABI).
const DROP_MARKER: u64 = (1 << 28) - 1;

/// The item at some offset of a payload.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// A fragment whose bytes are `start..end` of the payload; the next token is at `end`.
    Fragment { start: usize, end: usize },
    /// The end of the fragments.
    End,
    /// The writer's mark that it dropped data here.
    DropMarker,
    /// A length that is no varint or points outside of the payload.
    Malformed,
}

/// The token at `at`, which is at most `payload.len()`.
#[inline]
pub(super) fn token(payload: &[u8], at: usize) -> Token {
    let Some(rest) = payload.get(at..) else {
        return Token::Malformed;
    };
    if rest.is_empty() {
        return Token::End;
    }
    let Some((length, prefix)) = load_length(rest).or_else(|| unusual_length(rest)) else {
        return Token::Malformed;
    };
    let start = at + prefix;
    if length <= (payload.len() - start) as u64 {
        Token::Fragment {
            start,
            end: start + length as usize,
        }
    } else if length == DROP_MARKER {
        Token::DropMarker
    } else {
        Token::Malformed
    }
}

/// A length that [`load_length`] does not know.
#[cold]
fn unusual_length(bytes: &[u8]) -> Option<(u64, usize)> {
    decode_varint_wrapping(bytes)
}

/// Which part of a packet a fragment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// All of it.
    Whole,
    /// Its start; it goes on in the next chunk.
    Begin,
    /// Neither start nor end; the only fragment of its chunk.
    Continue,
    /// Its end; it began in an earlier chunk.
    End,
}

/// Classifies the fragment that occupies `at..end` of a payload of `payload` bytes.
#[inline]
pub(super) fn part(flags: Flags, at: usize, end: usize, payload: usize) -> Part {
    let continues = at == 0 && flags.has(Flags::CONTINUES_FROM_PREVIOUS);
    let goes_on = end == payload && flags.has(Flags::CONTINUES_ON_NEXT);
    match (continues, goes_on) {
        (false, false) => Part::Whole,
        (false, true) => Part::Begin,
        (true, true) => Part::Continue,
        (true, false) => Part::End,
    }
}

/// The result of [`measure`] for the payload of a chunk that is being committed.
#[derive(Debug)]
pub(super) struct Measured {
    /// Bytes up to the end of the last well-formed fragment.
    pub(super) bytes: usize,
    /// Why it stopped before the number of fragments the producer declared.
    pub(super) cut_short: Option<Cut>,
}

/// Why a chunk holds fewer fragments than it declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    WriterAborted,
    Malformed,
}

/// Finds how much of `payload` the first `fragments` fragments take.
pub(super) fn measure(payload: &[u8], fragments: u16) -> Measured {
    let mut rest = payload;
    for _ in 0..fragments {
        if let Some(next) = after_short_fragment(rest) {
            rest = next;
            continue;
        }
        let bytes = payload.len() - rest.len();
        let cut = match token(payload, bytes) {
            Token::Fragment { end, .. } => {
                rest = &payload[end..];
                continue;
            }
            Token::DropMarker => Cut::WriterAborted,
            Token::End | Token::Malformed => Cut::Malformed,
        };
        return Measured {
            bytes,
            cut_short: Some(cut),
        };
    }
    Measured {
        bytes: payload.len() - rest.len(),
        cut_short: None,
    }
}

/// Returns the bytes after the fragment at the start of `rest`, if it is whole and its length is one that [`load_length`] decodes: the same as
/// [`token`] gives, in half as many steps.
#[inline]
fn after_short_fragment(rest: &[u8]) -> Option<&[u8]> {
    let (length, prefix) = load_length(rest)?;
    rest.get(prefix + length as usize..)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_one_to_four_bytes_are_understood_padded_or_not() {
        for prefix in [&[3][..], &[0x83, 0], &[0x83, 0x80, 0], &[0x83, 0x80, 0x80, 0]] {
            let payload = [prefix, b"abcd"].concat();
            let start = prefix.len();
            assert_eq!(
                token(&payload, 0),
                Token::Fragment {
                    start,
                    end: start + 3
                }
            );
        }
        let mut payload = vec![0; 70_000];
        payload[..3].copy_from_slice(&[0x80, 0x80, 0x04]);
        assert_eq!(
            token(&payload, 0),
            Token::Fragment {
                start: 3,
                end: 3 + 65_536
            }
        );
    }

    #[test]
    fn lengths_outside_of_the_payload_and_endless_varints_are_malformed() {
        assert_eq!(token(b"\x05abcd", 0), Token::Malformed);
        assert_eq!(token(&[0x80], 0), Token::Malformed);
        assert_eq!(token(&[0xff; 64], 0), Token::Malformed);
        assert_eq!(
            token(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01], 0),
            Token::Malformed
        );
        assert_eq!(token(b"\x00", 2), Token::Malformed);
    }

    #[test]
    fn the_drop_marker_is_distinguished_from_damage() {
        assert_eq!(token(&[0xff, 0xff, 0xff, 0x7f, 1, 2], 0), Token::DropMarker);
        assert_eq!(token(&[0xff, 0xff, 0xff, 0x7e, 1, 2], 0), Token::Malformed);
    }
}
