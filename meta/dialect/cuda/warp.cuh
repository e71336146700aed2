// Sums over the lanes of a warp, and the largest of them.
#pragma once

#define FULL 0xffffffffu

inline float total(float x) {
#pragma unroll
  for (int k = 16; k > 0; k /= 2) x += __shfl_xor_sync(FULL, x, k);
  return x;
}

inline float greatest(float x) {
#pragma unroll
  for (int k = 16; k > 0; k /= 2) x = max(x, __shfl_xor_sync(FULL, x, k));
  return x;
}
