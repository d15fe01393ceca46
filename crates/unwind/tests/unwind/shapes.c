/* A thread that stops below functions whose frames have all shapes: leaf and deep, with arrays of variable size, with an aligned stack. */
#define _GNU_SOURCE
#include <alloca.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

volatile long sink;
#define OUTSIDE(name) __attribute__((noinline, noclone, used)) void name(long n)

static void ready(void) {
  printf("ready %ld\n", (long)syscall(SYS_gettid));
  fflush(stdout);
}

OUTSIDE(bottom) {
  ready();
  for (;;) WAIT;
  sink = n;
}
OUTSIDE(many_registers) {
  long a = sink, b = sink, c = sink, d = sink, e = sink, f = sink;
  bottom(n);
  sink = a + b * c - d * e + f + n;
}
OUTSIDE(aligned) {
  volatile char room[64] __attribute__((aligned(64)));
  memset((void *)room, (int)n, sizeof room);
  many_registers(n + room[3]);
  sink = room[5];
}
OUTSIDE(variable) {
  char *room = alloca(100 + n);
  memset(room, 1, 100 + n);
  aligned(n + room[7]);
  sink = room[9];
}
OUTSIDE(large) {
  volatile char room[9000];
  memset((void *)room, 1, sizeof room);
  variable(n + room[7]);
  sink = room[9];
}
static void on_signal(int number) {
  large(number);
  sink = number;
}
OUTSIDE(interrupted) {
  if (n) {
    signal(SIGUSR1, on_signal);
    raise(SIGUSR1);
  } else {
    large(n);
  }
  sink = n;
}
static void *thread(void *argument) {
  interrupted((long)argument);
  sink = 1;
  return 0;
}

#define NAME(f) printf(#f " %p\n", (void *)f)
int main(void) {
  NAME(bottom), NAME(many_registers), NAME(aligned), NAME(variable), NAME(large), NAME(on_signal), NAME(interrupted), NAME(thread), NAME(main);
  pthread_t id;
  pthread_create(&id, 0, thread, (void *)SIGNAL);
  pthread_join(id, 0);
  return 0;
}
