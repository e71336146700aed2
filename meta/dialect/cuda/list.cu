// A pass over lists of tensors: what is done to each element, in a loop over the chunks of all.
//
// A kernel takes one struct by value: numbers, the addresses of all tensors, and their sizes. A
// thread block takes one chunk of one tensor, in vectors of four elements where addresses allow.
//
// UPDATE is what is done to an element: statements about variables with the names of the lists. It
// reads members of k, which are numbers, and sums[i]; it adds to terms[i]. What it is about is told
// by macros that apply another one, X, to each:
//   FOR_NUMBERS(X)  X(name): numbers, which are members of k; in double for the next
//   FOR_DERIVED(X)  X(name, value): further members
//   FOR_LISTS(X)    X(name, type, place, read): lists that are read or written; whether they are
//   read FOR_LOADS(X)    X(name, type): those that are read, and FOR_STORES(X) those that are
//   written FOR_SUMS(X)     X(i): sums over a tensor that UPDATE adds to FOR_NEEDS(X)    X(i):
//   those of an earlier pass that it reads
//
// COMPUTE: the type to compute in. THREADS: of a thread block. CHUNK: the elements that it takes.
// LISTS, TENSORS: how many lists there are, and for how many tensors of each there is room.
// NUMBERS: the names of the numbers. SUMS: how many sums of a chunk, of all passes.
#include "scalars.cuh"

template <typename T> struct __align__(sizeof(T) * 4 < 16 ? sizeof(T) * 4 : 16) Four {
  T at[4];
};

inline float root(float x) { return sqrtf(x); }
inline double root(double x) { return sqrt(x); }
inline W clamped(W x, W bound) { return x > bound ? bound : x < -bound ? -bound : x; }

struct Number {
  const void* at;
  double value;
  int kind;
  int each;
};
inline double read(const Number& number, int tensor) {
  if (!number.at) return number.value;
  int i = number.each ? tensor : 0;
  switch (number.kind) {
    case 0: return ((const float*)number.at)[i];
    case 1: return ((const double*)number.at)[i];
    case 2: return up(((const f16*)number.at)[i]);
    case 3: return up(((const bf16*)number.at)[i]);
    case 4: return ((const int*)number.at)[i];
    default: return (double)((const long long*)number.at)[i];
  }
}

struct Numbers {
  Number NUMBERS;
};

struct Parameters {
  const bool* skip;
  double* partial;  // sums over chunks: [chunk, SUMS]
  long long first_chunk;
  void* result;
  int count;  // tensors of the launch
  int spare;
  Numbers number;
  void* at[LISTS][TENSORS];
  long long size[TENSORS];
  int index[TENSORS];      // of each tensor, among those of all launches
  int chunk[TENSORS + 1];  // the first chunk of each tensor, within the launch
};
#if __CUDA_ARCH__ >= 700
#define GRID_CONSTANT __grid_constant__
#else
#define GRID_CONSTANT
#endif

inline double sum_of_block(double value, double* scratch) {
  scratch[threadIdx.x] = value;
  __syncthreads();
  for (int half = THREADS / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) scratch[threadIdx.x] += scratch[threadIdx.x + half];
    __syncthreads();
  }
  double total = scratch[0];
  __syncthreads();
  return total;
}

// Writes the root of the sum of all chunks, of which there are p.first_chunk.
extern "C" __global__ void finish(const GRID_CONSTANT Parameters p) {
  __shared__ double scratch[THREADS];
  double total = 0;
  for (long long i = threadIdx.x; i < p.first_chunk; i += THREADS) total += p.partial[i];
  total = sum_of_block(total, scratch);
  if (threadIdx.x == 0) *(float*)p.result = (float)sqrt(total);
}

#define MEMBER(name, ...) W name;
struct Known {
  FOR_NUMBERS(MEMBER)
  FOR_DERIVED(MEMBER)
};

#define READ(name) double name = read(p.number.name, p.index[tensor]);
#define NARROW(name) k.name = (W)name;
#define DERIVE(name, value) k.name = (W)(value);

#define POINTER(name, type, place, read) type* name##_at = (type*)p.at[place][tensor] + begin;
#define ALIGNED(name, type, place, read) &&(unsigned long long)name##_at % alignof(Four<type>) == 0
#define FOUR(name, type, place, read) Four<type> name##_four;
#define FETCH(name, type) name##_four = *(const Four<type>*)(name##_at + i);
#define STORE(name, type) *(Four<type>*)(name##_at + i) = name##_four;

#define LOAD_OF_FOUR(name, type, place, read) W name = read ? (W)up(name##_four.at[j]) : (W)0;
#define STORE_OF_FOUR(name, type) down(name##_four.at[j], name);
#define LOAD_ONE(name, type, place, read) W name = read ? (W)up(name##_at[i]) : (W)0;
#define STORE_ONE(name, type) down(name##_at[i], name);

extern "C" __global__ void __launch_bounds__(THREADS) update(const GRID_CONSTANT Parameters p) {
  if (p.skip && *p.skip) return;
  __shared__ Known shared;
  __shared__ double scratch[THREADS];
  int tensor = 0, above = p.count;
  while (above - tensor > 1) {
    int middle = (tensor + above) / 2;
    if (p.chunk[middle] <= (int)blockIdx.x)
      tensor = middle;
    else
      above = middle;
  }
  if (threadIdx.x == 0) {
    Known k;
    FOR_NUMBERS(READ)
    FOR_NUMBERS(NARROW)
    FOR_DERIVED(DERIVE)
    shared = k;
  }
  __syncthreads();
  Known k = shared;
  W sums[SUMS] = {};
#define NEED(number)                                                                   \
  {                                                                                    \
    double part = 0;                                                                   \
    for (int c = p.chunk[tensor] + threadIdx.x; c < p.chunk[tensor + 1]; c += THREADS) \
      part += p.partial[(p.first_chunk + c) * SUMS + number];                          \
    sums[number] = (W)sum_of_block(part, scratch);                                     \
  }
  FOR_NEEDS(NEED)
  double terms[SUMS] = {};
  long long begin = (long long)((int)blockIdx.x - p.chunk[tensor]) * CHUNK;
  long long left = p.size[tensor] - begin;
  int length = left < CHUNK ? (int)left : CHUNK;
  FOR_LISTS(POINTER)
  int rest = 0;
  if (true FOR_LISTS(ALIGNED)) {
    rest = length / 4 * 4;
    for (int i = threadIdx.x * 4; i < rest; i += THREADS * 4) {
      FOR_LISTS(FOUR)
      FOR_LOADS(FETCH)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        FOR_LISTS(LOAD_OF_FOUR)
        UPDATE
        FOR_STORES(STORE_OF_FOUR)
      }
      FOR_STORES(STORE)
    }
  }
  for (int i = rest + threadIdx.x; i < length; i += THREADS) {
    FOR_LISTS(LOAD_ONE)
    UPDATE
    FOR_STORES(STORE_ONE)
  }
#define ADD(number)                                                                        \
  {                                                                                        \
    double total = sum_of_block(terms[number], scratch);                                   \
    if (threadIdx.x == 0) p.partial[(p.first_chunk + blockIdx.x) * SUMS + number] = total; \
  }
  FOR_SUMS(ADD)
}
