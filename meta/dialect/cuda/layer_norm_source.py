"""CUDA source of layer normalisation over the last axis, and of its gradients; of those of
normalisation by the root mean square, too, which takes no mean off.

The threads of a row, GROUP of them, hold it in registers. While they work on one row, the next one
of theirs is under way: what is read ahead takes the place of more threads.
"""

from __future__ import annotations

from dataclasses import dataclass

from meta.dialect.cuda.packed import PACKED
from meta.dialect.cuda.scalars import C_TYPES, CONVERSIONS

THREADS = 256
SIZES = {"float16": 2, "bfloat16": 2, "float32": 4}
"""Bytes of an element."""
GROUPS = 32, 64, 128, THREADS
"""How many threads may share a row."""
REGISTERS = 200
"""For what a thread of the backward pass holds of rows; up to 255 there are."""
FORWARD_EACH = 32
"""Elements of a row that a thread of the forward pass holds, at most."""
MOST = THREADS * FORWARD_EACH
"""The widest row."""
PER_PROCESSOR = 1
"""Thread blocks of the backward pass for each processor: it keeps their sums."""
POSITIONS = 32
"""Columns that a thread block of the last launch adds up."""
FINISHING = 512
"""Its threads."""

COMMON = r"""
#define FULL 0xffffffffu
#define GROUPS (THREADS / GROUP)
#define STEP (GROUP * VECTOR)
#define EACH ((WIDTH + STEP - 1) / STEP)
#define PADDED (EACH * STEP)

struct Parameters {
  const T* x; const T* dy; const P* scale; const P* bias; const float* mean; const float* inv;
  const A* addend;
  T* out; float* new_mean; float* new_inv; float* partial; P* dscale; P* dbias; float* dsum;
  T* added; A* wide;
  long long rows; int blocks; float eps;
};
template <class E> struct Raw { Packed<E> at[EACH]; };  // what a thread holds of a row, as it is
typedef float Row[EACH][VECTOR];

#define FOR_EACH \
  _Pragma("unroll") for (int i = 0; i < EACH; ++i) \
    if (int column = i * STEP + lane * VECTOR; WIDTH % STEP == 0 || column < WIDTH)

// The sums of some numbers over the threads of a row. ``turn``, 0 to 3: not that of the last call.
template <int N> inline void total(float* numbers, int turn) {
#pragma unroll
  for (int k = 16; k > 0; k /= 2) {
#pragma unroll
    for (int n = 0; n < N; ++n) numbers[n] += __shfl_xor_sync(FULL, numbers[n], k);
  }
#if GROUP > 32
  __shared__ float parts[4][2 * THREADS / 32];
  int warp = threadIdx.x / 32;
#pragma unroll
  for (int n = 0; n < N; ++n)
    if (threadIdx.x % 32 == 0) parts[turn][2 * warp + n] = numbers[n];
  __syncthreads();
#pragma unroll
  for (int n = 0; n < N; ++n) {
    numbers[n] = 0;
#pragma unroll
    for (int k = 0; k < GROUP / 32; ++k)
      numbers[n] += parts[turn][2 * (warp / (GROUP / 32) * (GROUP / 32) + k) + n];
  }
#endif
}

template <class E> inline void fetch(Raw<E>& to, const E* row, int lane) {
  FOR_EACH to.at[i] = packed(row + column);
}

template <class E> inline void widen(Row& to, const Raw<E>& from, int lane) {
  FOR_EACH { FOR_ELEMENTS to[i][j] = element(from.at[i], j); }
}

// The mean of a row, which is taken off it, and 1 / deviation; of CENTERS 0, the mean is 0. What
// the first sum rounds away, a second one finds: in a row of equal numbers, inv makes it visible.
inline void statistics(Row& x, int lane, float eps, float& mean, float& inv) {
  float sums[2] = {0, 0};
  mean = 0;
#if CENTERS
  FOR_EACH {
    float some = 0;
    FOR_ELEMENTS some += x[i][j];
    mean += some;
  }
  total<1>(&mean, 2);
  mean *= 1.0f / WIDTH;
#endif
  FOR_EACH {
    float some[2] = {0, 0};
    FOR_ELEMENTS {
      x[i][j] -= mean;
      some[0] += x[i][j] * x[i][j];
      some[1] += x[i][j];
    }
    sums[0] += some[0];
    sums[1] += some[1];
  }
#if CENTERS
  total<2>(sums, 3);
  float rest = sums[1] * (1.0f / WIDTH);
  mean += rest;
  FOR_EACH FOR_ELEMENTS x[i][j] -= rest;
  inv = rsqrtf(sums[0] * (1.0f / WIDTH) - rest * rest + eps);
#else
  total<1>(sums, 3);
  inv = rsqrtf(sums[0] * (1.0f / WIDTH) + eps);
#endif
}
"""
FORWARD = r"""
extern "C" __global__ void __launch_bounds__(THREADS)
forward(const __grid_constant__ Parameters p) {
  int lane = threadIdx.x % GROUP, group = threadIdx.x / GROUP;
  long long step = (long long)gridDim.x * GROUPS, row = (long long)blockIdx.x * GROUPS + group;
  Raw<T> next = {};
#if ADDS
  Raw<A> addend = {};
#endif
  if (row < p.rows) {
    fetch(next, p.x + row * WIDTH, lane);
#if ADDS
    fetch(addend, p.addend + row * WIDTH, lane);
#endif
  }
  for (; row - group < p.rows; row += step) {
    bool inside = row < p.rows;
    Row x = {};
    widen(x, next, lane);
#if ADDS
    FOR_EACH {
      Vector<A> sum;
      Vector<T> rounded;
      FOR_ELEMENTS {
        float both = x[i][j] + element(addend.at[i], j);
        down(sum.at[j], both);
        down(rounded.at[j], both);
        x[i][j] = up(rounded.at[j]);
      }
      if (inside && p.wide) *(Vector<A>*)(p.wide + row * WIDTH + column) = sum;
      if (inside && p.added) *(Vector<T>*)(p.added + row * WIDTH + column) = rounded;
    }
#endif
    if (row + step < p.rows) {
      fetch(next, p.x + (row + step) * WIDTH, lane);
#if ADDS
      fetch(addend, p.addend + (row + step) * WIDTH, lane);
#endif
    }
    float mean, inv;
    statistics(x, lane, p.eps, mean, inv);
    if (!inside) continue;
    if (p.new_mean && lane == 0) {
      p.new_mean[row] = mean;
      p.new_inv[row] = inv;
    }
    FOR_EACH {
      FOR_ELEMENTS x[i][j] *= inv;
      if (p.scale) {
        Packed<P> scale = packed(p.scale + column);
        FOR_ELEMENTS x[i][j] *= element(scale, j);
      }
      if (p.bias) {
        Packed<P> bias = packed(p.bias + column);
        FOR_ELEMENTS x[i][j] += element(bias, j);
      }
      Vector<T> v;
      FOR_ELEMENTS down(v.at[j], x[i][j]);
      *(Vector<T>*)(p.out + row * WIDTH + column) = v;
    }
  }
}
"""
BACKWARD = r"""
struct Read { Raw<T> x; Raw<T> dy; Raw<A> addend; float mean; float inv; };

inline void read(Read& to, const Parameters& p, long long row, int lane) {
  fetch(to.x, p.x + row * WIDTH, lane);
  fetch(to.dy, p.dy + row * WIDTH, lane);
#if ADDS && AHEAD
  fetch(to.addend, p.addend + row * WIDTH, lane);
#endif
  if (p.mean) {
    to.mean = p.mean[row];
    to.inv = p.inv[row];
  }
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
      Vector<T> v;
      FOR_ELEMENTS {
        float d = inv * (dy[i][j] - g - x[i][j] * along);
#if ADDS
        d += element(addend.at[i], j);
#endif
        down(v.at[j], d);
        if (SUMMED) sums[SUMS - 1][i][j] += inside ? up(v.at[j]) : 0.0f;
      }
      if (inside) *(Vector<T>*)(p.out + row * WIDTH + column) = v;
    }
  }
  if (!p.partial) return;
  // The rows of the block are added up. The sums stay in the threads' order, which `finish` knows.
  float* partial = p.partial + (long long)blockIdx.x * SUMS * PADDED;
  __shared__ float all[SUMS][THREADS * VECTOR];
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    __syncthreads();
#pragma unroll
    for (int k = 0; k < SUMS; ++k)
      FOR_ELEMENTS all[k][(group * VECTOR + j) * GROUP + lane] = sums[k][i][j];
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
"""
FINISH = r"""
#define PARTS (FINISHING / POSITIONS)

extern "C" __global__ void __launch_bounds__(FINISHING)
finish(const __grid_constant__ Parameters p) {
  const int at_once = 8;
  __shared__ float parts[PARTS][POSITIONS];
  int lane = threadIdx.x % POSITIONS, part = threadIdx.x / POSITIONS;
  int position = blockIdx.x * POSITIONS + lane;
  float sum = 0;
  if (position < SUMS * PADDED) {
    for (int begin = part; begin < p.blocks; begin += at_once * PARTS) {
      float found[at_once] = {};
#pragma unroll
      for (int i = 0; i < at_once; ++i)
        if (int block = begin + i * PARTS; block < p.blocks)
          found[i] = p.partial[(long long)block * SUMS * PADDED + position];
#pragma unroll
      for (int i = 0; i < at_once; ++i) sum += found[i];
    }
  }
  parts[part][lane] = sum;
  __syncthreads();
  if (part || position >= SUMS * PADDED) return;
  sum = 0;
#pragma unroll
  for (int k = 0; k < PARTS; ++k) sum += parts[k][lane];
  int which = position / PADDED, place = position % PADDED, rest = place % STEP;
  int column = place - rest + rest % GROUP * VECTOR + rest / GROUP;
  if (column >= WIDTH) return;
  if (which == 0) down(p.dscale[column], sum);
  else if (CENTERS && which == 1) down(p.dbias[column], sum);
  else p.dsum[column] = sum;
}
"""
KERNELS = {"forward": FORWARD, "backward": BACKWARD, "finish": FINISH}


