/* Heap profiles of allocators of your own: these functions of libferretto_heap.so are those of Perfetto's heap_profile.h.
 *
 * A heap is what an allocator hands out. Register it once, then report each allocation after it was made, and each release before it is done:
 *
 *     static uint32_t heap;
 *
 *     heap = AHeapProfile_registerHeap(AHeapInfo_create("com.example.arena"));
 *     ...
 *     AHeapProfile_reportAllocation(heap, (uintptr_t)memory, size);
 *     ...
 *     AHeapProfile_reportFree(heap, (uintptr_t)memory);
 *
 * While nobody profiles the heap, a report costs a load and a branch. All functions may be called by any thread.
 */
#ifndef FERRETTO_HEAP_H
#define FERRETTO_HEAP_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of a heap's name, with the zero at its end. */
#define FERRETTO_HEAP_NAME_BYTES 64

typedef struct AHeapInfo AHeapInfo;
typedef struct AHeapProfileEnableCallbackInfo AHeapProfileEnableCallbackInfo;
typedef struct AHeapProfileDisableCallbackInfo AHeapProfileDisableCallbackInfo;

typedef void (*AHeapInfo_EnableCallback)(void *data, const AHeapProfileEnableCallbackInfo *info);
typedef void (*AHeapInfo_DisableCallback)(void *data, const AHeapProfileDisableCallbackInfo *info);

/* Bytes between two samples, on average, in the session that has begun. */
uint64_t AHeapProfileEnableCallbackInfo_getSamplingInterval(const AHeapProfileEnableCallbackInfo *info);

/* Makes a heap with this name. NULL if the name is longer than 63 bytes, or if the process has too many heaps (254). */
AHeapInfo *AHeapInfo_create(const char *name);

/* Has a function called when profiling of the heap begins, before its first sample. NULL if info is NULL or registered already, else info.
 * The function is called by AHeapProfile_registerHeap, or later by a thread of the library, which may allocate. */
AHeapInfo *AHeapInfo_setEnabledCallback(AHeapInfo *info, AHeapInfo_EnableCallback callback, void *data);

/* Has a function called when profiling of the heap has ended, by a thread of the library. NULL if info is NULL or registered already, else info. */
AHeapInfo *AHeapInfo_setDisabledCallback(AHeapInfo *info, AHeapInfo_DisableCallback callback, void *data);

/* Registers the heap, which then belongs to the library, and returns its number. 0, for which reports do nothing, if info is NULL. */
uint32_t AHeapProfile_registerHeap(AHeapInfo *info);

/* Reports an allocation of so many bytes. The id is its address, or any number that no other living allocation of the heap has.
 * Returns whether it is sampled. */
bool AHeapProfile_reportAllocation(uint32_t heap, uint64_t id, uint64_t size);

/* Reports an allocation that the heap has chosen as a sample; it stands for size bytes. Returns whether the heap is profiled. */
bool AHeapProfile_reportSample(uint32_t heap, uint64_t id, uint64_t size);

/* Reports that an allocation is about to be released. One that was not sampled changes nothing. */
void AHeapProfile_reportFree(uint32_t heap, uint64_t id);

#ifdef __cplusplus
}
#endif

#endif
