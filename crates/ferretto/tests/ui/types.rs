// Values of the wrong type in macros. The text behind `//~` is the compiler's message about the line.
use ferretto::track::StateTrack;
use ferretto::*;

struct Opaque;

static LIGHT: StateTrack = StateTrack::new("Light");

fn arguments(number: u32) {
    trace_event!("c", "Name", "value" => Opaque); //~ `Opaque` cannot be an argument of an event
    trace_event!("c", "Name", number); //~ `u32` is neither an argument nor an option of an event
    trace_event_instant!("c", "Name", "n" => 1, number + 1); //~ `u32` is neither an argument nor an option of an event
}

fn tracks() {
    trace_counter!("c", String::from("Counter"), 1); //~ `String` is no track
    trace_state!("c", format!("on"), &LIGHT); //~ `&StateTrack<'_>` cannot be the name of an event
    trace_state!("c", "Light", &LIGHT); //~ `trace_state!` takes a category, a track and a state
}

fn names() {
    #[allow(non_snake_case)]
    let NAME = format!("run time");
    trace_event!("c", NAME); //~ attempt to use a non-constant value in a constant
}

struct Id(u64);

fn ids(id: Id) {
    trace_event!("c", "Name", correlation_id = id); //~ `Id` cannot be a `correlation_id`
    trace_event!("c", "Name", correlation_id = &id); //~ `&Id` cannot be a `correlation_id`
    trace_event!("c", "Name", correlation_id = 1.5); //~ the literal of a `correlation_id` is text, or an integer without a suffix
    trace_event!("c", "Name", flow = id); //~ `Id` cannot be a flow
}

fn categories(category: String) {
    trace_event!(category, "Name"); //~ `String` cannot be a category
    trace_event!(&category, "Name"); //~ `&String` cannot be a category
}
