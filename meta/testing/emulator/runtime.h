// What emulated device code asks of the machine: threads, barriers, exchanges, checked accesses.
#pragma once
#include <stdint.h>

struct Index3 { unsigned x, y, z; };
extern Index3 threadIdx, blockIdx, blockDim, gridDim;

// Memory that may be accessed: an array in global or shared memory, or a thread's own.
struct Accesses;
struct Range {
  char* begin;
  long long bytes;
  int granule;         // bytes of an element
  bool shared;         // accesses of one thread block are apart from another's
  Accesses* accesses;  // who read and wrote each element; null: not followed
  const char* name;
};

// Stops the kernel with a message.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
// Raises by `fail` for an access outside, misaligned, or in a race with another thread's.
void note_read(const void* at, int bytes, int alignment, const Range* range);
void note_write(void* at, int bytes, int alignment, const Range* range, const void* value);
// A thread comes to a shared array, which is garbage at the start of each thread block; `begun` is
// kept with the array.
void enter_shared(Range* range, long long* begun);

void sync_block(int site);
// All lanes of `mask` give a value; each gets that of the lane `source`, and `ballot`: who gave
// something but 0.
uint64_t exchange(int site, unsigned mask, uint64_t value, unsigned source, unsigned* ballot);
unsigned active_lanes(int site);

struct Launch { unsigned grid[3], block[3]; int fibers; };
// Runs all threads of all blocks; returns null, or what went wrong.
const char* launch(const Launch* how, void (*body)(void*), void* context);
