// Attention over short sequences in half precision: what its kernels share.
//
// A thread block has one head at a time, all of it in shared memory, and goes on to the same head
// of other batches, whose elements are copied meanwhile: those with which it shares a mask, so that
// what is added to the scores stays in registers. A mask has ``windows`` batches, in turn. A warp
// has 16 rows of scores. A product of 16 x 16 by 16 x 8 numbers is one instruction, with sums in
// float32. Lane 4 g + t holds of its first factor the rows g and g + 8, columns 2 t, 2 t + 1, 2 t +
// 8 and 2 t + 9; of the second the same rows of column g; of the sum the rows g and g + 8, columns
// 2 t and 2 t + 1. So two tiles of scores are a first factor as they are. Rows of a tile lie an odd
// multiple of 16 bytes apart, so that no two lanes meet in a bank.
//
// T: the type of elements, BF16: whether it is that one. WIDTH: elements of a head. WIDE: WIDTH,
// rounded up to 16. QUERIES: the most queries, a multiple of 16. KEYS: the most keys, a multiple of
// 8. WARPS: of a thread block; BLOCKS of them are to fit a multiprocessor. MASK: 0 without a mask,
// 1 for one of bool, 2 for one of numbers.
#pragma once
#include "scalars.cuh"

#define FULL 0xffffffffu
#define THREADS (32 * WARPS)
#define LD (WIDE + 8)
#define STEPS (WIDE / 16)
#define KEY_STEPS ((KEYS + 15) / 16)
#define KEY_ROWS (16 * KEY_STEPS)
#define TILES (KEYS / 8)
#define LOG2E 1.4426950408889634f
#define LN2 0.6931471805599453f
#define MINUS_INFINITY __int_as_float(0xff800000)
#define EVERY(i, n) _Pragma("unroll") for (int i = 0; i < (n); ++i)
#if BF16
#define HIDDEN 0xff80u
#define HALF_MMA "bf16.bf16"
#define PACK "cvt.rn.bf16x2.f32"
#else
#define HIDDEN 0xfc00u
#define HALF_MMA "f16.f16"
#define PACK "cvt.rn.f16x2.f32"
#endif
#if MASK == 1
typedef unsigned char Mask;
#else
typedef T Mask;
#endif

// From which element to which it is from one batch to the next, from one head, and from one step.
struct Strides {
  long long batch, head, step;
};
struct Parameters {
  const T* query;
  const T* key;
  const T* value;
  const Mask* mask;
  const float* lse;
  const T* dy;
  T* out;
  float* new_lse;
  T* dkey;
  T* dvalue;
  float* dmask;
  Strides own, other;          // of query, and of key and value
  Strides out_own, out_other;  // of results that have their axes
  Strides given;               // of dy
  long long mask_batch, mask_head, mask_query, mask_key;
  int batches, windows, chunks, heads, share, queries, keys, causal;
  float scale;
};
typedef float Scores[2 * KEY_STEPS][4];  // 16 rows of them
typedef float Fragments[2 * STEPS][4];   // 16 rows of a head
typedef unsigned Added[TILES][2];        // what is added to 16 rows of scores: pairs of T

inline long long place(const Strides& s, int batch, int head) {
  return batch * s.batch + head * s.head;
}

inline unsigned shared_address(const void* at) {
  unsigned address;
  asm("{ .reg .u64 wide; cvta.to.shared.u64 wide, %1; cvt.u32.u64 %0, wide; }"
      : "=r"(address)
      : "l"(at));
  return address;
}

// Four matrices of 8 x 8 elements: a lane names the row of one, and gets two elements of each.
inline void matrices(unsigned (&to)[4], const T* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}
inline void transposed(unsigned (&to)[4], const T* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}

inline void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned first, unsigned second) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." HALF_MMA
               ".f32 "
               "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(first), "r"(second));
}

