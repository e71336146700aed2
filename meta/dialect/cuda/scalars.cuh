// The dtypes, without headers: reading and rounding.
//
// COMPUTE, the type to compute in, is W: up(x) is the value of any of the dtypes, down(y, x) rounds
// to nearest, ties to even. What is only moved is read as an unsigned integer of its size, and then
// COMPUTE is unsigned long long.
#pragma once
#ifndef COMPUTE
#define COMPUTE float
#endif
typedef COMPUTE W;

struct f16 {
  unsigned short bits;
};
struct bf16 {
  unsigned short bits;
};

#define BITS(T)                                   \
  inline unsigned long long up(T x) { return x; } \
  inline void down(T& y, W x) { y = (T)x; }
BITS(unsigned char)
BITS(unsigned short)
BITS(unsigned)
BITS(unsigned long long)
#undef BITS

inline float up(float x) { return x; }
inline double up(double x) { return x; }
inline float up(bf16 x) { return __uint_as_float((unsigned)x.bits << 16); }
inline float up(f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
inline void down(float& y, W x) { y = (float)x; }
inline void down(double& y, W x) { y = (double)x; }
inline void down(f16& y, W x) {
  float single = (float)x;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(single));
}
inline void down(bf16& y, W x) {
  float single = (float)x;
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(single));
#else
  unsigned bits = __float_as_uint(single);
  bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  unsigned rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  y.bits = (unsigned short)(nan ? (bits >> 16) | 0x40u : rounded);
#endif
}
