// CUDA's language as C++: what generated and hand-written kernels use of it.
//
// Pointers to global and shared memory are objects that check each access. To support another
// intrinsic, add a function at the end.
#pragma once
#include <limits.h>
#include <math.h>
#include <string.h>

#include <type_traits>

#include "runtime.h"

#define __launch_bounds__(...)
#define __global__ static
#define __device__
#define __forceinline__ inline
#define __restrict__
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define __CUDA_ARCH__ 900
#define __syncthreads() sync_block(__LINE__)
#define __syncwarp() sync_warp(__LINE__)
#define __activemask() active_lanes(__LINE__)
#define __shfl_xor_sync(mask, value, ...) shuffle_xor(__LINE__, mask, value, __VA_ARGS__)
#define __shfl_down_sync(mask, value, ...) shuffle_down(__LINE__, mask, value, __VA_ARGS__)
#define __shfl_up_sync(mask, value, ...) shuffle_up(__LINE__, mask, value, __VA_ARGS__)
#define __shfl_sync(mask, value, ...) shuffle(__LINE__, mask, value, __VA_ARGS__)
#define __ballot_sync(mask, value) ballot(__LINE__, mask, value)
#define __match_any_sync(mask, value) match_any(__LINE__, mask, value)

typedef unsigned int uint;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned long ulong;
typedef long long longlong;
typedef unsigned long long ulonglong;
typedef signed char schar;

// An element behind a checked pointer: reading and writing are told apart.
template <class T>
struct Element {
  T* at;
  const Range* range;
  T get() const {
    if (range) note_read(at, sizeof(T), alignof(T), range);
    return *at;
  }
  operator T() const { return get(); }
  // Of a bfloat16, which is a class here: a cast applies one conversion of classes only.
  template <class U, class = std::enable_if_t<(std::is_same<U, float>::value ||
                                               std::is_same<U, bool>::value) &&
                                              std::is_class<T>::value>>
  explicit operator U() const { return (float)get(); }
  T operator=(T value) const {
    if (range) note_write(at, sizeof(T), alignof(T), range, &value);
    return *at = value;
  }
  T operator=(const Element& other) const { return *this = other.get(); }
  template <class U> T operator+=(U value) const { return *this = (T)(get() + value); }
  template <class U> T operator-=(U value) const { return *this = (T)(get() - value); }
  template <class U> T operator*=(U value) const { return *this = (T)(get() * value); }
};
#define COMPARED(op)                                                              \
  template <class T, class = std::enable_if_t<std::is_class<T>::value>>           \
  bool operator op(Element<T> x, Element<T> y) { return (float)x op (float)y; }
COMPARED(<) COMPARED(<=) COMPARED(>) COMPARED(>=) COMPARED(==) COMPARED(!=)

template <class T, int N> struct Array;
template <class T>
struct Pointer {
  T* at;
  const Range* range;
  Pointer(T* at, const Range* range) : at(at), range(range) {}
  explicit Pointer(T* at) : at(at), range(nullptr) {}
  template <class U, int N> explicit Pointer(const Array<U, N>& all)
      : at((T*)all.memory), range(&all.range) {}
  template <class U> explicit Pointer(U* at) : at((T*)at), range(nullptr) {}
  template <class U> explicit Pointer(Pointer<U> other) : at((T*)other.at), range(other.range) {}
  template <class I> Pointer operator+(I i) const { return {at + (long long)i, range}; }
  template <class I> Pointer operator-(I i) const { return {at - (long long)i, range}; }
  template <class I> Element<T> operator[](I i) const { return {at + (long long)i, range}; }
  Element<T> operator*() const { return {at, range}; }
  T* operator->() const {
    if (range) note_read(at, sizeof(T), alignof(T), range);
    return at;
  }
  operator T*() const { return at; }
};

