//! Perfetto's shared memory buffer ABI: pages, chunks, states, headers.
