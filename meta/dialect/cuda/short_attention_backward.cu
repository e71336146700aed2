// Attention over short sequences: the gradients of query, key and value, of a mask that is added to
// the scores, or of all.
//
// A warp computes the probabilities and the gradients of the scores of its 16 queries; through
// shared memory they become those of 16 keys. The gradient of the mask is summed up over the
// batches that a thread block has; others sum up what the thread blocks found.
//
// GRADIENTS: whether those of query, key and value are wanted. DMASK: whether the mask's is.
#include "short_attention.cuh"

#define STAGE (2 * (QUERIES + KEY_ROWS) * LD)
#define SCORE_LD (KEY_ROWS + 8)

inline void begin(T* stage, const Parameters& p, int batch, int head) {
  long long other = place(p.other, batch, head / p.share);
  copy(stage, p.query + place(p.own, batch, head), p.own.step, p.queries);
  copy(stage + QUERIES * LD, p.dy + place(p.given, batch, head), p.given.step, p.queries);
  copy(stage + 2 * QUERIES * LD, p.key + other, p.other.step, p.keys);
  copy(stage + (2 * QUERIES + KEY_ROWS) * LD, p.value + other, p.other.step, p.keys);
  end_copies();
}

// Scores of rows g and g + 8, rounded to T, to a tile that starts there.
inline void keep(T* tile, const Scores& s, int g, int t) {
  EVERY(j, TILES) {
    EVERY(r, 2)
      *(unsigned*)(tile + (g + 8 * r) * SCORE_LD + 8 * j + 2 * t) =
          pair(s[j][2 * r], s[j][2 * r + 1]);
  }
}

// sums += scores' rows, of 16 keys from ``first`` on and all queries.
inline void by_queries(Fragments& sums, const T* scores, int first, const T* rows, int lane) {
  EVERY(k, QUERIES / 16) {
    unsigned a[4];
    transposed(a,
               scores + (16 * k + lane / 16 * 8 + lane % 8) * SCORE_LD + first + lane / 8 % 2 * 8);
    by_columns(sums, a, rows + 16 * k * LD, lane);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    short_attention_backward(const __grid_constant__ Parameters p) {
  extern __shared__ uint4 memory[];
  T* stages = (T*)memory;
  T* powers = stages + 2 * STAGE;  // the probabilities
  T* slopes = powers + QUERIES * SCORE_LD;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  int head = blockIdx.x % p.heads, first = blockIdx.x / p.heads, row = 16 * warp + g;
  int window = first % p.windows, stride = p.windows * p.chunks;

  Added added;
  Scores dmask = {};
  clear(stages, 2 * STAGE + 2 * QUERIES * SCORE_LD);
  __syncthreads();
  begin(stages, p, first, head);
  read_added(added, p, window, head, row, t);
  for (int batch = first, turn = 0; batch < p.batches; batch += stride, turn ^= 1) {
    float less[2];  // of the exponents, which are those of 2; for a row that is not there: no power
    EVERY(r, 2) {
      long long pair = (long long)batch * p.heads + head;
      int i = row + 8 * r;
      less[r] = i < p.queries ? p.lse[pair * p.queries + i] * LOG2E : -MINUS_INFINITY;
    }
    await_copies();
    __syncthreads();  // of this turn there is everything, and nobody reads the last one's
    if (batch + stride < p.batches) begin(stages + (turn ^ 1) * STAGE, p, batch + stride, head);
    const T* query = stages + turn * STAGE;
    const T* dy = query + QUERIES * LD;
    const T* key = dy + QUERIES * LD;
    const T* value = key + KEY_ROWS * LD;
    if (16 * warp < QUERIES) {
      Scores s = {}, ds = {};
      by_rows(s, query + 16 * warp * LD, key, lane);
      by_rows(ds, dy + 16 * warp * LD, value, lane);
      float delta[2] = {};
      EVERY(j, TILES) {
        EVERY(e, 4) {
          float score = s[j][e] * p.scale + of_pair(added[j][e / 2], e % 2);
          s[j][e] = power(score * LOG2E - less[e / 2]);
          delta[e / 2] += s[j][e] * ds[j][e];
        }
      }
      EVERY(r, 2) delta[r] = over_row(delta[r]);
      EVERY(j, TILES) {
        EVERY(e, 4) {
          ds[j][e] = s[j][e] * (ds[j][e] - delta[e / 2]);
          if (DMASK) dmask[j][e] += ds[j][e];
        }
      }
      if (GRADIENTS) {
        keep(powers + 16 * warp * SCORE_LD, s, g, t);
        keep(slopes + 16 * warp * SCORE_LD, ds, g, t);
        Fragments dquery = {};
        by_keys(dquery, ds, key, lane);
        T* to = p.out + place(p.out_own, batch, head);
        store(to, p.out_own.step, row, p.queries, t, dquery, p.scale, p.scale);
      }
    }
    if (GRADIENTS) {
      __syncthreads();
      if (16 * warp < KEY_ROWS) {
        long long other = place(p.out_other, batch, head), step = p.out_other.step;
        Fragments dvalue = {}, dkey = {};
        by_queries(dvalue, powers, 16 * warp, dy, lane);
        store(p.dvalue + other, step, row, p.keys, t, dvalue, 1.0f, 1.0f);
        by_queries(dkey, slopes, 16 * warp, query, lane);
        store(p.dkey + other, step, row, p.keys, t, dkey, p.scale, p.scale);
      }
    }
  }
  if (DMASK && 16 * warp < QUERIES) {
    float* to = p.dmask + ((long long)first * p.heads + head) * p.queries * p.keys;
    EVERY(j, TILES) {
      EVERY(e, 4) {
        int i = row + e / 2 * 8, k = 8 * j + 2 * t + e % 2;
        if (i < p.queries && k < p.keys) to[i * p.keys + k] = dmask[j][e];
      }
    }
  }
}
