//! How many descriptors a daemon may have: many clients, or one for each CPU's buffer and more.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// As many descriptors as this process may have: raises the soft limit to the hard one.
pub fn most_descriptors() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let count = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    // None is no limit.
    count.map_or(usize::MAX, |count| count as usize)
}
