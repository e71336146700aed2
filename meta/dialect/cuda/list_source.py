"""CUDA source of kernels that run over lists of tensors: loops, written once, around what an
operator does to an element.

A kernel takes one struct by value: numbers, the addresses of all tensors, and their sizes. A thread
block takes one chunk of one tensor, in vectors of four elements where addresses allow. Nothing here
knows operators, and no header is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meta.dialect.cuda.source import C_TYPES, text

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


def source(
    one: Pass,
    dtypes: dict[str, str],
    numbers: tuple[str, ...],
    derived: Mapping[str, str],
    wide: str,
    tensors: int,
    sums: int,
) -> str:
    """Return the source of a kernel ``update``, and of ``finish``, the norm of sums of squares.

    Parameters
    ----------
    dtypes: of each list. numbers: which become the members of ``k``, and, as doubles, what
    ``derived`` ones, further members, are computed from. wide: the type to compute in. tensors: for
    how many there is room. sums: how many there are of a chunk, over all launches.
    """
    known = "\n".join(f"  W {name};" for name in (*numbers, *derived))
    reading = "\n".join(
        [f"    double {n} = read(p.number.{n}, p.index[tensor]);" for n in numbers]
        + [f"    k.{n} = (W){n};" for n in numbers]
        + [f"    k.{n} = (W)({value});" for n, value in derived.items()]
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
    return f"""#define COMPUTE {C_TYPES[wide]}
#define THREADS {THREADS}
#define CHUNK {CHUNK}
#define LISTS {len(names)}
#define TENSORS {tensors}
#define NUMBERS {", ".join(numbers) or "none"}
#define SUMS {max(1, sums)}
{text("list.cuh")}
struct Known {{
{known}
}};
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
"""
