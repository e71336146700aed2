// Threads of a thread block as fibers of one thread of the host.
//
// A fiber runs until it waits at a barrier or an exchange of its warp. What waits goes on when all
// threads that have to be there are: the whole block, or the lanes of the mask. If nothing can go
// on, threads have taken different ways, and the kernel is wrong.
#include "runtime.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <vector>

Index3 threadIdx, blockIdx, blockDim, gridDim;

enum Waiting { RUNNABLE, BARRIER, EXCHANGE, ACTIVE, DONE };
struct Fiber {
  ucontext_t context;
  char* stack = nullptr;
  Waiting state;
  int site;
  unsigned mask, source, ballot;
  uint64_t value, result;
};

static const int STACK = 256 * 1024, SHARED = 48 * 1024, NOBODY = -1, SEVERAL = -2;
static std::vector<Fiber> fibers;
static ucontext_t scheduler;
static jmp_buf outside;
static bool in_fiber, failed;
static char message[1024];
static int current, threads, block, barriers, exchanges[32];  // the last: of each warp
static long long shared_bytes, blocks_begun;  // of all launches
static void (*kernel)(void*);
static void* argument;

// Who accessed an element last, and when: after how many barriers of the block, and exchanges of the
// warp, which order what its lanes do as far as compilers move no access across one.
struct Moment { int barriers, exchanges; };
struct Access {
  int writer = NOBODY, reader = NOBODY, reader_warp = NOBODY, reader_block = NOBODY;
  Moment written, read;
};
struct Accesses { std::vector<Access> of; };

