//! A test that fails when a function asks the database too often: it records the function, and counts slices.
//!
//! ```text
//! cargo test --example query_budget
//! ```

use ferretto::trace_function;

fn main() {
    println!("{} books are due", books_due(17));
}

#[trace_function("app", args)]
fn books_due(reader: u32) -> usize {
    let loans = query(&format!("select book from loans where reader = {reader}"));
    // All at once; a query for each would be too many.
    let books: Vec<String> = loans.iter().map(u32::to_string).collect();
    query(&format!(
        "select due from books where id in ({})",
        books.join(", ")
    ))
    .len()
}

#[trace_function("db", args)]
fn query(sql: &str) -> Vec<u32> {
    (0..sql.len() as u32 % 10).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::error::Error;
    use std::sync::Mutex;

    use ferretto::Options;
    use ferretto::session::{DataSource, Session, TraceConfig};
    use ferretto_proto::messages::trace_packet::{
        Data, OptionalTrustedPacketSequenceId::TrustedPacketSequenceId,
    };
    use ferretto_proto::messages::{Message, TracePacket, track_event::NameField, track_event::Type};

    #[test]
    fn a_reader_costs_three_queries_at_most() -> Result<(), Box<dyn Error>> {
        let slices = slices_of(|| {
            super::books_due(17);
        })?;
        assert_eq!(slices["books_due"], 1);
        assert!(slices["query"] <= 3, "{slices:?}");
        Ok(())
    }

    /// How many slices `call` makes, by their names.
    fn slices_of(call: impl FnOnce()) -> Result<HashMap<String, usize>, Box<dyn Error>> {
        // A session records the whole process, so tests that record take turns.
        static ALONE: Mutex<()> = Mutex::new(());
        let _alone = ALONE.lock();
        ferretto::initialize(Options::in_process());
        let session = Session::in_process();
        session.setup(
            &TraceConfig::new()
                .buffer_kb(4096)
                .data_source(DataSource::track_event()),
        )?;
        session.start_blocking()?;
        call();
        session.stop_blocking()?;

        let mut names = HashMap::new();
        let mut slices = HashMap::new();
        for packet in session.read()?.packets() {
            let packet = TracePacket::decode_from_slice(&packet?)?;
            let Some(TrustedPacketSequenceId(sequence)) = packet.optional_trusted_packet_sequence_id else {
                continue;
            };
            // Names are told once in each sequence of packets; events have their numbers.
            for name in &packet.interned_data.event_names {
                names.insert((sequence, name.iid), name.name.clone().unwrap_or_default());
            }
            if let Some(Data::TrackEvent(event)) = packet.data
                && event.r#type == Some(Type::TYPE_SLICE_BEGIN)
            {
                let name = match event.name_field {
                    Some(NameField::Name(name)) => name,
                    Some(NameField::NameIid(id)) => names[&(sequence, Some(id))].clone(),
                    None => continue,
                };
                *slices.entry(name).or_default() += 1;
            }
        }
        Ok(slices)
    }
}
