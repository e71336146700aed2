// The gradients of batch normalisation, and of what stands behind it.
//
// The statistics of x are had from the pass that adds up dy. With MASK there is a relu behind,
// whose result (or argument) is y: dy counts where y is positive. With ADDS the gradient that comes
// is the sum of dy and z. sums() finds out what counts, and apply() is told in one of two ways:
// with KEEPS by the masked gradient, which is that of a tensor added before the relu, too;
// otherwise by a bit per element.
//
// An ACTIVATION may be behind, of which nothing but x and dy is there: what it was of is computed
// again, in sums() and in apply(). So moments() goes before, and the sums of x are its.
#include "batch_norm.cuh"

#ifdef ACTIVATION
enum { OF_X = 2 };  // sums that are there already
#define EARLY(row) (p.rows - 1 - (row))
#define LATE(row) (row)
extern "C" __global__ void __launch_bounds__(THREADS)
    moments(const __grid_constant__ Parameters p) {
  sum_x(p);
}
#else
enum { OF_X = 0 };
#define EARLY(row) (row)
#define LATE(row) (p.rows - 1 - (row))
#endif

extern "C" __global__ void __launch_bounds__(THREADS) sums(const __grid_constant__ Parameters p) {
  PLACE
  constexpr int AHEAD = SUMS_AHEAD;
  float sum[SUMS][VECTOR] = {};
#ifdef ACTIVATION
  __shared__ float known[3][WIDTH];
  float early[2] = {}, b = owns && p.b ? (float)up(p.b[channel]) : 0.0f;
  Statistics s = statistics<2>(p, early, channel);
  if (owns) {
    known[0][threadIdx.x] = s.mean;
    known[1][threadIdx.x] = s.scale;
    known[2][threadIdx.x] = b;
  }
  __syncthreads();
  float mean[VECTOR], scale[VECTOR], offset[VECTOR];
  FOR_ELEMENTS {
    mean[j] = known[0][lane * VECTOR + j];
    scale[j] = known[1][lane * VECTOR + j];
    offset[j] = known[2][lane * VECTOR + j];
  }
#endif
  if (inside) {
    Vector shift = read(typical(p), column);
    for (long long row = first; row < p.rows; row += AHEAD * step) {
      Vector x[AHEAD];
      FOR_AHEAD x[i] = read(p.x, EARLY(row + i * step) * p.channels + column);
      // The sums are of x, its square, dy and their product.
      Vector g[AHEAD];
      FOR_AHEAD g[i] = read(p.dy, EARLY(row + i * step) * p.channels + column);
#ifdef MASK
      Vector y[AHEAD];
      FOR_AHEAD y[i] = read(p.y, EARLY(row + i * step) * p.channels + column);
#endif
#ifdef ADDS
      Vector z[AHEAD];
      FOR_AHEAD z[i] = read(p.z, EARLY(row + i * step) * p.channels + column);
#endif
      FOR_AHEAD {
        long long at = EARLY(row + i * step) * p.channels + column;
        unsigned bits = 0;
        FOR_ELEMENTS {
          T& got = g[i].at[j];
#ifdef ADDS
          down(got, up(got) + up(z[i].at[j]));  // rounded, as others read it
#endif
#ifdef MASK
          bool counts = !(up(y[i].at[j]) <= 0.0f);  // of NaN, too
          bits |= (unsigned)counts << j;
          if (!counts) down(got, 0.0f);
#endif
          float d = up(x[i].at[j]) - up(shift.at[j]), slope = up(got);
#ifdef ACTIVATION
          float of = (up(x[i].at[j]) - mean[j]) * scale[j] + offset[j];
          slope = ACTIVATION::gradient(of, slope);
#endif
          sum[0][j] += d;
          sum[1][j] += d * d;
          sum[2][j] += slope;
          sum[3][j] += slope * d;
        }
#ifdef KEEPS
        write(p.masked, at, g[i]);
#elif defined(MASK)
        p.mask[at / VECTOR] = (unsigned char)bits;
#endif
      }
    }
  }
  keep<OF_X, SUMS - OF_X>(p, sum + OF_X, channel, owns);
}

extern "C" __global__ void __launch_bounds__(THREADS) apply(const __grid_constant__ Parameters p) {
  PLACE
  constexpr int AHEAD = APPLY_AHEAD;
  __shared__ float known[5][WIDTH];
  float sum[SUMS] = {}, b = owns && p.b ? (float)up(p.b[channel]) : 0.0f;
  Statistics s = statistics<SUMS>(p, sum, channel);
  if (owns) {
    float n = p.rows, db = sum[2], dw = (sum[3] - s.d * db) * s.inv;
    known[0][threadIdx.x] = s.mean;
    known[1][threadIdx.x] = s.scale;
    known[2][threadIdx.x] = -s.scale * s.inv * dw / n;
    known[3][threadIdx.x] = -s.scale * db / n;
    known[4][threadIdx.x] = b;
    if (blockIdx.x == 0) {
      down(p.dw[channel], dw);
      down(p.db[channel], db);
    }
  }
  __syncthreads();
  if (!inside) return;
  float mean[VECTOR], scale[VECTOR], slope[VECTOR], shift[VECTOR], offset[VECTOR];
  FOR_ELEMENTS {
    mean[j] = known[0][lane * VECTOR + j];
    scale[j] = known[1][lane * VECTOR + j];
    slope[j] = known[2][lane * VECTOR + j];
    shift[j] = known[3][lane * VECTOR + j];
    offset[j] = known[4][lane * VECTOR + j];
  }
#ifdef KEEPS
  const T* dy = p.masked;
#else
  const T* dy = p.dy;
#endif
  for (long long row = first; row < p.rows; row += AHEAD * step) {
    Vector x[AHEAD], g[AHEAD];
    unsigned bits[AHEAD];
    FOR_AHEAD x[i] = read(p.x, LATE(row + i * step) * p.channels + column);
    FOR_AHEAD g[i] = read(dy, LATE(row + i * step) * p.channels + column);
#if defined(MASK) && !defined(KEEPS)
    FOR_AHEAD bits[i] = p.mask[(LATE(row + i * step) * p.channels + column) / VECTOR];
#endif
    FOR_AHEAD {
      Vector dx;
      FOR_ELEMENTS {
        float got = up(g[i].at[j]);
#if defined(MASK) && !defined(KEEPS)
        got = bits[i] >> j & 1u ? got : 0.0f;
#endif
#ifdef ACTIVATION
        float of = (up(x[i].at[j]) - mean[j]) * scale[j] + offset[j];
        got = ACTIVATION::gradient(of, got);
#endif
        float along = slope[j] * (up(x[i].at[j]) - mean[j]) + shift[j];
        down(dx.at[j], scale[j] * got + along);
      }
      write(p.out, LATE(row + i * step) * p.channels + column, dx);
    }
  }
}
