"""The call protocol: what calling an operator means, and that a name is one object."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import meta
from meta.base.call_context import current, use
from meta.base.errors import ArgumentError, UnknownName
from meta.base.registry import OPERATORS
from meta.op.core import Op, TensorType

pytestmark = pytest.mark.usefixtures("torch_kernels")

X = meta.array([[1.0, 2.0]])


def test_a_handler_decides() -> None:
    seen: list[Any] = []

    def handler(base: Op, args: Any, kwargs: Any) -> str:
        seen.append((base, args, kwargs))
        return "handled"

    with use(handler):
        assert meta.softmax("anything", axis=3) == "handled"
        assert X + 1 == "handled"
        with use(None):
            assert meta.relu(X).shape == (1, 2)
        assert meta.relu() == "handled"
    assert [(o.name, a[:1], k) for o, a, k in seen] == [
        ("softmax", ("anything",), {"axis": 3}),
        ("add", (X,), {}),
        ("relu", (), {}),
    ]
    assert meta.relu(X).shape == (1, 2)


def test_a_handler_ends_with_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), use(lambda *_: 1 / 0):
        meta.relu(X)
    assert current() is None


def test_other_threads_run_eagerly() -> None:
    found: list[Any] = []
    with use(lambda *_: "handled"):
        thread = threading.Thread(target=lambda: found.append(meta.op.torch.relu(X.numpy())))
        thread.start()
        thread.join()
        assert meta.relu(X) == "handled"
    assert found[0].shape == (1, 2)


def test_one_object_for_one_name() -> None:
    assert meta.softmax is meta.op.softmax is OPERATORS["softmax"]
    assert repr(meta.softmax) == "<operator softmax>" and "softmax" in dir(meta)
    assert meta.softmax.__name__ == "softmax" and meta.softmax.__doc__
    for space in (meta, meta.op, meta.op.torch):
        with pytest.raises(UnknownName, match="did you mean 'softmax'"):
            space.sofmax  # noqa: B018
        assert not hasattr(space, "sofmax")


def test_types_known_now() -> None:
    assert meta.add(2, 3) == 5 and meta.shape(X) == (1, 2)
    assert meta.softmax.infer((TensorType((2,), "float32"), 0)) == TensorType((2,), "float32")


def test_a_wrong_argument_is_wrong_after_a_right_one_too() -> None:
    assert meta.reshape(X, (2, 1)).shape == (2, 1)
    for shape in ((2.0, 1), (2, True)):
        with pytest.raises(ArgumentError, match="argument 'shape' does not fit"):
            meta.reshape(X, shape)
