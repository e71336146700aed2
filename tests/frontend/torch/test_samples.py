"""PyTorch's own operator samples, each exported as a module: results and gradients are torch's.

What torch.export or a converter refuses, and what has no gradient, is in a list.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn

import meta
from meta.frontend import from_torch
from meta.frontend.aten import AtenError
from meta.op.core import tree
from tests.frontend.listed import check_listed, check_names
from tests.frontend.shared_lists import WITHOUT_DTYPE
from tests.frontend.torch.lists import NOT_AS_TORCH
from tools.torch_samples.ambiguous import compare_undefined
from tools.torch_samples.compare import GRADIENT_TOLERANCE, TOLERANCE, compare, widened
from tools.torch_samples.entries import ENTRIES, TensorCall, dtypes_of, of_torch, samples
from tools.torch_samples.functions import WRONG_GRADIENTS

FEW = 2
SIGNED = {"linalg.eigh", "linalg.svd", "svd", "linalg.qr", "qr", "pca_lowrank", "svd_lowrank"}
"""Whose vectors have a sign that nothing determines."""


class Sample(nn.Module):
    """A call of an entry, as a module of the tensors that are floating point or not."""

    def __init__(self, entry: Any, sample: Any) -> None:
        super().__init__()
        self.entry, self.call = entry, TensorCall(sample)
        self.tensors = self.call.tensors

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.call(self.entry, tensors)

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


def run(key: str, sample: Any) -> str:
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
    plain = [a.detach() for a in arrays]

    def theirs() -> Any:
        with of_torch(), torch.no_grad():
            return module.forward(*module.tensors)

    if compare_undefined(key, sample, found, results, lambda: model(*plain), theirs):
        return "same"

    def exact(part: int) -> Any:
        with of_torch():
            wide = [widened(t.detach()).requires_grad_(t.requires_grad) for t in module.tensors]
            return module.differentiated(wide)[part]

    leaves = tree.flatten(found)[0]
    if not results:
        assert found == module.forward(*module.tensors)
        return "same"
    if key in SIGNED:
        compare([meta.abs(x) for x in leaves], [x.abs() for x in results], TOLERANCE, "sizes", list)
    else:
        compare(leaves, results, TOLERANCE, "result", lambda: exact(0))
    if gradients and key not in WRONG_GRADIENTS:
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
@pytest.mark.parametrize("key", sorted(ENTRIES.keys() - WITHOUT_DTYPE))
def test_the_first_samples(key: str) -> None:
    with meta.dialect.prefer("torch"):
        firsts = itertools.islice(samples(key, dtypes_of(key)[0]), FEW)
        found = [run(key, sample) for sample in firsts]
    assert found, "torch has no sample"
    check_listed(key, [text for text in found if text != "same"], NOT_AS_TORCH)


@pytest.mark.skipif(
    not torch.__version__.startswith("2.13."), reason="the lists are of the entries of torch 2.13"
)
def test_the_lists_are_of_entries() -> None:
    check_names(NOT_AS_TORCH, ENTRIES)
    assert all(not dtypes_of(key) for key in WITHOUT_DTYPE)
