//! Reads the config that a command line requests, with `-c` or with light flags and words.
//!
//! [`plan`](super) calls it.

use std::ffi::OsString;

use ferretto_proto::messages::{Message, TraceConfig};

use super::PlanError;
use crate::config::advice::ConfigOrigin;
use crate::config::config_source::{ConfigError, ConfigSyntax, WrittenConfig, parse_config, read_config};
use crate::config::surroundings::Kernel;
use crate::perfetto::Program;
use crate::perfetto::args::Arguments;
use crate::perfetto::event_words::{Given, WordError, understand};
use crate::perfetto::light_config::{
    LightFlags, SCHEDULING, Wanted, add_overview, light_config, test_config,
};

/// A tenth of the default, because in the default period a busy machine overruns the usual buffer.
pub(crate) const FILE_WRITE_PERIOD_OF_COMMANDS_MS: u32 = 500;

/// Returns the config that a subcommand made, the one merged from all `-c`, or the one of the light flags. As upstream, it ignores empty files beside
/// light flags.
pub(super) fn requested_config(program: Program, arguments: &Arguments) -> Result<WrittenConfig, PlanError> {
    if let Some(config) = arguments.made.clone() {
        let origin = ConfigOrigin::Flags;
        return Ok(WrittenConfig { config, origin });
    }
    let mut given: Vec<(&OsString, Vec<u8>)> = Vec::new();
    for name in &arguments.configs {
        // Upstream appends each file's bytes, but stdin and `:test` replace everything before.
        if name == "-" || name == ":test" {
            given.clear();
        }
        let bytes = if name == ":test" {
            test_config()?.encode_to_vec()
        } else {
            read_config(name)?
        };
        given.push((name, bytes));
    }
    let last = given.last().map(|(name, _)| display(name));
    given.retain(|(_, bytes)| !bytes.is_empty());
    let only_command = arguments.command.is_some() && arguments.configs.is_empty();
    if arguments.light.any() || only_command {
        if !given.is_empty() {
            return Err(PlanError::TwoConfigs);
        }
        let mut flags = arguments.light.clone();
        let mut wanted = wanted(program, &flags)?;
        if arguments.command.is_some() {
            // The recording ends with the command.
            flags.time.get_or_insert("0".to_owned());
            if wanted.is_empty() && flags.apps.is_empty() {
                wanted.extend(SCHEDULING.map(Wanted::of_perfetto));
            }
        }
        let mut config = light_config(&flags, &wanted)?;
        if arguments.command.is_some() {
            // The length of the recording is unknown, so a file takes the data, and the buffer only has to hold one write period of it.
            config.write_into_file = Some(true);
            config.file_write_period_ms = Some(FILE_WRITE_PERIOD_OF_COMMANDS_MS);
        }
        if program == Program::Ferretto {
            add_overview(&mut config);
        }
        let origin = ConfigOrigin::Flags;
        return Ok(WrittenConfig { config, origin });
    }
    // A clone has the config of the original.
    let clone = arguments.clone.is_some() || arguments.clone_by_name.is_some();
    match (last, given.is_empty()) {
        (None, _) if !clone => Err(PlanError::NoConfig),
        (Some(name), true) if !clone => Err(PlanError::EmptyConfig(name)),
        _ => together(&given, config_syntax(arguments)),
    }
}

/// Interprets the words of a command line.
fn wanted(program: Program, light: &LightFlags) -> Result<Vec<Wanted>, WordError> {
    if program == Program::Perfetto {
        return Ok(light
            .events
            .iter()
            .map(|word| Wanted::of_perfetto(word))
            .collect());
    }
    let bare = light.events.iter().map(|word| (Given::Bare, word.as_str()));
    let with_flag = light
        .event_flags
        .iter()
        .map(|word| (Given::WithFlag, word.as_str()));
    let words: Vec<(Given, &str)> = bare.chain(with_flag).collect();
    // Without words there is nothing to look up.
    let kernel = match words.is_empty() {
        true => None,
        false => Kernel::look_at_events().ok(),
    };
    understand(words, kernel.as_ref())
}

fn config_syntax(arguments: &Arguments) -> ConfigSyntax {
    match (arguments.text, arguments.lossy_text) {
        (true, _) => ConfigSyntax::Text,
        (false, true) => ConfigSyntax::LossyText,
        (false, false) => ConfigSyntax::Encoded,
    }
}

/// Merges configs as protobuf does: lists are joined, messages merged, and the last of several single values counts. Each config is parsed by itself,
/// so that a message about a mistake names its file.
fn together(configs: &[(&OsString, Vec<u8>)], syntax: ConfigSyntax) -> Result<WrittenConfig, PlanError> {
    let mut parsed = Vec::new();
    for (name, bytes) in configs {
        parsed.push(if *name == ":test" {
            WrittenConfig {
                config: test_config()?,
                origin: ConfigOrigin::Flags,
            }
        } else {
            parse_config(&display(name), bytes, syntax)?
        });
    }
    if parsed.len() == 1
        && let Some(written) = parsed.pop()
    {
        return Ok(written);
    }
    let encoded: Vec<u8> = parsed
        .iter()
        .flat_map(|written| written.config.encode_to_vec())
        .collect();
    let names: Vec<String> = configs.iter().map(|(name, _)| display(name)).collect();
    let name = names.join(" with ");
    match TraceConfig::decode_from_slice(&encoded) {
        Ok(config) => Ok(WrittenConfig {
            config,
            // The indices of fields count through all configs, so they fit no single text.
            origin: ConfigOrigin::Encoded { name },
        }),
        Err(source) => Err(ConfigError::Encoded { name, source }.into()),
    }
}

fn display(name: &OsString) -> String {
    if name == "-" {
        "<stdin>".to_owned()
    } else {
        name.to_string_lossy().into_owned()
    }
}
