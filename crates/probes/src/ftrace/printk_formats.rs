//! Constant strings of the kernel by address, from tracefs' `printk_formats`.
//!
//! Some events hold the address of a string instead of its letters (`suspend_resume`, `rcu_utilization`). The event
//! encoder looks the address up here. If the file is unreadable or shows zeroes for addresses (`kptr_restrict`), no
//! string is known.

use std::collections::HashMap;

/// See the [module's documentation](self).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrintkFormats {
    strings: HashMap<u64, String>,
}

impl PrintkFormats {
    /// Reads lines of the form `0xffffffff8281972f : "thaw_processes"` and skips all others. The first of several lines
    /// for one address counts.
    pub fn parse(text: &str) -> Self {
        let mut strings = HashMap::new();
        for line in text.lines() {
            let Some((address, string)) = line.split_once(':') else {
                continue;
            };
            let address = address.trim();
            let digits = address.strip_prefix("0x").unwrap_or(address);
            let Ok(address) = u64::from_str_radix(digits, 16) else {
                continue;
            };
            let string = string.strip_prefix(' ').unwrap_or(string);
            let string = string.strip_prefix('"').unwrap_or(string);
            let string = string.strip_suffix('"').unwrap_or(string);
            if address != 0 && !string.is_empty() {
                strings.entry(address).or_insert_with(|| string.to_owned());
            }
        }
        Self { strings }
    }

    /// The string at an address of the kernel; empty if it is not known.
    pub fn lookup(&self, address: u64) -> &str {
        self.strings.get(&address).map_or("", String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_find_their_strings() {
        let formats = PrintkFormats::parse(
            "0xffffffff8281972f : \"thaw_processes\"\n\
             0xffffffff8281972f : \"again\"\n\
             0x1234 : \"with: colon\"\n\
             0x0 : \"hidden\"\n\
             nonsense\n\
             0x99 : \"\"\n",
        );
        assert_eq!(formats.lookup(0xffff_ffff_8281_972f), "thaw_processes");
        assert_eq!(formats.lookup(0x1234), "with: colon");
        assert_eq!(formats.strings.len(), 2);
        assert_eq!(formats.lookup(0), "");
    }
}
