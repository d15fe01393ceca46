//! The library that is preloaded into programs to have their heap profiled.
