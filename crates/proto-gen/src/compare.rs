//! Compares the schema with somebody else's descriptors of it.
//!
//! Called by `scripts/check-schema` with the descriptors that Perfetto publishes: names, numbers, types, labels
//! and enum values were carried over by hand and tool, and this is the proof that none was mistaken.

use std::collections::{BTreeMap, BTreeSet};

use buffa_codegen::generated::descriptor::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
};

use crate::prune::full_name;

/// Fields of our own in messages of theirs: name of the message and number of the field.
const OUR_EXTENSIONS: [(&str, &str); 9] = [
    (".perfetto.protos.PerfEventConfig.Scope", "9901"),
    (".perfetto.protos.PerfSampleDefaults", "9901"),
    (".perfetto.protos.PerfSample.ProducerEvent", "9901"),
    (".perfetto.protos.ProfilePacket.ProcessHeapSamples", "9901"),
    (".perfetto.protos.TracePacket", "9901"),
    (".perfetto.protos.TracingServiceEvent", "9901"),
    (".perfetto.protos.TracingServiceEvent", "9902"),
    (".perfetto.protos.TracingServiceEvent", "9903"),
    (".perfetto.protos.TracingServiceState.TracingSession", "9901"),
];

/// The findings of a comparison.
#[derive(Debug, Default)]
pub struct Comparison {
    /// The places where ours contradicts theirs, or lacks something that it should have.
    pub differences: Vec<String>,
    /// Messages and enums of ours that they do not have, so that nothing was compared.
    pub unchecked: Vec<String>,
    /// Fields of our own in messages that they have.
    pub extensions: Vec<String>,
    /// The additions of later releases to messages and enums that ours has.
    pub newer: Vec<String>,
    /// How many fields and enum values are the same.
    pub same: usize,
    /// How many of their fields ours leaves out, for it does not have the message that they hold.
    pub left_out: usize,
}

/// Compares everything in `ours` with its namesake in `releases`, oldest first.
///
/// The schema is one of the time between two releases: it must have all of the first release, where a field may
/// only be missing if it holds a message or enum that ours does not have, and nothing that no release has but
/// `OUR_EXTENSIONS`.
#[must_use]
pub fn compare(ours: &[FileDescriptorProto], releases: &[FileDescriptorProto]) -> Comparison {
    let ours = Types::new(ours);
    let releases: Vec<_> = releases
        .iter()
        .map(|file| Types::new(std::slice::from_ref(file)))
        .collect();
    let mut found = Comparison::default();
    for (name, message) in &ours.messages {
        let theirs: Vec<_> = releases
            .iter()
            .map(|release| release.messages.get(name).copied())
            .collect();
        found.members(
            name,
            fields(message, &ours),
            theirs.iter().map(|theirs| theirs.map(|it| fields(it, &ours))),
        );
    }
    for (name, value) in &ours.enums {
        let theirs: Vec<_> = releases
            .iter()
            .map(|release| release.enums.get(name).copied())
            .collect();
        found.members(
            name,
            values(value),
            theirs.iter().map(|theirs| theirs.map(values)),
        );
    }
    found
}

/// The members of a message or enum, by number for fields and by name for enum values.
type Members = BTreeMap<String, Member>;

struct Member {
    description: String,
    /// Whether ours has what it holds, if that is a message or an enum.
    carried: bool,
}

fn fields(message: &DescriptorProto, ours: &Types<'_>) -> Members {
    let member = |field: &FieldDescriptorProto| Member {
        description: describe(message, field),
        carried: field.type_name.as_deref().is_none_or(|target| ours.has(target)),
    };
    message
        .field
        .iter()
        .map(|field| (field.number.unwrap_or_default().to_string(), member(field)))
        .collect()
}

fn values(value: &EnumDescriptorProto) -> Members {
    let values = value.value.iter().map(|value| {
        let name = value.name.clone().unwrap_or_default();
        let description = format!("{name} = {}", value.number.unwrap_or_default());
        (
            name,
            Member {
                description,
                carried: true,
            },
        )
    });
    values.collect()
}

