// Adds up the sums of the thread blocks of the backward pass, always in the same order. FINISHING
// threads of a thread block add up POSITIONS columns.
#include "layer_norm.cuh"

#define PARTS (FINISHING / POSITIONS)

extern "C" __global__ void __launch_bounds__(FINISHING)
    finish(const __grid_constant__ Parameters p) {
  const int at_once = 8;
  __shared__ float parts[PARTS][POSITIONS];
  int lane = threadIdx.x % POSITIONS, part = threadIdx.x / POSITIONS;
  int position = blockIdx.x * POSITIONS + lane;
  float sum = 0;
  if (position < SUMS * PADDED) {
    for (int begin = part; begin < p.blocks; begin += at_once * PARTS) {
      float found[at_once] = {};
#pragma unroll
      for (int i = 0; i < at_once; ++i)
        if (int block = begin + i * PARTS; block < p.blocks)
          found[i] = p.partial[(long long)block * SUMS * PADDED + position];
#pragma unroll
      for (int i = 0; i < at_once; ++i) sum += found[i];
    }
  }
  parts[part][lane] = sum;
  __syncthreads();
  if (part || position >= SUMS * PADDED) return;
  sum = 0;
#pragma unroll
  for (int k = 0; k < PARTS; ++k) sum += parts[k][lane];
  int which = position / PADDED, place = position % PADDED, rest = place % STEP;
  int column = place - rest + rest % GROUP * VECTOR + rest / GROUP;
  if (column >= WIDTH) return;
  if (which == 0)
    down(p.dscale[column], sum);
  else if (CENTERS && which == 1)
    down(p.dbias[column], sum);
  else
    p.dsum[column] = sum;
}
