// Waits for a line on stdin. Then it works for the processor time that the first argument says, in seconds: 10, 20 and 30 % of it in instances of a template, and 40 % in a function that is
// inlined into `caller`. Besides, it throws exceptions through frames that have something to destroy. See plain.c.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <stdexcept>
#include <string>

static volatile uint64_t sink;

namespace shares {

template <typename Number, unsigned Share>
[[gnu::noinline]] void work(Number scale) {
  Number x = sink;
  for (Number i = 0; i < Share * 100 * scale; i++) x = x * 6364136223846793005u + 1442695040888963407u;
  sink = x;
}

struct Worker {
  virtual ~Worker() = default;
  virtual void run(uint64_t scale) = 0;
};

struct Thirty : Worker {
  [[gnu::noinline]] void run(uint64_t scale) override {
    uint64_t x = sink;
    for (uint64_t i = 0; i < 3000 * scale; i++) x = x * 6364136223846793005u + 1442695040888963407u;
    sink = x;
  }
};

[[gnu::always_inline]] inline void inlined(uint64_t scale) {
  uint64_t x = sink;
  for (uint64_t i = 0; i < 4000 * scale; i++) x = x * 6364136223846793005u + 1442695040888963407u;
  sink = x;
}

[[gnu::noinline]] void caller(uint64_t scale) {
  inlined(scale);
  sink = sink + 1;
}

[[gnu::noinline]] void fall(int depth) {
  std::string held(40, 'x');
  sink = sink + held.size();
  if (depth == 0) throw std::runtime_error("down");
  fall(depth - 1);
  sink = sink + 1;
}

[[gnu::noinline]] void climb() {
  try {
    fall(8);
  } catch (const std::exception &) {
    sink = sink + 1;
  }
}

}  // namespace shares

int main(int argc, char **argv) {
  uint64_t random = 1;
  shares::Worker *worker = new shares::Thirty;
  std::getchar();
  clock_t end = (argc > 1 ? atof(argv[1]) : 1) * CLOCKS_PER_SEC;
  while (clock() < end) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    uint64_t scale = 1 + (random >> 60);
    shares::work<uint64_t, 10>(scale);
    shares::work<unsigned long long, 20>(scale);
    worker->run(scale);
    shares::caller(scale);
    for (uint64_t i = 0; i < scale; i++) shares::climb();
  }
  return 0;
}
