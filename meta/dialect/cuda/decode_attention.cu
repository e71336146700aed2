// A token of each text: query and key of a joint projection are rotated, key and value written to
// their slot of a cache, and attention reads the slots that the token sees.
//
// A thread block has the queries of a head of keys, and a part of the slots. LANES threads have a
// slot, sixteen bytes of key and of value each; TURNS of them are multiplied while others come.
//
// DATA: the dtype. SCALE: of scales. TEXTS, HEADS, GROUPS, WIDTH: texts, heads of queries and of
// keys, elements of a head. SIZE: slots of a text or, if PAGED, of a block, of which there are
// BLOCKS and a text has up to MOST. PARTS: thread blocks among which the slots of a text are
// divided. WARPS: of each. ROTATES: whether there are angles, INTERLEAVED: pairs of neighbours,
// BROADCASTS: the same for all texts. NORMALIZES: whether heads of query and key are normalised by
// the root mean square before. WINDOW: how many slots a token sees, 0 for all. CAPS: whether scores
// have a cap.
#define VECTOR 8
#include "early.cuh"
#include "packed.cuh"
#include "warp.cuh"

typedef DATA T;
#define EVERY(i, n) _Pragma("unroll") for (int i = 0; i < (n); ++i)
#define THREADS (32 * WARPS)
#define SHARE (HEADS / GROUPS)
#define HALF_WIDTH (WIDTH / 2)
#define ROW ((HEADS + 2 * GROUPS) * WIDTH)
#define LANES (WIDTH / VECTOR)
#define SLOTS (32 / LANES)
#define EACH ((HALF_WIDTH + 31) / 32)
#define LOG2E 1.4426950408889634f
#define NOTHING (-1e30f)

struct Parameters {
  const T* rows;
  const float* cos;
  const float* sin;
  const SCALE* query_scale;
  const SCALE* key_scale;
  T* keys;
  T* values;
  const long long* positions;
  const int* table;
  float* parts;
  T* out;
  float scale;
  float cap;
  float eps;
};

// The first element of a slot of a head, or -1 where there is none.
inline long long place(const Parameters& p, int text, int group, long long slot) {
#if PAGED
  long long column = slot / SIZE;
  int block = column < MOST ? p.table[text * MOST + column] : -1;
  if (block < 0 || block >= BLOCKS) return -1;
  return (((long long)block * GROUPS + group) * SIZE + slot % SIZE) * WIDTH;
#else
  return (((long long)text * GROUPS + group) * SIZE + slot) * WIDTH;
#endif
}

// The slots of a part that the token at a position sees, -1 for none.
struct Seen {
  long long at, begin, end;
};

inline Seen visible(const Parameters& p, int text, int part) {
  Seen r = {*(const volatile long long*)(p.positions + text), 0, 0};
  if (r.at < 0 || r.at >= (long long)SIZE * MOST) r.at = -1;
  r.end = r.at + 1;
#if WINDOW
  if (r.end > WINDOW) r.begin = r.end - WINDOW;
#endif
  long long each = (r.end - r.begin + PARTS - 1) / PARTS;
  r.begin += part * each;
  if (r.end > r.begin + each) r.end = r.begin + each;
  return r;
}

// What there is of the queries of a thread block: the largest score, in powers of two, the sum of
// their powers, and that of the values.
struct Found {
  float top[SHARE], total[SHARE], sums[SHARE][VECTOR];
};

inline float power(float x) { return exp2f(x); }

