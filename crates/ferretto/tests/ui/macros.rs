// Wrong uses of the macros. The text behind `//~` is the compiler's message about the line.
use ferretto::track::Track;
use ferretto::*;

fn unknown_options(request: Track) {
    trace_event!("c", "Name", trak = request); //~ unknown option `trak`; options are `track`, `timestamp`, `flow`, `terminating_flow`, `correlation_id` and `callstack`,
    trace_event_begin!("c", "Name", "n" => 1, colour = 3); //~ `trace_event_begin!`: unknown option `colour`
    trace_counter!("c", "Counter", 1, unit = "B"); //~ `trace_counter!`: unknown option `unit`
    trace_event_instant!("c", format!("{}", 1), tiemstamp = 1); //~ unknown option `tiemstamp`
    trace_event_instant!("c", "Name", track: request); //~ an option is written `track = value`
}

fn arguments(number: u32) {
    trace_event!("c", "Name", number => 1); //~ the name of an argument is a literal: write `"number" => value`
    trace_event!("c", "Name", key = number); //~ an argument is written `"key" => value`
    trace_event!("c", "Name", "number"); //~ an argument is written `"name" => value`, but `"number"` is without `=> value`
    trace_event!("c", "Name", "number" = 1); //~ an argument is written `"name" => value`
    trace_event!("c", "Name", "number" =>); //~ the argument `"number"` has no value
    trace_event!("c", "Name", flow =, "number" => 1); //~ the option `flow` has no value
    trace_event!("c", "Name", callstack =, "number" => 1); //~ the option `callstack` has no value
    trace_event_end!("c", "Name"); //~ `trace_event_end!` takes no name
    trace_counter!("c", "Counter", 1, track = number); //~ `trace_counter!` takes no option `track`
    trace_state!("c", "Light", "on", track = number); //~ `trace_state!` takes no option `track`
}

fn commas(request: Track) {
    trace_event!("c" "Name"); //~ `trace_event!`: a `,` is missing in `"c" "Name"`
    trace_event!("c", "Name" "number" => 1); //~ a `,` is missing after the name
    trace_event!("c", "Name", "one" => 1 "two" => 2); //~ a `,` is missing after the value of the argument `"one"`
    trace_event!("c", "Name", track = request "two" => 2); //~ a `,` is missing after the value of the option `track`
    trace_event!("c", "Name", |event| { event.name("x"); } "two" => 2); //~ this is no option, argument or closure, or a `,` is missing: `|event|
}

fn stacks(stack: callstack::Callstack) {
    trace_event!("c", "Name", callstack: stack); //~ an option is written `callstack = value`
    trace_event!("c", "Name", stack = stack); //~ unknown option `stack`
    trace_event!("c", "Name", callstack = stack "two" => 2); //~ a `,` is missing after the value of the option `callstack`
}

fn too_little() {
    trace_event!(); //~ `trace_event!` needs a category and a name
    trace_event!("c"); //~ `trace_event!` needs a category and a name
    trace_event_end!(); //~ `trace_event_end!` needs a category
    trace_counter!("c", "Counter"); //~ `trace_counter!` needs a category, a name or track, and a value
    trace_state!("c", "Light"); //~ `trace_state!` needs a category, a name or track, and a state
}

fn semicolons(deep: bool) {
    if deep {
        trace_event!("c", "Name") //~ you might be missing a semicolon here
    }
    match deep {
        true => trace_event!("c", "Name", "n" => 1), //~ you might be missing a semicolon here
        false => {}
    }
}
