// Products of a few rows with a matrix (out, in) that is read once, which sets the time.
//
// A warp has PER results of each row, or as many pairs of them, one in each half of the matrix
// (GATES).
//
// DATA: the dtype, HALF as instructions name it. SCALE: of the scale. ROWS, WIDTH: of x. COLUMNS:
// of the result. WARPS: of a thread block. AHEAD: how many accesses of a row of the matrix are
// under way together. NORMALIZES: whether x is normalised by the root mean square first. BIASED,
// ADDS: whether there is a bias, and what is added at last. ACTIVATES: whether there is an
// activation, ACTIVATION. EARLY: whether it begins while the kernels before it still run.
// WEIGHT_BITS: of a number of the matrix; of 8 and 4 it is quantised, as `quantized_matmul` has it:
// GROUP columns have a scale, of the type GRID, and a zero (ZEROS).
#define VECTOR 8
#include "activation.cuh"
#include "early.cuh"
#include "packed.cuh"
#include "tensor_core.cuh"
#include "warp.cuh"

#define THREADS (32 * WARPS)
#define NUMBERS (128 / WEIGHT_BITS)
#define STEP (32 * NUMBERS)
#define STEPS ((WIDTH + STEP - 1) / STEP)
#define PARTS (GATES ? 2 : 1)
#define SUMS (PARTS * PER)

struct Parameters {
  const T* x;
  const char* w;
  const GRID* scales;
  const GRID* zeros;
  const SCALE* scale;
  const T* bias;
  const T* addend;
  T* out;
  float eps;
};

struct Sums {
  float of[SUMS][ROWS], squares[ROWS];
};

// The bits of 2^23: a float from there on has an integer in its lowest bits.
#define ABOVE 1258291200u

// Number j of an access of the matrix.
inline float number(const Packed<T>& v, int j) {
#if WEIGHT_BITS == 16
  return element(v, j);
#elif WEIGHT_BITS == 8
  unsigned bits = (v.words[j / 4] ^ 0x80808080u) >> j % 4 * 8 & 255;
  return __uint_as_float(ABOVE | bits) - 8388736.0f;
#else
  unsigned bits = v.words[j % 16 / 4] >> (j % 4 * 8 + j / 16 * 4) & 15;
  return __uint_as_float(ABOVE | bits) - (ZEROS ? 8388608.0f : 8388616.0f);
#endif
}

// Adds the products of an access of each row of the matrix, at element k.
inline void add(Sums& sums, const Parameters& p, const Packed<T> (&weights)[SUMS],
                const int (&rows)[SUMS], int k) {
  if (WIDTH % STEP && k >= WIDTH) return;
  float products[SUMS][ROWS] = {}, all[ROWS] = {};
  EVERY(v, NUMBERS / VECTOR) {
    int at = k + v * VECTOR;
#if NORMALIZES
    Packed<SCALE> scale = packed(p.scale + at);
#endif
    EVERY(r, ROWS) {
      Packed<T> some = packed(p.x + r * WIDTH + at);
      FOR_ELEMENTS {
        float x = element(some, j);
#if NORMALIZES
        sums.squares[r] += x * x;
        x *= element(scale, j);
#endif
        if (ZEROS) all[r] += x;
        EVERY(s, SUMS) products[s][r] += x * number(weights[s], v * VECTOR + j);
      }
    }
  }
  EVERY(s, SUMS) {
#if WEIGHT_BITS < 16
    long long group = (long long)rows[s] * (WIDTH / GROUP) + k / GROUP;
    float by = up(p.scales[group]), zero = ZEROS ? up(p.zeros[group]) : 0;
    EVERY(r, ROWS) sums.of[s][r] += by * (products[s][r] - zero * all[r]);
#else
    EVERY(r, ROWS) sums.of[s][r] += products[s][r];
#endif
  }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    few_rows(const __grid_constant__ Parameters p) {
  int lane = threadIdx.x % 32;
  int first = (blockIdx.x * WARPS + threadIdx.x / 32) * PER;
  int rows[SUMS];
  EVERY(s, SUMS) {
    int column = first + s % PER < COLUMNS ? first + s % PER : COLUMNS - 1;
    rows[s] = column + s / PER * COLUMNS;
  }
  await_others();
  // A lane ends with a row of a column.
  int own = lane < PER * ROWS ? lane : 0, row = own / PER, column = first + own % PER;
  bool writes = lane < PER * ROWS && column < COLUMNS;
  float bias[PARTS] = {}, addend = 0;
#if BIASED
  EVERY(i, PARTS)
    if (writes) bias[i] = up(p.bias[column + i * COLUMNS]);
#endif
#if ADDS
  if (writes) addend = up(p.addend[(long long)row * COLUMNS + column]);
#endif
  __shared__ uint4 slots[AHEAD * SUMS * THREADS];
  auto fetch = [&](int i) {
    int k = i * STEP + lane * NUMBERS;
    bool there = WIDTH % STEP == 0 || k < WIDTH;
    EVERY(s, SUMS) {
      int slot = (i % AHEAD * SUMS + s) * THREADS + threadIdx.x;
      const char* from = p.w + ((long long)rows[s] * WIDTH + (there ? k : 0)) * WEIGHT_BITS / 8;
      begin_copy(slots + slot, (const T*)from, there);
    }
  };
  EVERY(i, AHEAD) {
    if (i < STEPS) fetch(i);
    end_batch();
  }
  Sums sums = {};
#pragma unroll 8
  for (int i = 0; i < STEPS; ++i) {
    await_copies<AHEAD - 1>();
    Packed<T> weights[SUMS];  // each lane reads what it has copied itself
    EVERY(s, SUMS) {
      uint4 v = slots[(i % AHEAD * SUMS + s) * THREADS + threadIdx.x];
      weights[s] = {{v.x, v.y, v.z, v.w}};
    }
    add(sums, p, weights, rows, i * STEP + lane * NUMBERS);
    if (i + AHEAD < STEPS) fetch(i + AHEAD);
    end_batch();
  }
  let_others_begin();
  float found[PARTS] = {}, square = 0;
  EVERY(r, ROWS) {
#if NORMALIZES
    float all = total(sums.squares[r]);
    if (row == r) square = all;
#endif
    EVERY(s, SUMS) {
      float sum = total(sums.of[s][r]);
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
