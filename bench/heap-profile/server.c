// An allocation-heavy server without a network: threads that take requests apart into many small allocations, work on them, answer, and release everything.
// Some answers stay in a cache.
//
//     server THREADS REQUESTS
//
// Each request allocates some 160 times. Prints to stderr how many bytes and allocations there were.
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIELDS = 48, BUCKETS = 64, CACHED = 2048 };

static atomic_ulong bytes, allocations;
static _Thread_local unsigned long own_bytes, own_allocations;

static void *take(size_t size) {
    own_bytes += size;
    own_allocations++;
    void *memory = malloc(size);
    if (!memory) abort();
    return memory;
}

struct field {
    struct field *next;
    char *name, *value;
};

struct cache {
    pthread_mutex_t lock;
    char *answers[CACHED];
} cache = { .lock = PTHREAD_MUTEX_INITIALIZER };

static uint64_t next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

static uint64_t hash(const char *text) {
    uint64_t hash = 1469598103934665603u;
    for (; *text; text++) hash = (hash ^ (unsigned char)*text) * 1099511628211u;
    return hash;
}

static char *copy(const char *from, size_t length) {
    char *to = take(length + 1);
    memcpy(to, from, length);
    to[length] = 0;
    return to;
}

// What a client would send.
static size_t compose(char *into, uint64_t *random) {
    char *at = into;
    for (int i = 0; i < FIELDS; i++) {
        at += sprintf(at, "field-%u: ", (unsigned)(next(random) % 1000));
        size_t length = 8 + next(random) % 60;
        for (size_t j = 0; j < length; j++) *at++ = 'a' + (at - into) % 26;
        *at++ = '\n';
    }
    *at = 0;
    return at - into;
}

static void parse(const char *text, struct field **buckets) {
    while (*text) {
        const char *colon = strchr(text, ':'), *end = strchr(colon, '\n');
        struct field *field = take(sizeof *field);
        field->name = copy(text, colon - text);
        field->value = copy(colon + 2, end - colon - 2);
        struct field **bucket = &buckets[hash(field->name) % BUCKETS];
        field->next = *bucket;
        *bucket = field;
        text = end + 1;
    }
}

static char *answer(struct field **buckets, size_t *length) {
    size_t room = 256, used = 0;
    char *out = take(room);
    for (int i = 0; i < BUCKETS; i++)
        for (struct field *field = buckets[i]; field; field = field->next) {
            char line[160];
            int more = snprintf(line, sizeof line, "%s=%s;%016lx\n", field->name, field->value, (unsigned long)hash(field->value));
            if (used + more >= room) {
                own_bytes += room *= 2;
                own_allocations++;
                if (!(out = realloc(out, room))) abort();
            }
            memcpy(out + used, line, more + 1);
            used += more;
        }
    *length = used;
    return out;
}

static void discard(struct field **buckets) {
    for (int i = 0; i < BUCKETS; i++)
        for (struct field *field = buckets[i], *next; field; field = next) {
            next = field->next;
            free(field->name);
            free(field->value);
            free(field);
        }
}

static void keep(char *kept, uint64_t place) {
    pthread_mutex_lock(&cache.lock);
    char **slot = &cache.answers[place % CACHED], *before = *slot;
    *slot = kept;
    pthread_mutex_unlock(&cache.lock);
    free(before);
}

static unsigned long requests;

static void *serve(void *seed) {
    uint64_t random = 88172645463325252u + (uintptr_t)seed;
    char text[FIELDS * 100];
    for (unsigned long i = 0; i < requests; i++) {
        struct field *buckets[BUCKETS] = { 0 };
        size_t length;
        compose(text, &random);
        parse(text, buckets);
        char *out = answer(buckets, &length);
        if (i % 16 == 0) keep(copy(out, length), next(&random));
        free(out);
        discard(buckets);
    }
    bytes += own_bytes;
    allocations += own_allocations;
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    int count = atoi(argv[1]);
    requests = strtoul(argv[2], 0, 10) / count;
    pthread_t threads[count];
    for (uintptr_t i = 0; i < count; i++)
        if (pthread_create(&threads[i], 0, serve, (void *)i)) return 1;
    for (int i = 0; i < count; i++) pthread_join(threads[i], 0);
    fprintf(stderr, "%lu bytes in %lu allocations\n", (unsigned long)bytes, (unsigned long)allocations);
    return 0;
}
