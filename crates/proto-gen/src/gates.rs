//! Which types are compiled only with a feature of `ferretto-proto`. The lists in [`selection`](crate::selection) decide it, and both generators of
//! code ask.

use std::collections::BTreeSet;

use buffa_codegen::generated::descriptor::FileDescriptorProto;

use crate::prune::{Index, full_name, names};
use crate::selection::{FOLDERS_OF_PROBES, MESSAGES, OF_PROGRAMS, ONLY_FOR_PROBES, ONLY_IN_TRACES, WRITERS};
use crate::{Error, folders};

/// The attribute of items that need the feature `probes`.
pub(crate) const PROBES: &str = "#[cfg(feature = \"probes\")]";

/// The attribute of items that need the feature `trace`, with which `probes` comes.
const TRACE: &str = "#[cfg(feature = \"trace\")]";

/// The full names of the types that some builds leave out.
pub(crate) struct Gates {
    /// Structs and enums of every build.
    always: BTreeSet<String>,
    /// These, and the messages for probes.
    with_probes: BTreeSet<String>,
    /// Writers of every build.
    writers: BTreeSet<String>,
}

impl Gates {
    /// # Errors
    /// If a list names something that the schema does not have.
    pub(crate) fn new(files: &[FileDescriptorProto]) -> Result<Gates, Error> {
        let roots = MESSAGES.roots.iter().copied();
        let roots: Vec<_> = roots.filter(|root| !ONLY_IN_TRACES.contains(root)).collect();
        let nothing = BTreeSet::new();
        let fields = ONLY_FOR_PROBES.iter().map(|name| (*name).to_owned()).collect();
        let mut always = names(files, &MESSAGES, &roots, &fields)?;
        let mut with_probes = names(files, &MESSAGES, &roots, &nothing)?;

        let of_probes = files
            .iter()
            .filter(|file| FOLDERS_OF_PROBES.contains(&folders::folder(file)));
        let of_probes = of_probes.flat_map(|file| {
            let scope = format!(".{}", file.package.as_deref().unwrap_or_default());
            let name = move |message: &Option<String>| full_name(&scope, message.as_deref());
            file.message_type.iter().map(move |message| name(&message.name))
        });
        let of_probes = of_probes.filter(|name| !OF_PROGRAMS.contains(&name.as_str()));
        let writers = names(files, &WRITERS, WRITERS.roots, &of_probes.collect())?;
        // The enums that writers take.
        let enums = Index::new(files).enums;
        always.extend(writers.intersection(&enums).cloned());
        let all_writers = names(files, &WRITERS, WRITERS.roots, &nothing)?;
        with_probes.extend(all_writers.intersection(&enums).cloned());
        Ok(Gates {
            always,
            with_probes,
            writers,
        })
    }

    /// The attribute for the declaration of a struct or an enum, and for everything that refers to it.
    pub(crate) fn of_type(&self, full_name: &str) -> Option<&'static str> {
        if self.always.contains(full_name) {
            None
        } else if self.with_probes.contains(full_name) {
            Some(PROBES)
        } else {
            Some(TRACE)
        }
    }

    /// The attribute that a type and all within it need.
    pub(crate) fn of_whole_type(&self, full_name: &str) -> Option<&'static str> {
        if has_part_of(&self.always, full_name) {
            None
        } else if has_part_of(&self.with_probes, full_name) {
            Some(PROBES)
        } else {
            Some(TRACE)
        }
    }

    /// The attribute that a writer and all within its module need.
    pub(crate) fn of_whole_writer(&self, full_name: &str) -> Option<&'static str> {
        (!has_part_of(&self.writers, full_name)).then_some(PROBES)
    }

    /// The attribute that a field of a struct needs.
    pub(crate) fn of_field(full_name: &str) -> Option<&'static str> {
        ONLY_FOR_PROBES.contains(&full_name).then_some(PROBES)
    }

    /// The attribute that the writer of a message needs, and all that is about it.
    pub(crate) fn of_writer(&self, full_name: &str) -> Option<&'static str> {
        (!self.writers.contains(full_name)).then_some(PROBES)
    }
}

/// Whether the type is among these, or one that is declared within it.
fn has_part_of(names: &BTreeSet<String>, full_name: &str) -> bool {
    let is_within = |name: &String| {
        let rest = name.strip_prefix(full_name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    names.iter().any(is_within)
}
