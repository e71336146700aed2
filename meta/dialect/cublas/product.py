"""Products of one signature as functions of torch tensors: what a kernel runs.

Compact, aligned tensors, which is all that a compiled program has, take the plan that was made
beforehand. Transposed and row-strided ones, and those at other addresses, get a plan of their own;
what cuBLASLt cannot read, or has no algorithm for, is copied first: a call that was dispatched does
not fail because of where its tensors lie. A configuration names the algorithm of the former only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import gcd
from typing import Any

import torch

from meta.base import config
from meta.base.dtype import bits
from meta.dialect.core import Config, Configs, OpEnv, Unsupported, decline_if, require_static
from meta.dialect.cublas.library import DATA_TYPES
from meta.dialect.cublas.plan import ProductPlan, other_algorithms, plan
from meta.dialect.cublas.problem import ALIGNMENT, Matrix, Problem, aligned, compact, matrix
from meta.ir.types import TensorType


def problem(x1: TensorType, x2: TensorType, t1: bool, t2: bool, **more: Any) -> Problem:
    """Return the problem of two compact factors, each stored transposed if its flag says so.

    Raises Unsupported for other dtypes than cuBLASLt's floating point ones, for extents that are no
    numbers, and for a product without elements.
    """
    if x1.dtype not in DATA_TYPES:
        raise Unsupported(f"cuBLASLt multiplies {', '.join(sorted(DATA_TYPES))}, not {x1.dtype}")
    require_static(x1, x2)
    shape1, shape2 = x1.static_shape, x2.static_shape
    decline_if(0 in (*shape1, *shape2), "there is nothing to multiply")
    m, k = shape1[-2:][::-1] if t1 else shape1[-2:]
    n = shape2[-2] if t2 else shape2[-1]
    batch = max(shape1[0], shape2[0]) if len(shape1) == 3 else 1
    return Problem(x1.dtype, batch, m, n, k, compact(shape1, t1), compact(shape2, t2), **more)


class Plans:
    """The plans of one problem, by the precision of float32 products: META_TF32 may change.

    A configuration is that of the precision of now; the other one has its default.
    """

    def __init__(self, problem: Problem, device: int, chosen: Config = ()) -> None:
        """Make the one that is needed now; raises Unsupported if there is none."""
        self.problem, self.device, now = problem, device, config.get("META_TF32")

        def of(tf32: bool) -> ProductPlan:
            ours = problem.dtype != "float32" or tf32 == now
            return plan(replace(problem, tf32=tf32), device, chosen if ours else ())

        self._of = cache(of)
        # The one plan of a dtype to which the knob is nothing.
        self.only: ProductPlan | None = None if problem.dtype == "float32" else self._of(False)
        self()

    def __call__(self) -> ProductPlan:
        return self.only or self._of(config.get("META_TF32"))

    def listed(self) -> list[Config]:
        """Return the configurations of the plan that is needed now."""
        tf32 = self.problem.dtype == "float32" and config.get("META_TF32")
        return other_algorithms(replace(self.problem, tf32=tf32), self.device)


class Product:
    """The product of two tensors of one signature: a function of them and of ``out``."""

    def __init__(
        self, compact: Problem, t1: bool, t2: bool, device: int, config: Config = ()
    ) -> None:
        """Prepare for compact factors; raises Unsupported if cuBLASLt does not multiply them."""
        self.compact, self.device, self.flags = compact, device, (t1, t2)
        self.plans = Plans(compact, device, config)

    @property
    def workspace(self) -> int:
        """The bytes of scratch memory of its plan."""
        return self.plans().workspace

    def __call__(self, x1: torch.Tensor, x2: torch.Tensor, out: torch.Tensor) -> None:
        a, b, d = x1.data_ptr(), x2.data_ptr(), out.data_ptr()
        if (a | b | d) % ALIGNMENT or not (x1.is_contiguous() and x2.is_contiguous()):
            self.strided(x1, x2, out)
        else:
            (self.plans.only or self.plans())(a, b, d)

    def strided(self, x1: torch.Tensor, x2: torch.Tensor, out: torch.Tensor) -> None:
        """Compute the product of tensors that lie in memory in any way."""
        x1, m1 = _readable(x1, self.flags[0])
        x2, m2 = _readable(x2, self.flags[1])
        addresses = x1.data_ptr(), x2.data_ptr(), out.data_ptr()
        alignment = aligned(addresses[0] | addresses[1] | addresses[2])
        found = replace(self.compact, x1=m1, x2=m2, alignment=alignment)
        try:
            plan = Plans(found, self.device)()
        except Unsupported:
            with_copies(self, x1, x2, out, results=(2,))
        else:
            plan(*addresses)


def _readable(x: torch.Tensor, transposed: bool) -> tuple[torch.Tensor, Matrix]:
    """Return a factor that cuBLASLt can read, a copy if it must be, and how it lies in memory."""
    seen = x.mT if transposed else x
    found = matrix(tuple(seen.shape), seen.stride())
    if found is not None:
        return x, found
    return x.contiguous(), compact(tuple(x.shape), transposed)


def with_copies(run: Callable[..., None], *tensors: torch.Tensor, results: tuple[int, ...]) -> None:
    """Run a product on compact tensors at addresses that suit it: copies, where these do not.

    ``results``: the positions of those that it writes.
    """
    copies = [
        t if t.is_contiguous() and t.data_ptr() % ALIGNMENT == 0
        else t.clone(memory_format=torch.contiguous_format)
        for t in tensors
    ]  # fmt: skip
    run(*copies)
    for i in results:
        if copies[i] is not tensors[i]:
            tensors[i].copy_(copies[i])


class FusedProduct:
    """A product with an epilogue: a function of its tensors, compact ones, and of its results.

    ``roles``: what each of them is: "x1", "x2", "out", "vector" (a bias, or its gradient), "matrix"
    (what the epilogue reads or writes beside the result) or "addend".
    """

    def __init__(
        self, compact: Problem, roles: tuple[str, ...], device: int, config: Config = ()
    ) -> None:
        """Prepare for aligned tensors; raises Unsupported if cuBLASLt has no such product."""
        self.compact, self.device = compact, device
        # The last of the addresses is 0, which is nothing.
        order = "x1", "x2", "out", "vector", "matrix", "addend"
        self.places = tuple(roles.index(r) if r in roles else len(roles) for r in order)
        made = {"out", *(["vector"] if "bgrad" in compact.epilogue else [])}
        made |= {"matrix"} if "aux" in compact.epilogue else set()
        self.results = tuple(i for i, role in enumerate(roles) if role in made)
        self.plans = Plans(compact, device, config)

    @property
    def workspace(self) -> int:
        """The bytes of scratch memory of its plan."""
        return self.plans().workspace

    def __call__(self, *tensors: torch.Tensor) -> None:
        addresses = [tensor.data_ptr() for tensor in tensors]
        together = 0
        for address in addresses:
            together |= address
        addresses.append(0)
        plan = self.plans() if together % ALIGNMENT == 0 else self._lesser(aligned(together))
        if plan is None:
            with_copies(self, *tensors, results=self.results)
        else:
            plan.with_vectors(*[addresses[place] for place in self.places])

    def _lesser(self, alignment: int) -> ProductPlan | None:
        """Return the plan of tensors at other addresses, None if cuBLASLt has none."""
        try:
            return Plans(replace(self.compact, alignment=alignment), self.device)()
        except Unsupported:
            return None


ROWS = 512
"""How many rows `UnalignedRows` has at a time: weights are read in the time of the sums then."""


class UnalignedRows:
    """A product of weights of any number of columns: a function of x, weights (columns, k), perhaps
    a bias, and of ``out``, all compact.

    cuBLASLt is fast with a number of columns that fills accesses: so many are one product, the few
    behind them another. Where rows of ``out`` begin anywhere, the first is computed in memory of
    the kernel's own, some rows at a time, and copied. Padded rows (``out_lead``) are written where
    they are, and what pads them is 0.
    """

    def __init__(self, of: Problem, device: int, config: Config = ()) -> None:
        """Prepare for aligned tensors; raises Unsupported if cuBLASLt has no such product."""
        self.of, self.size = of, bits(of.dtype) // 8
        self.columns = of.n - of.n % (ALIGNMENT // self.size)
        self.together = of.m if of.out_lead else min(of.m, ROWS)
        main, behind = replace(of, n=self.columns), replace(of, n=of.n - self.columns)
        self.plans = Plans(replace(main, m=self.together), device, config)
        self.last = Plans(replace(main, m=(of.m - 1) % self.together + 1), device)
        self.behind = Plans(behind, device) if behind.n else None

    @property
    def workspace(self) -> int:
        """The bytes of scratch memory."""
        scratch = 0 if self.of.out_lead else self.together * self.columns * self.size
        return self.plans().workspace + scratch

    def __call__(self, *tensors: torch.Tensor) -> None:
        if any(t.data_ptr() % ALIGNMENT for t in tensors[: None if self.of.out_lead else -1]):
            with_copies(self, *tensors, results=(len(tensors) - 1,))
            return
        x, w, bias, *_ = *(t.data_ptr() for t in tensors[:-1]), 0
        rest = w + self.columns * self.of.k * self.size, self.columns * self.size
        bias_behind = bias + rest[1] if bias else 0
        if lead := self.of.out_lead:
            out = tensors[-1].view(-1, lead)
            self.plans().with_vectors(x, w, out.data_ptr(), bias)
            if self.behind is not None:
                self.behind().with_vectors(x, rest[0], out.data_ptr() + rest[1], bias_behind)
            out[:, self.of.n :].zero_()
            return
        out = tensors[-1].view(-1, self.of.n)
        scratch = out.new_empty((self.together, self.columns))
        for i, part in enumerate(torch.split(out, ROWS)):
            plan = self.plans() if len(part) == len(scratch) else self.last()
            plan.with_vectors(x + i * ROWS * self.of.k * self.size, w, scratch.data_ptr(), bias)
            self._copy(scratch[: len(part)], part[:, : self.columns])
        if self.behind is not None:
            scratch = out.new_empty((self.of.m, self.of.n - self.columns))
            self.behind().with_vectors(x, rest[0], scratch.data_ptr(), bias_behind)
            self._copy(scratch, out[:, self.columns :])

    def _copy(self, source: torch.Tensor, out: torch.Tensor) -> None:
        """Copy rows in the largest words at which all of them begin and end: ATen's kernel takes
        as long for a number of two bytes.
        """
        begin = out.data_ptr() | int(out.storage_offset()) * self.size
        word = gcd(begin, self.of.n * self.size, len(source[0]) * self.size, 8)
        words = {4: torch.int32, 8: torch.int64}.get(word, out.dtype)
        out.view(words).copy_(source.view(words))


def prepared(make: Callable[[Config], Any], **options: Any) -> OpEnv:
    """Return the kernel of a product, which ``make`` makes with an algorithm, or with ().

    What it makes says by ``workspace`` what its plan takes, and by ``listed`` which algorithms
    there are.
    """

    def env(run: Any, configs: Configs | None = None) -> OpEnv:
        workspace, more = lambda: run.workspace, {"configs": configs, **options}
        return OpEnv(run, allocates=False, workspace=workspace, **more)

    run = make(())
    return env(run, Configs(lambda: run.plans.listed(), lambda config: env(make(config))))
