"""CUDA source of the gradients of attention in float32: scores and their gradients are computed
twice, once by queries and once by keys, so that sums have one order.

The first kernel leaves the product of each row of dy and y for the second.

The probabilities of a query add up to 1, so what all values have in common cancels in
``dy @ value.T - sum(dy * y)``, but takes digits of what they differ in with it. So the last
row of y, which is near to it, is taken off both.
"""

PART = 16
"""Rows of a tile whose scores a warp holds at a time."""

DEFINITIONS = rf"""
#define PART {PART}
// Of y, of the first head that shares a key.
inline const float* last_row(const Parameters& p, int batch, int group) {{
  long long head = batch * p.own.batch + group * p.share * p.own.head;
  return p.y + (head + (p.queries - 1) * p.own.step);
}}
"""
QUERY = r"""
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
  EVERY(k, STEPS) { EVERY(e, 4) delta[e % 2] += dy[k][e] * query[k][e]; }
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
"""
KEY = r"""
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
"""
