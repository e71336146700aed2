// Attention in float32 on tensor cores: what its kernels share.
//
// A warp has 16 rows of scores, and keeps what it sums up in registers; tiles of the other operands
// are in shared memory. A product of 16 x 8 by 8 x 8 numbers is one instruction. Lane 4 g + t holds
// of its first factor the rows g and g + 8, columns t and t + 4; of the second the rows t and t +
// 4, column g; of the sum the rows g and g + 8, columns 2 t and 2 t + 1. Scores become a first
// factor as they are, with what the sum runs over in another order: row t of the second is 2 t, row
// t + 4 is 2 t + 1. Rows of a tile lie an odd multiple of four numbers apart, so that no two lanes
// meet in a bank.
//
// WIDTH: elements of a head. WIDE: WIDTH, rounded up to whole products. THREADS, ROWS: of a thread
// block; BLOCKS of them are to fit a multiprocessor. TILE: rows of a tile in shared memory. MASK: 0
// without a mask, 1 for one of bool, 2 for one of float32. EXACT: whether products have the
// precision of float32, not of TensorFloat-32.
#pragma once

#define FULL 0xffffffffu
#define LD (WIDE + 4)
#define STEPS (WIDE / 8)
#define HIDDEN __int_as_float(0xff800000)
#define LOG2E 1.4426950408889634f
#define LN2 0.6931471805599453f
#define EVERY(i, n) _Pragma("unroll") for (int i = 0; i < (n); ++i)
#if MASK == 1
typedef unsigned char Mask;
#else
typedef float Mask;
#endif

struct Strides {
  long long batch, head, step;
};
struct Parameters {
  const float* query;
  const float* key;
  const float* value;
  const Mask* mask;
  const float* y;
  const float* lse;
  const float* dy;
  float* out;
  float* new_lse;
  float* delta;
  float* dkey;
  float* dvalue;
  Strides own, other;          // of what has query's axes, and of what has key's
  Strides out_own, out_other;  // the same of results
  long long mask_batch, mask_head, mask_query, mask_key;
  int heads, share, queries, keys, causal;
  float scale;
};
typedef float Fragments[STEPS][4];  // 16 rows of a head

// What tensor cores read: 10 bits of a mantissa.
inline unsigned coarse(float x) {
  unsigned y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
  return y;
}
inline float rounded(float x) { return EXACT ? x : __uint_as_float(coarse(x)); }

inline void tensor_core(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// c += a b, of numbers that are rounded, or else of two coarse numbers for each.
inline void multiply_add(float (&c)[4], const float (&a)[4], const float (&b)[2]) {
  unsigned x[4], y[2];
#if EXACT
  unsigned dx[4], dy[2];
  EVERY(i, 4) {
    x[i] = coarse(a[i]);
    dx[i] = coarse(a[i] - __uint_as_float(x[i]));
  }
  EVERY(i, 2) {
    y[i] = coarse(b[i]);
    dy[i] = coarse(b[i] - __uint_as_float(y[i]));
  }
  tensor_core(c, dx, y);
  tensor_core(c, x, dy);
#else
  EVERY(i, 4) x[i] = __float_as_uint(a[i]);
  EVERY(i, 2) y[i] = __float_as_uint(b[i]);
#endif
  tensor_core(c, x, y);
}

inline void store4(float* to, float4 v) { *(float4*)to = v; }

// Rows from first on of an array that has count, less a row if given; zeros behind them.
template <class Tile>
inline void fill(Tile& tile, const float* from, long long step, int first, int count,
                 const float* less = 0) {
#pragma unroll 4
  for (int i = threadIdx.x; i < TILE * (WIDE / 4); i += THREADS) {
    int row = i / (WIDE / 4), column = i % (WIDE / 4) * 4;
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (first + row < count && (WIDTH == WIDE || column < WIDTH)) {
      v = *(const float4*)(from + (first + row) * step + column);
      if (less) {
        float4 w = *(const float4*)(less + column);
        v = make_float4(v.x - w.x, v.y - w.y, v.z - w.z, v.w - w.w);
      }
    }
    store4(tile[row] + column, make_float4(rounded(v.x), rounded(v.y), rounded(v.z), rounded(v.w)));
  }
}

// Rows g and g + 8 from first on, not rounded, less a row if given.
inline void load(Fragments& to, const float* from, long long step, int first, int count, int t,
                 const float* less = 0) {
  EVERY(k, STEPS) {
    EVERY(e, 4) {
      int row = first + e % 2 * 8, column = 8 * k + e / 2 * 4 + t;
      bool inside = row < count && (WIDTH == WIDE || column < WIDTH);
      to[k][e] = inside ? from[row * step + column] - (less ? less[column] : 0.0f) : 0.0f;
    }
  }
}

inline void round_all(Fragments& x) {
  EVERY(k, STEPS) {
    EVERY(e, 4) x[k][e] = rounded(x[k][e]);
  }
}

// sums[j] += x tile', rows from to from + 8 n of the tile.
template <int n, class Tile>
inline void by_rows(float (&sums)[n][4], const Fragments& x, Tile& tile, int from, int g, int t) {
  EVERY(k, STEPS) {
    EVERY(j, n) {
      float b[2] = {tile[from + 8 * j + g][8 * k + t], tile[from + 8 * j + g][8 * k + t + 4]};
      multiply_add(sums[j], x[k], b);
    }
  }
}

// sums += scores tile, by the same rows; scores are rounded.
template <int n, class Tile>
inline void by_columns(Fragments& sums, const float (&scores)[n][4], Tile& tile, int from, int g,
                       int t) {
  EVERY(j, n) {
    const float* s = scores[j];
    float a[4] = {s[0], s[2], s[1], s[3]};
    EVERY(k, STEPS) {
      int row = from + 8 * j + 2 * t;
      float b[2] = {tile[row][8 * k + g], tile[row + 1][8 * k + g]};
      multiply_add(sums[k], a, b);
    }
  }
}

inline void store(float* to, long long step, int first, int count, int t, const Fragments& x,
                  float above, float below) {
  EVERY(k, STEPS) {
    int column = 8 * k + 2 * t;
    if (WIDTH != WIDE && column >= WIDTH) continue;
    if (first < count)
      *(float2*)(to + first * step + column) = make_float2(x[k][0] * above, x[k][1] * above);
    if (first + 8 < count)
      *(float2*)(to + (first + 8) * step + column) = make_float2(x[k][2] * below, x[k][3] * below);
  }
}

// The sum over the four lanes that share a row.
inline float over_row(float x) {
  x += __shfl_xor_sync(FULL, x, 1);
  return x + __shfl_xor_sync(FULL, x, 2);
}

// A score in powers of 2, scaled and masked: minus infinity where query i may not look.
inline float score(const Parameters& p, const Mask* mask, float product, int i, int j) {
  if (i >= p.queries || j >= p.keys || (p.causal && j > i)) return HIDDEN;
  float s = product * (p.scale * LOG2E);
#if MASK == 1
  if (!mask[i * p.mask_query + j * p.mask_key]) s = HIDDEN;
#elif MASK == 2
  s += mask[i * p.mask_query + j * p.mask_key] * LOG2E;
#endif
  return s;
}
