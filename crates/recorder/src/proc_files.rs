//! Reads the kernel's texts about the state of the machine: `/proc/pressure/*`, `/proc/meminfo`, `/proc/loadavg`.
//!
//! The command line reads the files. A value that a text does not have is `None`: kernels differ.

/// Returns how long tasks have been stalled since boot, in microseconds: the total of the line `some` or `full` of a file of `/proc/pressure`.
pub fn stalled(text: &str, line: &str) -> Option<u64> {
    let mut lines = text
        .lines()
        .filter_map(|text| text.strip_prefix(line)?.strip_prefix(' '));
    lines
        .next()?
        .split(' ')
        .find_map(|field| field.strip_prefix("total="))?
        .trim()
        .parse()
        .ok()
}

/// Returns the share of the memory that is available, from `/proc/meminfo`.
pub fn available_memory(text: &str) -> Option<f64> {
    let field = |name| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    let total = field("MemTotal:").filter(|total| *total > 0)?;
    Some(field("MemAvailable:")? as f64 / total as f64)
}

/// Returns the load of the last minute, from `/proc/loadavg`.
pub fn load_average(text: &str) -> Option<f64> {
    text.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_texts_of_the_kernel_are_understood() {
        let pressure = "some avg10=0.00 avg60=1.25 avg300=0.37 total=123456\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=789\n";
        assert_eq!(stalled(pressure, "some"), Some(123_456));
        assert_eq!(stalled(pressure, "full"), Some(789));
        assert_eq!(stalled("some avg10=0.00", "some"), None);
        assert_eq!(stalled("", "full"), None);
        let memory = "MemTotal:       16000000 kB\nMemFree:          100 kB\nMemAvailable:    4000000 kB\n";
        assert_eq!(available_memory(memory), Some(0.25));
        assert_eq!(available_memory("MemTotal: 0 kB\nMemAvailable: 0 kB"), None);
        assert_eq!(load_average("2.50 1.00 0.50 3/400 12345\n"), Some(2.5));
        assert_eq!(load_average("x"), None);
    }
}
