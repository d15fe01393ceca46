//! The output `ftrace/typed/events.txt` of `ferretto-probes`: the kernel's tracepoints that have a message of their own, with the fields of
//! these messages.
//!
//! The table is text, one line for each event, sorted by group and name, so that a program finds a line by binary search and pays for
//! no other: structs with 3,000 names would cost each `traced_probes` as many relocations at its start. The group of an event is the
//! name of the schema file that has its message; `ferretto_probes::ftrace::typed` knows the exceptions.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use buffa_codegen::generated::descriptor::field_descriptor_proto::Type;
use buffa_codegen::generated::descriptor::{DescriptorProto, FieldDescriptorProto, FileDescriptorProto};

use crate::{Error, Output, prune};

/// The message with a field for each event.
const EVENT: &str = ".perfetto.protos.FtraceEvent";
/// The folder with a file for each group of events.
const FOLDER: &str = "perfetto/trace/ftrace/";
/// The file with messages that stand for events of any group.
const ANY_GROUP: &str = "generic";

/// The table of the events in `FtraceEvent`.
///
/// # Errors
/// If there is no such message, or an event has a field of a type that no tracepoint has had so far.
pub fn generate(files: &[FileDescriptorProto]) -> Result<Output, Error> {
    let mut events = HashMap::new();
    for file in files {
        let scope = format!(".{}", file.package.as_deref().unwrap_or_default());
        let stem = file
            .name
            .as_deref()
            .and_then(|name| name.strip_prefix(FOLDER)?.strip_suffix(".proto"));
        for message in &file.message_type {
            events.insert(prune::full_name(&scope, message.name.as_deref()), (stem, message));
        }
    }
    let Some((_, event)) = events.get(EVENT) else {
        return Err(Error::UnknownName(EVENT.to_owned()));
    };
    let mut lines = BTreeMap::new();
    for field in &event.field {
        let target = field.type_name.as_deref().unwrap_or_default();
        if let Some((Some(group), message)) = events.get(target)
            && *group != ANY_GROUP
        {
            let name = field.name.as_deref().unwrap_or_default();
            lines.insert((*group, name), line(group, field, message)?);
        }
    }
    Ok(Output {
        path: "../probes/src/ftrace/typed/events.txt".into(),
        content: lines.into_values().collect::<String>().into_bytes(),
    })
}

/// `group/name=number field:type=number field:type=number`
fn line(group: &str, event: &FieldDescriptorProto, message: &DescriptorProto) -> Result<String, Error> {
    let mut line = format!(
        "{group}/{}={}",
        event.name.as_deref().unwrap_or_default(),
        event.number.unwrap_or_default()
    );
    for field in &message.field {
        let name = field.name.as_deref().unwrap_or_default();
        let written_as = match field.r#type {
            Some(Type::TYPE_INT32) => "int32",
            Some(Type::TYPE_INT64) => "int64",
            Some(Type::TYPE_UINT32) => "uint32",
            Some(Type::TYPE_UINT64) => "uint64",
            Some(Type::TYPE_STRING) => "string",
            Some(Type::TYPE_BYTES) => "bytes",
            _ => {
                let message = message.name.as_deref().unwrap_or_default();
                return Err(Error::Messages(format!(
                    "{message}.{name} has a type that no tracepoint can be written as"
                )));
            }
        };
        let _ = write!(line, " {name}:{written_as}={}", field.number.unwrap_or_default());
    }
    line.push('\n');
    Ok(line)
}
