// The gradients: of x, and for each thread block the sums over its rows, for scale and bias.
//
// PER_PROCESSOR: thread blocks that are to fit a multiprocessor.
#include "layer_norm.cuh"

struct Read {
  Raw<T> x;
  Raw<D> dy;
#if DY_ADDS
  Raw<M> more;
#endif
  Raw<A> addend;
  float mean;
  float inv;
};

inline void read(Read& to, const Parameters& p, long long row, int lane) {
  fetch(to.x, p.x + row * WIDTH, lane);
  fetch(to.dy, p.dy + row * WIDTH, lane);
#if DY_ADDS
  fetch(to.more, p.more + row * WIDTH, lane);
#endif
#if ADDS && AHEAD
  fetch(to.addend, p.addend + row * WIDTH, lane);
#endif
  if (p.mean) {
    to.mean = p.mean[row];
    to.inv = p.inv[row];
  }
}

// A number of the result, as it is stored.
inline float rounded(float number) {
  R stored;
  down(stored, number);
  return up(stored);
}

// With AHEAD the next row is under way while one is worked on.
extern "C" __global__ void __launch_bounds__(THREADS, PER_PROCESSOR)
    backward(const __grid_constant__ Parameters p) {
  int lane = threadIdx.x % GROUP, group = threadIdx.x / GROUP;
  Row scale = {}, sums[SUMS] = {};  // dscale, dbias if there is one, and that of the result
  FOR_EACH {
    Packed<P> known = {};
    if (p.scale) known = packed(p.scale + column);
    FOR_ELEMENTS scale[i][j] = p.scale ? element(known, j) : 1.0f;
  }
  long long step = (long long)gridDim.x * GROUPS, row = (long long)blockIdx.x * GROUPS + group;
  int turn = 0;
  Read next = {};
  if (AHEAD && row < p.rows) read(next, p, row, lane);
  for (; row - group < p.rows; row += step) {
    bool inside = row < p.rows;
    if (!AHEAD && inside) read(next, p, row, lane);
    Row x = {}, dy = {};
    if (inside) {
      widen(x, next.x, lane);
      widen(dy, next.dy, lane);
#if DY_ADDS
      FOR_EACH {
        FOR_ELEMENTS dy[i][j] += element(next.more.at[i], j);
      }
#endif
    }
    float mean = next.mean, inv = next.inv, g = 0, along = 0;
#if ADDS
    Raw<A> addend = next.addend;
#endif
    if (AHEAD && row + step < p.rows) read(next, p, row + step, lane);
    if (!p.mean) statistics(x, lane, p.eps, mean, inv);
    FOR_EACH {
      float some = 0, other = 0;
      FOR_ELEMENTS {
        x[i][j] = (p.mean ? x[i][j] - mean : x[i][j]) * inv;
        sums[0][i][j] += dy[i][j] * x[i][j];
        if (CENTERS) sums[CENTERS][i][j] += dy[i][j];
        dy[i][j] *= scale[i][j];
        some += dy[i][j];
        other += dy[i][j] * x[i][j];
      }
      g += some;
      along += other;
    }
    float both[2] = {g, along};
#if ADDS && !AHEAD
    if (inside) fetch(addend, p.addend + row * WIDTH, lane);
#endif
    total<2>(both, turn);
    turn = 1 - turn;
    g = CENTERS ? both[0] * (1.0f / WIDTH) : 0.0f;
    along = both[1] * (1.0f / WIDTH);
    FOR_EACH {
      float d[VECTOR];
      FOR_ELEMENTS {
        d[j] = inv * (dy[i][j] - g - x[i][j] * along);
#if ADDS
        d[j] += element(addend.at[i], j);
#endif
        if (SUMMED) sums[SUMS - 1][i][j] += inside ? rounded(d[j]) : 0.0f;
      }
      if (inside) put(p, row * WIDTH + column, d);
    }
  }
  if (!p.partial) return;
  // The rows of the block are added up. The sums stay in the threads' order, which finish() knows.
  float* partial = p.partial + (long long)blockIdx.x * SUMS * PADDED;
  __shared__ float all[SUMS][THREADS * VECTOR];
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    __syncthreads();
#pragma unroll
    for (int k = 0; k < SUMS; ++k) {
      FOR_ELEMENTS all[k][(group * VECTOR + j) * GROUP + lane] = sums[k][i][j];
    }
    __syncthreads();
    for (int at = threadIdx.x; at < STEP; at += THREADS) {
#pragma unroll
      for (int k = 0; k < SUMS; ++k) {
        float found = 0;
#pragma unroll
        for (int other = 0; other < GROUPS; ++other) found += all[k][other * STEP + at];
        partial[k * PADDED + i * STEP + at] = found;
      }
    }
  }
}