// An array of a thread, or of a thread block.
template <class T, int N>
struct Array {
  alignas(alignof(T) > 16 ? alignof(T) : 16) char memory[N * sizeof(T)];
  Range range;
  explicit Array(const char* name) : range{memory, sizeof memory, sizeof(T), false, nullptr, name} {
    memset(memory, 0xff, sizeof memory);
  }
  Array(const Array&) = delete;
  operator Pointer<T>() const { return {(T*)memory, &range}; }
  operator T*() const { return (T*)memory; }  // not checked from here on
  template <class I> Pointer<T> operator+(I i) const { return Pointer<T>(*this) + i; }
  template <class I> Element<T> operator[](I i) const { return Pointer<T>(*this)[i]; }
};
template <class T, int N>
struct Shared : Array<T, N> {
  long long begun = 0;
  explicit Shared(const char* name) : Array<T, N>(name) { this->range.shared = true; }
  void enter() { enter_shared(&this->range, &begun); }
};
template <class T, int N, int M>
struct SharedPlane : Shared<T, N * M> {
  using Shared<T, N * M>::Shared;
  template <class I> Pointer<T> operator[](I i) const { return *this + i * M; }
};
#define LOCAL(T, name, n) Array<T, (n)> name(#name)
#define SHARED(T, name, n) static Shared<T, (n)> name(#name); name.enter()
// A shared array that TVM uses for several, of types of other sizes: races are of the smallest.
#define SHARED_AS(T, name) \
  if ((int)sizeof(T) < name.range.granule) name.range.granule = sizeof(T)
