//! Producer and consumer endpoints: shared memory arbiter, trace writers, the two ports.
