// Attention: the result, and the logarithm of the sum of exponentials of each row of scores.
#include "attention.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    forward(const __grid_constant__ Parameters p) {
  __shared__ float keys[TILE][LD];
  __shared__ float values[TILE][LD];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  int tiles = (p.queries + ROWS - 1) / ROWS, block = blockIdx.x % tiles * ROWS;
  int pair = blockIdx.x / tiles, batch = pair / p.heads, head = pair % p.heads;
  int row = block + warp * 16 + g;
  long long own = batch * p.own.batch + head * p.own.head;
  long long other = batch * p.other.batch + head / p.share * p.other.head;
  const Mask* mask = p.mask + (batch * p.mask_batch + head * p.mask_head);

  Fragments query, out = {};
  load(query, p.query + own, p.own.step, row, p.queries, t);
  round_all(query);
  float top[2] = {HIDDEN, HIDDEN}, total[2] = {};
  int end = p.causal && block + ROWS < p.keys ? block + ROWS : p.keys;
  for (int start = 0; start < end; start += TILE) {
    __syncthreads();
    fill(keys, p.key + other, p.other.step, start, p.keys);
    fill(values, p.value + other, p.other.step, start, p.keys);
    __syncthreads();
    float s[TILE / 8][4] = {};
    by_rows(s, query, keys, 0, g, t);
    EVERY(j, TILE / 8) {
      EVERY(e, 4) s[j][e] = score(p, mask, s[j][e], row + e / 2 * 8, start + 8 * j + 2 * t + e % 2);
    }
    EVERY(r, 2) {
      float most = top[r];
      EVERY(j, TILE / 8) most = fmaxf(most, fmaxf(s[j][2 * r], s[j][2 * r + 1]));
      most = fmaxf(most, __shfl_xor_sync(FULL, most, 1));
      most = fmaxf(most, __shfl_xor_sync(FULL, most, 2));
      float finite = most == HIDDEN ? 0.0f : most, less = exp2f(top[r] - finite);
      top[r] = most;
      total[r] *= less;
      EVERY(k, STEPS) {
        out[k][2 * r] *= less;
        out[k][2 * r + 1] *= less;
      }
      EVERY(j, TILE / 8) {
        EVERY(e, 2) {
          s[j][2 * r + e] = rounded(exp2f(s[j][2 * r + e] - finite));  // as the products have it
          total[r] += s[j][2 * r + e];
        }
      }
    }
    by_columns(out, s, values, 0, g, t);
  }
  float share[2];
  EVERY(r, 2) {
    total[r] = over_row(total[r]);
    bool blind = total[r] == 0.0f;
    share[r] = blind ? 0.0f : 1.0f / total[r];
    if (t == 0 && row + 8 * r < p.queries)
      p.new_lse[(long long)pair * p.queries + row + 8 * r] =
          blind ? 0.0f : (top[r] + log2f(total[r])) * LN2;
  }
  long long to = batch * p.out_own.batch + head * p.out_own.head;
  store(p.out + to, p.out_own.step, row, p.queries, t, out, share[0], share[1]);
}
