"""PyTorch's own operator samples, each exported as a module: results and gradients are torch's.

A sample that torch.export or a converter refuses is no failure, as nothing wrong comes of it; what
is refused is counted by `tools.aten_overloads`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import meta
from meta.frontend import from_torch
from meta.frontend.aten import AtenError
from meta.op.core import tree
from tools.torch_samples.compare import GRADIENT_TOLERANCE, TOLERANCE, compare, widened
from tools.torch_samples.entries import ENTRIES, dtypes_of, of_torch, samples

FEW = 2
WRONG_GRADIENT = {"as_strided_scatter"}
"""What torch's own gradient of is wrong: 1 of x in ``as_strided_scatter(x, y, [], [], 0)``, which
is [y]."""
SIGNED = {"linalg.eigh", "linalg.svd", "svd", "linalg.qr", "qr", "pca_lowrank", "svd_lowrank"}
"""Whose vectors have a sign that nothing determines."""
DRAWS = torch.Tag.nondeterministic_seeded


class Sample(nn.Module):
    """A call of an entry, as a module of the tensors that are floating point or not."""

    def __init__(self, entry: Any, sample: Any) -> None:
        super().__init__()
        self.entry = entry
        leaves, self.structure = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        self.places = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
        self.tensors = [leaves[i] for i in self.places]
        self.rest = [None if i in self.places else x for i, x in enumerate(leaves)]

    def forward(self, *tensors: torch.Tensor) -> Any:
        leaves = list(self.rest)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        x, args, kwargs = pytree.tree_unflatten(leaves, self.structure)
        return self.entry(x, *args, **kwargs)

    def differentiated(self, tensors: list[torch.Tensor]) -> tuple[list[Any], list[Any]]:
        """Return the results, and the gradients of the sum of squares of those that have one."""
        leaves = [t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]
        results = tree.flatten(self.forward(*leaves))[0]
        summed = [r for r in results if r.requires_grad]
        wanted = [x for x in leaves if x.requires_grad]
        if not summed or not wanted:
            return results, []
        loss = sum((r * r.conj()).real.sum() for r in summed)
        return results, list(torch.autograd.grad(loss, wanted, allow_unused=True))


def draws(model: Any, tensors: list[torch.Tensor]) -> bool:
    """Whether a program draws random numbers, or returns memory that was not written."""
    graph = model.torch_program(False).module.graph
    return any(
        isinstance(n.target, torch._ops.OpOverload)
        and (DRAWS in n.target.tags or "empty" in str(n.target))
        for n in graph.nodes
    )


def run(key: str, dtype: torch.dtype, sample: Any) -> str:
    """Compare one sample; return what came of it: "same", or why it is refused."""
    module = Sample(ENTRIES[key], sample)
    with of_torch():
        try:
            results, gradients = module.differentiated(module.tensors)
        except (RuntimeError, NotImplementedError, AssertionError) as error:
            return f"torch: {error}"
        try:
            model = from_torch(module, [t.detach() for t in module.tensors])
            arrays = [meta.array(t.detach()) for t in module.tensors]
            for array, tensor in zip(arrays, module.tensors, strict=True):
                array.requires_grad = bool(gradients) and tensor.requires_grad
            found = model(*arrays)
        except AtenError as error:
            return f"refused: {error}"
    if draws(model, module.tensors):
        return "random"

    def exact(part: int) -> Any:
        with of_torch():
            wide = [widened(t.detach()).requires_grad_(t.requires_grad) for t in module.tensors]
            return module.differentiated(wide)[part]

    leaves = tree.flatten(found)[0]
    if not results:
        return "no tensors"
    if key in SIGNED:
        compare([meta.abs(x) for x in leaves], [x.abs() for x in results], TOLERANCE, "sizes", list)
    else:
        compare(leaves, results, TOLERANCE, "result", lambda: exact(0))
    if gradients and key not in WRONG_GRADIENT:
        summed = [r for r, w in zip(leaves, results, strict=True) if w.requires_grad]
        try:
            sum(map(_squares, summed)).backward()
        except meta.errors.GradientError as error:
            return f"no gradient: {error}"
        own = [a.grad for a, t in zip(arrays, module.tensors, strict=True) if t.requires_grad]
        for i, (o, w) in enumerate(zip(own, gradients, strict=True)):
            if o is None or w is None:
                assert o is None or w is not None or not o.torch().any(), f"gradient {i}"
                assert w is None or o is not None or not w.any(), f"gradient {i} is missing"
                continue
            compare(o, w, GRADIENT_TOLERANCE, f"gradient {i}", lambda i=i: exact(1)[i])
    return "same"


def _squares(x: Any) -> Any:
    return meta.real(x * meta.conj(x)).sum() if "complex" in x.dtype else (x * x).sum()


@pytest.mark.slow
@pytest.mark.parametrize("key", sorted(ENTRIES))
def test_the_first_samples(key: str) -> None:
    for dtype in dtypes_of(key)[:1]:
        for _, sample in zip(range(FEW), samples(key, dtype), strict=False):
            with meta.dialect.prefer("torch"):
                run(key, dtype, sample)
