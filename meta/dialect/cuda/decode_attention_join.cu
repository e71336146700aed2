// Makes the results of `decode_attention.cu` of those of its parts. A thread block has a head.
//
// DATA, WIDTH, PARTS: as there.
#include "early.cuh"
#include "scalars.cuh"

typedef DATA T;
#define EVERY(i, n) _Pragma("unroll") for (int i = 0; i < (n); ++i)

struct Parameters {
  const float* parts;
  T* out;
};

extern "C" __global__ void __launch_bounds__(WIDTH) join(const __grid_constant__ Parameters p) {
  let_others_begin();
  await_others();
  const float* from = p.parts + (long long)blockIdx.x * PARTS * (WIDTH + 2);
  float top = from[WIDTH], sum = 0, whole = 0;
  EVERY(i, PARTS) top = max(top, from[i * (WIDTH + 2) + WIDTH]);
  EVERY(i, PARTS) {
    const float* one = from + i * (WIDTH + 2);
    float fade = exp2f(one[WIDTH] - top);
    whole += one[WIDTH + 1] * fade;
    sum += one[threadIdx.x] * fade;
  }
  down(p.out[(long long)blockIdx.x * WIDTH + threadIdx.x], whole > 0 ? sum / whole : 0);
}
