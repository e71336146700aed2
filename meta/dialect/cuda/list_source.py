"""CUDA source of kernels that run over lists of tensors: loops, written once, around what an
operator does to an element.

A kernel takes one struct by value: numbers, the addresses of all tensors, and their sizes. A thread
block takes one chunk of one tensor, in vectors of four elements where addresses allow. Nothing here
knows operators, and no header is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

from meta.dialect.cuda.scalars import C_TYPES, CONVERSIONS

THREADS = 256
CHUNK = 1 << 14
"""Elements of a thread block: 16 vectors for each thread."""
NUMBER_BYTES = 24
HEAD_BYTES = 40


@dataclass(frozen=True)
class Pass:
    """What a launch does to each element.

    loads: the lists whose elements the code reads, as variables of these names. stores: those that
    it assigns to. sums: numbers of the sums over a tensor to which it adds, ``terms[number]``.
    needs: numbers of those, of a launch before, that it reads, as ``sums[number]``.
    """

    code: str
    loads: tuple[str, ...]
    stores: tuple[str, ...] = ()
    sums: tuple[int, ...] = ()
    needs: tuple[int, ...] = ()


PROLOGUE = r"""
template <typename T> struct __align__(sizeof(T) * 4 < 16 ? sizeof(T) * 4 : 16) Four { T at[4]; };

inline float root(float x) { return sqrtf(x); }
inline double root(double x) { return sqrt(x); }

struct Number { const void* at; double value; int kind; int each; };
inline double read(const Number& number, int tensor) {
  if (!number.at) return number.value;
  int i = number.each ? tensor : 0;
  switch (number.kind) {
    case 0: return ((const float*)number.at)[i];
    case 1: return ((const double*)number.at)[i];
    case 2: return up(((const f16*)number.at)[i]);
    case 3: return up(((const bf16*)number.at)[i]);
    case 4: return ((const int*)number.at)[i];
    default: return (double)((const long long*)number.at)[i];
  }
}

struct Parameters {
  const bool* skip;
  double* partial;           // sums over chunks: [chunk, SUMS]
  long long first_chunk;
  void* result;
  int count;                 // tensors of the launch
  int spare;
  Number number[NUMBERS];
  void* at[LISTS][TENSORS];
  long long size[TENSORS];
  int index[TENSORS];        // of each tensor, among those of all launches
  int chunk[TENSORS + 1];    // the first chunk of each tensor, within the launch
};
#if __CUDA_ARCH__ >= 700
#define GRID_CONSTANT __grid_constant__
#else
#define GRID_CONSTANT
#endif

