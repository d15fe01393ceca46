//! (placeholder)
mod config;
