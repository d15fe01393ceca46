//! Intentional differences from upstream, with reasons: the same list as in `docs/flags.md`.

/// A difference, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Difference {
    /// Its name in the table.
    pub(crate) name: &'static str,
    /// The reason for the difference.
    pub(crate) why: &'static str,
}

macro_rules! differences {
    ($($id:ident = $name:literal: $why:literal;)*) => {
        $(pub(crate) const $id: Difference = Difference { name: $name, why: $why };)*
        /// All differences, in the order of the table.
        pub(crate) const ALL: &[Difference] = &[$($id),*];
    };
}

differences! {
    NO_SERVICE = "no service": "upstream's does not try again meanwhile, and nothing else can come of the wait";
    REFUSED = "refused": "a script must see that nothing was recorded";
    CUT = "cut": "a trace that is not whole is a failure";
    MALFORMED = "malformed": "one such word would have upstream's probes record no kernel event at all";
    CRASH = "crash": "a mistake wants a sentence, not a core dump";
    NUMBER = "number": "a typing error must not become another number";
    LEFTOVER = "leftover": "a file without a trace in it looks like one";
    SNAPSHOT = "snapshot": "a part of a trace must not pass for the whole of it";
    HANGUP = "hangup": "a closed terminal should cost no data";
    READER = "reader": "data must not vanish in silence, and Ctrl-C must end what nobody reads";
    COLOUR = "colour": "escape codes are for terminals, and not if NO_COLOR is set";
    EARLY = "early": "the whole line is read before any of it is done";
    EQUALS = "equals": "nobody means a file whose name begins with =";
    NEWER = "newer": "the reference is v56, and the flag came later";
    NOTE = "note": "the field that v56 wrote is gone; readers look for attributes";
    BUGREPORT = "bugreport": "upstream forgets to clone when -o is given, and complains of a missing config";
    IGNORED = "ignored": "what contradicts itself is refused rather than half of it ignored";
    STDERR = "stderr": "upstream closes it, and nothing could be said any more";
    DAEMON_START = "daemon start": "a script must see that nothing serves it";
    DAEMON_END = "daemon end": "a daemon that was asked to end and did has not failed";
    DAEMON_HELP = "daemon help": "help that was asked for is no failure";
    OCCUPIED = "occupied": "the first service would go on without clients, and a file is not ours to remove";
    LEFT_SOCKETS = "left sockets": "who finds a socket there looks for a service";
}
