"""Normalisation, losses, embeddings and steps of optimizers: what torch's samples do not reach."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import meta
from meta.frontend.aten.graph import convert
from meta.frontend.aten.registry import overload_of
from meta.frontend.core import Unconvertible
from tests.frontend.aten.calls import Call, call, check, check_symbolic, draws, ours

X, ROWS = draws(3, 4, 5, 2), draws(3, 5, 4)
SCALE, OFFSET, MEAN, VAR = draws(4), draws(4) + 1, draws(4) - 1, draws(4).abs() + 0.5
HALF = torch.bfloat16
STATS = (SCALE, OFFSET, MEAN, VAR)
LABELS, NEGATIVE = torch.tensor([1, 0, 3]), torch.tensor([1, -100, 3])
SCORES, WEIGHTS = draws(3, 4), draws(4).abs()
PLANES, PLANE_LABELS = draws(2, 4, 3, 2), torch.arange(12).reshape(2, 3, 2) % 4
P, T = draws(3, 4), draws(3, 4).flip(0)
PROBABILITIES = T.sigmoid()
TABLE, INDICES = draws(7, 4), torch.tensor([1, 2, 2, 6, 3, 0])
BAGS = torch.tensor([0, 2, 2, 5])
TIED = torch.tensor([[0.0, 1.0, 2.0], [1.0, 1.0, 3.0], [0.0, 1.0, 2.0]])
HALVES = torch.arange(-8, 8) / 4
DY = draws(3, 4, 5, 2).flip(0)

FUNCTIONAL = "_native_batch_norm_legit_functional"
CASES = [
    call(FUNCTIONAL, X, *STATS, True, 0.1, 1e-5),
    call(FUNCTIONAL, X, *STATS, False, 0.1, 1e-5),
    call(FUNCTIONAL, X, None, None, MEAN, VAR, True, 0.3, 1e-3),
    call(FUNCTIONAL, X[..., 0, 0], *STATS, True, 0.1, 1e-5, label="no spatial axes"),
    call("_native_batch_norm_legit.no_stats", X, SCALE, OFFSET, True, 0.1, 1e-5),
    call("_native_batch_norm_legit_no_training", X, *STATS, 0.1, 1e-5),
    call("_native_batch_norm_legit_no_training", X, None, OFFSET, MEAN, VAR, 0.1, 1e-5),
    call("batch_norm", X, *STATS, False, 0.1, 1e-5, True),
    call("instance_norm", X, SCALE, OFFSET, None, None, True, 0.1, 1e-5, True),
    call("instance_norm", X, SCALE, OFFSET, MEAN, VAR, False, 0.1, 1e-5, True),
    call("native_layer_norm", ROWS, [5, 4], draws(5, 4), None, 1e-5),
    call("native_layer_norm", ROWS, [4], None, OFFSET, 1e-5, label="an offset alone"),
    call("native_layer_norm", ROWS.to(HALF), [4], SCALE.to(HALF), OFFSET.to(HALF), 1e-5),
    call("native_layer_norm", ROWS.to(HALF), [4], SCALE, OFFSET, 1e-5, label="wide parameters"),
    call("native_layer_norm", ROWS[:0], [4], SCALE, OFFSET, 1e-5, label="no rows"),
    call("layer_norm", ROWS, [4], SCALE, None),
    call("native_group_norm", X, SCALE, OFFSET, 3, 4, 10, 2, 1e-5),
    call("native_group_norm", X.to(HALF), None, None, 3, 4, 10, 4, 1e-5),
    call("group_norm", X, 2, SCALE, OFFSET),
    call("rms_norm", ROWS, [4], SCALE),
    call("rms_norm", ROWS, [5, 4], None, 1e-3),
    call("_weight_norm_interface", draws(4, 3, 2), draws(4, 1, 1)),
    call("_weight_norm_interface", draws(4, 3, 2), draws(1, 1, 2), 2),
    call("norm_except_dim", draws(4, 3, 2), 2, 1),
    call("norm_except_dim", draws(4, 3, 2), 1, -1),
    call("nll_loss_forward", SCORES, LABELS, None, 1, -100),
    call("nll_loss_forward", SCORES, NEGATIVE, WEIGHTS, 1, -100),
    call("nll_loss_forward", SCORES, LABELS, WEIGHTS, 2, 1),
    call("nll_loss_forward", SCORES, NEGATIVE, None, 0, -100),
    call("nll_loss_forward", SCORES[0], LABELS[0], WEIGHTS, 1, -100, label="one row"),
    call("nll_loss2d_forward", PLANES, PLANE_LABELS, WEIGHTS, 1, 2),
    call("nll_loss2d_forward", PLANES, PLANE_LABELS, None, 0, 2),
    call("nll_loss_backward", draws(1)[0], SCORES, NEGATIVE, None, 1, -100, torch.tensor(2.0)),
    call("nll_loss_backward", draws(1)[0], SCORES, LABELS, WEIGHTS, 1, 1, WEIGHTS[[0, 3]].sum()),
    call("nll_loss_backward", draws(3), SCORES, LABELS, None, 0, -100, torch.tensor(0.0)),
    call("nll_loss2d_backward", draws(2, 3, 2), PLANES, PLANE_LABELS, None, 0, 2, draws(1)[0]),
    call("cross_entropy_loss", SCORES, NEGATIVE, WEIGHTS, 1, -100, 0.1),
    call("cross_entropy_loss", PLANES, PLANE_LABELS, None, 2, 2),
    call("cross_entropy_loss", SCORES, SCORES.softmax(1), WEIGHTS),
    call("mse_loss", P, T[:1], 0, label="broadcasts"),
    call("mse_loss_backward", draws(1)[0], P, T, 1),
    call("smooth_l1_loss", P, T, 2, 0.3),
    call("smooth_l1_loss_backward", draws(1)[0], P, T, 1, 1.0),
    call("smooth_l1_loss_backward", P, P, T, 0, 0.3),
    call("huber_loss_backward", draws(1)[0], P, T, 2, 0.3),
    call("binary_cross_entropy", PROBABILITIES, P.sigmoid(), WEIGHTS),
    call("binary_cross_entropy_backward", P, PROBABILITIES, P.sigmoid(), WEIGHTS, 0),
    call("binary_cross_entropy_with_logits", P, PROBABILITIES, None, WEIGHTS),
    call("kl_div", P, T, 2, log_target=True),
    call("soft_margin_loss_backward", draws(1)[0], P, T.sign(), 1),
    call("multi_margin_loss", SCORES, LABELS, 2, 0.5, WEIGHTS),
    call("multi_margin_loss_backward", draws(1)[0], SCORES, LABELS, 1, 1.0, WEIGHTS, 1),
    call("multilabel_margin_loss_forward", SCORES, torch.tensor([[1, 0, -1, 3]] * 3), 1),
    call("triplet_margin_loss", P, T, P.flip(1), 1.0, 2.0, 1e-6, True),
    call("_cdist_forward", P, draws(5, 4), 1.5, None),
    call("_cdist_forward", P, draws(5, 4), float("inf"), None),
    call("_cdist_backward", draws(3, 5), P, draws(5, 4), 2.0, torch.cdist(P, draws(5, 4))),
    *(
        call("_cdist_backward", draws(3, 3), TIED, TIED, p, torch.cdist(TIED, TIED, p))
        for p in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf"))
    ),
    *(
        call("_pdist_backward", draws(3), TIED, p, torch.pdist(TIED, p))
        for p in (0.0, 0.5, 1.0, 2.0, 3.0, float("inf"))
    ),
    call("_pdist_forward", draws(5, 4), 2.0),
    call("_pdist_backward", draws(10), draws(5, 4), 2.0, torch.pdist(draws(5, 4))),
    call("cosine_similarity", P, T[:1], 1),
    call("embedding", TABLE, INDICES.reshape(2, 3), 2),
    call("embedding_dense_backward", draws(6, 4), INDICES, 7, 2, False),
    call("embedding_dense_backward", draws(6, 4), INDICES.int(), 7, -1, True),
    *(
        call("_embedding_bag", TABLE, INDICES, BAGS, False, mode, False, None, last, pad)
        for mode in (0, 1, 2)
        for last in (False, True)
        for pad in (-1, 2)
    ),
    call("_embedding_bag", TABLE, INDICES, BAGS, False, 0, False, draws(6)),
    call("embedding_bag.padding_idx", TABLE, INDICES, BAGS, False, 1, False, None, False, -5),
    call("fake_quantize_per_tensor_affine_cachemask", X, 0.1, 3, -8, 7),
    call("fake_quantize_per_tensor_affine_cachemask", HALVES, 0.5, 1, -3, 3, label="halves"),
    call("fake_quantize_per_tensor_affine", X.half(), 0.07, 0, 0, 255),
    call("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", X, torch.tensor([0.1]),
         torch.tensor([3]), torch.tensor([0]), -8, 7),
    call("fake_quantize_per_channel_affine_cachemask", X, VAR, torch.arange(4).int(), 1, -8, 7),
    call("fake_quantize_per_channel_affine", X, VAR, OFFSET.abs(), 1, -8, 7),  # before it rounds
    call("fake_quantize_per_channel_affine_cachemask", X, VAR, VAR.half(), 1, 0, 3),
    call("fake_quantize_per_tensor_affine.tensor_qparams", X, torch.tensor(0.2),
         torch.tensor(3.7), -8, 7),
    call("fake_quantize_per_tensor_affine_cachemask_backward", X, X > 0),
    call("_embedding_bag_forward_only", TABLE, INDICES, BAGS, False, 0, False, None, True),
]  # fmt: skip


@pytest.mark.parametrize("one", CASES, ids=lambda c: c.id)
def test_as_torch(one: Call) -> None:
    check(one)


@pytest.mark.parametrize("mask", [[True, True, True], [True, False, False], [False, True, True]])
@pytest.mark.parametrize("weight", [SCALE, None], ids=["weight", "none"])
@pytest.mark.parametrize("train", [True, False])
def test_gradients_of_batches(train: bool, weight: torch.Tensor | None, mask: list[bool]) -> None:
    saved = torch.ops.aten.native_batch_norm(
        X, weight, None, MEAN.clone(), VAR.clone(), train, 0.1, 1e-5
    )[1:]
    args = (DY, X, weight, MEAN, VAR, *saved, train, 1e-5, mask)
    check(Call("native_batch_norm_backward", args), mask)


@pytest.mark.parametrize("mask", [[True, True, True], [True, False, False], [False, True, True]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, HALF])
def test_gradients_of_rows_and_groups(dtype: torch.dtype, mask: list[bool]) -> None:
    x, dy, scale, offset = (t.to(dtype) for t in (X, DY, SCALE, OFFSET))
    rows, d_rows = x.transpose(1, 3).contiguous(), dy.transpose(1, 3).contiguous()
    saved = torch.native_layer_norm(rows, [4], scale, offset, 1e-5)[1:]
    args: Any = (d_rows, rows, [4], *saved, scale, offset, mask)
    check(Call("native_layer_norm_backward", args), mask)
    saved = torch.native_group_norm(x, scale, offset, 3, 4, 10, 2, 1e-5)[1:]
    check(Call("native_group_norm_backward", (dy, x, *saved, scale, 3, 4, 10, 2, mask)), mask)


def test_batch_norm_in_train_mode_updates_the_running_statistics() -> None:
    mean, var = MEAN.clone(), VAR.clone()
    expected = torch.ops.aten.batch_norm(X, SCALE, OFFSET, mean, var, True, 0.3, 1e-5, True)
    own = ours((X, SCALE, OFFSET, MEAN.clone(), VAR.clone()))
    found = convert(torch.ops.aten.batch_norm.default, (*own, True, 0.3, 1e-5, True), {})
    torch.testing.assert_close(found.torch(), expected)
    torch.testing.assert_close(own[3].torch(), mean)
    torch.testing.assert_close(own[4].torch(), var)


@pytest.mark.parametrize("scale", [SCALE, None], ids=["weight", "none"])
def test_fused_rms_norm_and_its_gradient(scale: torch.Tensor | None) -> None:
    """torch has no kernels of them on the CPU; the function is the same."""
    inputs = [t.detach().requires_grad_() for t in (ROWS, scale) if t is not None]
    expected = torch.nn.functional.rms_norm(inputs[0], (4,), *inputs[1:], eps=1e-5)
    wanted = torch.autograd.grad(expected, inputs, ROWS.flip(0))
    x, weight, dy = ours((ROWS, scale, ROWS.flip(0)))
    y, inv = convert(torch.ops.aten._fused_rms_norm.default, (x, [4], weight, 1e-5), {})
    torch.testing.assert_close(y.torch(), expected)
    assert inv.shape == (3, 5, 1)
    rest = ([4], inv, weight, [True, scale is not None])
    found = convert(torch.ops.aten._fused_rms_norm_backward.default, (dy, x, *rest), {})
    for f, e in zip(found, wanted, strict=False):
        torch.testing.assert_close(f.torch(), e, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("pad", [-1, 2])
def test_gradients_of_bags(mode: int, pad: int) -> None:
    """Not divided by how often an index occurs: torch's kernel on the CPU takes other indices."""
    options = (False, mode, False, None, False, pad)
    saved = torch.ops.aten._embedding_bag(TABLE, INDICES, BAGS, *options)[1:]
    args = (draws(4, 4), INDICES, BAGS, *saved, 7, False, mode, False, None, pad)
    check(Call("_embedding_bag_backward", args))


