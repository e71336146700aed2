// Makes the results of `decode_attention.cu` of those of its parts. A thread block has a head, and
// SPLIT threads an element of it.
//
// DATA, WIDTH, PARTS: as there; a lane has the scores of a part.
#include "early.cuh"
#include "scalars.cuh"
#include "warp.cuh"

typedef DATA T;
#define EACH ((PARTS + SPLIT - 1) / SPLIT)
#define EVERY(i, n) _Pragma("unroll") for (int i = 0; i < (n); ++i)

struct Parameters {
  const float* parts;
  T* out;
};

extern "C" __global__ void __launch_bounds__(WIDTH* SPLIT)
    join(const __grid_constant__ Parameters p) {
  __shared__ float sums[WIDTH * SPLIT];
  let_others_begin();
  await_others();
  int lane = threadIdx.x % 32, own = threadIdx.x / WIDTH, k = threadIdx.x % WIDTH;
  const float* from = p.parts + (long long)blockIdx.x * PARTS * (WIDTH + 2);
  float top = -1e30f, whole = 0, some[EACH];
  if (lane < PARTS) {
    top = from[lane * (WIDTH + 2) + WIDTH];
    whole = from[lane * (WIDTH + 2) + WIDTH + 1];
  }
  EVERY(i, EACH) {
    int part = i * SPLIT + own;
    some[i] = part < PARTS ? from[part * (WIDTH + 2) + k] : 0;
  }
  float most = greatest(top), fade = lane < PARTS ? exp2f(top - most) : 0, sum = 0;
  whole = total(whole * fade);
  EVERY(i, EACH) sum += some[i] * __shfl_sync(FULL, fade, (i * SPLIT + own) % 32);
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (own) return;
  sum = 0;
  EVERY(i, SPLIT) sum += sums[i * WIDTH + k];
  down(p.out[(long long)blockIdx.x * WIDTH + k], whole > 0 ? sum / whole : 0);
}
