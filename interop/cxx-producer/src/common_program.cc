// The common program, with upstream's SDK: every kind of track event, always the same ones in the same order.
//
// Its twin is crates/cli/tests/sdk_interop/program.rs. The test beside that compares what the trace processor makes of both, so
// whatever is changed here must be changed there.
#include "perfetto.h"

#include <pthread.h>
#include <time.h>

#include <cstdint>
#include <limits>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

PERFETTO_DEFINE_TEST_CATEGORY_PREFIXES("test");
PERFETTO_DEFINE_CATEGORIES(
    perfetto::Category("common").SetDescription("What every session of the test records"),
    perfetto::Category("rendering").SetDescription("What the player sees"),
    perfetto::Category("rendering.layout").SetTags("slow"),
    perfetto::Category("network").SetTags("net"),
    perfetto::Category("network.raw").SetTags("net", "debug"),
    perfetto::Category::Group("rendering,network"),
    perfetto::Category::Group("rendering.layout,network.raw"));
PERFETTO_TRACK_EVENT_STATIC_STORAGE();

namespace {

using perfetto::CounterTrack;
using perfetto::DynamicString;
using perfetto::EventContext;
using perfetto::Flow;
using perfetto::NamedTrack;
using perfetto::StateTrack;
using perfetto::StaticString;
using perfetto::TerminatingFlow;
using perfetto::ThreadTrack;
using perfetto::Track;
using perfetto::TrackEvent;
using perfetto::protos::pbzero::InternedData;
using perfetto::protos::pbzero::LogMessage;
using Unit = perfetto::protos::pbzero::CounterDescriptor::Unit;

using Location = std::tuple<const char*, const char*, uint32_t>;

struct LocationHash {
  size_t operator()(const Location& location) const {
    return reinterpret_cast<size_t>(std::get<0>(location)) ^ std::get<2>(location);
  }
};

struct LocationTraits {
  template <typename ValueType>
  class Index {
   public:
    bool LookUpOrInsert(size_t* iid, const ValueType& value) {
      auto found = ids_.emplace(value, ids_.size() + 1);
      *iid = found.first->second;
      return !found.second;
    }

