// Batch normalisation. With ADDS z is added to the result; an ACTIVATION is of that.
#include "batch_norm.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) sums(const __grid_constant__ Parameters p) {
  sum_x(p);
}

extern "C" __global__ void __launch_bounds__(THREADS) apply(const __grid_constant__ Parameters p) {
  PLACE
  constexpr int AHEAD = APPLY_AHEAD;
  __shared__ float known[3][WIDTH];
  float sum[SUMS] = {}, b = owns && p.b ? (float)up(p.b[channel]) : 0.0f;
  Statistics s = statistics<SUMS>(p, sum, channel);
  if (owns) {
    known[0][threadIdx.x] = s.mean;
    known[1][threadIdx.x] = s.scale;
    known[2][threadIdx.x] = b;
    if (blockIdx.x == 0) {
      float n = p.rows, keep = 1.0f - p.momentum;
      R* mean = p.running_mean + channel;
      R* var = p.running_var + channel;
      down(*mean, keep * (float)up(*mean) + p.momentum * s.mean);
      down(*var, keep * (float)up(*var) + p.momentum * (s.var * (n / (n - 1.0f))));
    }
  }
  __syncthreads();
  if (!inside) return;
  float mean[VECTOR], scale[VECTOR], shift[VECTOR];
  FOR_ELEMENTS {
    mean[j] = known[0][lane * VECTOR + j];
    scale[j] = known[1][lane * VECTOR + j];
    shift[j] = known[2][lane * VECTOR + j];
  }
  for (long long row = first; row < p.rows; row += AHEAD * step) {
    Vector x[AHEAD];
    FOR_AHEAD x[i] = read(p.x, (p.rows - 1 - row - i * step) * p.channels + column);
#ifdef ADDS
    Vector z[AHEAD];
    FOR_AHEAD z[i] = read(p.z, (p.rows - 1 - row - i * step) * p.channels + column);
#endif
    FOR_AHEAD {
      Vector y;
      FOR_ELEMENTS {
        float v = (up(x[i].at[j]) - mean[j]) * scale[j] + shift[j];
#ifdef ADDS
        v += up(z[i].at[j]);
#endif
#ifdef ACTIVATION
        v = ACTIVATION::value(v);
#endif
        down(y.at[j], v);
      }
      write(p.out, (p.rows - 1 - row - i * step) * p.channels + column, y);
    }
  }
}
