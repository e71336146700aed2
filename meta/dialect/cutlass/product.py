"""Kernels of products: which calls they take, and how they are launched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from meta.base.device import Device
from meta.dialect.core import Configs, Deferred, OpEnv, Unsupported, decline_if, require_static
from meta.dialect.cutlass.kernel import (
    DTYPES,
    FORMS,
    LANES,
    Kernel,
    Tiling,
    arch_of,
    named,
    tilings,
)
from meta.dialect.cutlass.launch import Plan
from meta.dialect.cutlass.machine import compile_all
from meta.ir.types import TensorType
from meta.runtime import gpu_properties

LISTED = 5
"""Tilings besides the first that are worth measuring: compiling one takes seconds."""
VECTORS = (*DTYPES, "float32")


@dataclass(frozen=True, slots=True)
class Product:
    """A product of x1 (m, k) and x2 (k, n), each stored transposed if its flag says so; of several
    matrices x2 if there are ``groups``.
    """

    dtype: str
    m: int
    n: int
    k: int
    t1: bool
    t2: bool
    groups: int = 0

    def shape(self, role: str) -> tuple[int, ...]:
        """Return how a kernel sees a factor, or another matrix."""
        if role == "x1":
            return (self.k, self.m) if self.t1 else (self.m, self.k)
        if role == "x2":
            one = (self.n, self.k) if self.t2 else (self.k, self.n)
            return (self.groups, *one) if self.groups else one
        return self.m, self.n


def product(x1: TensorType, x2: TensorType, t1: bool, t2: bool) -> Product:
    """Return the product of two matrices; Unsupported for those that the kernels do not read."""
    if x1.dtype not in DTYPES:
        raise Unsupported(f"made for {' and '.join(DTYPES)}, not {x1.dtype}")
    require_static(x1, x2)
    decline_if(0 in (*x1.static_shape, *x2.static_shape), "there is nothing to multiply")
    decline_if(x1.ndim != 2, "made for products of two matrices")
    m, k = x1.static_shape[::-1] if t1 else x1.static_shape
    *groups, one, other = x2.static_shape
    n = one if t2 else other
    made = Product(x1.dtype, m, n, k, t1, t2, *groups)
    for rows, columns in (made.shape("x1"), made.shape("x2")[-2:], made.shape("out")):
        if columns % LANES:
            raise Unsupported(
                f"rows of {columns} elements do not begin at multiples of 16 bytes, as the "
                f"{rows} rows of a matrix have to"
            )
    return made


def require_vector(of: Product, kind: str, vector: TensorType) -> None:
    """Decline a vector that does not have a number for each row or column of a product."""
    extent = of.n if kind == "row" else of.m
    what = "column" if kind == "row" else "row"
    fits = vector.is_static and prod(vector.static_shape) == extent
    decline_if(not fits, f"{vector} has not a number for each {what} of the product")
    decline_if(vector.dtype not in VECTORS, f"made for vectors of half or float32, not {vector}")
    odd = extent % 2 and vector.dtype != "float32"
    decline_if(odd, "numbers of half precision for rows are read two at a time")


def require_tile(of: Product, tile: TensorType) -> None:
    """Decline a matrix that is not like the result of a product."""
    fits = tile.is_static and prod(tile.static_shape) == of.m * of.n
    fits = fits and tile.ndim > 0 and tile.static_shape[-1] == of.n and tile.dtype == of.dtype
    decline_if(not fits, f"{tile} is not like the result {of.dtype}[{of.m}, {of.n}]")


def prepared(
    of: Product, form: str, activation: str, tensors: Mapping[str, TensorType], device: Device
) -> OpEnv:
    """Return the kernel of a product with an epilogue.

    ``tensors``: types by role, in the order of the call: "x1", "x2", operands of the form, "offs",
    "out" and "kept". Raises Unsupported for operands that are not as the form has them.
    """
    kinds = dict(FORMS[form].operands)
    vectors = []
    for name, kind in kinds.items():
        if kind in ("row", "column"):
            require_vector(of, kind, tensors[name])
            vectors.append(tensors[name].dtype)
        else:
            require_tile(of, tensors[name])
    at = gpu_properties.target_of(device)
    arch = arch_of(at.capability)
    columns = of.n // 2 if FORMS[form].paired else of.n

    def shape(role: str) -> tuple[int, ...]:
        if kinds.get(role) in ("row", "column"):
            return (of.n if kinds[role] == "row" else of.m,)
        if role == "offs":
            return (of.groups,)
        return (of.m, columns) if role == "out" else of.shape(role)

    roles = tuple(tensors)
    shapes = tuple(map(shape, roles))
    ends = tensors["offs"].dtype if "offs" in tensors else ""

    def kernel(tiling: Tiling) -> Kernel:
        stored = of.dtype, of.t1, of.t2
        return Kernel(arch, *stored, form, activation, tuple(vectors), tiling, of.groups > 0)

    def env(tiling: Tiling, configs: Configs | None = None) -> OpEnv:
        clusters = max(1, at.processors // tiling.cluster)
        wanted = kernel(tiling), Plan(form, roles, shapes, clusters, ends)
        return OpEnv(Deferred(wanted, compile_all), allocates=False, configs=configs)

    first, *others = tilings(at.capability[0], form, of.n, of.m)
    configs = Configs(
        lambda: [one.config for one in others[:LISTED]],
        lambda config: env(named(config, [first, *others])),
    )
    return env(first, configs)