impl Comparison {
    fn members(&mut self, name: &str, ours: Members, releases: impl Iterator<Item = Option<Members>>) {
        let releases: Vec<Option<Members>> = releases.collect();
        if releases.iter().all(Option::is_none) {
            self.unchecked.push(name.to_owned());
            return;
        }
        for (key, member) in &ours {
            match releases.iter().flatten().find_map(|release| release.get(key)) {
                Some(other) if other.description == member.description => self.same += 1,
                Some(other) => {
                    let (ours, theirs) = (&member.description, &other.description);
                    self.differences
                        .push(format!("{name}: {ours}, they have {theirs}"));
                }
                None if OUR_EXTENSIONS.contains(&(name, key)) => {
                    self.extensions.push(format!("{name}: {}", member.description));
                }
                None => self
                    .differences
                    .push(format!("{name}: {}, which they do not have", member.description)),
            }
        }
        let mut listed = BTreeSet::new();
        for (at, release) in releases.iter().enumerate() {
            for (key, member) in release
                .iter()
                .flatten()
                .filter(|(key, _)| !ours.contains_key(*key))
            {
                if !listed.insert(key) {
                    continue;
                }
                match (member.carried, at) {
                    (false, _) => self.left_out += 1,
                    (true, 0) => self
                        .differences
                        .push(format!("{name}: missing {}", member.description)),
                    (true, _) => self.newer.push(format!("{name}: {}", member.description)),
                }
            }
        }
    }
}

#[derive(Default)]
struct Types<'a> {
    messages: BTreeMap<String, &'a DescriptorProto>,
    enums: BTreeMap<String, &'a EnumDescriptorProto>,
}

impl<'a> Types<'a> {
    fn new(files: &'a [FileDescriptorProto]) -> Self {
        let mut types = Self::default();
        for file in files {
            let package = format!(".{}", file.package.as_deref().unwrap_or_default());
            types.add(&package, &file.message_type, &file.enum_type);
        }
        types
    }

    fn add(&mut self, scope: &str, messages: &'a [DescriptorProto], enums: &'a [EnumDescriptorProto]) {
        for value in enums {
            self.enums.insert(full_name(scope, value.name.as_deref()), value);
        }
        for message in messages {
            let name = full_name(scope, message.name.as_deref());
            self.add(&name, &message.nested_type, &message.enum_type);
            self.messages.insert(name, message);
        }
    }

    fn has(&self, name: &str) -> bool {
        self.messages.contains_key(name) || self.enums.contains_key(name)
    }
}

/// A field as it would stand in a schema, with all that matters to an encoder or to the text format.
fn describe(message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
    let label = field.label.map_or(String::new(), |label| format!("{label:?} "));
    let kind = match (&field.type_name, field.r#type) {
        (Some(target), Some(kind)) => format!("{kind:?} {target}"),
        (_, kind) => kind.map_or(String::new(), |kind| format!("{kind:?}")),
    };
    let oneof = field
        .oneof_index
        .and_then(|index| message.oneof_decl.get(index as usize))
        .and_then(|oneof| oneof.name.as_deref())
        .map_or(String::new(), |oneof| format!(" in oneof {oneof}"));
    let packed = field
        .options
        .as_option()
        .is_some_and(|options| options.packed == Some(true));
    let default = field
        .default_value
        .as_deref()
        .map_or(String::new(), |value| format!(" default {value}"));
    format!(
        "{label}{kind} {} = {}{}{default}{oneof}",
        field.name.as_deref().unwrap_or_default(),
        field.number.unwrap_or_default(),
        if packed { " packed" } else { "" },
    )
}

#[cfg(test)]
mod tests {
    use buffa_codegen::generated::descriptor::field_descriptor_proto::Type;

    use super::*;
    use crate::{proto_crate, schema};

    /// The whole schema as one file, as a release publishes it.
    fn schema() -> FileDescriptorProto {
        let mut files = schema::compile(&proto_crate().join("proto"))
            .expect("the schema compiles")
            .into_iter();
        let mut whole = files.next().expect("there are files");
        for file in files {
            whole.message_type.extend(file.message_type);
            whole.enum_type.extend(file.enum_type);
        }
        whole
    }