inline double sum_of_block(double value, double* scratch) {
  scratch[threadIdx.x] = value;
  __syncthreads();
  for (int half = THREADS / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) scratch[threadIdx.x] += scratch[threadIdx.x + half];
    __syncthreads();
  }
  double total = scratch[0];
  __syncthreads();
  return total;
}
"""

FINISH = r"""
extern "C" __global__ void finish(const GRID_CONSTANT Parameters p) {
  __shared__ double scratch[THREADS];
  double total = 0;
  for (long long i = threadIdx.x; i < p.first_chunk; i += THREADS) total += p.partial[i];
  total = sum_of_block(total, scratch);
  if (threadIdx.x == 0) *(float*)p.result = (float)sqrt(total);
}
"""


def source(
    helpers: str,
    one: Pass,
    dtypes: dict[str, str],
    numbers: tuple[str, ...],
    prepare: str,
    wide: str,
    tensors: int,
    sums: int,
) -> str:
    """Return the source of a kernel ``update``, and of ``finish``, the norm of sums of squares.

    Parameters
    ----------
    helpers: functions of ``Known``, the struct of the numbers. prepare: how its further members
    follow from the others. dtypes: of each list. wide: the type to compute in. tensors: for how
    many there is room. sums: how many there are of a chunk, over all launches.
    """
    derived = [line.split("=")[0].strip().removeprefix("k.") for line in _lines(prepare)]
    known = "\n".join(f"  W {name};" for name in (*numbers, *derived))
    reading = "\n".join(
        f"    k.{name} = (W)read(p.number[{i}], p.index[tensor]);" for i, name in enumerate(numbers)
    )
    names = list(dtypes)
    loads = [n for n in one.loads if n in dtypes]
    stores = [n for n in one.stores if n in dtypes]
    both = [n for n in names if n in loads or n in stores]

    def ctype(name: str) -> str:
        return C_TYPES[dtypes[name]]

    pointers = "\n".join(
        f"  {ctype(n)}* {n}_at = ({ctype(n)}*)p.at[{names.index(n)}][tensor] + begin;" for n in both
    )
    aligned = " && ".join(
        f"(unsigned long long){n}_at % alignof(Four<{ctype(n)}>) == 0" for n in both
    )
    fours = "\n".join(f"      Four<{ctype(n)}> {n}_four;" for n in both)
    fetch = "\n".join(f"      {n}_four = *(const Four<{ctype(n)}>*)({n}_at + i);" for n in loads)
    store = "\n".join(f"      *(Four<{ctype(n)}>*)({n}_at + i) = {n}_four;" for n in stores)

    def element(of: str) -> str:
        lines = [
            *(f"W {n} = {f'(W)up({of.format(n)})' if n in loads else '0'};" for n in both),
            one.code,
            *(f"down({of.format(n)}, {n});" for n in stores),
        ]
        return "\n".join(lines)

    has = "\n".join(f"#define HAS_{n.upper()}" for n in names)
    needs = "\n".join(
        f"""  {{
    double part = 0;
    for (int c = p.chunk[tensor] + threadIdx.x; c < p.chunk[tensor + 1]; c += THREADS)
      part += p.partial[(p.first_chunk + c) * SUMS + {j}];
    sums[{j}] = (W)sum_of_block(part, scratch);
  }}"""
        for j in one.needs
    )
    add = "\n".join(
        f"""  {{
    double total = sum_of_block(terms[{j}], scratch);
    if (threadIdx.x == 0) p.partial[(p.first_chunk + blockIdx.x) * SUMS + {j}] = total;
  }}"""
        for j in one.sums
    )
    return f"""typedef {C_TYPES[wide]} W;
#define THREADS {THREADS}
#define CHUNK {CHUNK}
#define LISTS {len(names)}
#define TENSORS {tensors}
#define NUMBERS {max(1, len(numbers))}
#define SUMS {max(1, sums)}
{has}
{CONVERSIONS}{PROLOGUE}
struct Known {{
{known}
}};
{helpers}
extern "C" __global__ void __launch_bounds__(THREADS) update(const GRID_CONSTANT Parameters p) {{
  if (p.skip && *p.skip) return;
  __shared__ Known shared;
  __shared__ double scratch[THREADS];
  int tensor = 0, above = p.count;
  while (above - tensor > 1) {{
    int middle = (tensor + above) / 2;
    if (p.chunk[middle] <= (int)blockIdx.x) tensor = middle; else above = middle;
  }}
  if (threadIdx.x == 0) {{
    Known k;
{reading}
{prepare}
    shared = k;
  }}
  __syncthreads();
  Known k = shared;
  W sums[SUMS] = {{}};
{needs}
  double terms[SUMS] = {{}};
  long long begin = (long long)((int)blockIdx.x - p.chunk[tensor]) * CHUNK;
  long long left = p.size[tensor] - begin;
  int length = left < CHUNK ? (int)left : CHUNK;
{pointers}
  int rest = 0;
  if ({aligned or "true"}) {{
    rest = length / 4 * 4;
    for (int i = threadIdx.x * 4; i < rest; i += THREADS * 4) {{
{fours}
{fetch}
#pragma unroll
      for (int j = 0; j < 4; ++j) {{
{element("{}_four.at[j]")}
      }}
{store}
    }}
  }}
  for (int i = rest + threadIdx.x; i < length; i += THREADS) {{
{element("{}_at[i]")}
  }}
{add}
}}
{FINISH}"""


def _lines(text: str) -> list[str]:
    return [line for line in text.strip().splitlines() if line.strip()]