#define SHARED_PLANE(T, name, n, m) \
  static SharedPlane<T, (n), (m)> name(#name); name.enter()

// Half precision: arithmetic is rounded at each step, as the instructions do.
typedef _Float16 half;
typedef half __half;
static inline float __uint_as_float(unsigned x) { float y; memcpy(&y, &x, 4); return y; }
static inline unsigned __float_as_uint(float x) { unsigned y; memcpy(&y, &x, 4); return y; }
static inline float __int_as_float(int x) { return __uint_as_float(x); }
static inline int __float_as_int(float x) { return __float_as_uint(x); }
static inline long long __double_as_longlong(double x) { long long y; memcpy(&y, &x, 8); return y; }
static inline double __longlong_as_double(long long x) { double y; memcpy(&y, &x, 8); return y; }
// One operation, rounded once: the emulator is compiled without contraction.
#define ROUNDED(T, p) \
  static inline T __##p##mul_rn(T x, T y) { return x * y; } \
  static inline T __##p##add_rn(T x, T y) { return x + y; } \
  static inline T __##p##div_rn(T x, T y) { return x / y; } \
  static inline T __##p##sqrt_rn(T x) { return std::sqrt(x); }
ROUNDED(float, f)
ROUNDED(double, d)
#undef ROUNDED
static inline ushort __half_as_ushort(half x) { ushort y; memcpy(&y, &x, 2); return y; }
static inline half __ushort_as_half(ushort x) { half y; memcpy(&y, &x, 2); return y; }
static inline half __float2half_rn(float x) { return (half)x; }
static inline float __half2float(half x) { return (float)x; }
struct nv_bfloat16 {
  ushort bits;
  nv_bfloat16() = default;
  nv_bfloat16(float x) {
    unsigned all = __float_as_uint(x);
    bits = x != x ? 0x7fff : (all + 0x7fff + (all >> 16 & 1)) >> 16;
  }
  operator float() const { return __uint_as_float((unsigned)bits << 16); }
};
typedef nv_bfloat16 __nv_bfloat16;
static inline nv_bfloat16 __float2bfloat16(float x) { return x; }
static inline nv_bfloat16 __float2bfloat16_rn(float x) { return x; }
static inline float __bfloat162float(nv_bfloat16 x) { return x; }

// Vectors.
#define VECTOR2(T, name) struct alignas(2 * sizeof(T)) name##2 { T x, y; };
#define VECTOR4(T, name, A) struct alignas(A) name##4 { T x, y, z, w; };
#define VECTORS(T, name) VECTOR2(T, name) struct name##3 { T x, y, z; }; \
  VECTOR4(T, name, (sizeof(T) > 4 ? 16 : 4 * sizeof(T)))
VECTORS(signed char, char) VECTORS(uchar, uchar) VECTORS(short, short) VECTORS(ushort, ushort)
VECTORS(int, int) VECTORS(uint, uint) VECTORS(float, float) VECTORS(double, double)
VECTORS(long, long) VECTORS(ulong, ulong) VECTORS(longlong, longlong)
VECTORS(ulonglong, ulonglong) VECTORS(half, half) VECTORS(nv_bfloat16, nv_bfloat16)
typedef nv_bfloat162 __nv_bfloat162;
typedef half2 __half2;
#define MAKE(T, name) \
  static inline name##2 make_##name##2(T x, T y) { return {x, y}; } \
  static inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
MAKE(signed char, char) MAKE(uchar, uchar) MAKE(short, short) MAKE(ushort, ushort) MAKE(int, int)
MAKE(uint, uint) MAKE(float, float) MAKE(double, double) MAKE(longlong, longlong)

// A vector written to where elements are.
static inline void store4(Pointer<float> to, float4 v) {
  Pointer<float4> wide(to);
  wide[0] = v;
}

// What lanes of a warp exchange.
template <class T>
static inline T exchange_as(int site, unsigned mask, T value, unsigned source) {
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  bits = exchange(site, mask, bits, source, nullptr);
  memcpy(&value, &bits, sizeof value);
  return value;
}
static inline unsigned lane() {
  return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32;
}
// The lane in the same group of `width`, or oneself.
static inline unsigned in_group(int source, int width) {
  int first = lane() / width * width;
  return source >= first && source < first + width ? source : lane();
}
#define SHUFFLE(name, source) \
  template <class T> \
  static inline T name(int site, unsigned mask, T value, int by, int width = 32) { \
    return exchange_as<T>(site, mask, value, source); \
  } \
  template <class T> \
  static inline T name(int site, unsigned mask, Element<T> value, int by, int width = 32) { \
    return name(site, mask, value.get(), by, width); \
  }
SHUFFLE(shuffle_xor, in_group(lane() ^ by, width))
SHUFFLE(shuffle_down, in_group(lane() + by, width))
SHUFFLE(shuffle_up, in_group((int)lane() - by, width))
SHUFFLE(shuffle, lane() / width * width + by % width)
static inline unsigned ballot(int site, unsigned mask, bool value) {
  unsigned found;
  exchange(site, mask, value, lane(), &found);
  return found;
}
static inline void sync_warp(int site) { exchange(site, ~0u, 0, lane(), nullptr); }
static inline unsigned match_any(int site, unsigned mask, unsigned value) {
  unsigned found = 0, any;
  for (unsigned k = 0; k < 32; ++k)
    if (mask >> k & 1) found |= (unsigned)(exchange(site, mask, value, k, &any) == value) << k;
  return found;
}
// Rounding to 10 bits of mantissa, away from 0 at ties; and a product of such numbers, of which each
// lane of a warp holds some, as mma.m16n8k8 has them.
static inline unsigned coarse_bits(float x) {
  return x != x ? 0x7fffffff : (__float_as_uint(x) + 0x1000) & ~0x1fffu;
}
static inline void multiply_in_warp(int site, float (&c)[4], const unsigned (&a)[4],
                                    const unsigned (&b)[2]) {
  struct Given { unsigned a[4], b[2]; };
  static Given given[2][32][32];  // a lane is at most one exchange ahead
  static unsigned char turns[32][32];
  unsigned own = lane(), warp = (threadIdx.x - own) / 32;
  Given* all = given[turns[warp][own] ^= 1][warp];
  memcpy(all[own].a, a, sizeof a), memcpy(all[own].b, b, sizeof b);
  exchange(site, ~0u, 0, own, nullptr);
  for (int e = 0; e < 4; ++e) {
    unsigned row = own / 4, column = own % 4 * 2 + e % 2;
    for (unsigned k = 0; k < 8; ++k) {
      unsigned x = all[row * 4 + k % 4].a[e / 2 + k / 4 * 2], y = all[column * 4 + k % 4].b[k / 4];
      c[e] += __uint_as_float(x & ~0x1fffu) * __uint_as_float(y & ~0x1fffu);
    }
  }
}
// The same of half precision, as mma.m16n8k16 has them.
template <class T>
static inline void multiply_halves_in_warp(int site, float (&c)[4], const unsigned (&a)[4],
                                           const unsigned (&b)[2]) {
  struct Given { T a[4][2], b[2][2]; };
  static Given given[2][32][32];  // a lane is at most one exchange ahead
  static unsigned char turns[32][32];
  unsigned own = lane(), warp = (threadIdx.x - own) / 32;
  Given* all = given[turns[warp][own] ^= 1][warp];
  memcpy(all[own].a, a, sizeof a), memcpy(all[own].b, b, sizeof b);
  exchange(site, ~0u, 0, own, nullptr);
  for (int e = 0; e < 4; ++e) {
    unsigned row = own / 4, column = own % 4 * 2 + e % 2;
    for (unsigned k = 0; k < 16; ++k) {
      T x = all[row * 4 + k % 8 / 2].a[e / 2 + k / 8 * 2][k % 2];
      T y = all[column * 4 + k % 8 / 2].b[k / 8][k % 2];
      c[e] += up(x) * up(y);
    }
  }
}
static inline void copy_chunk(Pointer<uint4> to, const void* from, bool there) {
  uint4 zero = {0, 0, 0, 0};
  to[0] = there ? *(const uint4*)from : zero;
}
// Matrices of 8 x 8 halves in shared memory, as ldmatrix has them: the rows that lanes name.
template <int n>
static inline const ushort** rows_in_warp(int site, Pointer<uint4> row) {
  static const ushort* given[2][32][32];
  static unsigned char turns[32][32];
  unsigned own = lane(), warp = (threadIdx.x - own) / 32;
  const ushort** all = given[turns[warp][own] ^= 1][warp];
  if (own < 8 * n) row[0].get();  // checks the access
  all[own] = (const ushort*)row.at;
  exchange(site, ~0u, 0, own, nullptr);
  return all;
}
template <int n>
static inline void load_in_warp(int site, unsigned (&to)[n], Pointer<uint4> row) {
  const ushort** all = rows_in_warp<n>(site, row);
  unsigned own = lane();
  for (int i = 0; i < n; ++i) {
    const ushort* at = all[8 * i + own / 4] + own % 4 * 2;
    to[i] = at[0] | (unsigned)at[1] << 16;
  }
}
// The same, turned, as ldmatrix.trans has them.
template <int n>
static inline void load_turned_in_warp(int site, unsigned (&to)[n], Pointer<uint4> row) {
  const ushort** all = rows_in_warp<n>(site, row);
  unsigned own = lane();
  for (int i = 0; i < n; ++i) {
    const ushort* even = all[8 * i + own % 4 * 2];
    const ushort* odd = all[8 * i + own % 4 * 2 + 1];
    to[i] = even[own / 4] | (unsigned)odd[own / 4] << 16;
  }
}
// x * y + z of two halves in a word, rounded once.
template <class T>
static inline unsigned fused_pairs(unsigned x, unsigned y, unsigned z) {
  T of[3][2], found[2];
  memcpy(of[0], &x, 4), memcpy(of[1], &y, 4), memcpy(of[2], &z, 4);
  for (int i = 0; i < 2; ++i) down(found[i], fmaf(up(of[0][i]), up(of[1][i]), up(of[2][i])));
  unsigned both;
  memcpy(&both, found, 4);
  return both;
}
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned order) {
  unsigned long long bytes = x | (unsigned long long)y << 32;
  unsigned found = 0;
  for (int i = 0; i < 4; ++i)
    found |= (unsigned)(bytes >> (order >> 4 * i & 7) * 8 & 255) << 8 * i;
  return found;
}
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }

// Mathematics: what the C library has not.
#define CUDART_INF INFINITY
#define CUDART_INF_F INFINITY
#define CUDART_NAN NAN
#define CUDART_NAN_F NAN
static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
static inline double rsqrt(double x) { return 1 / sqrt(x); }
static inline float normcdff(float x) { return erfcf(x * -0.70710678f) / 2; }
#define LARGEST(T) \
  static inline T max(T a, T b) { return a > b ? a : b; } \
  static inline T min(T a, T b) { return a < b ? a : b; }
LARGEST(int) LARGEST(uint) LARGEST(long) LARGEST(ulong) LARGEST(longlong) LARGEST(ulonglong)
LARGEST(half)
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline float min(float a, float b) { return fminf(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
#define HALF1(name) static inline half h##name(half x) { return (half)name##f((float)x); }
HALF1(exp) HALF1(exp2) HALF1(log) HALF1(log2) HALF1(log10) HALF1(sqrt) HALF1(rsqrt) HALF1(sin)
HALF1(cos) HALF1(floor) HALF1(ceil) HALF1(trunc) HALF1(rint)
static inline half __hmul(half a, half b) { return a * b; }
static inline half __hadd(half a, half b) { return a + b; }
