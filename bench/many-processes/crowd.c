// A crowd of processes that sleep: crowd COUNT. Prints `ready` when all are there; the end of its input ends them.
//
// They share memory and files with the first, so each costs the kernel some 40 KB and no page of its own. To the kernel, and to whoever reads /proc, they are
// processes like others.
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { STACK = 4096 };

static int sleeper(void *unused) {
  (void)unused;
  for (;;) pause();
}

int main(int count, char **arguments) {
  size_t processes = count == 2 ? strtoul(arguments[1], NULL, 10) : 0;
  char *stacks = mmap(NULL, processes * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stacks == MAP_FAILED) {
    perror("crowd: memory for stacks");
    return 1;
  }
  setpgid(0, 0);
  int result = 0;
  for (size_t made = 0; made < processes; made++) {
    // A stack grows down from its end. Signal actions are copied.
    if (clone(sleeper, stacks + (made + 1) * STACK, CLONE_VM | CLONE_FS | CLONE_FILES | SIGCHLD, NULL) < 0) {
      fprintf(stderr, "crowd: only %zu processes: %s; raise kernel.pid_max, kernel.threads-max and the limit of user processes\n", made, strerror(errno));
      result = 1;
      break;
    }
  }
  if (result == 0) {
    puts("ready");
    fflush(stdout);
    while (getchar() != EOF) {}
  }
  // Those that were made, but not itself: it has a result.
  signal(SIGTERM, SIG_IGN);
  kill(0, SIGTERM);
  return result;
}
