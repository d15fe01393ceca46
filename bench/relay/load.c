// What a relay costs: load RELAY PRODUCERS MEGABYTES WRITE
//
// Starts the program RELAY between producers on a Unix socket and a service on TCP that reads all it gets, has each producer send so many megabytes in
// writes of so many bytes, and prints the processor time of the relay, user and system, in microseconds for a megabyte. bench/relay/run calls it.
#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static long long left;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t all_read = PTHREAD_COND_INITIALIZER;
static char folder[] = "/tmp/relay-bench.XXXXXX";
static struct sockaddr_un producers = {.sun_family = AF_UNIX};
static long long bytes_each, bytes_a_write;

static void die(const char *what) {
  perror(what);
  exit(1);
}

static void *sink(void *argument) {
  static __thread char buffer[1 << 18];
  int fd = (int)(long)argument;
  for (ssize_t count; (count = read(fd, buffer, sizeof buffer)) > 0;) {
    pthread_mutex_lock(&lock);
    left -= count;
    if (left <= 0) pthread_cond_signal(&all_read);
    pthread_mutex_unlock(&lock);
  }
  return NULL;
}

static void *service(void *argument) {
  for (int fd; (fd = accept((int)(long)argument, NULL, NULL)) >= 0;) {
    pthread_t thread;
    pthread_create(&thread, NULL, sink, (void *)(long)fd);
  }
  return NULL;
}

static void *producer(void *argument) {
  (void)argument;
  int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  if (connect(fd, (struct sockaddr *)&producers, sizeof producers)) die("connecting to the relay");
  char *bytes = calloc(1, bytes_a_write);
  for (long long sent = 0; sent < bytes_each;) {
    ssize_t count = write(fd, bytes, bytes_a_write);
    if (count < 0) die("writing to the relay");
    sent += count;
  }
  free(bytes);
  // It stays open until the service has everything.
  return NULL;
}

int main(int count, char **words) {
  if (count != 5) return fprintf(stderr, "usage: load RELAY PRODUCERS MEGABYTES WRITE\n"), 2;
  int number = atoi(words[2]);
  bytes_each = atoll(words[3]) << 20, bytes_a_write = atoll(words[4]);
  left = number * bytes_each;
  if (!mkdtemp(folder)) die("making a folder");
  snprintf(producers.sun_path, sizeof producers.sun_path, "%s/producer", folder);
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof address;
  if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 64)) die("listening");
  getsockname(listener, (struct sockaddr *)&address, &length);
  pthread_t thread, threads[256];
  pthread_create(&thread, NULL, service, (void *)(long)listener);
  pid_t relay = fork();
  if (relay == 0) {
    char name[64];
    snprintf(name, sizeof name, "127.0.0.1:%d", ntohs(address.sin_port));
    setenv("PERFETTO_RELAY_SOCK_NAME", name, 1);
    setenv("PERFETTO_PRODUCER_SOCK_NAME", producers.sun_path, 1);
    if (!freopen("/dev/null", "w", stderr)) die("closing stderr");
    execl(words[1], words[1], NULL);
    _exit(127);
  }
  int probe = socket(AF_UNIX, SOCK_STREAM, 0), tries = 0;
  while (connect(probe, (struct sockaddr *)&producers, sizeof producers)) {
    if (++tries > 5000) die("waiting for the relay");
    usleep(1000);
  }
  close(probe);
  if (number > 256) return fprintf(stderr, "at most 256 producers\n"), 2;
  for (int i = 0; i < number; i++) pthread_create(&threads[i], NULL, producer, NULL);
  pthread_mutex_lock(&lock);
  while (left > 0) pthread_cond_wait(&all_read, &lock);
  pthread_mutex_unlock(&lock);
  kill(relay, SIGTERM);
  struct rusage usage;
  if (wait4(relay, NULL, 0, &usage) != relay) die("waiting for the relay's end");
  double spent = (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1e6 + usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
  printf("%.1f %ld\n", spent / (number * (bytes_each >> 20)), usage.ru_maxrss);
  unlink(producers.sun_path);
  rmdir(folder);
}
