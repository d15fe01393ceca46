//! Frames and names that a profile does not show.
//!
//! [`Stacks`](crate::stacks::Stacks) asks about each frame when it gets its number. A CPU profile leaves out nothing. A heap profile begins where the
//! program asks for memory, so the frames of the profiler's own library in the program are left out, as upstream leaves out its own library.

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub struct LeftOut {
    /// Files whose frames do not lead a stack, by name without folder.
    pub leading_files: &'static [&'static str],
    /// Parts of the symbols of functions that do not lead a stack.
    pub leading_symbols: &'static [&'static str],
    /// Beginnings of the paths of files whose functions have no names.
    pub nameless: Vec<Vec<u8>>,
}

/// The name of functions whose names are not shown, as upstream's.
const FILTERED: &[u8] = b"FILTERED";

impl LeftOut {
    /// Whether such a frame is left out in front of a stack.
    pub(crate) fn leads(&self, path: &[u8], symbol: &[u8]) -> bool {
        let file = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        self.leading_files.iter().any(|name| name.as_bytes() == file)
            || self
                .leading_symbols
                .iter()
                .any(|part| contains(symbol, part.as_bytes()))
    }

    /// The name to show for a function.
    pub(crate) fn name<'a>(&self, path: &[u8], symbol: &'a [u8]) -> &'a [u8] {
        match self.nameless.iter().any(|prefix| path.starts_with(prefix)) {
            true => FILTERED,
            false => symbol,
        }
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len().max(1)).any(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leads_is_told_by_the_file_or_the_symbol() {
        let left_out = LeftOut {
            leading_files: &["libferretto_heap.so"],
            leading_symbols: &["ferretto_heap_client", "__rust_alloc"],
            nameless: Vec::new(),
        };
        assert!(left_out.leads(b"/usr/lib/libferretto_heap.so", b"malloc"));
        assert!(!left_out.leads(b"/usr/lib/libferretto_heap.so.d/libc.so.6", b"malloc"));
        assert!(left_out.leads(b"/bin/app", b"_RNvNtCs1_20ferretto_heap_client6client6sample"));
        assert!(left_out.leads(b"/bin/app", b"_RNvCs2_7___rustc12___rust_alloc"));
        assert!(!left_out.leads(b"/bin/app", b"main"));
        assert!(!LeftOut::default().leads(b"/bin/app", b""));
    }

    #[test]
    fn functions_of_files_with_these_beginnings_have_no_names() {
        let left_out = LeftOut {
            nameless: vec![b"/usr/".to_vec()],
            ..LeftOut::default()
        };
        assert_eq!(left_out.name(b"/usr/lib/libc.so.6", b"malloc"), b"FILTERED");
        assert_eq!(left_out.name(b"/opt/usr/lib", b"malloc"), b"malloc");
    }
}
