// The gradient by queries: a thread block has ROWS queries and goes over all keys.
#include "attention_backward.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    backward_query(const __grid_constant__ Parameters p) {
  __shared__ float keys[TILE][LD];
  __shared__ float values[TILE][LD];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  int tiles = (p.queries + ROWS - 1) / ROWS, block = blockIdx.x % tiles * ROWS;
  int pair = blockIdx.x / tiles, batch = pair / p.heads, head = pair % p.heads;
  int row = block + warp * 16 + g;
  long long own = batch * p.own.batch + head * p.own.head;
  long long other = batch * p.other.batch + head / p.share * p.other.head;
  const Mask* mask = p.mask + (batch * p.mask_batch + head * p.mask_head);

  const float* common = last_row(p, batch, head / p.share);

  Fragments query, dy, sums = {};
  load(dy, p.dy + own, p.own.step, row, p.queries, t);
  load(query, p.y + own, p.own.step, row, p.queries, t, common);
  float delta[2] = {}, lse[2];
  EVERY(k, STEPS) {
    EVERY(e, 4) delta[e % 2] += dy[k][e] * query[k][e];
  }
  EVERY(r, 2) {
    delta[r] = over_row(delta[r]);
    long long at = (long long)pair * p.queries + row + 8 * r;
    bool inside = row + 8 * r < p.queries;
    if (t == 0 && inside) p.delta[at] = delta[r];
    lse[r] = inside ? p.lse[at] * LOG2E : 0.0f;
  }
  load(query, p.query + own, p.own.step, row, p.queries, t);
  round_all(query);
  round_all(dy);
  int end = p.causal && block + ROWS < p.keys ? block + ROWS : p.keys;
  for (int start = 0; start < end; start += TILE) {
    __syncthreads();
    fill(keys, p.key + other, p.other.step, start, p.keys);
    fill(values, p.value + other, p.other.step, start, p.keys, common);
    __syncthreads();
#pragma unroll 1
    for (int from = 0; from < TILE; from += PART) {
      float s[PART / 8][4] = {}, ds[PART / 8][4] = {};
      by_rows(s, query, keys, from, g, t);
      by_rows(ds, dy, values, from, g, t);
      EVERY(j, PART / 8) {
        EVERY(e, 4) {
          int column = start + from + 8 * j + 2 * t + e % 2;
          float power = score(p, mask, s[j][e], row + e / 2 * 8, column) - lse[e / 2];
          ds[j][e] = rounded(exp2f(power) * (ds[j][e] - delta[e / 2]));
        }
      }
      by_columns(sums, ds, keys, from, g, t);
    }
  }
  long long to = batch * p.out_own.batch + head * p.out_own.head;
  store(p.out + to, p.out_own.step, row, p.queries, t, sums, p.scale, p.scale);
}
