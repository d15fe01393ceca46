//! Perfetto's IPC: frames, descriptors passed beside them, RPC client and host, transports and the reactor.
