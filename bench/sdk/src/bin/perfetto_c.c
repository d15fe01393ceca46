// The bodies for upstream's C SDK: its macros, as a program in C would use them.
#include "perfetto_c.h"

#include <stdbool.h>
#include <stdint.h>

#define CATEGORIES(C) C(bench, "bench", "What the benchmark emits")

PERFETTO_TE_CATEGORIES_DEFINE(CATEGORIES)

static struct PerfettoTeRegisteredTrack counter;

void bench_c_set_up(uint32_t shared_memory_kb) {
  struct PerfettoProducerInitArgs args = PERFETTO_PRODUCER_INIT_ARGS_INIT();
  args.backends = PERFETTO_BACKEND_SYSTEM;
  args.shmem_size_hint_kb = shared_memory_kb;
  PerfettoProducerInit(args);
  PerfettoTeInit();
  PERFETTO_TE_REGISTER_CATEGORIES(CATEGORIES);
  PerfettoTeCounterTrackRegister(&counter, "counter", PerfettoTeProcessTrackUuid(), false);
}

bool bench_c_recording(void) {
  return PERFETTO_ATOMIC_LOAD_EXPLICIT(bench.enabled, PERFETTO_MEMORY_ORDER_RELAXED);
}

void bench_c_pair(uint64_t count) {
  for (uint64_t i = 0; i < count; i++) {
    PERFETTO_TE(bench, PERFETTO_TE_SLICE_BEGIN("slice"));
    PERFETTO_TE(bench, PERFETTO_TE_SLICE_END());
  }
}

void bench_c_instant(uint64_t count, const char* text) {
  for (uint64_t i = 0; i < count; i++) {
    PERFETTO_TE(bench, PERFETTO_TE_INSTANT("instant"), PERFETTO_TE_ARG_INT64("number", (int64_t)i),
                PERFETTO_TE_ARG_STRING("text", text));
  }
}

void bench_c_counter(uint64_t count) {
  for (uint64_t i = 0; i < count; i++) {
    PERFETTO_TE(bench, PERFETTO_TE_COUNTER(), PERFETTO_TE_REGISTERED_TRACK(&counter),
                PERFETTO_TE_INT_COUNTER((int64_t)i));
  }
}

void bench_c_dynamic_name(uint64_t count, const char* const* names, uint64_t names_count) {
  for (uint64_t i = 0; i < count; i++) {
    PERFETTO_TE(bench, PERFETTO_TE_SLICE_BEGIN(names[i % names_count]));
    PERFETTO_TE(bench, PERFETTO_TE_SLICE_END());
  }
}