// Sixteen warps share the registers of a processor, unless many queries need more.
extern "C" __global__ void __launch_bounds__(THREADS, SHARE > 4 ? 1 : 16 / WARPS)
    decode_attention(const __grid_constant__ Parameters p) {
  __shared__ float queries[SHARE * WIDTH];
  __shared__ float tops[WARPS * SHARE];
  __shared__ float totals[WARPS * SHARE];
  __shared__ float sums[WARPS * SHARE * WIDTH];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int group = blockIdx.x % GROUPS, part = blockIdx.x / GROUPS, text = blockIdx.y;
  int chunk = lane % LANES * VECTOR;
#if EARLY
  {
    // The position may be one of before, and then this is of no use.
    Seen range = visible(p, text, part);
    EVERY(u, TURNS) {
      long long slot = range.begin + (warp + u * WARPS) * SLOTS + lane / LANES;
      long long from = slot < range.end ? place(p, text, group, slot) : -1;
      if (from >= 0) prefetch(p.keys + from + chunk), prefetch(p.values + from + chunk);
    }
  }
#endif
  await_others();
  Seen range = visible(p, text, part);
  long long at = range.at, begin = range.begin, end = range.end;
  bool writes = begin <= at && at < end;

  // Keys and values of some slots. That of the token, where it is among them, is written below.
  struct Slots {
    Packed<T> key[TURNS], value[TURNS];
    bool there[TURNS];
  };
  auto fetch = [&](Slots& to, long long i, bool own, bool others) {
    EVERY(u, TURNS) {
      long long slot = i + u * WARPS * SLOTS + lane / LANES;
      long long from = slot < end ? place(p, text, group, slot) : -1;
      to.there[u] = from >= 0;
      if (!to.there[u]) to.key[u] = to.value[u] = {};
      if (to.there[u] && (slot == at ? own : others)) {
        to.key[u] = packed(p.keys + from + chunk);
        to.value[u] = packed(p.values + from + chunk);
      }
    }
  };
  Slots now, next;
  long long first = begin + warp * SLOTS;
  fetch(now, first, false, true);

  // Queries, then the key, then the value.
  for (int head = warp; head < SHARE + 2 * writes; head += WARPS) {
    int from = head < SHARE ? group * SHARE + head : HEADS + (head - SHARE) * GROUPS + group;
    const T* source = p.rows + (long long)text * ROW + from * WIDTH;
    float a[EACH], b[EACH];
    EVERY(i, EACH) {
      int k = lane + 32 * i;
      bool inside = k < HALF_WIDTH;
      int first = ROTATES && INTERLEAVED ? 2 * k : k;
      int second = ROTATES && INTERLEAVED ? 2 * k + 1 : k + HALF_WIDTH;
      a[i] = inside ? up(source[first]) : 0, b[i] = inside ? up(source[second]) : 0;
    }
#if NORMALIZES
    if (head <= SHARE) {
      const SCALE* scale = head < SHARE ? p.query_scale : p.key_scale;
      float squares = 0;
      EVERY(i, EACH) squares += a[i] * a[i] + b[i] * b[i];
      float inv = rsqrtf(total(squares) * (1.0f / WIDTH) + p.eps);
      EVERY(i, EACH)
        if (int k = lane + 32 * i; k < HALF_WIDTH) {
          T x, y;
          down(x, a[i] * inv * up(scale[INTERLEAVED ? 2 * k : k]));
          down(y, b[i] * inv * up(scale[INTERLEAVED ? 2 * k + 1 : k + HALF_WIDTH]));
          a[i] = up(x), b[i] = up(y);
        }
    }
#endif
    EVERY(i, EACH)
      if (int k = lane + 32 * i; k < HALF_WIDTH) {
        int first = ROTATES && INTERLEAVED ? 2 * k : k;
        int second = ROTATES && INTERLEAVED ? 2 * k + 1 : k + HALF_WIDTH;
        T x, y;
#if ROTATES
        int angle = (BROADCASTS ? 0 : text * HALF_WIDTH) + k;
        float c = head <= SHARE ? p.cos[angle] : 1, s = head <= SHARE ? p.sin[angle] : 0;
        down(x, a[i] * c - b[i] * s);
        down(y, b[i] * c + a[i] * s);
#else
        down(x, a[i]);
        down(y, b[i]);
#endif
        if (head < SHARE) {
          queries[head * WIDTH + first] = up(x) * p.scale;
          queries[head * WIDTH + second] = up(y) * p.scale;
        } else {
          long long to = place(p, text, group, at);
          T* cache = head == SHARE ? p.keys : p.values;
          if (to >= 0) cache[to + first] = x, cache[to + second] = y;
        }
      }
  }
  __syncthreads();

  float q[SHARE][VECTOR];
  EVERY(h, SHARE) FOR_ELEMENTS q[h][j] = queries[h * WIDTH + chunk + j];
  Found all = {};
  EVERY(h, SHARE) all.top[h] = NOTHING;
  if (writes) fetch(now, first, true, false);
#pragma unroll 1
  for (long long i = first; i < end; i += WARPS * SLOTS * TURNS) {
    fetch(next, i + WARPS * SLOTS * TURNS, true, true);
    EVERY(h, SHARE) {
      float scores[TURNS], top = all.top[h];
      EVERY(u, TURNS) {
        float score = 0;
        FOR_ELEMENTS score += q[h][j] * element(now.key[u], j);
#pragma unroll
        for (int k = LANES / 2; k > 0; k /= 2) score += __shfl_xor_sync(FULL, score, k);
#if CAPS
        score = p.cap * tanhf(score / p.cap);
#endif
        scores[u] = now.there[u] ? score * LOG2E : NOTHING;
        top = max(top, scores[u]);
      }
      float fade = power(all.top[h] - top);
      all.top[h] = top;
      all.total[h] *= fade;
      FOR_ELEMENTS all.sums[h][j] *= fade;
      EVERY(u, TURNS) {
        float weight = now.there[u] ? power(scores[u] - top) : 0;
        all.total[h] += weight;
        FOR_ELEMENTS all.sums[h][j] += weight * element(now.value[u], j);
      }
    }
    now = next;
  }
  let_others_begin();

  // The slots of a warp, then the warps.
  EVERY(h, SHARE) {
#pragma unroll
    for (int k = LANES; k < 32; k *= 2) {
      float other = __shfl_xor_sync(FULL, all.top[h], k), top = max(all.top[h], other);
      float own = power(all.top[h] - top), theirs = power(other - top);
      all.top[h] = top;
      all.total[h] = all.total[h] * own + __shfl_xor_sync(FULL, all.total[h], k) * theirs;
      FOR_ELEMENTS {
        float sum = __shfl_xor_sync(FULL, all.sums[h][j], k);
        all.sums[h][j] = all.sums[h][j] * own + sum * theirs;
      }
    }
    if (lane < LANES) {
      FOR_ELEMENTS sums[(warp * SHARE + h) * WIDTH + chunk + j] = all.sums[h][j];
    }
    if (lane == 0) {
      tops[warp * SHARE + h] = all.top[h];
      totals[warp * SHARE + h] = all.total[h];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < SHARE * WIDTH; i += THREADS) {
    int h = i / WIDTH, head = text * HEADS + group * SHARE + h;
    float top = NOTHING, sum = 0, whole = 0;
    EVERY(w, WARPS) top = max(top, tops[w * SHARE + h]);
    EVERY(w, WARPS) {
      float fade = power(tops[w * SHARE + h] - top);
      whole += totals[w * SHARE + h] * fade;
      sum += sums[w * SHARE * WIDTH + i] * fade;
    }
#if PARTS == 1
    down(p.out[(long long)head * WIDTH + i % WIDTH], whole > 0 ? sum / whole : 0);
#else
    float* to = p.parts + ((long long)head * PARTS + part) * (WIDTH + 2);
    to[i % WIDTH] = sum;
    if (i % WIDTH == 0) to[WIDTH] = top, to[WIDTH + 1] = whole;
#endif
  }
}
