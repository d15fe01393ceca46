// Waits for a line on stdin. Then it works for the processor time that the first argument says, in seconds: 10, 20, 30 and 40 % of it in the functions of these names, and then for a tenth
// of all in the kernel.
//
// Each step of work waits for the one before, so that steps take the same time wherever the compiler puts them. Rounds have lengths that repeat only after
// long, so that they do not keep step with a profiler.
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#define NOINLINE __attribute__((noinline))

static volatile uint64_t sink;

#define WORK(name, share)                                                                      \
  NOINLINE void name(uint64_t scale) {                                                         \
    uint64_t x = sink;                                                                         \
    for (uint64_t i = 0; i < share * 100 * scale; i++) x = x * 6364136223846793005u + 1442695040888963407u; \
    sink = x;                                                                                  \
  }
WORK(ten, 10)
WORK(twenty, 20)
WORK(thirty, 30)
WORK(forty, 40)

// Calls itself, so that stacks are deep, and have large frames.
NOINLINE void deep(int depth, uint64_t scale) {
  volatile char frame[512];
  frame[depth] = 1;
  if (depth) deep(depth - 1, scale);
  else forty(scale);
  frame[depth] = 0;
}

NOINLINE void in_the_kernel(int zeros) {
  static char buffer[1 << 16];
  sink += read(zeros, buffer, sizeof buffer);
}

int main(int argc, char **argv) {
  int zeros = open("/dev/zero", O_RDONLY);
  getchar();
  uint64_t random = 1;
  clock_t end = argc > 1 ? atof(argv[1]) * CLOCKS_PER_SEC : CLOCKS_PER_SEC;
  while (clock() < end) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    uint64_t scale = 1 + (random >> 60);
    ten(scale);
    twenty(scale);
    thirty(scale);
    deep(random >> 40 & 63, scale);
    for (uint64_t i = 0; i < scale; i++) in_the_kernel(zeros);
  }
  return 0;
}