inline unsigned pair(float low, float high) {
  unsigned both;
  asm(PACK " %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
inline float of_pair(unsigned both, int place) {
  T one;
  one.bits = (unsigned short)(place ? both >> 16 : both);
  return up(one);
}

// 2 to the x.
inline float power(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Rows of an array to a tile, while the threads go on.
inline void copy(T* tile, const T* from, long long step, int count) {
  for (int i = threadIdx.x; i < count * (WIDTH / 8); i += THREADS) {
    int row = i / (WIDTH / 8), column = i % (WIDTH / 8) * 8;
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(tile + row * LD + column)),
        "l"(from + row * step + column)
        : "memory");
  }
}
inline void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
inline void await_copies() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

inline void clear(T* tile, int elements) {
  for (int i = threadIdx.x; i < elements / 8; i += THREADS)
    *(uint4*)(tile + 8 * i) = make_uint4(0, 0, 0, 0);
}

// What is added to the rows g and g + 8 from ``row`` on: minus infinity where there is no key, or
// where a query may not look.
inline void read_added(Added& added, const Parameters& p, int window, int head, int row, int t) {
  const Mask* mask = p.mask + (window * p.mask_batch + head * p.mask_head);
  EVERY(j, TILES) {
    EVERY(r, 2) {
      unsigned both = 0;
      EVERY(e, 2) {
        int i = row + 8 * r, k = 8 * j + 2 * t + e;
        unsigned bits = 0;
        if (k >= p.keys || (p.causal && k > i)) bits = HIDDEN;
#if MASK == 1
        else if (i < p.queries && !mask[i * p.mask_query + k * p.mask_key])
          bits = HIDDEN;
#elif MASK == 2
        else if (i < p.queries)
          bits = mask[i * p.mask_query + k * p.mask_key].bits;
#endif
        both |= bits << 16 * e;
      }
      added[j][r] = both;
    }
  }
}

// sums += x tile', of 16 rows x and all rows of the tile.
inline void by_rows(Scores& sums, const T* x, const T* tile, int lane) {
  EVERY(k, STEPS) {
    unsigned a[4];
    matrices(a, x + lane % 16 * LD + 16 * k + lane / 16 * 8);
    EVERY(j, KEY_STEPS) {
      unsigned b[4];
      matrices(b, tile + (16 * j + lane / 16 * 8 + lane % 8) * LD + 16 * k + lane / 8 % 2 * 8);
      multiply_add(sums[2 * j], a, b[0], b[1]);
      if (2 * j + 1 < TILES) multiply_add(sums[2 * j + 1], a, b[2], b[3]);
    }
  }
}

// sums += a tile, of 16 columns a and 16 rows of the tile.
inline void by_columns(Fragments& sums, const unsigned (&a)[4], const T* tile, int lane) {
  EVERY(j, STEPS) {
    unsigned b[4];
    transposed(b, tile + lane % 16 * LD + 16 * j + lane / 16 * 8);
    multiply_add(sums[2 * j], a, b[0], b[1]);
    multiply_add(sums[2 * j + 1], a, b[2], b[3]);
  }
}

// sums += scores tile, rounded to T.
inline void by_keys(Fragments& sums, const Scores& s, const T* tile, int lane) {
  EVERY(k, KEY_STEPS) {
    const float *low = s[2 * k], *high = s[2 * k + 1];
    unsigned a[4] = {pair(low[0], low[1]), pair(low[2], low[3]), 0, 0};
    if (2 * k + 1 < TILES) {
      a[2] = pair(high[0], high[1]);
      a[3] = pair(high[2], high[3]);
    }
    by_columns(sums, a, tile + 16 * k * LD, lane);
  }
}

// Rows g and g + 8 from ``row`` on, times a factor for each: two lanes put together 8 bytes each,
// so that four write 32 bytes of a row.
inline void store(T* to, long long step, int row, int count, int t, const Fragments& x, float above,
                  float below) {
  EVERY(j, STEPS) {
    EVERY(r, 2) {
      float factor = r ? below : above;
      unsigned first = pair(x[2 * j][2 * r] * factor, x[2 * j][2 * r + 1] * factor);
      unsigned second = pair(x[2 * j + 1][2 * r] * factor, x[2 * j + 1][2 * r + 1] * factor);
      bool odd = t % 2;
      unsigned got = __shfl_xor_sync(FULL, odd ? first : second, 1);
      int column = 16 * j + (odd ? 8 + 2 * (t - 1) : 2 * t);
      if (row + 8 * r < count && (WIDTH == WIDE || column < WIDTH))
        *(uint2*)(to + (row + 8 * r) * step + column) =
            odd ? make_uint2(got, second) : make_uint2(first, got);
    }
  }
}

// The sum over the four lanes that share a row.
inline float over_row(float x) {
  x += __shfl_xor_sync(FULL, x, 1);
  return x + __shfl_xor_sync(FULL, x, 2);
}