[[noreturn]] void fail(const char* format, ...) {
  va_list given;
  va_start(given, format);
  int n = vsnprintf(message, sizeof message, format, given);
  va_end(given);
  snprintf(message + n, sizeof message - n, " (block %u %u %u, thread %u %u %u)", blockIdx.x,
           blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
  failed = true;
  if (in_fiber) setcontext(&scheduler);
  longjmp(outside, 1);
}

static void bounds(const void* at, int bytes, int alignment, const Range* range, const char* what) {
  long long offset = (const char*)at - range->begin;
  if (offset < 0 || offset + bytes > range->bytes)
    fail("%s of %d bytes at %lld of %s, which has %lld", what, bytes, offset, range->name,
         range->bytes);
  if ((uintptr_t)at % alignment)
    fail("%s of %d bytes at %lld of %s, which is not aligned", what, bytes, offset, range->name);
}

// Whether what a thread did was before this, or will be after it, in every run.
static bool ordered(int thread, Moment when, const Range* range) {
  int me = block * threads + current;
  if (thread == NOBODY || thread == me) return true;
  if (thread / threads != block) return range->shared;
  bool same_warp = thread % threads / 32 == current / 32;
  return when.barriers != barriers || (same_warp && when.exchanges != exchanges[current / 32]);
}

static Moment now() { return {barriers, exchanges[current / 32]}; }

static Access* first_access(const void* at, int bytes, const Range* range, int* count) {
  if (!range->accesses) return nullptr;
  auto& all = range->accesses->of;
  if (all.empty()) all.resize(range->bytes / range->granule, Access());
  long long offset = (const char*)at - range->begin;
  *count = (bytes + range->granule - 1) / range->granule;
  return &all[offset / range->granule];
}

void note_read(const void* at, int bytes, int alignment, const Range* range) {
  bounds(at, bytes, alignment, range, "a read");
  int count, me = block * threads + current;
  Access* one = first_access(at, bytes, range, &count);
  for (int i = 0; one && i < count; ++i, ++one) {
    if (!ordered(one->writer, one->written, range))
      fail("a race: reads what thread %d writes, element %lld of %s", one->writer,
           ((const char*)at - range->begin) / range->granule + (long long)i, range->name);
    bool elsewhere = !range->shared && one->reader_block != NOBODY && one->reader_block != block;
    bool again = one->reader_block == block && one->read.barriers == barriers;
    one->reader = again && one->reader != me ? SEVERAL : me;
    one->reader_warp = again && one->reader_warp != current / 32 ? SEVERAL : current / 32;
    one->reader_block = elsewhere ? SEVERAL : block;
    one->read = now();
  }
}

void note_write(void* at, int bytes, int alignment, const Range* range, const void* value) {
  bounds(at, bytes, alignment, range, "a write");
  int count, me = block * threads + current;
  Access* one = first_access(at, bytes, range, &count);
  bool same = one && memcmp(at, value, bytes) == 0;  // harmless, and usual
  for (int i = 0; one && i < count; ++i, ++one) {
    long long element = ((char*)at - range->begin) / range->granule + i;
    if (!same && !ordered(one->writer, one->written, range))
      fail("a race: writes what thread %d writes, element %lld of %s", one->writer, element,
           range->name);
    bool before = one->reader_warp == current / 32 && one->read.exchanges != now().exchanges;
    bool here = one->reader_block == block && one->read.barriers == barriers &&
                one->reader != me && !before;
    bool elsewhere = !range->shared && one->reader_block != NOBODY && one->reader_block != block;
    if (!same && (here || elsewhere))
      fail("a race: writes what thread %d reads, element %lld of %s", one->reader, element,
           range->name);
    one->writer = me, one->written = now();
  }
}

void enter_shared(Range* range, long long* begun) {
  if (*begun == blocks_begun) return;
  *begun = blocks_begun;
  shared_bytes += range->bytes;
  if (shared_bytes > SHARED) fail("a thread block has only 48 KB of shared memory");
  memset(range->begin, 0xff, range->bytes);  // what nobody wrote is garbage, NaN in floats
  if (!range->accesses) range->accesses = new Accesses;
  range->accesses->of.clear();
}

static void locate(int thread) {
  current = thread;
  unsigned x = blockDim.x, y = blockDim.y;
  threadIdx = {thread % x, thread / x % y, thread / x / y};
}

static void wait(Waiting state, int site) {
  Fiber& me = fibers[current];
  me.state = state, me.site = site;
  swapcontext(&me.context, &scheduler);
}

void sync_block(int site) { wait(BARRIER, site); }

uint64_t exchange(int site, unsigned mask, uint64_t value, unsigned source, unsigned* ballot) {
  Fiber& me = fibers[current];
  me.mask = mask, me.value = value, me.source = source;
  if (!(mask >> current % 32 & 1)) fail("a lane exchanges that is not in its mask %x", mask);
  wait(EXCHANGE, site);
  if (ballot) *ballot = me.ballot;
  return me.result;
}

unsigned active_lanes(int site) {
  wait(ACTIVE, site);
  return fibers[current].ballot;
}

static void enter() {
  kernel(argument);
  fibers[current].state = DONE;
  setcontext(&scheduler);
}

// Lets the lanes of one exchange go on if all are there.
static bool finish_exchange(int first) {
  int last = first + 32 < threads ? first + 32 : threads;
  unsigned wanted = 0, present = 0, ballot = 0;
  int site = -1;
  for (int t = first; t < last; ++t) {
    Fiber& one = fibers[t];
    if (one.state != EXCHANGE || (site >= 0 && one.site != site)) continue;
    site = one.site, wanted |= one.mask, present |= 1u << t % 32;
    if (one.value) ballot |= 1u << t % 32;
  }
  for (int t = first; t < first + 32; ++t)  // who has gone, or never was, is not waited for
    if (t >= last || fibers[t].state == DONE) wanted &= ~(1u << t % 32);
  if (!present || (wanted & ~present)) return false;
  for (int t = first; t < last; ++t)
    if (present >> t % 32 & 1) {
      Fiber& one = fibers[t];
      bool given = present >> one.source & 1;  // what others give is undefined, not an error
      one.result = given ? fibers[first + one.source].value : ~0ull;
      one.ballot = ballot;
    }
  for (int t = first; t < last; ++t)
    if (present >> t % 32 & 1) fibers[t].state = RUNNABLE;
  ++exchanges[first / 32];
  return true;
}

static bool finish_active(int first) {
  int last = first + 32 < threads ? first + 32 : threads, site = -1;
  unsigned mask = 0;
  for (int t = first; t < last; ++t)
    if (fibers[t].state == ACTIVE && (site < 0 || fibers[t].site == site))
      site = fibers[t].site, mask |= 1u << t % 32;
  for (int t = first; t < last; ++t)
    if (mask >> t % 32 & 1) fibers[t].state = RUNNABLE, fibers[t].ballot = mask;
  return mask;
}

static bool finish_barrier() {
  int site = -1;
  for (int t = 0; t < threads; ++t) {
    if (fibers[t].state == DONE) continue;
    if (fibers[t].state != BARRIER) return false;
    if (site >= 0 && fibers[t].site != site) locate(t), fail("threads wait at different barriers");
    site = fibers[t].site;
  }
  if (site < 0) return false;
  ++barriers;
  for (int t = 0; t < threads; ++t)
    if (fibers[t].state == BARRIER) fibers[t].state = RUNNABLE;
  return true;
}

static bool any_released() {
  bool released = false;
  for (int first = 0; first < threads; first += 32) released |= finish_exchange(first);
  if (released) return true;
  for (int first = 0; first < threads; first += 32) released |= finish_active(first);
  return released || finish_barrier();
}

static void run_fibers() {
  if ((int)fibers.size() < threads) fibers.resize(threads);
  for (int t = 0; t < threads; ++t) {
    Fiber& one = fibers[t];
    if (!one.stack) one.stack = (char*)malloc(STACK);
    getcontext(&one.context);
    one.context.uc_stack.ss_sp = one.stack, one.context.uc_stack.ss_size = STACK;
    one.context.uc_link = &scheduler;
    makecontext(&one.context, enter, 0);
    one.state = RUNNABLE;
  }
  for (bool alive = true; alive;) {
    for (int t = 0; t < threads; ++t)
      if (fibers[t].state == RUNNABLE) {
        locate(t);
        in_fiber = true;
        swapcontext(&scheduler, &fibers[t].context);
        in_fiber = false;
        if (failed) return;
      }
    alive = false;
    for (int t = 0; t < threads; ++t)
      if (fibers[t].state != DONE) alive = true, current = t;
    if (alive && !any_released())
      locate(current), fail("waits for threads that do not come, line %d", fibers[current].site);
  }
}

static void run_block(bool as_fibers) {
  barriers = shared_bytes = 0, ++blocks_begun;
  memset(exchanges, 0, sizeof exchanges);
  if (as_fibers) return run_fibers();
  for (int t = 0; t < threads; ++t) locate(t), kernel(argument);
}

const char* launch(const Launch* how, void (*body)(void*), void* context) {
  kernel = body, argument = context, failed = in_fiber = false;
  memcpy(&gridDim, how->grid, sizeof gridDim);
  memcpy(&blockDim, how->block, sizeof blockDim);
  threads = blockDim.x * blockDim.y * blockDim.z;
  if (setjmp(outside)) return message;
  block = 0;
  for (unsigned z = 0; z < gridDim.z; ++z)
    for (unsigned y = 0; y < gridDim.y; ++y)
      for (unsigned x = 0; x < gridDim.x; ++x, ++block) {
        blockIdx = {x, y, z};
        run_block(how->fibers);
        if (failed) return message;
      }
  return nullptr;
}

// For the host: what a launch may access.
extern "C" Accesses* new_accesses() { return new Accesses; }
extern "C" void delete_accesses(Accesses* one) { delete one; }
