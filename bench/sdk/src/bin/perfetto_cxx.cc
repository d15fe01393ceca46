// The bodies for upstream's C++ SDK: its macros, as a program in C++ would use them.
#include "perfetto.h"

#include <cstdint>

PERFETTO_DEFINE_CATEGORIES(perfetto::Category("bench").SetDescription("What the benchmark emits"));
PERFETTO_TRACK_EVENT_STATIC_STORAGE();

extern "C" {

void bench_cxx_set_up(uint32_t shared_memory_kb) {
  perfetto::TracingInitArgs args;
  args.backends = perfetto::kSystemBackend;
  args.shmem_size_hint_kb = shared_memory_kb;
  perfetto::Tracing::Initialize(args);
  perfetto::TrackEvent::Register();
}

bool bench_cxx_recording() {
  return TRACE_EVENT_CATEGORY_ENABLED("bench");
}

void bench_cxx_pair(uint64_t count) {
  for (uint64_t i = 0; i < count; i++) {
    TRACE_EVENT_BEGIN("bench", "slice");
    TRACE_EVENT_END("bench");
  }
}

void bench_cxx_instant(uint64_t count, const char* text) {
  for (uint64_t i = 0; i < count; i++) {
    TRACE_EVENT_INSTANT("bench", "instant", "number", static_cast<int64_t>(i), "text", text);
  }
}

void bench_cxx_counter(uint64_t count) {
  for (uint64_t i = 0; i < count; i++) {
    TRACE_COUNTER("bench", "counter", static_cast<int64_t>(i));
  }
}

void bench_cxx_dynamic_name(uint64_t count, const char* const* names, uint64_t names_count) {
  for (uint64_t i = 0; i < count; i++) {
    TRACE_EVENT_BEGIN("bench", perfetto::DynamicString(names[i % names_count]));
    TRACE_EVENT_END("bench");
  }
}

}  // extern "C"