N = (("n", 4, 5, 2),)
C = (4,)
EXTENTS = [
    (FUNCTIONAL, lambda x, *s: (x, *s, True, 0.1, 1e-5), (X, *STATS), (*N, C, C, C, C)),
    ("group_norm", lambda x, *s: (x, 2, *s), (X, SCALE, OFFSET), (*N, C, C)),
    ("native_layer_norm", lambda x, *s: (x, [4], *s, 1e-5), (ROWS, SCALE, OFFSET),
     (("n", "s", 4), C, C)),
    ("nll_loss_forward", lambda x, y: (x, y, None, 1, -100), (SCORES, NEGATIVE),
     (("n", 4), ("n",))),
    ("cross_entropy_loss", lambda x, y: (x, y), (SCORES, LABELS), (("n", 4), ("n",))),
    ("_cdist_backward", lambda d, x, y, r: (d, x, y, 2.0, r),
     (draws(3, 5), P, draws(5, 4), torch.cdist(P, draws(5, 4))),
     (("n", "m"), ("n", 4), ("m", 4), ("n", "m"))),
    ("mse_loss_backward", lambda d, x, y: (d, x, y, 1), (draws(1)[0], P, T),
     ((), ("n", 4), ("n", 4))),
    ("embedding_dense_backward", lambda d, i: (d, i, 7, 0, False), (draws(6, 4), INDICES),
     (("n", 4), ("n",))),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments", "tensors", "extents"), EXTENTS)
def test_of_symbolic_extents(name: str, arguments: Any, tensors: Any, extents: Any) -> None:
    check_symbolic(name, arguments, *tensors, extents=extents)


SCALED = {"grad_scale": torch.tensor(4.0), "found_inf": torch.tensor(0.0)}
SKIPPED = {"grad_scale": torch.tensor(4.0), "found_inf": torch.tensor(1.0)}
LISTS = ([draws(3, 4), draws(5)], [draws(3, 4) - 1, draws(5) * 2])
MOMENTS = ([draws(3, 4), draws(5)], [draws(3, 4).abs(), draws(5).abs()])
ONE_STEP, STEPS = [torch.tensor(3.0)] * 2, [torch.tensor(3.0), torch.tensor(7.0)]
ADAM = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-6}
SGD = {"lr": 0.1, "weight_decay": 0.1, "dampening": 0.0, "is_first_step": False}
ADAGRAD = {"lr": 0.1, "lr_decay": 0.01, "weight_decay": 0.1, "eps": 1e-8}
OPTIMIZERS = [
    *(
        call(f"_fused_{name}", *LISTS, *MOMENTS, [], steps, amsgrad=False, maximize=up,
             **ADAM, **more)
        for name in ("adam", "adamw")
        for steps, up, more in (
            (ONE_STEP, False, {}), (STEPS, True, {}), (ONE_STEP, False, SCALED),
            (STEPS, False, SKIPPED),
        )
    ),
    call("_fused_adam.tensor_lr", *LISTS, *MOMENTS, [], ONE_STEP, amsgrad=False, maximize=False,
         **(ADAM | {"lr": torch.tensor(0.1)})),
    *(
        call("_fused_sgd", *LISTS, MOMENTS[0] if momentum else [], momentum=momentum,
             nesterov=nesterov, maximize=up, **(SGD | {"is_first_step": first}), **more)
        for momentum, nesterov, up, first, more in (
            (0.0, False, False, False, {}), (0.9, False, False, False, {}),
            (0.9, True, True, False, {}), (0.9, False, False, True, {}),
            (0.9, False, False, False, SCALED),
        )
    ),
    call("_fused_adagrad", *LISTS, MOMENTS[1], STEPS, maximize=False, **ADAGRAD),
]  # fmt: skip


