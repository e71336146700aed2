"""CUDA source of layer normalisation over the last axis, and of its gradients."""

from __future__ import annotations

from meta.dialect.cuda.scalars import C_TYPES, CONVERSIONS

THREADS = 256
EACH = {"forward": 24, "backward": 12, "finish": 1}
"""By kernel: elements of a row that a thread holds, at most, before more threads share the row."""

COMMON = r"""
#define FULL 0xffffffffu
#define GROUPS (THREADS / GROUP)
#define STEP (GROUP * VECTOR)
#define EACH ((WIDTH + STEP - 1) / STEP)

struct Parameters {
  const T* x; const T* dy; const P* scale; const P* bias; const float* mean; const float* inv;
  const T* addend;
  T* out; float* new_mean; float* new_inv; float* partial; P* dscale; P* dbias; float* dsum;
  long long rows; int blocks; float eps;
};
struct __align__(sizeof(T) * VECTOR) Vector { T at[VECTOR]; };

typedef float Row[EACH][VECTOR];  // what a thread holds of one
// The sum of a and of b over the threads of a row.
inline void total(float& a, float& b) {
#pragma unroll
  for (int k = 16; k > 0; k /= 2) {
    a += __shfl_xor_sync(FULL, a, k);
    b += __shfl_xor_sync(FULL, b, k);
  }
#if GROUP > 32
  __shared__ float2 parts[THREADS / 32];
  int warp = threadIdx.x / 32;
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[warp] = make_float2(a, b);
  __syncthreads();
  a = b = 0;
#pragma unroll
  for (int k = 0; k < GROUP / 32; ++k) {
    float2 part = parts[warp / (GROUP / 32) * (GROUP / 32) + k];
    a += part.x;
    b += part.y;
  }
#endif
}

#define FOR_EACH \
  _Pragma("unroll") for (int i = 0; i < EACH; ++i) \
    if (int column = i * STEP + lane * VECTOR; WIDTH % STEP == 0 || column < WIDTH)
#define FOR_ELEMENTS _Pragma("unroll") for (int j = 0; j < VECTOR; ++j)

inline void load(Row& to, const T* row, int lane) {
  FOR_EACH {
    Vector v = *(const Vector*)(row + column);
    FOR_ELEMENTS to[i][j] = up(v.at[j]);
  }
}

inline void statistics(const Row& x, int lane, float eps, float& mean, float& inv) {
  float sum = 0, square = 0, unused = 0;
  FOR_EACH { FOR_ELEMENTS sum += x[i][j]; }
  total(sum, unused);
  mean = sum / WIDTH;
  FOR_EACH { FOR_ELEMENTS square += (x[i][j] - mean) * (x[i][j] - mean); }
  total(square, unused);
  inv = 1.0f / sqrtf(square / WIDTH + eps);
}
"""
FORWARD = r"""
extern "C" __global__ void __launch_bounds__(THREADS)
forward(const __grid_constant__ Parameters p) {
  int lane = threadIdx.x % GROUP, group = threadIdx.x / GROUP;
  long long step = (long long)gridDim.x * GROUPS;
  for (long long row = (long long)blockIdx.x * GROUPS + group; row - group < p.rows; row += step) {
    bool inside = row < p.rows;
    Row x = {};
    float mean, inv;
    if (inside) load(x, p.x + row * WIDTH, lane);
    statistics(x, lane, p.eps, mean, inv);
    if (!inside) continue;
    if (p.new_mean && lane == 0) {
      p.new_mean[row] = mean;
      p.new_inv[row] = inv;
    }
    FOR_EACH {
      Vector v;
      FOR_ELEMENTS {
        float y = (x[i][j] - mean) * inv;
        if (p.scale) y *= up(p.scale[column + j]);
        if (p.bias) y += up(p.bias[column + j]);
        down(v.at[j], y);
      }
      *(Vector*)(p.out + row * WIDTH + column) = v;
    }
  }
}
"""
BACKWARD = r"""
extern "C" __global__ void __launch_bounds__(THREADS)
backward(const __grid_constant__ Parameters p) {
  int lane = threadIdx.x % GROUP, group = threadIdx.x / GROUP;
  Row scale = {}, dscale = {}, dbias = {}, dsum = {};
  FOR_EACH { FOR_ELEMENTS scale[i][j] = p.scale ? up(p.scale[column + j]) : 1.0f; }
  long long step = (long long)gridDim.x * GROUPS;
  for (long long row = (long long)blockIdx.x * GROUPS + group; row - group < p.rows; row += step) {
    bool inside = row < p.rows;
    Row x = {}, dy = {};
    float mean, inv;
    if (inside) {
      load(x, p.x + row * WIDTH, lane);
      load(dy, p.dy + row * WIDTH, lane);
    }
    if (p.mean) {
      mean = inside ? p.mean[row] : 0;
      inv = inside ? p.inv[row] : 0;
    } else {
      statistics(x, lane, p.eps, mean, inv);
    }
    float g = 0, along = 0;
    FOR_EACH {
      FOR_ELEMENTS {
        x[i][j] = (x[i][j] - mean) * inv;
        dscale[i][j] += dy[i][j] * x[i][j];
        dbias[i][j] += dy[i][j];
        dy[i][j] *= scale[i][j];
        g += dy[i][j];
        along += dy[i][j] * x[i][j];
      }
    }
    total(g, along);
    g /= WIDTH;
    along /= WIDTH;
    if (!inside) continue;
    FOR_EACH {
      Vector v;
#if ADDS
      Vector addend = *(const Vector*)(p.addend + row * WIDTH + column);
#endif
      FOR_ELEMENTS {
        float d = inv * (dy[i][j] - g - x[i][j] * along);
#if ADDS
        d += up(addend.at[j]);
#endif
        down(v.at[j], d);
        if (SUMS > 2) dsum[i][j] += up(v.at[j]);
      }
      *(Vector*)(p.out + row * WIDTH + column) = v;
    }
  }
  if (!p.partial) return;
  float* partial = p.partial + (long long)blockIdx.x * SUMS * WIDTH;
#if GROUPS > 1
  __shared__ float sums[SUMS * WIDTH];
  for (int k = 0; k < GROUPS; ++k) {
    if (k == group) {
      FOR_EACH {
        FOR_ELEMENTS {
          sums[column + j] = dscale[i][j] + (k ? sums[column + j] : 0.0f);
          sums[WIDTH + column + j] = dbias[i][j] + (k ? sums[WIDTH + column + j] : 0.0f);
          if (SUMS > 2)
            sums[2 * WIDTH + column + j] = dsum[i][j] + (k ? sums[2 * WIDTH + column + j] : 0.0f);
        }
      }
    }
    __syncthreads();
  }
  for (int i = threadIdx.x; i < SUMS * WIDTH; i += THREADS) partial[i] = sums[i];
#else
  FOR_EACH {
    FOR_ELEMENTS {
      partial[column + j] = dscale[i][j];
      partial[WIDTH + column + j] = dbias[i][j];
      if (SUMS > 2) partial[2 * WIDTH + column + j] = dsum[i][j];
    }
  }
#endif
}
"""
FINISH = r"""
extern "C" __global__ void __launch_bounds__(THREADS) finish(const __grid_constant__ Parameters p) {
  __shared__ float sums[THREADS / 32][32];
  int column = blockIdx.x * 32 + threadIdx.x % 32, part = threadIdx.x / 32;
  float sum = 0;
  if (column < SUMS * WIDTH) {
#pragma unroll 8
    for (int block = part; block < p.blocks; block += THREADS / 32)
      sum += p.partial[(long long)block * SUMS * WIDTH + column];
  }
  sums[part][threadIdx.x % 32] = sum;
  __syncthreads();
  if (part || column >= SUMS * WIDTH) return;
  for (int k = 1; k < THREADS / 32; ++k) sum += sums[k][threadIdx.x];
  if (column < WIDTH) down(p.dscale[column], sum);
  else if (column < 2 * WIDTH) down(p.dbias[column - WIDTH], sum);
  else p.dsum[column - 2 * WIDTH] = sum;
}
"""
KERNELS = {"forward": FORWARD, "backward": BACKWARD, "finish": FINISH}


def source(
    kernel: str, x: str, parameters: str, width: int, vector: int, adds: bool, sums: int
) -> str:
    """Return the source of a kernel for data and parameters of these dtypes, rows of ``width``
    elements, and accesses of ``vector``.

    adds: whether the backward pass adds another tensor to its result. sums: how many sums over all
    rows it makes: 2, or 3 with that of its result.
    """
    group = next((g for g in (32, 64, 128) if width <= g * EACH[kernel]), THREADS)
    sizes = {"WIDTH": width, "VECTOR": vector, "GROUP": group, "THREADS": THREADS}
    sizes |= {"ADDS": int(adds), "SUMS": sums}
    defines = "".join(f"#define {name} {value}\n" for name, value in sizes.items())
    types = f"typedef {C_TYPES[x]} T;\ntypedef {C_TYPES[parameters]} P;\n"
    return f"typedef float W;\n{CONVERSIONS}{types}{defines}{COMMON}{KERNELS[kernel]}"
