//! What the applets `traced` and `traced_probes` have in common: flags in, exit code out.

use std::error::Error;
use std::ffi::OsString;

use clap::Parser;

/// Runs a daemon with the words after its name; gives the exit code, upstream's. Flags that are wrong, and what `serve`
/// fails with, are explained on stderr.
pub(crate) fn run<A: Parser>(
    name: &str,
    words: Vec<OsString>,
    asks_for_version: fn(&A) -> bool,
    serve: fn(&A) -> Result<(), Box<dyn Error>>,
) -> u8 {
    let args = match A::try_parse_from(std::iter::once(name.into()).chain(words)) {
        Ok(args) => args,
        Err(message) => {
            let _ = message.print();
            return u8::from(message.use_stderr());
        }
    };
    if asks_for_version(&args) {
        println!("{}", crate::VERSION);
        return 0;
    }
    match serve(&args) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{name}: {error}");
            1
        }
    }
}
