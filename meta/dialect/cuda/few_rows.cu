// Products of a few rows with a matrix (out, in) that is read once, which sets the time.
//
// A thread block has PER tiles of 16 columns of the result, or as many pairs of them, one in each
// half of the matrix (GATES). Its warps go through the rows of the matrix by turns, in steps of 128
// bytes of each, and multiply on tensor cores: numbers of 8 and 4 bits become those of DATA
// exactly, some of them larger by OFFSET, which is taken off the sums.
//
// DATA: the dtype, HALF as instructions name it, BRIEF if it is bfloat16. ROWS, WIDTH: of x.
// COLUMNS: of the result. WARPS: of a thread block. AHEAD: how many steps of a warp are under way
// together. NORMALIZES: whether x, of bfloat16, is normalised by the root mean square first; its
// numbers times the scale are rounded before they are divided. BIASED, ADDS: whether there is a
// bias, and what is added at last. ACTIVATES: whether there is an activation, ACTIVATION. EARLY:
// whether it begins while the kernels before it still run. BLOCKS: of a processor. WEIGHT_BITS: of
// a number of the matrix; of 8 and 4 it is quantised, as `quantized_matmul` has it: GROUP columns
// have a scale, of the type GRID, and a zero (ZEROS). UNIT: of how many columns the products are
// summed before they are scaled, the greatest divisor of GROUP and of a step's. LINE: of how many
// bytes the scales of a row in a step are, which are copied with the matrix; 0 if they are read.
#include "activation.cuh"
#include "early.cuh"
#include "tensor_core.cuh"
#include "warp.cuh"

#define THREADS (32 * WARPS)
#define CHUNK (128 / WEIGHT_BITS)  // numbers of the matrix in 16 bytes
#define STEP (8 * CHUNK)
#define STEPS ((WIDTH + STEP - 1) / STEP)
#define WHOLE (WIDTH % STEP == 0 && STEPS % WARPS == 0)  // all steps of all warps are full
#define PARTS (GATES ? 2 : 1)
#define TILES (PARTS * PER)
#define EVEN (COLUMNS % (16 * PER) == 0)
#define SETS ((ROWS + 7) / 8)                // of rows of x, which an instruction takes together
#define GIVEN (ROWS + (NORMALIZES ? 1 : 0))  // rows of x, and the scale
#define EACH (STEP / 8)                      // accesses of each in a step
#define ACCESSES ((GIVEN * EACH + 31) / 32)  // of them by a lane
#define GRIDS (TILES * 16 * (1 + ZEROS))     // rows of scales and zeros
#define PLACE (TILES * 128 + GIVEN * EACH)   // of scales in a slot
#define SLOT (PLACE + GRIDS * LINE / 16)
#define GROUPS (WIDTH / GROUP)
#define UNITS (GROUPS > 1 ? STEP / UNIT : 1)  // of a step
#define SIXTEENS (STEP / 16)                  // numbers of a row of x that an instruction takes

struct Parameters {
  const T* x;
  const char* w;
  const GRID* scales;
  const GRID* zeros;
  const T* scale;
  const T* bias;
  const T* addend;
  T* out;
  float eps;
  unsigned base;   // as a constant it would be put into a register for each use
  unsigned ready;  // whether no kernel that may still run writes the matrix and its scales
};

// A byte, or 7 bits of it, behind the byte `base` is a number of T: 1024, or 128, more.
#if BRIEF
#define ONE 0x3f803f80u
#define OFFSET (WEIGHT_BITS == 4 ? 128 : 0)
#else
#define ONE 0x3c003c00u
#define OFFSET (WEIGHT_BITS == 4 ? 1024 : 1152)
#endif
#define FOLDS (WEIGHT_BITS < 16 && (OFFSET > 0 || ZEROS))

