//! Protobuf wire format for hot paths: varints, a bounded writer with back-patched lengths, a scanning reader.
//!
//! [`Writer`] appends fields to memory it owns, or to a bounded region that another process may see, and moves to the heap by itself when the region
//! is full. [`Reader`] walks the fields of one encoded message and is total: any bytes give fields or a [`WireError`]. Neither knows any message;
//! `ferretto-proto` puts types on top. [`bulk`] copies long stretches of bytes. [`OutOfLine`] has nothing to
//! do with the format: it is here because all crates reach it.
//!
//! The format is that of protobuf's "Encoding" document: a message is a row of fields, each a tag (a varint of
//! `field number << 3 | wire type`) and a value. Groups (wire types 3 and 4) are refused: no message of Perfetto has any.

pub mod bulk;
mod cursor;
mod out_of_line;
mod reader;
mod tag;
mod varint;
mod writer;

pub use cursor::{Cursor, MAX_SHORT_LEN, NestedLength, ShortMessage};
pub use out_of_line::{DropOutOfLine, OutOfLine};
pub use reader::{Field, Reader, Value, WireError};
pub use tag::{MAX_FIELD_NUMBER, WireType, field_number, tag, wire_type};
pub use varint::{
    MAX_SHORT_VARINT, MAX_VARINT_LEN, VarintError, decode_varint, decode_varint_wrapping, encode_varint,
    load_length, load_varint, push_varint, put_padded_varint, short_varint, take_varint, unzigzag,
    varint_len, zigzag,
};
pub use writer::{Finished, Writer};
