"""Indices out of range: an error in every executor, on every dialect, for each operator that says
in its definition what it indexes by data. And what is left if nobody looks at them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import meta
from meta import array, op
from meta.base.device import CPU
from meta.base.dtype import TO_TORCH
from meta.base.errors import IndexOutOfRange, TypeInferError
from meta.base.registry import OPERATORS
from meta.dialect import only
from meta.dialect.core import dispatch
from meta.model import trace
from meta.op.core.call import array_type, map_tensors, runtime_args
from meta.runtime.ndarray import as_array

DIALECTS = ("tvm", "torch")
FORMS = ("", "_nt", "_tn", "_tt")


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype("float32")


@dataclass(frozen=True)
class Record:
    """How an operator is called with indices.

    call: takes the indices, then ``others``. shape: of the indices. low, high: the legal ones;
    ``axis``, at: only elements at this position of this axis are meant. argument: what an error
    calls the indices. also: a legal number that names nothing. dtypes: those to be tried. dialects:
    those that have the operator.
    """

    name: str
    call: Callable[..., Any]
    others: tuple[np.ndarray, ...]
    shape: tuple[int, ...]
    low: int
    high: int
    argument: str = "indices"
    part: tuple[Any, ...] = ()
    also: int | None = None
    dtypes: tuple[str, ...] = ("int64", "int32", "int8", "uint8")
    fill: float = 0
    dialects: tuple[str, ...] = DIALECTS

    def indices(self, value: float, dtype: str = "int64") -> tuple[np.ndarray, list[int]]:
        """Return indices, the last of which that is meant has a value, and its place."""
        made = np.full(self.shape, self.fill, dtype)
        places = [
            p for p in np.ndindex(self.shape) if not self.part or p[self.part[0]] == self.part[1]
        ]
        made[places[-1]] = value
        return made, list(places[-1])


X, Y = floats(3, 4), floats(3, 2)
RECORDS = [
    Record("take", lambda i, x: op.take(x, i, 0), (X,), (2, 2), -3, 3),
    Record("take", lambda i, x: op.take(x, i), (X,), (20,), -12, 12),
    Record("take", lambda i, x: op.take(x, i, -1), (X,), (), -4, 4),
    Record("take_dx", lambda i, x, y: op.take_dx(x, y, i, 1), (X, Y), (2,), -4, 4),
    Record("embedding", lambda i, x: op.embedding(i, x), (X,), (2, 5), 0, 3),
    Record("embedding", lambda i, x: op.embedding(i, x, 1), (X,), (), 0, 3),
    Record("embedding_dx", lambda i, y: op.embedding_dx(y, i, 5), (Y,), (3,), 0, 5),
    Record("embedding_dx", lambda i, y: op.embedding_dx(y, i, (5, 2)), (Y,), (3,), 0, 5),
    Record("take_along_axis", lambda i, x: op.take_along_axis(x, i, 1), (X,), (3, 5), -4, 4),
    Record("take_along_axis_dx", lambda i, x, y: op.take_along_axis_dx(x, y, i, -1), (X, Y), (3, 2),
           -4, 4),
    Record("gather_nd", lambda i, x: op.gather_nd(x, i), (X,), (2, 3), 0, 3, part=(0, 0)),
    Record("gather_nd", lambda i, x: op.gather_nd(x, i), (X,), (2, 9), 0, 4, part=(0, 1)),
    Record("gather_nd_dx", lambda i, x, y: op.gather_nd_dx(x, i, y), (X, floats(9)), (2, 9), 0, 4,
           part=(0, 1)),
    Record("index_select", lambda i, x: op.index_select(x, 1, i), (X,), (3,), -4, 4, "index"),
    Record("scatter", lambda i, x, y: op.scatter(x, 0, i, y), (X, Y), (3, 2), 0, 3, "index"),
    Record("scatter_dx", lambda i, x, y: op.scatter_dx(x, x, x, i, y, 0), (X, Y), (3, 2), 0, 3,
           "index"),
    Record("scatter_add", lambda i, x, y: op.scatter_add(x, 0, i, y), (X, Y), (3, 2), 0, 3,
           "index"),
    Record("scatter_reduce", lambda i, x, y: op.scatter_reduce(x, 0, i, y, "amax"), (X, Y), (3, 2),
           0, 3, "index"),
    Record("scatter_nd", lambda i, x, y: op.scatter_nd(x, i, y), (X, floats(9)), (2, 9), 0, 3,
           part=(0, 0)),
    Record("scatter_nd", lambda i, x, y: op.scatter_nd(x, i, y, "add"), (X, floats(3, 4)), (1, 3),
           0, 3),
    Record("assign_at", lambda i, x, y: op.assign_at(op.copy(x), i, y)[0], (X, floats(9)), (2, 9),
           0, 3, part=(0, 0), dialects=("torch",)),
    Record("assign_at", lambda i, x, y: op.assign_at(op.copy(x), i, y, 1)[0], (X, floats(3, 3)),
           (1, 3), 0, 4, dialects=("torch",)),
    Record("adv_index", lambda i, x: op.adv_index((x, i)), (X,), (3, 4), -3, 3, "inputs[1]"),
    Record("adv_index", lambda i, x, j: op.adv_index((x, j, i)), (X, np.array([1, -1, 2])), (2, 1),
           -4, 4, "inputs[2]"),
    Record("adv_index_dx", lambda i, x, y: op.adv_index_dx(y, (x, i)), (X, X), (3,), -3, 3,
           "inputs[1]"),
    Record("nll_loss", lambda i, x: op.nll_loss(x, i), (X,), (3,), 0, 4, "target", also=-100),
    Record("nll_loss_dpred", lambda i, d, x: op.nll_loss_dpred(d, x, i), (floats(), X), (3,), 0, 4,
           "target", also=-100),
    Record("cross_entropy", lambda i, x: op.cross_entropy(x, i), (floats(9, 4),), (9,), 0, 4,
           "target", also=-100),
    Record("cross_entropy_dpred", lambda i, d, x: op.cross_entropy_dpred(d, x, i), (floats(), X),
           (3,), 0, 4, "target", also=-100),
    Record("cross_entropy_train", lambda i, x: op.cross_entropy_train(x, i)[0], (X,), (3,), 0, 4,
           "target", also=-100),
    Record("cross_entropy_train_dpred",
           lambda i, d, x, m, t: op.cross_entropy_train_dpred(d, x, i, m, t),
           (floats(), X, floats(3), 1 + floats(3)), (3,), 0, 4, "target", also=-100),
    *[Record(name, call, (floats(2, 1, 4, 4), *more), (3, 5), -7, 2, "rois", part=(1, 0),
             dtypes=("float32",), fill=1)
      for name, call, more in (
          ("roi_align", lambda r, x: op.roi_align(x, r, 2, 1.0), ()),
          ("roi_align_dx", lambda r, x, y: op.roi_align_dx(x, r, y, 2, 1.0), (floats(3, 1, 2, 2),)),
          ("roi_align_ddy", lambda r, x: op.roi_align_ddy(x, r, x, 2, 1.0), ()),
          ("roi_pool", lambda r, x: op.roi_pool(x, r, 2, 1.0), ()),
      )],
    Record("linear_cross_entropies", lambda i, x, w: op.linear_cross_entropies(x, w, i)[0],
           (floats(3, 2), floats(4, 2)), (3,), 0, 4, "target", also=-100, dialects=("torch",)),
    Record("linear_cross_entropies_dxwb",
           lambda i, y, x, w: op.linear_cross_entropies_dxwb(y, y, x, w, i, y)[0],
           (floats(3), floats(3, 2), floats(4, 2)), (3,), 0, 4, "target", also=-100,
           dialects=("torch",)),
    *[Record(f"grouped_matmul{form}",
             lambda i, x, w, f=form: OPERATORS[f"grouped_matmul{f}"](x, w, i),
             (floats(3, 3), floats(2, 3, 3)), (2,), 0, 4, "offs", dtypes=("int64", "int32"),
             dialects=("torch",))
      for form in FORMS],
    Record("one_hot", lambda i: op.one_hot(i, 4), (), (2, 3), 0, 4),
]  # fmt: skip
CACHES = {"cache_update", "cached_attention"}
"""A negative position is one of padding: see test_attention_cache.py."""
DIVIDES = {"floor_divide", "remainder", "fmod", "pow"}
"""What says of divisors and exponents what they may be: tests/vm/test_division_by_zero.py."""
by_record = pytest.mark.parametrize(
    ("record", "dialect"),
    [pytest.param(r, d, id=f"{r.name}{list(r.shape)}-{d}") for r in RECORDS for d in r.dialects],
)
by_dialect = pytest.mark.parametrize("dialect", DIALECTS)


def arrays(record: Record) -> list[Any]:
    return [array(o, str(o.dtype)) for o in record.others]


def require_told(record: Record, run: Callable[..., Any], value: float, dtype: str) -> None:
    """Check that a run with an index out of range fails, and that the error says all there is."""
    made, place = record.indices(value, dtype)
    with pytest.raises(IndexOutOfRange) as caught:
        run(array(made, dtype), *arrays(record))
    error = caught.value
    assert error.op == record.name
    shown = made[tuple(place)].item()
    assert error.what == f"index {shown} at {place} of {record.argument} is out of range"
    assert str(record.high) in error.expected
    assert "1 of" in error.found
    assert error.span is not None and error.span.file == __file__
    assert error.span.line == record.call.__code__.co_firstlineno


def bad(record: Record) -> list[int]:
    """Return the first index that is out of range on each side, and one far away."""
    above = [record.high, 2**40]
    return above if record.argument == "rois" else [record.low - 1, *above]


def test_every_operator_that_indexes_by_data_has_a_record() -> None:
    declared = {name for name in OPERATORS if OPERATORS[name].indices is not None}
    assert declared - DIVIDES - CACHES == {r.name for r in RECORDS}


@by_record
def test_eager(record: Record, dialect: str) -> None:
    with only(dialect):
        for dtype in record.dtypes:
            lowest = record.low if dtype != "uint8" else max(record.low, 0)
            for value in (lowest, record.high - 1):
                record.call(array(record.indices(value, dtype)[0], dtype), *arrays(record))
            for value in bad(record):
                if dtype in ("int64", "float32") or (dtype != "uint8" and abs(value) < 100):
                    require_told(record, record.call, value, dtype)
        if record.also is not None:
            record.call(array(record.indices(record.also)[0]), *arrays(record))


@by_record
def test_traced_and_compiled(record: Record, dialect: str) -> None:
    dtype = record.dtypes[0]
    model = trace(record.call)
    with only(dialect):
        good = [array(record.indices(v, dtype)[0], dtype) for v in (record.low, record.high - 1)]
        compiled = meta.vm.compile(model, good[0], *arrays(record))
        for run in (model, compiled):
            for indices in good:
                wanted = record.call(indices, *arrays(record)).numpy()
                found = run(indices, *arrays(record)).numpy()
                np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
            for value in bad(record):
                require_told(record, run, value, dtype)
            if record.also is not None:
                run(array(record.indices(record.also)[0]), *arrays(record))


@pytest.mark.parametrize("form", FORMS)
def test_ends_of_groups_do_not_decrease(form: str) -> None:
    """Eagerly, traced, compiled, of constants, and with what `meta.measure` draws."""
    x, w = array(floats(3, 3)), array(floats(2, 3, 3))
    product = OPERATORS[f"grouped_matmul{form}"]
    model = trace(lambda offs: product(x, w, offs))
    compiled = meta.vm.compile(model, array([1, 3]))
    for run in (lambda offs: product(x, w, offs), model, compiled):
        run(array([2, 2]))
        with pytest.raises(IndexOutOfRange, match=r"(?s)index 1 at \[1\] of offs.*before, 3"):
            run(array([3, 1]))
    with pytest.raises(IndexOutOfRange, match="less than the one before"):
        meta.vm.compile(trace(lambda y: product(y, w, array([3, 1]))), x)
    assert meta.measure(product, x, w, meta.ir.parse_type("int32[2]"), iters=1).records()


@by_dialect
def test_nan_is_no_image(dialect: str) -> None:
    rois = array(np.array([[np.nan, 0, 0, 1, 1]], "float32"))
    with only(dialect), pytest.raises(IndexOutOfRange, match="index nan at"):
        op.roi_pool(array(floats(2, 1, 4, 4)), rois, 2, 1.0)


@by_dialect
def test_uint64(dialect: str) -> None:
    with only(dialect):
        x = array(X)
        assert op.take(x, array(np.array([2], "uint64")), 0).shape == (1, 4)
        for value in (3, 2**63, 2**64 - 1):
            with pytest.raises(IndexOutOfRange, match=f"index {value} at"):
                op.take(x, array(np.array([value], "uint64")), 0)


@by_dialect
def test_no_indices_and_no_elements(dialect: str) -> None:
    with only(dialect):
        none = array(np.zeros((0,), "int64"))
        assert op.take(array(floats(0, 2)), none, 0).shape == (0, 2)
        assert op.embedding(none, array(X)).shape == (0, 4)
        assert op.adv_index((array(X), none)).shape == (0, 4)
        one = array([0])
        for call in (
            lambda: op.take(array(floats(0, 2)), one, 0),
            lambda: op.embedding(one, array(floats(0, 2))),
            lambda: op.index_select(array(floats(0, 2)), 0, one),
            lambda: op.take_along_axis(array(floats(0)), one, 0),
            lambda: op.gather_nd(array(floats(0)), array([[0]])),
            lambda: op.adv_index((array(floats(0)), one)),
        ):
            with pytest.raises(TypeInferError):
                call()
        with pytest.raises(IndexOutOfRange):
            op.embedding_dx(array(floats(1, 2)), one, 0)


# Modes --------------------------------------------------------------------------------------------


@by_dialect
@pytest.mark.parametrize("axis", [None, 0, 1])
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(indices=st.lists(st.integers(-30, 30), min_size=4, max_size=4))
def test_modes_of_take_are_those_of_numpy(
    dialect: str, axis: int | None, indices: list[int]
) -> None:
    x, i = array(X), array(indices)
    extent = 12 if axis is None else X.shape[axis]
    with only(dialect):
        for mode in ("clip", "wrap"):
            found = op.take(x, i, axis, mode).numpy()
            np.testing.assert_array_equal(found, np.take(X, indices, axis, mode=mode))
        inside = [j for j in indices if -extent <= j < extent]
        if inside == indices:
            np.testing.assert_array_equal(op.take(x, i, axis).numpy(), np.take(X, indices, axis))
        else:
            with pytest.raises(IndexOutOfRange):
                op.take(x, i, axis)


@by_dialect
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(indices=st.lists(st.integers(-6, 6), min_size=3, max_size=3))
def test_random_indices_against_torch_and_numpy(dialect: str, indices: list[int]) -> None:
    """What torch takes gives the same, and the rest is an error."""
    x, i, t = array(X), array(indices), torch.tensor(indices)
    column, row = t[:, None], t[None]
    torchs = {
        "take_along_axis": (lambda: op.take_along_axis(x, array(column.numpy()), 1),
                            lambda: torch.tensor(X)[torch.arange(3)[:, None], column]),
        "embedding": (lambda: op.embedding(i, x),
                      lambda: torch.nn.functional.embedding(t, torch.tensor(X))),
        "scatter_add": (lambda: op.scatter_add(x, 0, array(row.numpy()), array(X)),
                        lambda: torch.tensor(X).scatter_add(0, row, torch.tensor(X))),
        "adv_index": (lambda: op.adv_index((x, i)), lambda: torch.tensor(X)[t]),
        "index_select": (lambda: op.index_select(x, 0, i), lambda: torch.tensor(X)[t]),
        "cross_entropy": (lambda: op.cross_entropy(x, i),
                          lambda: torch.nn.functional.cross_entropy(torch.tensor(X), t)),
    }  # fmt: skip
    with only(dialect):
        for name, (ours, theirs) in torchs.items():
            try:
                wanted = theirs()
            except (IndexError, RuntimeError):
                with pytest.raises(IndexOutOfRange, match=name):
                    ours()
            else:
                np.testing.assert_allclose(ours().numpy(), wanted.numpy(), rtol=1e-5)


# Gradients ----------------------------------------------------------------------------------------


class Rows(meta.Model):
    """The sum of some rows of a parameter, weighted."""

    def build(self) -> None:
        self.x = array(X)
        self.x.requires_grad = True

    @trace
    def forward(self, indices: Any, weights: Any) -> Any:
        return op.sum(op.multiply(op.index_select(self.x, 0, indices), weights))


class Gradient(meta.Model):
    """Nothing but the gradient of `Rows`."""

    def build(self) -> None:
        self.step = meta.model.value_and_grad(Rows())

    @trace
    def forward(self, dy: Any, indices: Any, weights: Any) -> Any:
        return self.step(dy, indices, weights)[1]


@by_dialect
def test_a_gradient_alone_looks_at_its_indices(dialect: str) -> None:
    """The result of the forward operator is not needed, so only its gradient reads the indices."""
    with only(dialect):
        dy, weights = array(np.float32(1)), array(floats(2, 4))
        run = meta.vm.compile(Gradient(), dy, array([0, 2]), weights)
        assert "index_select" not in " ".join(run.kernels())
        run(dy, array([-3, 2]), weights)
        for index in (-4, 3):
            with pytest.raises(IndexOutOfRange, match="take_dx"):
                run(dy, array([0, index]), weights)


@by_dialect
def test_padding_counts_from_the_end(dialect: str) -> None:
    with only(dialect):
        indices = np.array([0, 2, 1, 2])
        for padding in (-1, 2):
            x = array(X)
            x.requires_grad = True
            op.embedding(array(indices), x, padding).backward(array(floats(4, 4)))
            table = torch.tensor(X, requires_grad=True)
            torch.nn.functional.embedding(torch.tensor(indices), table, padding).backward(
                torch.tensor(floats(4, 4))
            )
            np.testing.assert_allclose(x.grad.numpy(), table.grad.numpy(), rtol=1e-6)


# Where nobody looks: on CUDA without META_CHECK_INDICES -------------------------------------------


@by_record
def test_a_kernel_alone_stays_within_its_tensors(record: Record, dialect: str) -> None:
    """Its result is that of the nearest legal index; for one_hot, losses and regions of none."""
    dtype = record.dtypes[0]
    names_nothing = record.also is not None or record.argument == "rois"
    names_nothing |= record.name == "one_hot"

    def kernel(indices: np.ndarray) -> np.ndarray:
        """Run what a call would run, without anybody who looks at the indices."""
        launched: list[Any] = []

        def handler(called: Any, args: Any, kwargs: Any) -> Any:
            bound = called.schema.bind(args, kwargs, as_array)
            call = called.call_values(map_tensors(called, bound, lambda a: array_type(a.key)), CPU)
            env = dispatch(call)
            given = [a.torch() if isinstance(a, meta.ndarray) else a
                     for a in runtime_args(called, bound)]  # fmt: skip
            outs = [torch.empty(t.static_shape, dtype=TO_TORCH[t.dtype]) for t in call.outputs]
            found = env.run(*given) if env.allocates else (env.run(*given, *outs), tuple(outs))[1]
            results = found if isinstance(found, tuple) else (found,)
            results = results or (given[0],)  # which is written
            launched.append(results[0])
            arrays = tuple(array(r.numpy()) for r in results)
            return arrays if len(call.outputs) != 1 else arrays[0]

        with meta.base.call_context.use(handler):
            record.call(array(indices, dtype), *arrays(record))
        return launched[0].numpy()

    with only(dialect):
        for value in (*bad(record), -(2**40)):
            nearest = min(max(value, record.low), record.high - 1)
            legal = (record.also or -1) if names_nothing else nearest
            made, place = record.indices(value, dtype)
            found = kernel(made)
            wanted = kernel(record.indices(legal, dtype)[0])
            if record.name == "one_hot":
                assert not found[tuple(place)].any()
            np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("row", [-1, 3, 2**40])
def test_a_row_of_a_sparse_tensor_that_is_none(row: int) -> None:
    """How many rows there are is data, too: the kernel looks."""
    indices = meta.array([[0, 1], [row, 0], [1, 1]], "int64")
    shape = meta.array([3, 2], "int64")
    with pytest.raises(IndexOutOfRange, match=f"row {row} of indices"):
        op.sparse_fill_empty_rows(indices, meta.array([1.0, 2.0, 3.0]), shape, meta.array(0.0))


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
@pytest.mark.parametrize("mode", ["0 to 99", "-100 to 99"])
def test_one_of_many_indices(dtype: str, mode: str) -> None:
    """More than are looked at by ATen, in memory as they come and not."""
    least = 0 if mode == "0 to 99" else -100
    call = op.embedding.plain if least == 0 else lambda x, i: op.take(x, i, 0)
    x, rng = meta.array(floats(100, 1)), np.random.default_rng(3)
    legal = rng.integers(least, 100, (130, 140)).astype(dtype)
    for layout in (legal, legal.T):
        assert call(x, array(torch.from_numpy(layout))).shape == (*layout.shape, 1)
        for bad in (least - 1, 100, np.iinfo(dtype).min, np.iinfo(dtype).max):
            wrong = layout.copy(order="K")
            wrong[101, 7] = bad
            with pytest.raises(IndexOutOfRange, match=rf"index {bad} at \[101, 7\]"):
                call(x, array(torch.from_numpy(wrong)))
