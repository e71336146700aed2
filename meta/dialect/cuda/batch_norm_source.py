"""CUDA source of batch normalisation, channels last, and of its gradients.

An array is [rows, channels]. ``sums`` adds up the rows of each thread block, ``finish`` the blocks
and what follows for a channel, ``apply`` goes over the rows once more, the last first: those are
still in the cache. Sums are of differences to the first row, lest digits of a small variance are
lost beside a large mean.
"""

from __future__ import annotations

from meta.dialect.cuda.scalars import C_TYPES, CONVERSIONS

THREADS = 256
FINISHING = 1024
"""Threads of a block of ``finish``: 32 channels."""

SOURCE = r"""
struct Parameters {
  const T* x; const T* dy; const P* w; const P* b; R* running_mean; R* running_var;
  T* out; DW* dw; DB* db; float* partial; float* known;
  long long rows; int channels; int lanes; int blocks; float momentum; float eps;
};
struct __align__(sizeof(T) * VECTOR) Vector { T at[VECTOR]; };

#ifdef BACKWARD
#define SUMS 4  // of x, its square, dy and their product
#else
#define SUMS 2
#endif
#define FOR_ELEMENTS _Pragma("unroll") for (int j = 0; j < VECTOR; ++j)
#define PLACE \
  int lane = threadIdx.x % p.lanes, part = threadIdx.x / p.lanes, parts = THREADS / p.lanes; \
  int column = (blockIdx.y * p.lanes + lane) * VECTOR; \
  long long first = (long long)blockIdx.x * parts + part, step = (long long)gridDim.x * parts; \
  bool inside = column < p.channels;

extern "C" __global__ void __launch_bounds__(THREADS) sums(const __grid_constant__ Parameters p) {
  __shared__ float scratch[THREADS][VECTOR];
  PLACE
  float sum[SUMS][VECTOR] = {}, shift[VECTOR] = {};
  if (inside) {
    Vector start = *(const Vector*)(p.x + column);
    FOR_ELEMENTS shift[j] = up(start.at[j]);
#pragma unroll 4
    for (long long row = first; row < p.rows; row += step) {
      Vector x = *(const Vector*)(p.x + row * p.channels + column);
#ifdef BACKWARD
      Vector dy = *(const Vector*)(p.dy + row * p.channels + column);
#endif
      FOR_ELEMENTS {
        float d = up(x.at[j]) - shift[j];
        sum[0][j] += d;
        sum[1][j] += d * d;
#ifdef BACKWARD
        float g = up(dy.at[j]);
        sum[2][j] += g;
        sum[3][j] += g * d;
#endif
      }
    }
  }
#pragma unroll
  for (int k = 0; k < SUMS; ++k) {
    FOR_ELEMENTS scratch[threadIdx.x][j] = sum[k][j];
    __syncthreads();
    for (int half = parts / 2; half > 0; half /= 2) {
      if (part < half) {
        FOR_ELEMENTS scratch[threadIdx.x][j] += scratch[threadIdx.x + half * p.lanes][j];
      }
      __syncthreads();
    }
    if (part == 0 && inside) {
      float* to = p.partial + ((long long)blockIdx.x * SUMS + k) * p.channels + column;
      FOR_ELEMENTS to[j] = scratch[lane][j];
    }
    __syncthreads();
  }
}

extern "C" __global__ void __launch_bounds__(FINISHING)
finish(const __grid_constant__ Parameters p) {
  __shared__ float scratch[SUMS][FINISHING / 32][32];
  int lane = threadIdx.x % 32, part = threadIdx.x / 32, c = blockIdx.x * 32 + lane;
  float sum[SUMS] = {};
  if (c < p.channels) {
#pragma unroll 4
    for (int block = part; block < p.blocks; block += FINISHING / 32) {
      const float* from = p.partial + (long long)block * SUMS * p.channels + c;
#pragma unroll
      for (int k = 0; k < SUMS; ++k) sum[k] += from[(long long)k * p.channels];
    }
  }
#pragma unroll
  for (int k = 0; k < SUMS; ++k) scratch[k][part][lane] = sum[k];
  __syncthreads();
  if (part || c >= p.channels) return;
  for (int i = 1; i < FINISHING / 32; ++i) {
#pragma unroll
    for (int k = 0; k < SUMS; ++k) sum[k] += scratch[k][i][lane];
  }
  float n = p.rows, d = sum[0] / n, var = fmaxf(sum[1] / n - d * d, 0.0f);
  float mean = up(p.x[c]) + d, inv = 1.0f / sqrtf(var + p.eps);
  float scale = p.w ? inv * (float)up(p.w[c]) : inv;
  float* known = p.known + c;
  known[0] = mean;
  known[p.channels] = scale;
#ifdef BACKWARD
  float db = sum[2], dw = (sum[3] - d * db) * inv;
  known[2 * p.channels] = -scale * inv * dw / n;
  known[3 * p.channels] = -scale * db / n;
  down(p.dw[c], dw);
  down(p.db[c], db);
#else
  known[2 * p.channels] = p.b ? (float)up(p.b[c]) : 0.0f;
  float keep = 1.0f - p.momentum, old_mean = up(p.running_mean[c]), old_var = up(p.running_var[c]);
  down(p.running_mean[c], keep * old_mean + p.momentum * mean);
  down(p.running_var[c], keep * old_var + p.momentum * (var * (n / (n - 1.0f))));
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS) apply(const __grid_constant__ Parameters p) {
  PLACE
  if (!inside) return;
  float mean[VECTOR], scale[VECTOR], more[VECTOR];
#ifdef BACKWARD
  float shift[VECTOR];
#endif
  FOR_ELEMENTS {
    const float* known = p.known + column + j;
    mean[j] = known[0];
    scale[j] = known[p.channels];
    more[j] = known[2 * p.channels];
#ifdef BACKWARD
    shift[j] = known[3 * p.channels];
#endif
  }
#pragma unroll 2
  for (long long row = p.rows - 1 - first; row >= 0; row -= step) {
    long long at = row * p.channels + column;
    Vector x = *(const Vector*)(p.x + at), y;
#ifdef BACKWARD
    Vector dy = *(const Vector*)(p.dy + at);
    FOR_ELEMENTS {
      float along = more[j] * (up(x.at[j]) - mean[j]) + shift[j];
      down(y.at[j], scale[j] * up(dy.at[j]) + along);
    }
#else
    FOR_ELEMENTS down(y.at[j], (up(x.at[j]) - mean[j]) * scale[j] + more[j]);
#endif
    *(Vector*)(p.out + at) = y;
  }
}
"""


def source(types: dict[str, str], vector: int, backward: bool) -> str:
    """Return the source for accesses of ``vector`` elements; ``types``: dtypes by their names in
    it: T of data, P of w and b, R of the running statistics, DW and DB of the results.
    """
    sizes = {"VECTOR": vector, "THREADS": THREADS, "FINISHING": FINISHING}
    defines = "".join(f"#define {name} {value}\n" for name, value in sizes.items())
    typedefs = "".join(f"typedef {C_TYPES[dtype]} {name};\n" for name, dtype in types.items())
    how = "#define BACKWARD\n" if backward else ""
    return f"typedef float W;\n{CONVERSIONS}{typedefs}{how}{defines}{SOURCE}"
