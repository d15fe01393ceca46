/* Programs whose heap is profiled, by the name in the first argument. Each prints what a test needs to know of it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include "ferretto_heap.h"

#pragma weak AHeapInfo_create
#pragma weak AHeapInfo_setEnabledCallback
#pragma weak AHeapInfo_setDisabledCallback
#pragma weak AHeapProfile_registerHeap
#pragma weak AHeapProfile_reportAllocation
#pragma weak AHeapProfile_reportSample
#pragma weak AHeapProfile_reportFree
#pragma weak AHeapProfileEnableCallbackInfo_getSamplingInterval

#define CHECK(condition) \
    do { if (!(condition)) { dprintf(2, "%s:%d: %s\n", __FILE__, __LINE__, #condition); _exit(99); } } while (0)

static uint64_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static void *volatile sink;

/* Waits until the test closes our standard input. */
static void wait_for_test(void) {
    char byte;
    while (read(0, &byte, 1) == -1 && errno == EINTR) {}
}

/* Sizes 16, 100, 1000, 3000, 10000: allocates so many of each, keeps some, releases the others. Prints the bytes of each size, and what is kept. */
static const size_t sizes[] = {16, 100, 1000, 3000, 10000};

static void classes(uint64_t seed, int count, int prints) {
    enum { SLOTS = 256 };
    void *slots[SLOTS] = {0};
    uint64_t bytes[5] = {0};
    for (int i = 0; i < count; i++) {
        size_t class = next_random(&seed) % 5, slot = next_random(&seed) % SLOTS;
        free(slots[slot]);
        slots[slot] = malloc(sizes[class]);
        CHECK(slots[slot]);
        memset(slots[slot], 1, 8);
        bytes[class] += sizes[class];
    }
    if (prints) {
        char line[160];
        int length = snprintf(line, sizeof line, "bytes %lu %lu %lu %lu %lu\n", bytes[0], bytes[1], bytes[2], bytes[3], bytes[4]);
        CHECK(write(1, line, length) == length);
    }
    for (int slot = 0; slot < SLOTS; slot++) {
        if (slot % 16 == 0 && slots[slot]) {
            if (prints) dprintf(1, "kept %lx\n", (unsigned long)slots[slot]);
        } else {
            free(slots[slot]);
        }
    }
}

static void *thread_of_classes(void *argument) {
    classes((uintptr_t)argument, 400000, 0);
    return NULL;
}

static void threads(void) {
    pthread_t all[8];
    for (uintptr_t i = 0; i < 8; i++) CHECK(pthread_create(&all[i], NULL, thread_of_classes, (void *)(i + 1)) == 0);
    for (int i = 0; i < 8; i++) pthread_join(all[i], NULL);
}

/* Memory that one thread allocates and another releases. */
static void *volatile handed[4096];
static void *releasing(void *argument) {
    (void)argument;
    for (int round = 0; round < 100; round++)
        for (int i = 0; i < 4096; i++) {
            void *memory;
            while (!(memory = __atomic_exchange_n(&handed[i], NULL, __ATOMIC_ACQ_REL))) sched_yield();
            free(memory);
        }
    return NULL;
}
static void handing(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, releasing, NULL) == 0);
    for (int round = 0; round < 100; round++)
        for (int i = 0; i < 4096; i++) {
            while (__atomic_load_n(&handed[i], __ATOMIC_ACQUIRE)) sched_yield();
            __atomic_store_n(&handed[i], malloc(512), __ATOMIC_RELEASE);
        }
    pthread_join(thread, NULL);
}

/* Each function once, all sampled if the interval is small. Results and errno as libc's. */
static void functions(void) {
    errno = 77;
    char *memory = malloc(30001);
    CHECK(memory && errno == 77);
    free(memory);
    CHECK(errno == 77);
    memory = calloc(3, 30002);
    CHECK(memory && !memory[0] && !memory[3 * 30002 - 1]);
    memory = realloc(memory, 30003);
    CHECK(memory);
    memory = reallocarray(memory, 2, 30004);
    CHECK(memory);
    free(memory);
    CHECK(posix_memalign((void **)&memory, 64, 30005) == 0 && (uintptr_t)memory % 64 == 0);
    free(memory);
    CHECK(posix_memalign((void **)&memory, 3, 1) == EINVAL);
    memory = aligned_alloc(128, 30080);
    CHECK(memory && (uintptr_t)memory % 128 == 0);
    free(memory);
    memory = memalign(256, 30007);
    CHECK(memory && (uintptr_t)memory % 256 == 0 && malloc_usable_size(memory) >= 30007);
    free(memory);
    memory = valloc(30008);
    CHECK(memory && (uintptr_t)memory % 4096 == 0);
    free(memory);
    memory = pvalloc(30009);
    CHECK(memory && (uintptr_t)memory % 4096 == 0);
    free(memory);
    errno = 0;
    void *volatile none = malloc((size_t)-1 / 2);
    CHECK(!none && errno == ENOMEM);
    errno = 0;
    none = reallocarray(NULL, (size_t)-1 / 2, 3);
    CHECK(!none && errno == ENOMEM);
    volatile size_t half = (size_t)-1 / 2;
    none = calloc(half, 3);
    CHECK(!none);
    free(NULL);
    memory = realloc(NULL, 30010);
    CHECK(memory);
    memory = realloc(memory, 0);
    CHECK(!memory);
}

