// A just-in-time compiler. Waits for a line on stdin, copies a function into memory without a file, under the names "ten", "twenty", "thirty" and "forty", lists these in
// /tmp/perf-PID.map as compilers do, and works in them for so many percent of the processor time that the first argument says, in seconds. Every quarter
// of a second it compiles all of them anew, elsewhere. With a second argument it does so every second, over the functions that were there before, in
// another order. See plain.c.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t Steps(uint64_t x, uint64_t count);

// It refers to nothing outside, so that it can be copied. Its section has nothing else.
__attribute__((noinline, section("copied"))) uint64_t steps(uint64_t x, uint64_t count) {
  for (uint64_t i = 0; i < count; i++) x = x * 6364136223846793005u + 1442695040888963407u;
  return x;
}
extern char __start_copied[], __stop_copied[];

enum { FUNCTIONS = 4, ROOM = 1 << 12, VERSIONS = 64 };
static const char *const names[FUNCTIONS] = {"ten", "twenty", "thirty", "forty"};
static volatile uint64_t sink;

static void compile(FILE *list, char *to, Steps *compiled[FUNCTIONS], int first) {
  size_t size = __stop_copied - __start_copied;
  for (int i = 0; i < FUNCTIONS; i++) {
    char *place = to + (first + i) % FUNCTIONS * ROOM;
    memcpy(place, __start_copied, size);
    __builtin___clear_cache(place, place + size);
    compiled[i] = (Steps *)(void *)place;
    fprintf(list, "%lx %zx %s\n", (unsigned long)(uintptr_t)place, size, names[i]);
  }
  fflush(list);
}

int main(int argc, char **argv) {
  char path[64];
  snprintf(path, sizeof path, "/tmp/perf-%d.map", getpid());
  FILE *list = fopen(path, "w");
  char *memory = mmap(0, VERSIONS * FUNCTIONS * ROOM, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (!list || memory == MAP_FAILED) return 1;
  int in_place = argc > 2;
  getchar();
  clock_t end = (argc > 1 ? atof(argv[1]) : 1) * CLOCKS_PER_SEC;
  Steps *compiled[FUNCTIONS];
  int version = 0;
  uint64_t random = 1;
  for (;;) {
    clock_t now = clock();
    if (now >= end) break;
    if (now >= version * CLOCKS_PER_SEC / (in_place ? 1 : 4)) {
      if (in_place) compile(list, memory, compiled, version);
      else compile(list, memory + version % VERSIONS * FUNCTIONS * ROOM, compiled, 0);
      version++;
    }
    random = random * 6364136223846793005u + 1442695040888963407u;
    uint64_t scale = 1 + (random >> 60);
    for (int i = 0; i < FUNCTIONS; i++) sink = compiled[i](sink, (i + 1) * 1000 * scale);
  }
  fclose(list);
  return 0;
}