@dataclass(frozen=True, slots=True)
class Variant:
    """What a source is made for: dtypes of data, of scale and bias, and of an addend; rows of
    ``width`` elements, accesses of ``vector``, ``group`` threads of a row. ``addend``: of what is
    added to x before the forward pass, to the result of the backward pass. ``summed``: whether that
    result is summed over all rows. ``centers``: whether the mean is taken off. ``ahead``: whether
    the next row is read before one is worked on.
    """

    x: str
    parameters: str
    width: int
    vector: int
    group: int
    addend: str | None = None
    summed: bool = False
    centers: bool = True
    ahead: bool = True

    @property
    def sums(self) -> int:
        """How many sums over all rows the backward pass makes."""
        return 1 + self.centers + self.summed

    @property
    def padded(self) -> int:
        """Elements of a row with those that complete the last step of its threads."""
        step = self.group * self.vector
        return -(-self.width // step) * step


def source(kernel: str, variant: Variant) -> str:
    """Return the source of a kernel: "forward", "backward" or "finish"."""
    v = variant
    sizes = {"WIDTH": v.width, "VECTOR": v.vector, "GROUP": v.group, "THREADS": THREADS}
    sizes |= {"ADDS": int(v.addend is not None), "SUMS": v.sums, "AHEAD": int(v.ahead)}
    sizes |= {"SUMMED": int(v.summed), "CENTERS": int(v.centers)}
    sizes |= {"POSITIONS": POSITIONS, "FINISHING": FINISHING, "PER_PROCESSOR": PER_PROCESSOR}
    defines = "".join(f"#define {name} {value}\n" for name, value in sizes.items())
    types = {"T": v.x, "P": v.parameters, "A": v.addend or v.x}
    typedefs = "".join(f"typedef {C_TYPES[dtype]} {name};\n" for name, dtype in types.items())
    return f"typedef float W;\n{CONVERSIONS}{typedefs}{defines}{PACKED}{COMMON}{KERNELS[kernel]}"


def variant(
    backward: bool, x: str, parameters: str, width: int, vector: int, rows: int, processors: int,
    addend: str | None = None, summed: bool = False, centers: bool = True,
) -> Variant:  # fmt: skip
    """Return the variant of a pass for an array of ``rows`` on a GPU of so many processors: as
    few threads for a row as can hold it, with the next one, and more where there are few rows.
    """
    for ahead in (True, False):
        given = x, parameters, width, vector
        made = [Variant(*given, g, addend, summed, centers, ahead) for g in GROUPS]
        fit = [v for v in made if _fits(backward, v)]
        if fit:
            break
    else:
        fit = made[-1:]
    busy = (v for v in fit if rows * v.group >= processors * THREADS)
    narrow = [v for v in fit if v.group * vector < 2 * width]
    return next(busy, narrow[-1] if narrow else fit[0])


def _fits(backward: bool, v: Variant) -> bool:
    each = v.padded // v.group
    if not backward:
        return each <= FORWARD_EACH
    read = 2 * SIZES[v.x] + (SIZES[v.addend] if v.addend else 0)
    return each * (3 + v.sums + (read / 4 if v.ahead else 0)) <= REGISTERS
