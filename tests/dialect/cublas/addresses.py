"""Fused kernels of the dialect with each of their tensors, and all, at addresses that are multiples
of the elements' size alone: on a device, and on the CPU with an emulated library.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from meta.base.device import Device
from meta.dialect.cublas import cublas
from meta.ir.types import TensorType

Tensors = tuple[torch.Tensor, ...]
SIZES = [(64, 96, 32), (33, 7, 48)]
"""Rows, summed, and columns."""


def run(name: str, result: Any, device: Device, **captures: Any) -> Any:
    """Run a fused kernel on tensors; other captures are literals. Returns what it fills."""
    cublas.load()
    types = {n: _type(v) if isinstance(v, torch.Tensor) else v for n, v in captures.items()}
    outs = result if isinstance(result, tuple) else (result,)
    kinds = tuple(map(_type, outs))
    env = cublas.patterns[name].prepare(
        types, kinds if isinstance(result, tuple) else kinds[0], device
    )
    env.run(*[v for v in captures.values() if isinstance(v, torch.Tensor)], *outs)
    return result


def _type(tensor: torch.Tensor) -> TensorType:
    return TensorType(tuple(tensor.shape), str(tensor.dtype)[6:])


def at_any_address(
    product: str, sizes: tuple[int, int, int], dtype: str, device: Device
) -> Iterator[tuple[str, Tensors, Tensors]]:
    """Yield the kernel, what it computed and what is right, in float64."""
    m, k, n = sizes
    weights = (n, k) if product == "dense" else (k, n)
    generator = torch.Generator(str(device)).manual_seed(0)
    x, b, c, w = (
        torch.randn(shape, generator=generator, device=str(device)).to(getattr(torch, dtype))
        for shape in ((m, k), (n,), (m, n), weights)
    )
    y = x.double() @ (w.t() if product == "dense" else w).double()
    biased, base, bias = y + b.double(), {"x": x, "w": w}, {"b": b, "axis": 1}
    cases: list[tuple[str, dict[str, Any], Any]] = [
        ("relu", base, [y.relu()]),
        ("add", base | {"c": c}, [y + c.double()]),
        ("bias_relu", base | bias, [biased.relu()]),
        ("bias_add", base | bias | {"c": c}, [biased + c.double()]),
    ]
    if dtype != "float64":
        gelu = F.gelu(biased, approximate="tanh")
        cases.append(("bias_gelu", base | bias, [gelu]))
        cases.append(("bias_gelu_kept", base | bias, [gelu, biased]))
    if n // 2 * x.element_size() % 16 == 0:
        split = base | {"b": b, "along": 1, "parts": 2, "axis": 1}
        cases.append(("bias_split", split, biased.split(n // 2, 1)))
    dw = c.double().t() @ x.double()
    sums = [dw if product == "dense" else dw.t(), c.double().sum(0)]
    cases.append(("dw_db", {"dy": c, "x": x, "axis": 0, "keepdims": False}, sums))
    for name, given, expected in cases:
        for tensors, results in _moved(given, [e.to(x.dtype).contiguous() for e in expected]):
            several = len(results) > 1
            run(f"{product}_{name}", results if several else results[0], device, **tensors)
            yield name, results, tuple(expected)


def _moved(given: dict[str, Any], outs: list[torch.Tensor]) -> Iterator[Any]:
    """Yield the arguments of a kernel with each tensor at an odd address, and with all."""
    names = [*(n for n, v in given.items() if isinstance(v, torch.Tensor)), *range(len(outs))]
    for moved in (*([n] for n in names), names):
        yield (
            {n: odd(v) if n in moved else v for n, v in given.items()},
            tuple(odd(o) if i in moved else torch.empty_like(o) for i, o in enumerate(outs)),
        )


def odd(x: torch.Tensor) -> torch.Tensor:
    """Return a copy at an address that is a multiple of the elements' size alone."""
    return x.new_empty(x.numel() + 1)[1:].view(x.shape).copy_(x)
