"""Operators that only torch has are called as torch's functions: the same arguments in the same
order give the same results and gradients, eagerly and compiled. Parameters and defaults agree.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import meta
from meta.base.errors import MetaError
from meta.model import trace


@dataclass(frozen=True)
class N:
    """Normal numbers of a shape, of which a gradient is taken."""

    shape: tuple[int, ...]
    fill: float | None = None

    def make(self, generator: torch.Generator) -> torch.Tensor:
        if self.fill is not None:
            return torch.full(self.shape, self.fill, dtype=torch.float64)
        return torch.randn(self.shape, dtype=torch.float64, generator=generator)


def n(*shape: int) -> N:
    return N(shape)


@dataclass
class Row:
    """A call of both libraries."""

    name: str
    args: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        shapes = (list(a.shape) if hasattr(a, "shape") else a for a in self.args)
        return f"{self.name}({', '.join(map(str, shapes))}, {self.options})"


def causal(rows: int, columns: int) -> torch.Tensor:
    return torch.ones(rows, columns, dtype=torch.bool).tril()


HIDDEN = torch.tensor([[0.0, -torch.inf, 1.0], [-torch.inf] * 3], dtype=torch.float64)
ATTENTION = "scaled_dot_product_attention"
ROWS = [
    Row(ATTENTION, (n(2, 3, 4, 5), n(2, 3, 6, 5), n(2, 3, 6, 7))),
    Row(ATTENTION, (n(2, 3, 4, 5), n(2, 3, 6, 5), n(2, 3, 6, 5), None, 0.0, True)),
    Row(ATTENTION, (n(1, 2, 6, 5), n(1, 2, 4, 5), n(1, 2, 4, 5)), {"is_causal": True}),
    Row(ATTENTION, (n(4, 5), n(6, 5), n(6, 7), None, 0.0, False), {"scale": 0.3}),
    Row(ATTENTION, (n(3, 4, 5), n(3, 6, 5), n(3, 6, 7), causal(4, 6))),
    Row(ATTENTION, (n(3, 4, 5), n(1, 6, 5), n(3, 6, 7), n(3, 4, 6))),
    Row(ATTENTION, (n(2, 2, 3, 4, 5), n(2, 2, 3, 6, 5), n(2, 2, 3, 6, 5), n(2, 1, 3, 4, 6))),
    Row(ATTENTION, (n(2, 1, 4, 5), n(2, 2, 6, 5), n(1, 2, 6, 5))),
    Row(ATTENTION, (n(2, 2, 4, 5), n(2, 1, 6, 5), n(2, 1, 6, 5))),
    Row(ATTENTION, (n(2, 4, 3, 5), n(2, 2, 6, 5), n(2, 2, 6, 5)), {"enable_gqa": True}),
    Row(ATTENTION, (n(1, 2, 2, 4), n(1, 2, 3, 4), n(1, 2, 3, 4), HIDDEN)),
    Row(ATTENTION, (n(1, 2, 2, 4), n(1, 2, 3, 4), n(1, 2, 3, 4), HIDDEN > 0)),
    Row(ATTENTION, (n(2, 0, 4, 5), n(2, 0, 6, 5), n(2, 0, 6, 5))),
    Row("conv1d", (n(2, 3, 7), n(4, 3, 2))),
    Row("conv1d", (n(3, 7), n(4, 3, 2), n(4), 2, "valid")),
    Row("conv2d", (n(2, 3, 7, 6), n(4, 3, 3, 2), n(4))),
    Row("conv2d", (n(2, 4, 7, 6), n(4, 2, 3, 2), n(4), (2, 1), (1, 0), (1, 2), 2)),
    Row("conv2d", (n(2, 3, 7, 6), n(4, 3, 3, 2), None), {"padding": "same", "dilation": (1, 2)}),
    Row("conv2d", (n(3, 7, 6), n(4, 3, 3, 2), n(4), 2)),
    Row("conv3d", (n(1, 2, 3, 4, 3), n(2, 2, 2, 2, 1), n(2))),
    Row("conv_transpose1d", (n(2, 3, 5), n(3, 4, 2), n(4), 2, 1, 1)),
    Row("conv_transpose2d", (n(2, 4, 3, 4), n(4, 3, 2, 2), n(6), 2, 1, (1, 0), 2, 2)),
    Row("conv_transpose2d", (n(4, 3, 4), n(4, 3, 2, 2))),
    Row("conv_transpose3d", (n(1, 2, 3, 2, 2), n(2, 3, 2, 2, 1), n(3), 2)),
    Row("max_pool1d", (n(2, 3, 7), 2)),
    Row("max_pool2d", (n(2, 3, 7, 6), 2)),
    Row("max_pool2d", (n(3, 7, 6), (3, 2), (2, 1), (1, 0), 1, True)),
    Row("max_pool2d", (n(2, 3, 7, 8), 3, 2, 1, 2), {"return_indices": True}),
    Row("max_pool2d", (n(1, 2, 7, 6), 3, 2, 1, 1, True, True)),
    Row("max_pool2d", (N((1, 1, 3, 3), 0.0), 2, 1, 1), {"return_indices": True}),
    Row("max_pool1d", (n(2, 7), 2), {"return_indices": True}),
    Row("max_pool3d", (n(1, 2, 4, 5, 3), 2), {"return_indices": True}),
    Row("avg_pool1d", (n(2, 3, 7), 3, None, 1)),
    Row("avg_pool2d", (n(2, 3, 7, 6), 2)),
    Row("avg_pool2d", (n(3, 7, 6), 3, 2, 1, True, False)),
    Row("avg_pool2d", (n(1, 2, 7, 6), 3, 2, 1, True), {"divisor_override": 5}),
    Row("avg_pool3d", (n(1, 2, 4, 5, 3), 2, 1), {"divisor_override": -2}),
    Row("adaptive_avg_pool2d", (n(2, 3, 7, 6), (3, None))),
    Row("adaptive_avg_pool1d", (n(3, 7), 2)),
    Row("adaptive_max_pool2d", (n(2, 3, 7, 6), 2)),
    Row("adaptive_max_pool2d", (n(3, 7, 6), (None, 4), True)),
    Row("adaptive_max_pool2d", (N((1, 2, 3, 3), 0.0), 2), {"return_indices": True}),
    Row("adaptive_max_pool1d", (n(2, 3, 7), 9), {"return_indices": True}),
    Row("adaptive_max_pool3d", (n(1, 2, 4, 5, 3), (3, 2, 1)), {"return_indices": True}),
    Row("max_unpool1d", (n(2, 3, 3), torch.tensor([[[0, 3, 5]] * 3] * 2), 2)),
    Row("max_unpool2d", (n(1, 1, 2, 2), torch.tensor([[[[0, 5], [13, 20]]]]), 2, 3, 0, (5, 6))),
    Row("max_unpool3d", (n(1, 2, 1, 1), torch.tensor([[[[7]], [[13]]]]), 2)),
    Row("layer_norm", (n(2, 3, 4), (4,), n(4), n(4))),
    Row("layer_norm", (n(2, 3, 4), (3, 4), n(3, 4), n(3, 4), 1e-3)),
    Row("layer_norm", (n(2, 3, 4), (3, 4), None, n(3, 4))),
    Row("layer_norm", (n(4), (4,))),
    Row("rms_norm", (n(2, 3, 4), (4,), n(4))),
    Row("rms_norm", (n(2, 3, 4), (3, 4), None, 1e-2)),
    Row("group_norm", (n(2, 4, 3), 2, n(4), n(4))),
    Row("group_norm", (n(2, 4, 3), 2, n(4), n(4), 1e-2)),
    Row("instance_norm", (n(2, 3, 4, 4), None, None, n(3), n(3))),
    Row(
        "instance_norm",
        (n(2, 3, 4), torch.zeros(3).double(), torch.ones(3).double() * 2),
        {"use_input_stats": False, "eps": 1e-2},
    ),
    Row("batch_norm", (n(2, 3, 4), torch.zeros(3).double(), torch.ones(3).double() * 2, n(3))),
    Row("batch_norm", (n(2, 3, 4), None, None, n(3), n(3), True)),
    Row("linear", (n(3, 4), n(5, 4), n(5))),
    Row("linear", (n(2, 3, 4), n(5, 4))),
    Row("linear", (n(4), n(5, 4), n(5))),
    Row("linear", (n(3, 4), n(4))),
    Row("linear", (n(2, 0, 4), n(5, 4), n(5))),
    Row("embedding", (torch.tensor([[0, 2], [1, 2]]), n(4, 3))),
    Row("embedding", (torch.tensor([0, 2, -3 % 4]), n(4, 3), -2)),
    Row("embedding_bag", (torch.tensor([[0, 2], [1, 2]]), n(4, 3))),
    Row("embedding_bag", (torch.tensor([0, 2, 1]), n(4, 3), torch.tensor([0, 2])), {"mode": "sum"}),
    Row("dropout", (n(3, 4), 0.5, False)),
    Row("dropout", (n(3, 4), 0.0)),
    Row("dropout", (n(3, 4), 1.0)),
]


def flat(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple | list) else [result]


def theirs(row: Row) -> tuple[list[torch.Tensor], list[torch.Tensor], list[Any]]:
    """Return torch's results, the gradients of the sum of their squares, and the arguments."""
    generator = torch.Generator().manual_seed(0)
    args = [a.make(generator) if isinstance(a, N) else a for a in row.args]
    leaves = [a.requires_grad_() for a, r in zip(args, row.args, strict=True) if isinstance(r, N)]
    # As its formula says: fused attention of torch 2.11 divides by zero for no heads.
    with sdpa_kernel(SDPBackend.MATH):
        results = flat(getattr(F, row.name)(*args, **row.options))
    total = sum((r * r).sum() for r in results if r.is_floating_point())
    gradients = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
    return [r.detach() for r in results], list(gradients), args


