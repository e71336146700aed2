// Attention over short sequences: the result, and the logarithm of the sum of exponentials of each
// row of scores.
#include "short_attention.cuh"

#define STAGE ((QUERIES + 2 * KEY_ROWS) * LD)

inline void begin(T* stage, const Parameters& p, int batch, int head) {
  long long other = place(p.other, batch, head / p.share);
  copy(stage, p.query + place(p.own, batch, head), p.own.step, p.queries);
  copy(stage + QUERIES * LD, p.key + other, p.other.step, p.keys);
  copy(stage + (QUERIES + KEY_ROWS) * LD, p.value + other, p.other.step, p.keys);
  end_copies();
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    short_attention_forward(const __grid_constant__ Parameters p) {
  extern __shared__ uint4 memory[];
  T* stages = (T*)memory;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  int head = blockIdx.x % p.heads, batch = blockIdx.x / p.heads, row = 16 * warp + g;
  int window = batch % p.windows, stride = p.windows * p.chunks;

  Added added;
  clear(stages, 2 * STAGE);
  __syncthreads();
  begin(stages, p, batch, head);
  read_added(added, p, window, head, row, t);
  for (int turn = 0; batch < p.batches; batch += stride, turn ^= 1) {
    await_copies();
    __syncthreads();  // of this turn there is everything, and nobody reads the last one's
    if (batch + stride < p.batches) begin(stages + (turn ^ 1) * STAGE, p, batch + stride, head);
    const T* query = stages + turn * STAGE;
    const T* key = query + QUERIES * LD;
    Scores s = {};
    by_rows(s, query + 16 * warp * LD, key, lane);
    float top[2] = {MINUS_INFINITY, MINUS_INFINITY}, total[2] = {};
    EVERY(j, TILES) {
      EVERY(e, 4) {
        s[j][e] = s[j][e] * p.scale + of_pair(added[j][e / 2], e % 2);
        top[e / 2] = fmaxf(top[e / 2], s[j][e]);
      }
    }
    float less[2];
    EVERY(r, 2) {
      top[r] = fmaxf(top[r], __shfl_xor_sync(FULL, top[r], 1));
      top[r] = fmaxf(top[r], __shfl_xor_sync(FULL, top[r], 2));
      less[r] = top[r] == MINUS_INFINITY ? 0.0f : top[r] * LOG2E;
    }
    EVERY(j, TILES) {
      EVERY(e, 4) {
        s[j][e] = power(s[j][e] * LOG2E - less[e / 2]);
        total[e / 2] += s[j][e];
      }
    }
    Fragments out = {};
    by_keys(out, s, key + KEY_ROWS * LD, lane);
    float share[2];
    EVERY(r, 2) {
      total[r] = over_row(total[r]);
      bool blind = total[r] == 0.0f;
      share[r] = blind ? 0.0f : 1.0f / total[r];
      if (p.new_lse && t == 0 && row + 8 * r < p.queries)
        p.new_lse[((long long)batch * p.heads + head) * p.queries + row + 8 * r] =
            blind ? 0.0f : top[r] + log2f(total[r]) * LN2;
    }
    T* to = p.out + place(p.out_own, batch, head);
    store(to, p.out_own.step, row, p.queries, t, out, share[0], share[1]);
  }
}