   private:
    std::unordered_map<ValueType, size_t, LocationHash> ids_;
  };
};

struct InternedLocation
    : perfetto::TrackEventInternedDataIndex<InternedLocation,
                                            InternedData::kSourceLocationsFieldNumber,
                                            Location,
                                            LocationTraits> {
  static void Add(InternedData* data, size_t iid, const Location& location) {
    auto* entry = data->add_source_locations();
    entry->set_iid(iid);
    entry->set_file_name(std::get<0>(location));
    if (std::get<1>(location))
      entry->set_function_name(std::get<1>(location));
    entry->set_line_number(std::get<2>(location));
  }
};

struct InternedBody
    : perfetto::TrackEventInternedDataIndex<InternedBody,
                                            InternedData::kLogMessageBodyFieldNumber,
                                            std::string> {
  static void Add(InternedData* data, size_t iid, const std::string& body) {
    auto* entry = data->add_log_message_body();
    entry->set_iid(iid);
    entry->set_body(body.data(), body.size());
  }
};

void Slices() {
  TRACE_EVENT("common", "outer");
  {
    TRACE_EVENT("common", "middle");
    for (int i = 0; i < 3; i++) {
      TRACE_EVENT("common", "inner", "number", i);
      TRACE_EVENT_INSTANT("common", "tick");
    }
  }
  TRACE_EVENT_BEGIN("common", "begun");
  TRACE_EVENT_INSTANT("common", "within");
  TRACE_EVENT_END("common");
  TRACE_EVENT_BEGIN("common", "with a result");
  TRACE_EVENT_END("common", "result", 7, "text", "seven");
  TRACE_EVENT_BEGIN("rendering", "two categories");
  TRACE_EVENT_BEGIN("network", "within it");
  TRACE_EVENT_END("network");
  TRACE_EVENT_END("rendering");
}

void Tracks() {
  static constexpr NamedTrack kGlobal(StaticString("Everyone"), 0, Track());
  NamedTrack queue("Queue");
  NamedTrack second("Queue", 1);
  NamedTrack nested("Nested", 0, queue);
  TRACE_EVENT_BEGIN("common", "queued", queue);
  TRACE_EVENT_BEGIN("common", "queued within", queue);
  TRACE_EVENT_BEGIN("common", "on the other", second);
  TRACE_EVENT_BEGIN("common", "below", nested);
  TRACE_EVENT_INSTANT("common", "on nested", nested, "depth", 1u);
  TRACE_EVENT_END("common", queue);
  TRACE_EVENT_END("common", second, "result", true);
  TRACE_EVENT_END("common", nested);
  TRACE_EVENT_END("common", queue);

  Track request(17);
  Track step(1, request);
  TRACE_EVENT_BEGIN("common", "request", request);
  TRACE_EVENT_BEGIN("common", "step", step);
  std::thread([&] {
    pthread_setname_np(pthread_self(), "helper");
    TRACE_EVENT_END("common", step);
    TRACE_EVENT_END("common", request);
  }).join();

  TRACE_EVENT_INSTANT("common", "for all", kGlobal);
  TRACE_EVENT_INSTANT("common", "for all by number", Track::Global(0xabcdef));
  TRACE_EVENT_INSTANT("common", "of the process", perfetto::ProcessTrack::Current());
  TRACE_EVENT_INSTANT("common", "of the thread", ThreadTrack::Current());
  TRACE_EVENT_INSTANT("common", "mine", NamedTrack::ThreadScoped("Mine"));
  std::string name = "Tenant " + std::to_string(7);
  TRACE_EVENT_INSTANT("common", "of a tenant", NamedTrack(DynamicString(name)));
  TRACE_EVENT_INSTANT("common", "alone", NamedTrack("Alone").disable_sibling_merge());
  TRACE_EVENT_INSTANT("common", "with key", NamedTrack("By key").set_sibling_merge_key("key"));
  TRACE_EVENT_INSTANT("common", "with number", NamedTrack("By number").set_sibling_merge_key(uint64_t{12}));
  // Not with TRACE_EVENT, which would have ended them on the thread's track.
  TRACE_EVENT_BEGIN("common", "scoped", queue, "number", 1);
  TRACE_EVENT_BEGIN("common", "scoped within", queue);
  TRACE_EVENT_END("common", queue);
  TRACE_EVENT_END("common", queue);
}

void Counters() {
  TRACE_COUNTER("common", "plain", 1);
  TRACE_COUNTER("common", "plain", -2);
  TRACE_COUNTER("common", "plain", std::numeric_limits<int64_t>::max());
  TRACE_COUNTER("common", "double", 1.5);
  TRACE_COUNTER("common", "double", -0.25f);
  TRACE_COUNTER("common", "mixed", 3);
  TRACE_COUNTER("common", "mixed", 3.75);
  TRACE_COUNTER("common", CounterTrack("bytes", Unit::UNIT_SIZE_BYTES), 4096u);
  TRACE_COUNTER("common", CounterTrack("time", Unit::UNIT_TIME_NS), uint64_t{123456789012});
  TRACE_COUNTER("common", CounterTrack("count", Unit::UNIT_COUNT), uint8_t{200});
  TRACE_COUNTER("common", CounterTrack("frames", "fps"), 60);
  TRACE_COUNTER("common", CounterTrack("kilobytes").set_unit(Unit::UNIT_SIZE_BYTES).set_unit_multiplier(1024), 4);
  auto incremental = CounterTrack("incremental", "things").set_is_incremental().set_category("rendering");
  for (int value : {100, 110, 90, 90, -5})
    TRACE_COUNTER("common", incremental, value);
  TRACE_COUNTER("common", CounterTrack("of the thread", ThreadTrack::Current()), 5);
  TRACE_COUNTER("common", CounterTrack::Global("of all", "mW"), 7);
  std::string name = "Tenant " + std::to_string(7);
  TRACE_COUNTER("common", CounterTrack(DynamicString(name)), 8);
  TRACE_COUNTER("common", CounterTrack("numbered", uint64_t{2}), 9);
}

void States() {
  StateTrack connection("Connection");
  TRACE_STATE("common", "connecting", connection);
  std::string retry = "retry " + std::to_string(3);
  TRACE_STATE("common", DynamicString(retry), connection, "reason", "timeout");
  TRACE_STATE("common", "connected", connection);
  TRACE_STATE("common", "on", StateTrack("Of the thread", 0, ThreadTrack::Current()));
  TRACE_STATE("common", "", connection);
  TRACE_STATE("common", "closed", connection);
}

void Flows() {
  { TRACE_EVENT("common", "producer", Flow::ProcessScoped(1), Flow::Global(77)); }
  TRACE_EVENT_INSTANT("common", "handed on", Flow::ProcessScoped(1));
  { TRACE_EVENT("common", "consumer", TerminatingFlow::ProcessScoped(1)); }
  TRACE_EVENT_INSTANT("common", "a new one", Flow::ProcessScoped(1));
  TRACE_EVENT_INSTANT("common", "on a track", Track(17), TerminatingFlow::ProcessScoped(1));
  TRACE_EVENT_BEGIN("common", "to its end");
  TRACE_EVENT_END("common", TerminatingFlow::Global(77));
}

enum Choice { kFirst, kSecond };

void Annotations() {
  TRACE_EVENT_INSTANT("common", "scalars", "bool", true, "i8", int8_t{-8}, "u8", uint8_t{8}, "i64",
                      std::numeric_limits<int64_t>::min(), "u64", std::numeric_limits<uint64_t>::max(), "f32", 0.5f,
                      "f64", 1e-300, "text", "static", "empty", "");
  TRACE_EVENT_INSTANT("common", "others", "string", std::string("owned"), "pointer",
                      reinterpret_cast<const void*>(0xdeadbeef), "enum", kSecond, "unicode", "\xc3\xa4\xe2\x82\xac");
  TRACE_EVENT_INSTANT("common", "list", "list", std::vector<int>{1, 2, 3}, "lists",
                      std::vector<std::vector<std::string>>{{"a", "b"}, {"c"}});
  TRACE_EVENT_INSTANT("common", "tree", "tree", [](perfetto::TracedValue value) {
    auto tree = std::move(value).WriteDictionary();
    tree.Add("number", 1);
    tree.Add("text", "leaf");
    {
      auto inner = tree.AddDictionary("inner");
      inner.Add("deep", 2.5);
      auto list = inner.AddArray("list");
      list.Append(true);
      list.Append("two");
      auto item = list.AppendDictionary();
      item.Add("key", uint64_t{3});
    }
    tree.Add("last", std::vector<double>{0.25, 0.5});
  });
  std::string name = "row " + std::to_string(1);
  TRACE_EVENT_INSTANT("common", "named at run time", [&](EventContext ctx) {
    ctx.AddDebugAnnotation(DynamicString(name), 11);
    ctx.AddDebugAnnotation("static row", "x");
  });
  { TRACE_EVENT("common", "many", "a", 1, "b", 2, "c", 3, "d", 4, "e", 5, "f", 6); }
}

void Names() {
  for (int i = 0; i < 3; i++) {
    std::string name = "frame " + std::to_string(i);
    TRACE_EVENT("rendering", DynamicString(name), "number", i);
  }
  const char* kNames[] = {"load", "store", "load"};
  for (const char* name : kNames)
    TRACE_EVENT_INSTANT("common", StaticString(name));
  TRACE_EVENT_BEGIN("common", DynamicString(std::string("dynamic on a track")), NamedTrack("Queue"));
  TRACE_EVENT_END("common", NamedTrack("Queue"));
}

void Categories() {
  { TRACE_EVENT("rendering", "rendering"); }
  { TRACE_EVENT("rendering.layout", "slow"); }
  { TRACE_EVENT("network", "tagged"); }
  { TRACE_EVENT("network.raw", "tagged debug"); }
  { TRACE_EVENT("rendering,network", "group"); }
  { TRACE_EVENT("rendering.layout,network.raw", "group with tags"); }
  std::string plugin = "plugin." + std::string("blur");
  perfetto::DynamicCategory blur(plugin);
  TRACE_EVENT_BEGIN(blur, "dynamic category", "number", 1);
  TRACE_EVENT_END(blur);
  perfetto::DynamicCategory network("network");
  TRACE_EVENT_INSTANT(network, "dynamic by a known name");
  TRACE_EVENT_INSTANT("test.only", "test category");
}

void Timestamps() {
  // A whole number of whatever unit timestamps have.
  const uint64_t base = TrackEvent::GetTraceTimeNs() / 1000000 * 1000000;
  NamedTrack timed("Timed");
  TRACE_EVENT_BEGIN("common", "timed", timed, base - 9000);
  TRACE_EVENT_INSTANT("common", "timed instant", timed, base - 7000, "number", 1);
  TRACE_EVENT_END("common", timed, base - 5000);
  // Earlier than what was told last.
  TRACE_EVENT_BEGIN("common", "timed before", timed, base - 20000);
  TRACE_EVENT_END("common", timed, base - 19000);
  CounterTrack counter("timed");
  TRACE_COUNTER("common", counter, base - 3000, 3);
  TRACE_COUNTER("common", counter, base - 8000, 8);
  TRACE_COUNTER("common", counter, base - 1000, 1.5);
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  const uint64_t monotonic =
      (static_cast<uint64_t>(now.tv_sec) * 1000000000 + static_cast<uint64_t>(now.tv_nsec)) / 1000000 * 1000000;
  NamedTrack other("Other clock");
  const uint32_t clock = perfetto::protos::pbzero::BUILTIN_CLOCK_MONOTONIC;
  TRACE_EVENT_BEGIN("common", "on another clock", other, perfetto::TraceTimestamp{clock, monotonic - 6000});
  TRACE_EVENT_END("common", other, perfetto::TraceTimestamp{clock, monotonic - 2000});
}

void Threads() {
  for (int i = 0; i < 3; i++) {
    std::thread([i] {
      std::string name = "worker " + std::to_string(i);
      pthread_setname_np(pthread_self(), name.c_str());
      TRACE_EVENT("common", "work", "number", i);
      { TRACE_EVENT("common", "inner"); }
      TRACE_COUNTER("common", CounterTrack("done", ThreadTrack::Current()), i);
      if (i == 2)
        TRACE_EVENT_BEGIN("common", "never ended", NamedTrack("Unfinished"));
    }).join();
  }
  std::thread([] {
    pthread_setname_np(pthread_self(), "before");
    auto track = ThreadTrack::Current();
    auto descriptor = track.Serialize();
    descriptor.mutable_thread()->set_thread_name("renamed");
    TrackEvent::SetTrackDescriptor(track, descriptor);
    TRACE_EVENT_INSTANT("common", "on a renamed thread");
    TrackEvent::EraseTrackDescriptor(track);
  }).join();
}

void Descriptors() {
  Track custom(99);
  auto descriptor = custom.Serialize();
  descriptor.set_name("Custom");
  descriptor.set_description("Of a descriptor of its own");
  TrackEvent::SetTrackDescriptor(custom, descriptor);
  TRACE_EVENT_INSTANT("common", "on a custom track", custom);
  Track below(1, custom);
  TRACE_EVENT_INSTANT("common", "below a custom track", below);
  descriptor.set_name("Custom again");
  TrackEvent::SetTrackDescriptor(custom, descriptor);
  TRACE_EVENT_INSTANT("common", "on the changed track", custom);

  NamedTrack ordered("Ordered");
  auto order = ordered.Serialize();
  order.set_child_ordering(perfetto::protos::gen::TrackDescriptor::EXPLICIT);
  TrackEvent::SetTrackDescriptor(ordered, order);
  NamedTrack first("Last by name", 0, ordered);
  auto rank = first.Serialize();
  rank.set_sibling_order_rank(-5);
  TrackEvent::SetTrackDescriptor(first, rank);
  TRACE_EVENT_INSTANT("common", "ordered", first);
}

void Details() {
  TRACE_EVENT_INSTANT("common", "numbered", [](EventContext ctx) { ctx.event()->set_correlation_id(7); });
  TRACE_EVENT_INSTANT("common", "in words", [](EventContext ctx) { ctx.event()->set_correlation_id_str("job 9"); });
  for (int i = 0; i < 2; i++) {
    TRACE_EVENT_INSTANT("common", "located", [](EventContext ctx) {
      ctx.event()->set_source_location_iid(InternedLocation::Get(&ctx, Location("common.cc", "Details", 42)));
    });
  }
  TRACE_EVENT_INSTANT("common", "located without a function", [](EventContext ctx) {
    ctx.event()->set_source_location_iid(InternedLocation::Get(&ctx, Location("common.cc", nullptr, 43)));
  });
  const std::pair<const char*, LogMessage::Priority> kMessages[] = {
      {"first message", LogMessage::PRIO_INFO},
      {"second message", LogMessage::PRIO_WARN},
      {"first message", LogMessage::PRIO_ERROR},
  };
  for (const auto& [body, priority] : kMessages) {
    TRACE_EVENT_INSTANT("common", "log", [&](EventContext ctx) {
      auto iid = InternedBody::Get(&ctx, body);
      auto* message = ctx.event()->set_log_message();
      message->set_body_iid(iid);
      message->set_prio(priority);
    });
  }
  TRACE_EVENT_INSTANT("common", "log", [&](EventContext ctx) {
    auto location = InternedLocation::Get(&ctx, Location("log.cc", nullptr, 12));
    auto iid = InternedBody::Get(&ctx, "located message");
    auto* message = ctx.event()->set_log_message();
    message->set_source_location_iid(location);
    message->set_body_iid(iid);
    message->set_prio(LogMessage::PRIO_VERBOSE);
  });
}

void Round() {
  Slices();
  Tracks();
  Counters();
  States();
  Flows();
  Annotations();
  Names();
  Categories();
  Timestamps();
  Threads();
  Descriptors();
  Details();
}

}  // namespace

extern "C" {

// Connects to the machine's service, and says what is to be known of the process.
void common_program_set_up() {
  perfetto::TracingInitArgs args;
  args.backends = perfetto::kSystemBackend;
  args.shmem_size_hint_kb = 4096;
  perfetto::Tracing::Initialize(args);
  TrackEvent::Register();
  auto process = perfetto::ProcessTrack::Current();
  auto descriptor = process.Serialize();
  descriptor.mutable_process()->set_process_name("common program");
  descriptor.mutable_process()->add_process_labels("label");
  TrackEvent::SetTrackDescriptor(process, descriptor);
}

bool common_program_is_recorded() {
  return TRACE_EVENT_CATEGORY_ENABLED("common");
}

// To be called on a thread of its own.
void common_program_round() {
  Round();
}

}  // extern "C"