def close(found: Any, wanted: torch.Tensor) -> None:
    assert tuple(found.shape) == tuple(wanted.shape)
    torch.testing.assert_close(found.torch().to(wanted.dtype), wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_results_and_gradients_are_torchs(row: Row) -> None:
    results, gradients, args = theirs(row)
    arrays = [meta.array(a.detach().clone()) if isinstance(a, torch.Tensor) else a for a in args]
    leaves = [a for a, r in zip(arrays, row.args, strict=True) if isinstance(r, N)]
    for leaf in leaves:
        leaf.requires_grad = True
    found = flat(getattr(meta, row.name)(*arrays, **row.options))
    assert len(found) == len(results)
    for ours, wanted in zip(found, results, strict=True):
        close(ours, wanted)
    floats = [r for r in found if r.dtype == "float64"]
    sum((meta.sum(r * r) for r in floats[1:]), meta.sum(floats[0] * floats[0])).backward()
    for leaf, wanted in zip(leaves, gradients, strict=True):
        close(meta.zeros_like(leaf) if leaf.grad is None else leaf.grad, wanted)
    places = [i for i, a in enumerate(arrays) if isinstance(a, meta.ndarray)]

    @trace
    def program(*tensors: Any) -> Any:
        given = dict(zip(places, tensors, strict=True))
        full = [given.get(i, a) for i, a in enumerate(arrays)]
        return tuple(flat(getattr(meta, row.name)(*full, **row.options)))

    tensors = [arrays[i].detach() for i in places]
    for ours, wanted in zip(meta.vm.compile(program, *tensors)(*tensors), results, strict=True):
        close(ours, wanted)


OTHER_NAMES = {"input": "x"}
"""By torch's parameter: what it is called here, in every operator."""
OWN_NAMES = {name: {"input": "indices"} for name in ("embedding", "embedding_bag")}
"""The same in some operators."""
WITHOUT = {
    *("inplace", "_stacklevel", "dtype"),
    *("max_norm", "norm_type", "scale_grad_by_freq", "sparse"),  # of `embedding` and its bags
}
"""Parameters of torch's that are left out: operators return new arrays."""


@pytest.mark.parametrize("name", sorted({row.name for row in ROWS}))
def test_parameters_and_defaults_are_torchs(name: str) -> None:
    wanted = [p for p in signature_of(name) if p[0] not in WITHOUT]
    ours = inspect.signature(getattr(meta, name)).parameters.values()
    named = dict(wanted)
    found = [(p.name, p.default) for p in ours if p.kind is not p.KEYWORD_ONLY or p.name in named]
    names = {**OTHER_NAMES, **OWN_NAMES.get(name, {})}
    assert found == [(names.get(k, k), default) for k, default in wanted]


def signature_of(name: str) -> list[tuple[str, Any]]:
    """Return the parameters of a function of torch; those of a builtin are in its docstring."""
    function = getattr(F, f"{name}_with_indices", getattr(F, name))
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        text = function.__doc__.strip().partition(" -> ")[0].partition(":\n")[0]
        scope: dict[str, Any] = {}
        exec(f"def {text}: pass", scope)
        parameters = inspect.signature(scope[name]).parameters.values()
    return [(p.name, p.default) for p in parameters]


@pytest.mark.parametrize("name", ["max_pool", "adaptive_max_pool"])
@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("often", [torch.nan, -torch.inf, 1.0])
def test_places_of_equal_maxima_and_of_nans_are_torchs(name: str, axes: int, often: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, *(7, 6, 5)[:axes], generator=generator)
    x[torch.rand(x.shape, generator=generator) < 0.4] = often
    _, wanted = getattr(F, f"{name}{axes}d")(x, 3, return_indices=True)
    _, found = getattr(meta, f"{name}{axes}d")(x, 3, return_indices=True)
    assert found.dtype == "int64" and torch.equal(found.torch(), wanted)


X = meta.array(torch.randn(2, 4, 3, 5))
Q = meta.array(torch.randn(2, 2, 3, 5))


@pytest.mark.parametrize(
    ("name", "args", "options", "message"),
    [
        (ATTENTION, (X, X, X, None, True), {}, "is_causal=True"),
        (ATTENTION, (X, X, X), {"is_causal": 1}, "is_causal does not fit"),
        (ATTENTION, (X, X, X), {"scale": True}, "scale does not fit"),
        (ATTENTION, (X, Q, Q), {}, "enable_gqa=True"),
        (ATTENTION, (X, Q, Q), {"dropout_p": 0.5}, "enable_gqa=True"),
        (ATTENTION, (X, X[0, 0, 0], X), {}, "need 2 axes"),
        (ATTENTION, (X, X, X, meta.array(torch.ones(3, 4))), {"dropout_p": 0.1}, "broadcast"),
        (ATTENTION, (X, X, X, meta.array(torch.ones(3, 4))), {}, "broadcast"),
        (ATTENTION, (X, X, X, meta.array([1, 2, 3])), {"dropout_p": 0.1}, "must be bool, or"),
        ("conv2d", (X, Q, 2), {}, "stride=2"),
        ("conv2d", (X, Q, (2, 1)), {}, "the bias comes behind the weight"),
        ("conv2d", (X, X, None, 2, "same"), {}, "with stride 1"),
        ("conv2d", (X, X), {"padding": "full"}, "this padding is not known"),
        ("conv2d", (X, X, meta.array([1.0, 2.0, 3.0])), {}, "conv2d|bias"),
        ("conv_transpose2d", (X, Q, 2), {}, "stride=2"),
        ("layer_norm", (X, Q[0, 0, 0], Q[0, 0, 0]), {}, "extents of the last axes"),
        ("layer_norm", (X, (4,)), {}, "normalized_shape does not fit"),
        ("layer_norm", (X, 5, 1e-5), {}, "weight is no array"),
        ("layer_norm", (X, 5, X), {}, "weight does not fit"),
        ("rms_norm", (X, Q[0, 0, 0]), {}, "extents of the last axes"),
        ("instance_norm", (X, Q[0, 0, 0], Q[0, 0, 0]), {}, "weight=..., bias=..."),
        ("batch_norm", (X, None, None), {}, "are needed"),
        ("batch_norm", (X, None, Q[0, 0, 0]), {"training": True}, "is missing"),
        ("linear", (X, Q), {}, "do not fit"),
        ("linear", (X, Q[0, 0, :, :4]), {}, "differ in their last axis"),
        ("linear", (X, Q[0, 0], meta.array([1.0, 2.0])), {}, "bias does not fit"),
        ("linear", (X, Q[0, 0], 1), {}, "bias is no array"),
        ("adaptive_max_pool2d", (X, 2, True), {"layout": "NHWC"}, "in the usual layout"),
        ("adaptive_max_pool2d", (X[0, 0], (2, None)), {}, "3 or 4 axes"),
        ("adaptive_avg_pool2d", (X, (2, None)), {"layout": "NCHH"}, "x and layout do not fit"),
        ("embedding", (Q, meta.array([1, 2])), {}, "the indices come first"),
        ("dropout", (X, 1.5), {}, "0 <= p <= 1"),
        ("dropout", (X, True), {}, "0 <= p <= 1"),
        ("dropout", (X, 0.5, X), {}, "training does not fit"),
        ("dropout", (meta.array([1, 2]),), {}, "must be floating point"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_such_call_is_refused(
    name: str, args: tuple[Any, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(MetaError, match=message):
        getattr(meta, name)(*args, **options)