/* Forks; parent and child go on allocating. */
static void forks(void) {
    classes(1, 2000, 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        sink = malloc(50001);
        classes(2, 2000, 0);
        exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    sink = malloc(50002);
}

/* Children that no handler is called for. */
static int child_of_clone(void *argument) {
    (void)argument;
    sink = malloc(50003);
    free(sink);
    return 0;
}
static void clones(void) {
    void *before = sink = malloc(50001);
    pid_t child = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (child == 0) _exit(child_of_clone(NULL));
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    child = vfork();
    if (child == 0) {
        /* It has its parent's memory: all of this is the parent's. */
        sink = malloc(50004);
        free(sink);
        free(before);
        sink = malloc(50005);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    sink = malloc(50002);
}

static void execs(const char *self) {
    sink = malloc(50001);
    pid_t child = fork();
    if (child == 0) {
        execl(self, self, "classes", NULL);
        _exit(98);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    sink = malloc(50002);
}

/* Allocations before main, in destructors of thread-specific data, and after main. */
static int edges_wanted(void) {
    const char *wanted = getenv("EDGES");
    return wanted && *wanted;
}
__attribute__((constructor)) static void before_main(void) {
    if (edges_wanted()) sink = malloc(60001);
}
__attribute__((destructor)) static void after_main(void) {
    if (edges_wanted()) sink = malloc(60003);
}
static pthread_key_t key;
static void at_thread_end(void *value) {
    free(value);
    sink = malloc(60002);
    free(sink);
}
static void *ending(void *argument) {
    (void)argument;
    pthread_setspecific(key, malloc(60004));
    return NULL;
}
static void thread_ends(void) {
    pthread_key_create(&key, at_thread_end);
    for (int i = 0; i < 200; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, ending, NULL) == 0);
        pthread_join(thread, NULL);
    }
}

/* A signal handler that allocates, on a stack of its own, while others allocate. */
static void on_timer(int signal) {
    (void)signal;
    void *memory = malloc(70001);
    sink = memory;
    free(memory);
}
static void signals(void) {
    static char stack[64 << 10];
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    CHECK(sigaltstack(&alternate, NULL) == 0);
    struct sigaction action = {.sa_handler = on_timer, .sa_flags = SA_ONSTACK};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    for (int i = 0; i < 200; i++) {
        raise(SIGUSR1);
        /* Not while malloc is in it: a handler that allocates then is the program's own mistake. */
        void *memory = malloc(100);
        free(memory);
    }
}

/* A coroutine on memory of the heap's, and one that ends at a page that is not there. */
static ucontext_t main_context, other_context;
static void coroutine(void) {
    sink = malloc(80001);
    swapcontext(&other_context, &main_context);
}
static void coroutines(void) {
    size_t size = 64 << 10;
    char *stack = mmap(NULL, size + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(stack != MAP_FAILED && mprotect(stack + size, 4096, PROT_NONE) == 0);
    getcontext(&other_context);
    other_context.uc_stack.ss_sp = stack;
    other_context.uc_stack.ss_size = size;
    other_context.uc_link = &main_context;
    makecontext(&other_context, coroutine, 0);
    swapcontext(&main_context, &other_context);
    dprintf(1, "stack %lx %lx\n", (unsigned long)stack, (unsigned long)stack + size);
}

/* Closes every descriptor, and goes on. */
static void closes(void) {
    sink = malloc(50001);
    for (int fd = 3; fd < 1024; fd++) close(fd);
    sink = malloc(50002);
}

/* No memory left. */
static void exhausts(void) {
    struct rlimit limit = {512 << 20, 512 << 20};
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    size_t count = 0;
    void *last = NULL, *memory;
    while ((memory = malloc(1 << 16))) {
        *(void **)memory = last;
        last = memory;
        count++;
    }
    CHECK(errno == ENOMEM && count > 1000);
    CHECK(!malloc(1 << 20) && !calloc(1 << 10, 1 << 10) && !realloc(last, 1 << 24));
    for (; last; last = memory) {
        memory = *(void **)last;
        free(last);
    }
}

/* A library that comes and goes. */
static void loads(void) {
    for (int i = 0; i < 20; i++) {
        void *library = dlopen("libm.so.6", RTLD_NOW);
        CHECK(library);
        double (*function)(double) = (double (*)(double))dlsym(library, "cos");
        CHECK(function && function(0) == 1);
        sink = malloc(50001);
        free(sink);
        dlclose(library);
    }
}

/* Allocates for ever, in four threads. */
static void *forever(void *argument) {
    for (uint64_t seed = (uintptr_t)argument;; seed++) classes(seed, 10000, 0);
    return NULL;
}
static void endless(void) {
    pthread_t all[4];
    for (uintptr_t i = 0; i < 4; i++) CHECK(pthread_create(&all[i], NULL, forever, (void *)i) == 0);
    pause();
}

/* Allocates so often, sampled each time if the interval is small, and says how long the slowest took. */
static void fills(int count) {
    for (int i = 0; i < count; i++) {
        void *memory = malloc(20000);
        CHECK(memory);
        free(memory);
    }
    dprintf(1, "done\n");
}

/* Heaps of the program's own. */
static int enabled_calls, disabled_calls;
static uint64_t enabled_interval;
static void on_enabled(void *data, const AHeapProfileEnableCallbackInfo *info) {
    CHECK(data == &enabled_calls);
    free(malloc(1000));
    enabled_interval = AHeapProfileEnableCallbackInfo_getSamplingInterval(info);
    __atomic_add_fetch(&enabled_calls, 1, __ATOMIC_SEQ_CST);
}
static void on_disabled(void *data, const AHeapProfileDisableCallbackInfo *info) {
    CHECK(data == &disabled_calls && info);
    __atomic_add_fetch(&disabled_calls, 1, __ATOMIC_SEQ_CST);
}
static void heaps(void) {
    char long_name[70];
    memset(long_name, 'x', 69);
    long_name[69] = 0;
    CHECK(!AHeapInfo_create(long_name));
    long_name[63] = 0;
    CHECK(AHeapInfo_create(long_name));
    AHeapInfo *info = AHeapInfo_create("com.example.arena");
    CHECK(AHeapInfo_setEnabledCallback(info, on_enabled, &enabled_calls) == info);
    CHECK(AHeapInfo_setDisabledCallback(info, on_disabled, &disabled_calls) == info);
    uint32_t heap = AHeapProfile_registerHeap(info);
    CHECK(heap > 1 && heap < 256);
    CHECK(!AHeapInfo_setEnabledCallback(info, on_enabled, NULL));
    CHECK(!AHeapInfo_setEnabledCallback(NULL, on_enabled, NULL));
    CHECK(AHeapProfile_registerHeap(NULL) == 0);
    uint32_t other = AHeapProfile_registerHeap(AHeapInfo_create("com.example.unwanted"));
    CHECK(enabled_calls == 1 && enabled_interval == 512);
    CHECK(AHeapProfile_reportAllocation(heap, 1, 512));
    CHECK(AHeapProfile_reportAllocation(heap, UINT64_MAX, 90001));
    CHECK(!AHeapProfile_reportAllocation(other, 2, 90002));
    CHECK(!AHeapProfile_reportAllocation(0, 3, 90003) && !AHeapProfile_reportAllocation(9999, 3, 90003));
    CHECK(AHeapProfile_reportSample(heap, 4, 5) && !AHeapProfile_reportSample(other, 4, 5));
    AHeapProfile_reportFree(heap, UINT64_MAX);
    AHeapProfile_reportFree(heap, UINT64_MAX);
    AHeapProfile_reportFree(other, 1);
    AHeapProfile_reportFree(0, 1);
    dprintf(1, "reported\n");
    wait_for_test();
    /* The session has ended meanwhile, which a report finds out. */
    for (int i = 0; i < 100000 && !__atomic_load_n(&disabled_calls, __ATOMIC_SEQ_CST); i++) {
        AHeapProfile_reportAllocation(heap, 100 + i, 90001);
        usleep(100);
    }
    CHECK(disabled_calls == 1 && !AHeapProfile_reportAllocation(heap, 5, 90001));
    int left = 0;
    while (AHeapInfo_create("more")) left++;
    CHECK(left == 254 - 3);
}

/* Allocates until the test closes standard input, and prints nothing. */
static void *reading(void *argument) {
    wait_for_test();
    __atomic_store_n((int *)argument, 1, __ATOMIC_SEQ_CST);
    return NULL;
}
static void until_told(void) {
    int told = 0;
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, reading, &told) == 0);
    for (uint64_t seed = 1; !__atomic_load_n(&told, __ATOMIC_SEQ_CST); seed++) classes(seed, 1000, 0);
    pthread_join(thread, NULL);
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "";
    if (!strcmp(name, "classes")) classes(argc > 2 ? strtoull(argv[2], NULL, 10) : 1, 300000, 1);
    else if (!strcmp(name, "threads")) threads();
    else if (!strcmp(name, "handing")) handing();
    else if (!strcmp(name, "functions")) functions();
    else if (!strcmp(name, "forks")) forks();
    else if (!strcmp(name, "clones")) clones();
    else if (!strcmp(name, "execs")) execs(argv[0]);
    else if (!strcmp(name, "thread_ends")) thread_ends();
    else if (!strcmp(name, "signals")) signals();
    else if (!strcmp(name, "coroutines")) coroutines();
    else if (!strcmp(name, "closes")) closes();
    else if (!strcmp(name, "exhausts")) exhausts();
    else if (!strcmp(name, "loads")) loads();
    else if (!strcmp(name, "endless")) endless();
    else if (!strcmp(name, "fills")) fills(atoi(argv[2]));
    else if (!strcmp(name, "heaps")) heaps();
    else if (!strcmp(name, "until_told")) until_told();
    else return 97;
    return 0;
}