@pytest.mark.parametrize("one", OPTIMIZERS, ids=lambda c: c.id)
def test_steps_of_optimizers(one: Call) -> None:
    overload = overload_of(one.name)
    assert overload is not None
    expected = overload(*copy.deepcopy(one.args), **one.kwargs)
    args, kwargs = pytree.tree_map_only(torch.Tensor, meta.array, (one.args, one.kwargs))
    before = [a.numpy().copy() for a in pytree.tree_leaves(args)]
    found = convert(overload, args, kwargs)
    assert len(found) == len(expected)
    for some, others in zip(found, expected, strict=True):
        assert len(some) == len(others)
        for f, e in zip(some, others, strict=True):
            torch.testing.assert_close(f.torch(), e, rtol=1e-5, atol=1e-6)
    after = [a.numpy() for a in pytree.tree_leaves(args)]
    assert all((a == b).all() for a, b in zip(before, after, strict=True)), (
        "it wrote to an argument"
    )


@pytest.mark.parametrize(
    ("name", "args", "why"),
    [
        ("_ctc_loss", (draws(3, 2, 4), torch.ones(2, 1).long(), [3, 3], [1, 1]), "alignments"),
        ("embedding", (TABLE, INDICES, -1, True), "how often"),
        ("instance_norm", (X, *STATS, True, 0.1, 1e-5, True), "running statistics"),
        (FUNCTIONAL, (X[:1, :, :1, :1], *STATS, True, 0.1, 1e-5), "too few values"),
    ],
)
def test_what_is_declined(name: str, args: Any, why: str) -> None:
    overload = overload_of(name)
    assert overload is not None
    with pytest.raises(Unconvertible, match=why):
        convert(overload, ours(args), {})
