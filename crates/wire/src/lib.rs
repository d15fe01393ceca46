//! Protobuf wire format for hot paths: varints, a bounded writer with back-patched lengths, a scanning reader.
//!
//! [`Writer`] appends fields to memory it owns, or to a bounded region that another process may see, and moves to the
//! heap by itself when the region is full. [`Reader`] walks the fields of one encoded message and is total: any bytes
//! give fields or a [`WireError`]. Both know nothing of which messages exist; `ferretto-proto` puts types on top.
//!
//! The format is that of protobuf's "Encoding" document: a message is a row of fields, each a tag (a varint of
//! `field number << 3 | wire type`) and a value. Groups (wire types 3 and 4) are refused: no message of Perfetto has any.

mod cursor;
mod reader;
mod varint;
mod writer;

pub use cursor::{Cursor, MAX_SHORT_LEN};
pub use reader::{Field, Reader, Value, WireError};
pub use varint::{MAX_FIELD_NUMBER, MAX_VARINT_LEN, take_varint, unzigzag, varint_len, zigzag};
pub use writer::{Finished, Writer};