    fn message<'a>(file: &'a mut FileDescriptorProto, name: &str) -> &'a mut DescriptorProto {
        let mut messages = file.message_type.iter_mut();
        messages
            .find(|message| message.name.as_deref() == Some(name))
            .expect("the message is there")
    }

    fn drop_field(message: &mut DescriptorProto, name: &str) {
        message.field.retain(|field| field.name.as_deref() != Some(name));
    }

    #[test]
    fn the_schema_is_the_same_as_itself() {
        let file = schema();
        let found = compare(std::slice::from_ref(&file), std::slice::from_ref(&file));
        assert!(
            found.differences.is_empty() && found.unchecked.is_empty(),
            "{found:?}"
        );
        assert!(found.same > 2000, "{}", found.same);
    }

    #[test]
    fn every_kind_of_mistake_is_seen() {
        type Mistake = fn(&mut DescriptorProto);
        let theirs = [schema()];
        let mistakes: [(&str, Mistake); 6] = [
            ("FTRACE_OTHER", |message| {
                message.field[0].name = Some("FTRACE_OTHER".to_owned())
            }),
            ("= 4711", |message| message.field[1].number = Some(4711)),
            ("TYPE_BOOL", |message| {
                message.field[3].r#type = Some(Type::TYPE_BOOL)
            }),
            ("missing LABEL_REPEATED", |message| {
                drop_field(message, "ftrace_events")
            }),
            ("KSYMS_RETAIN = 9", |message| {
                message.enum_type[0].value[2].number = Some(9)
            }),
            ("missing KSYMS_RETAIN", |message| {
                drop(message.enum_type[0].value.pop())
            }),
        ];
        for (trace, mistake) in mistakes {
            let mut ours = schema();
            mistake(message(&mut ours, "FtraceConfig"));
            let differences = compare(&[ours], &theirs).differences;
            assert!(
                differences.iter().any(|difference| difference.contains(trace)),
                "{trace}: {differences:?}"
            );
        }
    }

    #[test]
    fn only_listed_extensions_may_be_ours_alone() {
        let (mut ours, mut theirs) = (schema(), schema());
        for field in ["data_sources_gone", "data_sources_not_offered", "service_ended"] {
            drop_field(message(&mut theirs, "TracingServiceEvent"), field);
        }
        let found = compare(std::slice::from_ref(&ours), std::slice::from_ref(&theirs));
        assert!(found.differences.is_empty(), "{:?}", found.differences);
        assert_eq!(found.extensions.len(), 3, "{:?}", found.extensions);

        let event = message(&mut ours, "TracingServiceEvent");
        let extension = event.field.iter_mut().find(|field| field.number == Some(9902));
        extension.expect("the field is there").number = Some(9904);
        let differences = compare(&[ours], &[theirs]).differences;
        assert!(
            matches!(differences.as_slice(), [only] if only.contains("data_sources_not_offered = 9904")),
            "{differences:?}"
        );
    }

    #[test]
    fn fields_of_messages_that_are_left_out_are_counted() {
        let theirs = [schema()];
        let mut ours = schema();
        ours.message_type
            .retain(|message| message.name.as_deref() != Some("VmProgram"));
        drop_field(message(&mut ours, "DataSourceDescriptor"), "protovm_program");
        let found = compare(&[ours], &theirs);
        assert_eq!(found.left_out, 1);
        // `TracePacket.ProtoVms.Instance.program` still holds one: the same field on both sides.
        assert!(found.differences.is_empty(), "{:?}", found.differences);
    }

    #[test]
    fn what_lies_between_two_releases_is_fine() {
        let (mut older, ours, mut newer) = (schema(), schema(), schema());
        drop_field(message(&mut older, "FtraceConfig"), "tracing_cpumask");
        message(&mut newer, "FtraceConfig").field[0].number = Some(4711);
        let found = compare(&[ours], &[older, newer]);
        assert!(found.differences.is_empty(), "{:?}", found.differences);
        assert!(
            matches!(found.newer.as_slice(), [only] if only.contains("4711")),
            "{:?}",
            found.newer
        );
    }
}
