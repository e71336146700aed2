"""torch's own samples of its operators under torch.compile(backend="meta", fullgraph=True), forward
and backward, beside eager PyTorch.

Kernels are torch's: what is tested is how calls are converted, and what calls back.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from tools.torch_samples.entries import ENTRIES, dtypes_of, of_torch, samples

MOST = 6
"""Samples of an entry: each is compiled."""
REFUSED = {
    "as_strided|partial_views": "may read what is no part of it",
    "chalf": "programs do not have the dtype of a result",
}
"""By entry, what the error says of samples that the backend refuses."""
COARSE = {"logcumsumexp": 3e-3}
"""By entry, a tolerance in float32: with samples of 10,000, torch's own gradients are off 1e-3."""
NO_GRAPH = (
    torch._dynamo.exc.Unsupported,
    torch._dynamo.exc.UserError,
    torch._dynamo.exc.InternalTorchDynamoError,
)
SIZED_BY_DATA = "depends on data|data-dependent"
"""What the error, ours or AOTAutograd's, says of samples with sizes that nobody knows."""


def _tensors(value: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(value)
    return [x for x in leaves if isinstance(x, torch.Tensor)]


def _fresh(sample: Any) -> tuple[list[torch.Tensor], Callable[..., Any]]:
    """Return copies of a sample's tensors, and what makes a call's arguments of them."""
    given = (sample.input, sample.args, sample.kwargs)
    leaves, structure = pytree.tree_flatten(given)
    places = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]

    def arguments(tensors: list[torch.Tensor]) -> Any:
        full = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            full[place] = tensor
        return pytree.tree_unflatten(full, structure)

    return [_copy(leaves[i]) for i in places], arguments


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a leaf that lies in memory as another tensor does, in a copy of all of that memory."""
    if tensor.layout is not torch.strided:
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)
    memory = tensor.untyped_storage().clone()
    made = torch.empty(0, dtype=tensor.dtype)
    made.set_(memory, tensor.storage_offset(), tensor.shape, tensor.stride())
    made = made.conj() if tensor.is_conj() else made
    made = torch._neg_view(made) if tensor.is_neg() else made
    return made.detach().requires_grad_(tensor.requires_grad)


def _run(
    call: Callable[..., Any], sample: Any, seed: int = 0
) -> tuple[Any, list[Any], list[torch.Tensor]]:
    """Return the result of a call on copies, the gradients of its tensors, and these tensors.

    What a sample says of its result is done first: of eigenvectors it takes away the sign.
    """
    tensors, arguments = _fresh(sample)
    torch.manual_seed(seed)
    result = sample.output_process_fn_grad(call(*arguments(tensors)))
    trained = [t for t in tensors if t.requires_grad]
    outs = [t for t in _tensors(result) if t.requires_grad]
    if not trained or not outs:
        return result, [], tensors
    seeds = [torch.linspace(-1, 1, o.numel()).reshape(o.shape).to(o.dtype) for o in outs]
    gradients = torch.autograd.grad(outs, trained, seeds, allow_unused=True)
    return result, list(gradients), tensors


def _same(found: Any, expected: Any, what: str, coarse: float) -> None:
    for a, b in itertools.zip_longest(_tensors(found), _tensors(expected)):
        wide = coarse if b.dtype in (torch.float32, torch.complex64) else 1e-7
        torch.testing.assert_close(
            a, b, rtol=wide, atol=wide, equal_nan=True, msg=lambda text: f"{what}: {text}"
        )


def _calls(key: str) -> Iterator[tuple[Any, Callable[..., Any]]]:
    entry = ENTRIES[key]
    dtype = next(d for d in dtypes_of(key))
    for sample in itertools.islice(samples(key, dtype), MOST):
        yield sample, lambda x, args, kwargs: entry.op(x, *args, **kwargs)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's samples are unusual, and Dynamo warns of much
@pytest.mark.parametrize("key", sorted(ENTRIES))
def test_samples_are_as_in_eager_pytorch(key: str) -> None:
    if not dtypes_of(key):
        pytest.skip("torch has no dtype of it here")
    for sample, call in _calls(key):
        with of_torch():
            try:
                expected = _run(call, sample)
            except (RuntimeError, AssertionError) as error:
                pytest.skip(f"torch does not run it on the CPU: {error}")
            again = _run(call, sample, seed=1)
        torch._dynamo.reset()
        run = torch.compile(call, backend="meta", fullgraph=True, options={"dispatch": "torch"})
        try:
            found = _run(run, sample)
        except NO_GRAPH as error:
            torch._dynamo.reset()
            with pytest.raises(NO_GRAPH):
                _run(torch.compile(call, backend="eager", fullgraph=True), sample)
            pytest.skip(f"Dynamo makes no graph of it: {str(error).splitlines()[0]}")
        except torch._dynamo.exc.BackendCompilerFailed as error:
            if re.search(REFUSED.get(key, SIZED_BY_DATA), str(error)):
                continue
            raise
        what = f"{key} of {sample}"
        pairs = zip(_tensors(expected[0]), _tensors(again[0]), strict=True)
        known = "empty" not in key  # which has whatever is in memory
        if not known or not all(
            torch.allclose(a.detach(), b.detach(), equal_nan=True) for a, b in pairs
        ):
            shapes = [[(t.shape, t.dtype) for t in _tensors(r[0])] for r in (found, expected)]
            assert shapes[0] == shapes[1], what
            continue
        for part in range(3):
            _same(found[part], expected[part], what, COARSE.get(key, 1e-3))