// x * y + z of pairs.
inline unsigned fused(unsigned x, unsigned y, unsigned z) {
  unsigned found;
  asm("fma.rn." HALF "x2 %0, %1, %2, %3;" : "=r"(found) : "r"(x), "r"(y), "r"(z));
  return found;
}

// Two pairs of T of the four bytes of a word, OFFSET more: of signed ones, or of some below 16.
inline void pairs(unsigned (&to)[2], unsigned bytes, unsigned base) {
#if WEIGHT_BITS == 8 && BRIEF
  unsigned most = bytes & 0x7f7f7f7fu, sign = bytes & 0x80808080u;
  unsigned less = base | 0x80808080u;  // with the sign, -128 or -256
  to[0] = fused(__byte_perm(most, base, 0x4140), ONE, __byte_perm(sign, less, 0x4140));
  to[1] = fused(__byte_perm(most, base, 0x4342), ONE, __byte_perm(sign, less, 0x4342));
#else
  unsigned from = WEIGHT_BITS == 8 ? bytes ^ 0x80808080u : bytes;
  to[0] = __byte_perm(from, base, 0x4140);
  to[1] = __byte_perm(from, base, 0x4342);
#endif
}

// Where eight elements of a row of x are, of a step; rows lie in banks apart.
inline int place(int row, int access) {
  return row * EACH + (ROWS == 1 ? access : access ^ (WEIGHT_BITS == 16 ? row % 8 : row % 4 * 2));
}

// Sums of tiles, and of x alone (FOLDS).
struct Sums {
  float of[TILES][SETS][4], all[SETS][4];
};

// Scales, and what stands for 0, of a step's units, or of all columns: of the rows g and g + 8 of a
// tile.
struct alignas(UNITS * sizeof(GRID) > 16 ? 16 : UNITS * sizeof(GRID)) Units {
  GRID of[UNITS];
};
struct Grid {
  Units scales[TILES][2], zeros[TILES][2];
};

// Adds to sums what they are without scales.
inline void scale(Sums& sums, const Sums& plain, const Grid& grid, int unit) {
  EVERY(s, TILES)
    EVERY(h, 2) {
      float factor = up(grid.scales[s][h].of[unit]);
      float zero = OFFSET + (ZEROS              ? up(grid.zeros[s][h].of[unit])
                             : WEIGHT_BITS == 4 ? 8.0f
                                                : 0.0f);
      EVERY(n, SETS)
        EVERY(e, ROWS > 1 ? 2 : 1) {  // an odd column is a row of x
          float product = plain.of[s][n][2 * h + e];
          if (FOLDS) product -= zero * plain.all[n][2 * h + e];
          sums.of[s][n][2 * h + e] += factor * product;
        }
    }
}

