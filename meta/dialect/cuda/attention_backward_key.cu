// The gradients by keys and values: a thread block has ROWS keys and goes over all queries.
#include "attention_backward.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    backward_key(const __grid_constant__ Parameters p) {
  __shared__ float queries[TILE][LD];
  __shared__ float dys[TILE][LD];
  __shared__ float lse[TILE];
  __shared__ float delta[TILE];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  int tiles = (p.keys + ROWS - 1) / ROWS, block = blockIdx.x % tiles * ROWS;
  int groups = p.heads / p.share, pair = blockIdx.x / tiles;
  int batch = pair / groups, group = pair % groups, row = block + warp * 16 + g;
  long long other = batch * p.other.batch + group * p.other.head;

  const float* common = last_row(p, batch, group);

  Fragments key, value, dkey = {}, dvalue = {};
  load(key, p.key + other, p.other.step, row, p.keys, t);
  load(value, p.value + other, p.other.step, row, p.keys, t, common);
  round_all(key);
  round_all(value);
  for (int head = group * p.share; head < (group + 1) * p.share; ++head) {
    long long own = batch * p.own.batch + head * p.own.head;
    long long statistics = ((long long)batch * p.heads + head) * p.queries;
    const Mask* mask = p.mask + (batch * p.mask_batch + head * p.mask_head);
    for (int start = p.causal ? block / TILE * TILE : 0; start < p.queries; start += TILE) {
      __syncthreads();
      fill(queries, p.query + own, p.own.step, start, p.queries);
      fill(dys, p.dy + own, p.own.step, start, p.queries);
      if (threadIdx.x < TILE) {
        int i = start + threadIdx.x;
        lse[threadIdx.x] = i < p.queries ? p.lse[statistics + i] * LOG2E : 0.0f;
        delta[threadIdx.x] = i < p.queries ? p.delta[statistics + i] : 0.0f;
      }
      __syncthreads();
#pragma unroll 1
      for (int from = 0; from < TILE; from += PART) {
        float s[PART / 8][4] = {}, ds[PART / 8][4] = {};
        by_rows(s, key, queries, from, g, t);
        by_rows(ds, value, dys, from, g, t);
        EVERY(j, PART / 8) {
          EVERY(e, 4) {
            int i = from + 8 * j + 2 * t + e % 2;
            float power = score(p, mask, s[j][e], start + i, row + e / 2 * 8) - lse[i];
            float probability = exp2f(power);
            s[j][e] = rounded(probability);
            ds[j][e] = rounded(probability * (ds[j][e] - delta[i]));
          }
        }
        by_columns(dvalue, s, dys, from, g, t);
        by_columns(dkey, ds, queries, from, g, t);
      }
    }
  }
  long long to = batch * p.out_other.batch + group * p.out_other.head;
  store(p.dkey + to, p.out_other.step, row, p.keys, t, dkey, p.scale, p.scale);
  store(p.dvalue + to, p.out_other.step, row, p.keys, t, dvalue, 1.0f, 1.0f);
}
