//! Makes answers fit the frames that clients accept, where others determine the size of the answer.
//!
//! The ports call this when such an answer becomes replies. An answer is split if it can be split, and shortened otherwise, least important
//! parts first. `QueryServiceState` and `ReadBuffers` are split where they are made.

use ferretto_ipc::frame::MAX_PAYLOAD;
use ferretto_proto::messages::observable_events::DataSourceInstanceStateChange;
use ferretto_proto::messages::{Message, ObservableEvents, TraceStats, trace_stats};
use ferretto_wire::varint_len;

/// The size of contents that surely fit a frame besides the message that carries them.
const MOST: usize = MAX_PAYLOAD - 16;
/// The most writers whose statistics fit a frame, at their smallest.
pub(crate) const MOST_WRITERS: usize = MAX_PAYLOAD / 32;
/// Bytes to which a name is cut, if its message would fit no frame.
const CUT_NAME: usize = 4096;

/// Bytes of a message inside another, under a number of up to 2047.
fn entry_size(message: &impl Message) -> usize {
    let length = message.encoded_len();
    2 + varint_len(length as u64) + length
}

/// The events as messages that each fit a frame, in order.
pub(crate) fn split_events(mut events: ObservableEvents) -> Vec<ObservableEvents> {
    if events.encoded_len() <= MOST {
        return vec![events];
    }
    let changes = std::mem::take(&mut events.instance_state_changes);
    let mut size = events.encoded_len();
    let mut parts = vec![events];
    for mut change in changes {
        let mut needed = entry_size(&change);
        if needed > MOST {
            cut_names(&mut change);
            needed = entry_size(&change);
        }
        if size + needed > MOST {
            parts.push(ObservableEvents::default());
            size = 0;
        }
        size += needed;
        if let Some(part) = parts.last_mut() {
            part.instance_state_changes.push(change);
        }
    }
    parts
}

fn cut_names(change: &mut DataSourceInstanceStateChange) {
    let names = [&mut change.producer_name, &mut change.data_source_name];
    for name in names.into_iter().flatten() {
        let cut = (0..=CUT_NAME.min(name.len())).rfind(|at| name.is_char_boundary(*at));
        name.truncate(cut.unwrap_or_default());
    }
}

/// Shortens the reason for a refusal in the middle if it is long: it repeats names that the client chose, and explains the error behind them.
pub(crate) fn bound_error(error: &mut String) {
    const EDGE: usize = 2048;
    const GAP: &str = " [...] ";
    /// A character may begin this many bytes further on.
    const SLACK: usize = 3;
    if error.len() <= 2 * EDGE + GAP.len() + SLACK {
        return;
    }
    let border = |from: usize| (from..=from + SLACK).find(|at| error.is_char_boundary(*at));
    let (head, tail) = (border(EDGE), border(error.len() - EDGE));
    if let (Some(head), Some(tail)) = (head, tail) {
        error.replace_range(head..tail, GAP);
    }
}

/// Cuts the statistics of writers short, so that the message fits a frame.
pub(crate) fn bound_stats(stats: &mut TraceStats) {
    let writers = std::mem::take(&mut stats.writer_stats);
    let mut room = MOST.saturating_sub(stats.encoded_len());
    let fits = |writer: &&trace_stats::WriterStats| {
        let needed = entry_size(*writer);
        let fits = needed <= room;
        room = room.saturating_sub(needed);
        fits
    };
    let count = writers.iter().take_while(fits).count();
    stats.writer_stats = writers;
    stats.writer_stats.truncate(count);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(name: String) -> DataSourceInstanceStateChange {
        DataSourceInstanceStateChange {
            producer_name: Some("p".into()),
            data_source_name: Some(name),
            ..Default::default()
        }
    }

    #[test]
    fn events_are_split_without_a_change_lost_or_out_of_order() {
        let changes: Vec<_> = (0..5000).map(|n| change(format!("{n:0100}"))).collect();
        let whole = ObservableEvents {
            instance_state_changes: changes.clone(),
            all_data_sources_started: Some(true),
            ..Default::default()
        };
        let parts = split_events(whole);
        assert!(parts.len() > 3);
        assert!(parts.iter().all(|part| part.encoded_len() <= MOST));
        let started: Vec<_> = parts
            .iter()
            .filter(|part| part.all_data_sources_started.is_some())
            .collect();
        assert_eq!(started.len(), 1, "told once");
        let rejoined: Vec<_> = parts
            .into_iter()
            .flat_map(|part| part.instance_state_changes)
            .collect();
        assert_eq!(rejoined, changes);
    }

    #[test]
    fn a_name_that_fits_no_frame_is_cut_and_its_neighbours_are_not() {
        let events = ObservableEvents {
            instance_state_changes: vec![
                change("before".into()),
                change("\u{20ac}".repeat(50_000)),
                change("after".into()),
            ],
            ..Default::default()
        };
        let [part] = <[_; 1]>::try_from(split_events(events)).unwrap();
        let names: Vec<_> = part
            .instance_state_changes
            .iter()
            .map(|change| change.data_source_name.as_deref().unwrap())
            .collect();
        assert_eq!((names[0], names[2]), ("before", "after"));
        assert!(names[1].len() > CUT_NAME - 3 && names[1].chars().all(|c| c == '\u{20ac}'));
    }

    #[test]
    fn of_a_long_error_the_beginning_and_the_end_stay() {
        for filling in ["x", "\u{20ac}", "\u{1f600}"] {
            let mut error = format!("data source {:?}: is none", filling.repeat(50_000));
            bound_error(&mut error);
            assert!((4096..4096 + 16).contains(&error.len()), "{}", error.len());
            assert!(error.starts_with("data source \"") && error.ends_with("\": is none"));
            let bounded = error.clone();
            bound_error(&mut error);
            assert_eq!(error, bounded, "what is short stays as it is");
        }
    }

    #[test]
    fn statistics_keep_as_many_writers_as_fit() {
        let mut stats = TraceStats {
            writer_stats: (0..9000)
                .map(|n| trace_stats::WriterStats {
                    sequence_id: Some(n),
                    chunk_payload_histogram_counts: vec![1; 10],
                    ..Default::default()
                })
                .collect(),
            producers_connected: Some(3),
            ..Default::default()
        };
        bound_stats(&mut stats);
        let size = stats.encoded_len();
        assert!(size <= MOST && size > MOST / 10 * 9, "{size}");
        let ids = stats
            .writer_stats
            .iter()
            .map(|writer| writer.sequence_id.unwrap());
        assert!(ids.eq(0..stats.writer_stats.len() as u64));
        let before = stats.clone();
        bound_stats(&mut stats);
        assert_eq!(stats, before, "what fits stays as it is");
    }
}
