"""Whether an array shares memory is a matter of the expression, never of shapes; and a write that
NumPy would show in another array is seen there, or is an error: eager, interpreted and compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import meta
from meta.base.errors import ArgumentError, GradientError, MetaError, TraceError
from meta.dialect import prefer
from meta.runtime.inplace_writes import memory_overlaps
from tests.op.test_indexing import basic_indices

DTYPES = ("float32", "float64", "int64", "uint8", "bool", "complex64", "float16")


def is_view(index: tuple[Any, ...]) -> bool:
    """Whether an index says of itself that it takes everything."""
    return all(i is None or i is ... or (type(i) is slice and i == slice(None)) for i in index)


def array_of(shape: tuple[int, ...], dtype: str = "float32", strided: bool = False) -> Any:
    """Return an array of numbers that differ, 0 not among them; its axes may be reversed."""
    values = np.arange(1, np.prod(shape) + 1).reshape(shape).astype(dtype)
    if not strided:
        return meta.array(values)
    order = tuple(reversed(range(len(shape))))
    return meta.from_dlpack(torch.from_numpy(values.T.copy()).permute(order))


def check_write(x: Any, found: Any, view: bool) -> None:
    """Assert that x shows a write to ``found``, or that it is an error. A view is of all of x."""
    want = x.numpy()
    assert memory_overlaps(found.tensor, x.tensor) == (view and bool(found.size))
    for write in (
        lambda: found.__setitem__(..., False),
        lambda: found.update(np.zeros(found.shape, found.dtype)),
        lambda: meta.zeros(found.shape, found.dtype, out=found),
        lambda: found.detach().__setitem__(..., False),
        # Of strided elements a row is a copy.
        lambda: found.reshape(*(found.shape if view else (-1,))).__setitem__(..., False),
    ):
        if view:
            write()
        else:
            with pytest.raises(ArgumentError, match="copy"):
                write()
    if view:
        want[...] = 0
    np.testing.assert_array_equal(x.numpy(), want)


@st.composite
def indexed(draw: st.DrawFn) -> tuple[tuple[int, ...], Any]:
    """Draw a shape and an index, of which many take all of an axis, by bounds or by saying so."""
    if draw(st.booleans()):
        return draw(basic_indices())
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    index: list[Any] = [
        draw(st.sampled_from([slice(None), slice(0, n), slice(None, n), slice(-max(n, 1), None)]))
        for n in shape[: draw(st.integers(0, len(shape)))]
    ]
    for extra in draw(st.lists(st.sampled_from([None, ...]), max_size=2, unique=True)):
        index.insert(draw(st.integers(0, len(index))), extra)
    return shape, tuple(index)


@settings(max_examples=200)
@given(indexed(), st.sampled_from(DTYPES), st.booleans())
def test_an_index_is_a_view_or_a_copy_by_itself(case: Any, dtype: str, strided: bool) -> None:
    shape, index = case
    with prefer("torch"):
        x = array_of(shape, dtype, strided)
        found = x[index]
        np.testing.assert_array_equal(found.numpy(), x.numpy()[index])
        assert found.shape == x.numpy()[index].shape and found is not x
        check_write(x, found, is_view(index))
        kept, now = x[index].numpy(), x[index]
        x[...] = False
        np.testing.assert_array_equal(now.numpy(), np.zeros_like(kept) if is_view(index) else kept)


@settings(max_examples=60)
@given(indexed())
def test_with_a_tape(case: Any) -> None:
    shape, index = case
    with prefer("torch"):
        x = array_of(shape)
        x.requires_grad = True
        found = x[index]
        with pytest.raises(GradientError, match="gradient"):
            found[...] = 0.0
        dy = np.arange(1, found.size + 1, dtype=np.float32).reshape(found.shape)
        found.backward(dy)
        want = np.zeros(shape, np.float32)
        want[index] += dy
        np.testing.assert_array_equal(x.grad.numpy(), want)
        x.grad[...] = 0.0  # a gradient is its owner's, whichever operator computed it last
        x.grad = None
        with meta.no_grad():
            check_write(x, x[index], is_view(index))


@settings(max_examples=20)
@given(indexed(), st.booleans(), st.sampled_from([0, 2]))
def test_in_programs(case: Any, strided: bool, level: int) -> None:
    shape, index = case

    @meta.model.trace
    def part(x: Any) -> Any:
        return x[index]

    @meta.model.trace
    def both(x: Any) -> Any:
        y = x + x
        return y, y[index], y[index].reshape(-1)

    with prefer("torch"):
        x = array_of(shape, strided=strided)
        # What is not compact is made so for a compiled program, whose result is then a copy.
        seen = is_view(index) and (not strided or x.key.compact)
        for run in (part, meta.vm.compile(part, x, opt_level=level)):
            view = is_view(index) if run is part else seen
            np.testing.assert_array_equal(run(x).numpy(), x.numpy()[index])
            check_write(x, run(x), view)
        for run in (both, meta.vm.compile(both, x, opt_level=level)):
            for which in (1, 2):
                results = run(x)
                check_write(results[0], results[which], is_view(index))


VIEWS: dict[str, Callable[[Any], Any]] = {
    "reshape": lambda x: x.reshape(-1),
    "reshape to the same": lambda x: meta.reshape(x, x.shape),
    "flatten": lambda x: x.flatten(),
    "expand_dims": lambda x: meta.expand_dims(x, 0),
    "squeeze": lambda x: x.squeeze(),
    "batch_flatten": lambda x: meta.batch_flatten(x),
    "detach": lambda x: x.detach(),
    "to its dtype": lambda x: x.to(x.dtype),
    "real of real numbers": lambda x: x.real,
}
COPIES: dict[str, Callable[[Any], Any]] = {
    "T": lambda x: x.T,
    "mT": lambda x: x.mT,
    "permute": lambda x: x.permute(0, 1),
    "permute_dims": lambda x: meta.permute_dims(x),
    "transpose": lambda x: x.transpose(),
    "swapaxes": lambda x: meta.swapaxes(x, 0, 0),
    "moveaxis": lambda x: meta.moveaxis(x, 0, 0),
    "matrix_transpose": lambda x: meta.matrix_transpose(x),
    "diagonal": lambda x: x.diagonal(),
    "split": lambda x: meta.split(x, 1)[0],
    "array_split": lambda x: meta.array_split(x, 1)[0],
    "unstack": lambda x: meta.unstack(x, axis=1)[0],
    "iteration": lambda x: next(iter(x)),
    "broadcast_to": lambda x: meta.broadcast_to(x, x.shape),
    "broadcast_arrays": lambda x: meta.broadcast_arrays(x, x)[0],
    "strided_slice": lambda x: meta.strided_slice(x, (0,), (x.shape[0],)),
    "real": lambda x: meta.real(meta.astype(x, "complex64")),
    "imag": lambda x: meta.astype(x, "complex64").imag,
}
NEW: dict[str, Callable[[Any], Any]] = {
    "clone": lambda x: x.clone(),
    "astype": lambda x: x.astype(x.dtype),
    "an index array": lambda x: x[list(range(x.shape[0]))],
    "a mask": lambda x: x[x == x],
    "flip of no axis": lambda x: meta.flip(x, ()),
    "rot90": lambda x: meta.rot90(x, 4),
    "rot90 once": lambda x: meta.rot90(x, 1),
    "roll": lambda x: meta.roll(x, 0, 0),
    "pad": lambda x: meta.pad(x, 0),
    "tile": lambda x: meta.tile(x, (1, 1)),
    "concat": lambda x: meta.concat((x,)),
    "diff": lambda x: meta.diff(x, 0),
    "set": lambda x: x.at[...].set(x),
    "set by bounds": lambda x: x.at[0 : x.shape[0]].set(x),
    "set of nothing": lambda x: x.at[[]].set(1.0),
    "add": lambda x: x + 0.0,
    "histogram": lambda x: meta.histogram(x).counts,
    "x[0].clone()": lambda x: x[0].clone(),
}
SHAPES = ((2, 3), (1, 3), (2, 1), (1, 1), (3, 3))


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("name", [*VIEWS, *COPIES, *NEW])
def test_shapes_decide_nothing(name: str, strided: bool) -> None:
    for shape in SHAPES:
        x = array_of(shape, strided=strided)
        if name in NEW:
            found, want = NEW[name](x), x.numpy()
            assert not memory_overlaps(found.tensor, x.tensor)
            found[...] = 0
            np.testing.assert_array_equal(x.numpy(), want)
        elif name in COPIES:
            check_write(x, COPIES[name](x), False)
        elif strided and not x.key.compact and name in ("reshape", "flatten", "batch_flatten"):
            # The elements are not in a row, so that NumPy and torch copy, too.
            found = VIEWS[name](x)
            if found.shape != shape:
                check_write(x, found, False)
        else:
            check_write(x, VIEWS[name](x), True)


@pytest.mark.parametrize("name", sorted({*VIEWS, *COPIES, *NEW} - {"a mask", "to its dtype"}))
def test_in_programs_as_in_eager_mode(name: str) -> None:
    f = {**VIEWS, **COPIES, **NEW}[name]
    traced = meta.model.trace(lambda x: (f(x), x * 2.0))
    for shape in ((2, 3), (1, 3), (1, 1)):
        for level in (None, 0, 2):
            x = array_of(shape)
            run = traced if level is None else meta.vm.compile(traced, x, opt_level=level)
            found, want = run(x)[0], x.numpy()
            if name in VIEWS and name != "detach":
                check_write(x, found, True)
            elif name in COPIES and name not in ("real", "imag"):
                check_write(x, found, False)
            else:  # of what only the program has, if of anything
                found[...] = 0
                np.testing.assert_array_equal(x.numpy(), want)


@pytest.mark.parametrize("name", ["T", "split", "unstack", "strided_slice", "diagonal"])
def test_a_copy_of_what_the_program_made_is_a_result_as_others(name: str) -> None:
    traced = meta.model.trace(lambda x: COPIES[name](meta.relu(x)))
    x = array_of((2, 3))
    for run in (traced, meta.vm.compile(traced, x)):
        found = run(x)
        found[...] = 0.0
        assert x.numpy().all()


def test_results_that_are_one_tuple() -> None:
    program = """
    func @main(%x: float32[2, 3]) -> (float32[1, 3], float32[1, 3]) {
      %p: (float32[1, 3], float32[1, 3]) = split(%x, indices_or_sections=2)
      return %p
    }"""
    for part in meta.vm.compile(meta.ir.parse(program))(array_of((2, 3))):
        with pytest.raises(ArgumentError, match="copy"):
            part[...] = 0.0


class TestMessages:
    def test_of_an_index(self) -> None:
        z = meta.zeros((2, 2))
        with pytest.raises(ArgumentError, match=r"x\[0\], which is a copy(.*\n)*.*x\[0, i"):
            z[0][1] = 5.0
        with pytest.raises(ArgumentError, match=r"x\[0:1, \.\.\.\]"):
            z[0:1, ...].update([[1.0, 2.0]])
        with pytest.raises(ArgumentError, match=r"add\(out=\).*x\[::2\]"):
            meta.add(z[::2], 1.0, out=z[::2])
        assert not z.numpy().any()

    def test_of_an_operator(self) -> None:
        with pytest.raises(ArgumentError, match=r"a result of permute_dims.*\n.*\n.*\n.*clone"):
            meta.zeros((2, 2)).T[0] = 1.0


class TestWhatMustWork:
    def test_an_augmented_assignment_to_a_part(self) -> None:
        z, want = array_of((2, 3)), array_of((2, 3)).numpy()
        z[0] += 1.0
        z[:, 1:] *= 2.0
        z[0:2] -= 1.0
        want[0] += 1.0
        want[:, 1:] *= 2.0
        want[0:2] -= 1.0
        np.testing.assert_array_equal(z.numpy(), want)

    def test_a_row_that_is_copied_or_computed(self) -> None:
        z = array_of((2, 3))
        for row in (z[0].clone(), z[0] + 0.0, meta.array(z[0]), __import__("copy").deepcopy(z[0])):
            row[...] = 0.0
        assert z.numpy().all()

    def test_gradients_are_arrays_of_their_own(self) -> None:
        x = array_of((2, 3))
        x.requires_grad = True
        (x.T * 2.0).backward(np.ones((3, 2), np.float32))
        x.grad[0] = 0.0
        by, _ = meta.grad.grad([x.T.sum(), x[0].sum()], [x, x * 1.0][:1]), None
        by[0][...] = 0.0
        of_function = meta.grad.value_and_grad(lambda v: (v.T * meta.ones((3, 2))).sum())(x)[1]
        of_function[...] = 0.0


class TestOperatorsThatWrite:
    def test_eager(self) -> None:
        x = array_of((2, 3))
        for part in (x[0], x.T[:, 0], x[0:1].squeeze(0)):
            with pytest.raises(ArgumentError, match=r"assign.*copy"):
                meta.op.assign(part, meta.zeros(3))
        meta.op.assign(x.reshape(-1), meta.zeros(6))
        assert not x.numpy().any()

    def test_traced(self) -> None:
        for part in (lambda x: x[0], lambda x: x.T[0].reshape(-1), lambda x: meta.split(x, 2)[0]):

            @meta.model.trace
            def write(x: Any, part: Any = part) -> Any:
                meta.op.assign(part(x), part(x) * 2.0)
                return x

            with pytest.raises(TraceError, match=r"assign would write to a copy"):
                write(array_of((2, 3)))

    def test_an_argument_or_parameter_of_a_program(self) -> None:
        @meta.model.trace
        def write(x: Any) -> Any:
            return meta.op.assign(x, x * 2.0)[0]

        x = array_of((2, 3))
        compiled = meta.vm.compile(write, x[0])
        for run in (write, compiled):
            with pytest.raises(ArgumentError, match="copy"):
                run(x[0])
            run(x[0].clone())

        class Counting(meta.Model):
            def build(self, sums: Any) -> None:
                self.sums = sums

            @meta.model.trace
            def forward(self, x: Any) -> Any:
                meta.op.assign(self.sums, self.sums + x)
                return x

        model = Counting(x[0])
        with pytest.raises(ArgumentError, match=r"%sums would write to x\[0\]"):
            meta.vm.compile(model, x[1])
        with pytest.raises(MetaError, match="copy"):
            model(x[1])


def test_a_saved_program_keeps_it(tmp_path: Path) -> None:
    x = array_of((2, 3))
    meta.vm.compile(meta.model.trace(lambda x: x[0:1]), x).save(tmp_path / "p")
    with pytest.raises(ArgumentError, match="copy"):
        meta.vm.load(tmp_path / "p")(x)[...] = 0.0


def test_what_a_program_returns_of_an_argument_is_what_that_is() -> None:
    same = meta.model.trace(lambda x: x.reshape(-1))
    x, t = array_of((2, 3)), torch.ones(3, 2)
    for run in (same, meta.vm.compile(same, x)):
        with pytest.raises(ArgumentError, match="copy"):
            run(x[0:2])[...] = 0.0
        with pytest.raises(ArgumentError, match="copy"):
            run(meta.asarray(t.T))[...] = 0.0
        run(x)[...] = 0.0
        assert not x.numpy().any()
        x[...] = 1.0