// Adds the products of a step, whose rows of the matrix lie at `slot`, with those of x behind them;
// squares: the products of rows of x with one another.
inline void add(Sums& sums, float (&squares)[SETS][4], const uint4* slot, const Grid& grid,
                unsigned base) {
  int lane = threadIdx.x % 32, t = lane % 4, row = lane % 16;
  // Some of the elements of a row of x, the first of which is at `element` of the step.
  auto given = [&](int r, int element) {
    return (const char*)(slot + TILES * 128 + place(r, element / 8)) + element % 8 * 2;
  };
  auto read = [&](unsigned (&to)[2], int r, int element) {
#if WEIGHT_BITS == 16
    EVERY(i, 2) to[i] = *(const unsigned*)given(r, element + CHUNK * i);
#else
    uint2 both = *(const uint2*)given(r, element);
    to[0] = both.x, to[1] = both.y;
#endif
  };
  Sums unit = {};
  // Two pairs of a row of x, which are normalised but for the root.
  auto pairs_of = [&](unsigned (&b)[2], int r, int element, float (&square)[4], bool adds) {
    read(b, r, element);
#if NORMALIZES
    unsigned a[4] = {b[0], 0, b[1], 0};
    if (adds) multiply_add(square, a, b);
    unsigned scale[2];
    read(scale, ROWS, element);
    EVERY(i, 2) b[i] = fused(b[i], scale[i], 0x80008000u);
#endif
  };
  unsigned ones[4] = {ONE, ONE, ONE, ONE};
#if ROWS == 1
  // What is summed of x alone has a factor whose eight columns are sixteen numbers each of the row.
  float sixteens[(SIXTEENS + 7) / 8][4] = {};
  if (NORMALIZES || FOLDS)
    EVERY(i, (SIXTEENS + 7) / 8) {
      unsigned b[2];
      int element = (8 * i + lane / 4 % SIXTEENS) * 16 + (WEIGHT_BITS == 16 ? 2 : 4) * t;
      pairs_of(b, 0, element, squares[0], true);
      if (FOLDS) multiply_add(GROUPS > 1 ? sixteens[i] : sums.all[0], ones, b);
    }
  auto sum_of_unit = [&](int u) {
    constexpr int each = UNIT / 16;
    int begin = u * each, from = begin % 8 / 2;
    float sum = 0;
    EVERY(i, (each + 7) / 8)
      EVERY(e, each > 1 ? 2 : 1) sum += sixteens[begin / 8 + i][each > 1 ? e : begin % 2];
#pragma unroll
    for (int k = 1; k < (each < 8 ? each : 8) / 2; k *= 2) sum += __shfl_xor_sync(FULL, sum, k);
    return each < 8 ? __shfl_sync(FULL, sum, from) : sum;
  };
#endif
  // What a set of rows multiplies 16 columns with.
  auto factor = [&](unsigned (&b)[2], int n, int element) {
    int r = 8 * n + lane / 4 < ROWS ? 8 * n + lane / 4 : ROWS - 1;
    pairs_of(b, r, element, squares[n], ROWS > 1);
    if (FOLDS && ROWS > 1) multiply_add((GROUPS > 1 ? unit : sums).all[n], ones, b);
  };
  EVERY(j, 4) {
    unsigned words[TILES][4];
    EVERY(s, TILES)
      load_matrices(words[s], slot + (s * 128 + row * 8 + ((2 * j + lane / 16) ^ row % 8)));
#if WEIGHT_BITS == 16
    EVERY(n, SETS) {
      unsigned b[2];
      factor(b, n, 2 * j * CHUNK + 2 * t);
      EVERY(s, TILES) multiply_add(sums.of[s][n], words[s], b);
    }
#else
    EVERY(c, 2) {
      EVERY(q, 8 / WEIGHT_BITS) {
        unsigned a[TILES][4];
        EVERY(s, TILES)
          EVERY(i, 2) {
            unsigned bytes = words[s][2 * c + i], to[2];
            pairs(to, WEIGHT_BITS == 8 ? bytes : bytes >> 4 * q & 0x0f0f0f0fu, base);
            a[s][i] = to[0], a[s][2 + i] = to[1];
          }
        EVERY(n, SETS) {
          unsigned b[2];
          factor(b, n, (2 * j + c) * CHUNK + 16 * q + 4 * t);
          EVERY(s, TILES) multiply_add((GROUPS > 1 ? unit : sums).of[s][n], a[s], b);
        }
      }
      int done = (2 * j + c + 1) * CHUNK;
      if (GROUPS > 1 && done % UNIT == 0) {
#if ROWS == 1
        if (FOLDS) unit.all[0][0] = unit.all[0][2] = sum_of_unit(done / UNIT - 1);
#endif
        scale(sums, unit, grid, done / UNIT - 1), unit = {};
      }
    }
#endif
  }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
    few_rows(const __grid_constant__ Parameters p) {
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = blockIdx.x * PER * 16;
  // The row of the matrix that is row i of a tile; behind the last it is that one again.
  auto row_of = [&](int s, int i) {
    int column = first + s % PER * 16 + i;
    return (long long)(EVEN || column < COLUMNS ? column : COLUMNS - 1) + s / PER * COLUMNS;
  };
  constexpr int turns = (STEPS + WARPS - 1) / WARPS;
  extern __shared__ uint4 memory[];
  uint4* slots = memory + warp * AHEAD * SLOT;
  constexpr long long bytes = WIDTH / 8 * WEIGHT_BITS;
  const char* corner = p.w + row_of(0, lane / 8) * bytes + warp * 128 + lane % 8 * 16;
  int places[2];  // of rows 0 to 3 and 4 to 7 of a slot
  EVERY(i, 2) places[i] = i * 32 + lane / 8 * 8 + (lane % 8 ^ (lane / 8 + i * 4));
  const T* rows[ACCESSES];
  EVERY(r, ACCESSES) {
    int row = (32 * r + lane) / EACH;
    rows[r] = (row < ROWS ? p.x + row * WIDTH : p.scale) + warp * STEP + lane % EACH * 8;
  }
  auto fetch_matrix = [&](int i) {
    uint4* to = slots + i % AHEAD * SLOT;
    bool there = WHOLE || (i * WARPS + warp) * STEP + lane % 8 * CHUNK < WIDTH;
    EVERY(s, TILES)
      EVERY(r, 4) {
        long long apart = row_of(s, 4 * r + lane / 8) - row_of(0, lane / 8);
        if (EVEN) apart = s % PER * 16 + 4 * r + s / PER * COLUMNS;
        const char* from = there ? corner + apart * bytes + i * (WARPS * 128) : p.w;
        begin_copy(to + (places[r % 2] + s * 128 + r / 2 * 64), (const T*)from, there);
      }
  };
  auto fetch_rows = [&](int i) {
    uint4* to = slots + i % AHEAD * SLOT;
    bool there = WHOLE || (i * WARPS + warp) * STEP + lane % EACH * 8 < WIDTH;
    EVERY(r, ACCESSES) {
      int row = (32 * r + lane) / EACH;
      const T* from = there ? rows[r] + i * (WARPS * STEP) : p.x;
      if (row < GIVEN) begin_copy(to + TILES * 128 + place(row, lane % EACH), from, there);
    }
  };
  // Scales are on their way with the matrix, or else read one step before they are used.
  const GRID* grids[(GRIDS + 31) / 32];
  EVERY(r, (GRIDS + 31) / 32) {
    int n = 32 * r + lane, s = n / 16 % TILES;
    grids[r] = (n < TILES * 16 ? p.scales : p.zeros) + row_of(s, n % 16) * GROUPS;
    grids[r] += warp * (STEP / UNIT);
  }
  auto fetch_grids = [&](int i) {
#if LINE
    char* to = (char*)(slots + i % AHEAD * SLOT + PLACE) + lane * LINE;
    if (WHOLE || (i * WARPS + warp) * STEP < WIDTH)
      EVERY(r, (GRIDS + 31) / 32)
        if (32 * r + lane < GRIDS)
          begin_small_copy<LINE>(to + r * 32 * LINE, grids[r] + i * (WARPS * STEP / UNIT));
#endif
  };
  auto read = [&](int i) {
    Grid found = {};
#if WEIGHT_BITS < 16
    int k = (i * WARPS + warp) * STEP;
    EVERY(s, TILES)
      EVERY(h, 2) {
        Units &scales = found.scales[s][h], &zeros = found.zeros[s][h];
#if LINE
        const char* from = (const char*)(slots + i % AHEAD * SLOT + PLACE);
        from += (s * 16 + lane / 4 + 8 * h) * LINE;
        scales = *(const Units*)from;
        if (ZEROS) zeros = *(const Units*)(from + TILES * 16 * LINE);
#else
        long long at = row_of(s, lane / 4 + 8 * h) * GROUPS;
        EVERY(u, UNITS) {
          int column = k + u * UNIT;
          long long own = GROUPS > 1 && column < WIDTH ? at + column / GROUP : at;
          scales.of[u] = p.scales[own];
          if (ZEROS) zeros.of[u] = p.zeros[own];
        }
#endif
      }
#endif
    return found;
  };
  if (!p.ready) await_others();
  EVERY(i, AHEAD)
    if (i < turns) fetch_matrix(i), fetch_grids(i);
  Grid now = {}, next = {};
  if (!LINE) now = next = read(0);
  await_others();
  EVERY(i, AHEAD) {
    if (i < turns) fetch_rows(i);
    end_batch();
  }
  // A thread ends with a row of a column.
  int own = threadIdx.x % (16 * PER), result = threadIdx.x / (16 * PER), column = first + own;
  bool writes = result < ROWS && column < COLUMNS;
  float bias[PARTS] = {}, addend = 0;
#if BIASED
  EVERY(i, PARTS)
    if (writes) bias[i] = up(p.bias[column + i * COLUMNS]);
#endif
#if ADDS
  if (writes) addend = up(p.addend[(long long)result * COLUMNS + column]);
#endif
  Sums sums = {};
  float squares[SETS][4] = {};
#pragma unroll AHEAD
  for (int i = 0; i < turns; ++i) {
    if (GROUPS > 1 && !LINE && i + 1 < turns) next = read(i + 1);
    await_copies<AHEAD - 1>();
    __syncwarp();
    if (LINE) now = read(i);
    if (WHOLE || (i * WARPS + warp) * STEP < WIDTH)
      add(sums, squares, slots + i % AHEAD * SLOT, now, p.base);
    __syncwarp();
    if (i + AHEAD < turns) fetch_matrix(i + AHEAD), fetch_grids(i + AHEAD), fetch_rows(i + AHEAD);
    end_batch();
    if (!LINE) now = next;
  }
  let_others_begin();
#if ROWS == 1
  if (NORMALIZES) {
    float own = 0;  // on the diagonal, of sixteens that are not there twice
    EVERY(e, 2)
      if (lane / 4 < SIXTEENS && lane / 4 == lane % 4 * 2 + e) own = squares[0][e];
    squares[0][0] = total(own);
  }
  if (FOLDS && GROUPS == 1) {
    float all = sums.all[0][0] + sums.all[0][1];
    EVERY(i, 2) all += __shfl_xor_sync(FULL, all, 1 + i);
    sums.all[0][0] = sums.all[0][2] = all;
  }
#endif
#if WEIGHT_BITS < 16
  if (GROUPS == 1) {
    Sums scaled = {};
    scale(scaled, sums, now, 0);
    sums = scaled;
  }
#endif
  __shared__ float found[WARPS * TILES * ROWS * 16];
  __shared__ float square[WARPS * ROWS];
  EVERY(n, SETS)
    EVERY(e, 4) {
      int r = 8 * n + lane % 4 * 2 + e % 2;
      EVERY(s, TILES)
        if (r < ROWS)
          found[((warp * TILES + s) * ROWS + r) * 16 + lane / 4 + e / 2 * 8] = sums.of[s][n][e];
      if (NORMALIZES && e < 2 && r < ROWS && r % 8 == lane / 4)
        square[warp * ROWS + r] = squares[n][e];
    }
  __syncthreads();
  if (!writes) return;
  float inv = 1, y[PARTS] = {};
#if NORMALIZES
  float all = 0;
  EVERY(w, WARPS) all += square[w * ROWS + result];
  inv = rsqrtf(all * (1.0f / WIDTH) + p.eps);
#endif
  EVERY(i, PARTS) {
    EVERY(w, WARPS)
      y[i] += found[((w * TILES + i * PER + own / 16) * ROWS + result) * 16 + own % 16];
    y[i] = y[i] * inv + bias[i];
  }
#if ACTIVATES
  y[0] = ACTIVATION::value(y[0]);
#endif
#if GATES
  y[0] *= y[1];
#endif
  down(p.out[(long long)result * COLUMNS + column], y[0] + addend);
}
