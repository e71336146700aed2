"""Which plan a product gets: that of the heuristic's first algorithm, or by measurement.

With META_CUBLAS_TUNE=n the first n algorithms are measured, once per problem in a process, on the
current stream, which is waited for. While a CUDA graph is captured nothing is measured.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from meta.base import config
from meta.base.dtype import TO_TORCH
from meta.base.progress import bar
from meta.dialect.core import Unsupported
from meta.dialect.cublas.plan import ProductPlan, heuristic
from meta.dialect.cublas.problem import Matrix, Problem

PLANS = 1024
"""How many plans are kept; the one that was not asked for longest goes first."""
RUNS = 20
"""How many runs of an algorithm are measured together."""


def plan(problem: Problem, device: int) -> ProductPlan:
    """Return the plan of a problem; Unsupported with cuBLASLt's status if it has no algorithm."""
    count = config.get("META_CUBLAS_TUNE")
    if count > 1 and not torch.cuda.is_current_stream_capturing():
        return _fastest(problem, device, count)
    return _required(problem, device)


def _required(problem: Problem, device: int) -> ProductPlan:
    found = _first(problem, device)
    if isinstance(found, str):
        raise Unsupported(found)
    return found


@lru_cache(maxsize=PLANS)
def _first(problem: Problem, device: int) -> ProductPlan | str:
    """Return a plan, or why there is none."""
    try:
        return ProductPlan(problem, device)
    except Unsupported as refusal:
        return str(refusal)


@lru_cache(maxsize=PLANS)
def _fastest(problem: Problem, device: int, count: int) -> ProductPlan:
    algorithms = heuristic(_required(problem, device), count)
    plans = [ProductPlan(problem, device, one) for one in algorithms]
    with torch.cuda.device(device), bar(len(plans), "tuning a product", delay=1.0) as progress:
        pieces = _arguments(problem, device)
        addresses = [0 if piece is None else piece.data_ptr() for piece in pieces]
        if problem.scales != "none":
            ones = torch.ones(max(problem.m, problem.n), device=torch.device("cuda", device))
            for made in plans:
                made.with_scales(*addresses[:3], *[ones.data_ptr()] * 2)
        times = []
        for one in plans:
            times.append(_milliseconds(one, addresses))
            progress.update()
    return plans[times.index(min(times))]


def _milliseconds(one: ProductPlan, addresses: list[int]) -> float:
    event: Any = torch.cuda.Event
    begin, end = (event(enable_timing=True) for _ in range(2))
    one.with_vectors(*addresses)  # loads the kernel
    begin.record()
    for _ in range(RUNS):
        one.with_vectors(*addresses)
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


def _arguments(problem: Problem, device: int) -> list[torch.Tensor | None]:
    """Return tensors to measure with, in the order of `ProductPlan.with_vectors`."""
    m, n, k = problem.m, problem.n, problem.k
    out = extent(problem.out, (m, n), problem.batch)
    vector = max(m, n) + problem.vector_step * (problem.batch - 1)
    x1, x2, result = problem.kinds
    dtypes = x1, x2, result, result, result, result
    counts = [
        extent(problem.x1, (m, k), problem.batch),
        extent(problem.x2, (k, n), problem.batch),
        out,
        vector if problem.has_vector else 0,
        out if problem.has_matrix else 0,
        out if problem.addend else 0,
    ]
    place = torch.device("cuda", device)
    generator = torch.Generator(place)  # the program's own random numbers stay as they are
    return [
        torch.empty(c, device=place).normal_(generator=generator).to(TO_TORCH[dtype]) if c else None
        for c, dtype in zip(counts, dtypes, strict=True)
    ]


def extent(one: Matrix, shape: tuple[int, int], batch: int) -> int:
    """Return how many elements of memory a factor reaches over."""
    rows, columns = reversed(shape) if one.transposed else shape
    return one.lead * (rows - 1) + columns + one.step * (batch - 1)
