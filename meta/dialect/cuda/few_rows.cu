// Products of a few rows with a matrix (out, in) that is read once, which sets the time.
//
// A warp has PER results of each row, or as many pairs of them, one in each half of the matrix
// (GATES). What of the matrix a thread block will read is on its way to the L2 cache before the
// kernels before this one are done.
//
// DATA: the dtype. ROWS, WIDTH: of x. COLUMNS: of the result. WARPS: of a thread block. AHEAD: how
// many accesses of the matrix's row are under way. NORMALIZES: whether x is normalised by the root
// mean square first. BIASED, ADDS: whether there is a bias, and what is added at last. ACTIVATES:
// whether there is an activation, ACTIVATION. EARLY: whether it is launched before others are done.
#define VECTOR 8
#include "packed.cuh"
#include "activation.cuh"

typedef DATA T;
#define FULL 0xffffffffu
#define STEP (32 * VECTOR)
#define EVERY(i, n) _Pragma("unroll") for (int i = 0; i < (n); ++i)
#define PARTS (GATES ? 2 : 1)
#define SUMS (PARTS * PER)

struct Parameters {
  const T* x;
  const T* w;
  const T* scale;
  const T* bias;
  const T* addend;
  T* out;
  float eps;
};

inline void prefetch(const T* at) { asm volatile("prefetch.global.L2 [%0];" : : "l"(at)); }
inline void await_others() { asm volatile("griddepcontrol.wait;" : : : "memory"); }
inline void let_others_begin() { asm volatile("griddepcontrol.launch_dependents;" : : : "memory"); }

inline float total(float x) {
#pragma unroll
  for (int k = 16; k > 0; k /= 2) x += __shfl_xor_sync(FULL, x, k);
  return x;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    few_rows(const __grid_constant__ Parameters p) {
  int lane = threadIdx.x % 32;
  int first = (blockIdx.x * WARPS + threadIdx.x / 32) * PER;
  const T* w[SUMS];
  EVERY(s, SUMS) {
    int column = first + s % PER < COLUMNS ? first + s % PER : COLUMNS - 1;
    w[s] = p.w + (long long)(column + s / PER * COLUMNS) * WIDTH;
  }
#if EARLY
  let_others_begin();
  EVERY(s, SUMS) {
    for (int k = lane * 64; k < WIDTH; k += 32 * 64) prefetch(w[s] + k);
  }
  await_others();
#endif
  // A lane ends with a row of a column.
  int own = lane < PER * ROWS ? lane : 0, row = own / PER, column = first + own % PER;
  bool writes = lane < PER * ROWS && column < COLUMNS;
  float bias[PARTS] = {}, addend = 0;
#if BIASED
  EVERY(i, PARTS) if (writes) bias[i] = up(p.bias[column + i * COLUMNS]);
#endif
#if ADDS
  if (writes) addend = up(p.addend[(long long)row * COLUMNS + column]);
#endif
  float sums[SUMS][ROWS] = {}, squares[ROWS] = {};
  constexpr int ahead = AHEAD;
#pragma unroll ahead
  for (int k = lane * VECTOR; k < WIDTH; k += STEP) {
    Packed<T> weights[SUMS];
    EVERY(s, SUMS) weights[s] = packed(w[s] + k);
#if NORMALIZES
    Packed<T> scale = packed(p.scale + k);
#endif
    EVERY(r, ROWS) {
      Packed<T> some = packed(p.x + r * WIDTH + k);
      FOR_ELEMENTS {
        float x = element(some, j);
#if NORMALIZES
        squares[r] += x * x;
        x *= element(scale, j);
#endif
        EVERY(s, SUMS) sums[s][r] += x * element(weights[s], j);
      }
    }
  }
  float found[PARTS] = {}, square = 0;
  EVERY(r, ROWS) {
#if NORMALIZES
    float all = total(squares[r]);
    if (row == r) square = all;
#endif
    EVERY(s, SUMS) {
      float sum = total(sums[s][r]);
      if (own == r * PER + s % PER) found[s / PER] = sum;
    }
  }
  if (!writes) return;
#if NORMALIZES
  float inv = rsqrtf(square * (1.0f / WIDTH) + p.eps);
#else
  float inv = 1;
#endif
  float y = found[0] * inv + bias[0];
#if ACTIVATES
  y = ACTIVATION::value(y);
#endif
#if GATES
  y *= found[1] * inv + bias[1];
#endif
  down(p.out[(long long)row * COLUMNS + column], y + addend);
}
