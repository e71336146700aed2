"""Arrays and models that are pickled and copied."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta.base.dtype import DTYPES, has_gradient
from tests.together import together

COPIES: dict[str, Callable[[Any], Any]] = {
    **{f"pickle {p}": lambda x, p=p: pickle.loads(pickle.dumps(x, p)) for p in (2, 4, 5)},
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}
FORMS: dict[str, Callable[[], torch.Tensor]] = {
    "0-d": lambda: torch.tensor(1),
    "vector": lambda: torch.tensor([0, 1, 2]),
    "empty": lambda: torch.zeros(0, 3),
    "strided": lambda: torch.arange(12).view(3, 4).T[::2],
    "expanded": lambda: torch.arange(3).expand(2, 3),
}


@together([(how, form, dtype) for dtype in DTYPES for form in FORMS for how in COPIES])
def test_arrays(how: str, form: str, dtype: str) -> None:
    x = meta.from_dlpack(FORMS[form]())
    x = meta.ndarray(x.torch().to(meta.base.dtype.TO_TORCH[dtype]), name="x")
    x.requires_grad = has_gradient(dtype)
    y = COPIES[how](x)
    assert (y.shape, y.dtype, y.device, y.name) == (x.shape, dtype, x.device, "x")
    assert y.requires_grad == x.requires_grad and y.node is None
    np.testing.assert_array_equal(y.numpy(), x.numpy())
    assert not x.size or y.torch().data_ptr() != x.torch().data_ptr()


def test_all_bits_are_kept() -> None:
    bits = np.arange(2**16, dtype=np.uint16).view(np.int16)
    for dtype in (torch.bfloat16, torch.float16):
        x = meta.ndarray(torch.from_numpy(bits).view(dtype))
        y = pickle.loads(pickle.dumps(x))
        np.testing.assert_array_equal(y.torch().view(torch.int16).numpy(), bits)
    big = meta.array(np.array([2**64 - 1, 2**63 + 1], np.uint64))
    assert pickle.loads(pickle.dumps(big)).tolist() == [2**64 - 1, 2**63 + 1]


def test_one_array_stays_one() -> None:
    x = meta.array([1.0])
    for back in (pickle.loads(pickle.dumps([x, x])), copy.deepcopy([x, x])):
        assert back[0] is back[1] and back[0] is not x


class Net(meta.Model):
    def build(self) -> None:
        self.inner = meta.model.Linear(3, 2)
        self.tied = self.inner.weight
        self.layers = [meta.model.Dropout(0.0), meta.model.ReLU()]
        self.count = meta.array(0)

    @meta.model.trace
    def forward(self, x: Any) -> Any:
        x = self.inner(x)
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("how", [h for h in COPIES if h != "copy"])
def test_models(how: str) -> None:
    model, x = Net(), meta.array(np.ones((2, 3), "float32"))
    with meta.no_grad():
        model.inner.weight[...] = 1.0  # what is drawn may give zeros behind relu
    want = model(x).numpy()  # is traced by now
    other = COPIES[how](model)
    np.testing.assert_array_equal(other(x).numpy(), want)
    np.testing.assert_array_equal(meta.vm.compile(other, x)(x).numpy(), want)
    assert other.tied is other.inner.weight and other.inner.weight.requires_grad
    names = [[name for name, _ in m.named_parameters()] for m in (model, other)]
    assert names[0] == names[1]
    with meta.no_grad():
        other.inner.weight[...] = 0.0
    np.testing.assert_array_equal(model(x).numpy(), want)
    assert not np.array_equal(other(x).numpy(), want)


def test_a_shallow_copy_of_a_model_shares_arrays_and_no_program() -> None:
    model, x = Net(), meta.array(np.ones((2, 3), "float32"))
    want = model(x).numpy()
    other = copy.copy(model)
    assert other.inner is model.inner
    other.layers = []
    assert model.layers and (other(x).numpy() <= want).all()
    np.testing.assert_array_equal(model(x).numpy(), want)


def test_training_goes_on_in_a_pickled_step() -> None:
    x, dy = meta.array(np.ones((2, 3), "float32")), meta.array(np.ones((2, 2), "float32"))
    step = meta.optim.with_adam(lr=0.1)(Net())
    step(dy, x)
    other = pickle.loads(pickle.dumps(step))
    for _ in range(2):
        step(dy, x)
        other(dy, x)
    found, want = other.state(), step.state()
    assert list(found) == list(want)
    for name, array in want.items():
        np.testing.assert_array_equal(found[name].numpy(), array.numpy())


def test_float32_masters_follow_a_pickled_optimizer() -> None:
    model = Net().to(dtype="bfloat16")
    step = meta.optim.with_sgd(lr=0.5)(model)
    other = pickle.loads(pickle.dumps(step))
    names = [n for n in other.state() if n.endswith("inner.weight")]
    assert names
    weight = other.state()[names[0]]
    other.load_state_dict({n: meta.ones_like(a) for n, a in other.state().items()})
    assert all(m.tolist() == weight.tolist() for m in meta.model.state.masters_of(weight))


@pytest.mark.parametrize("how", COPIES)
def test_a_model_s_array_is_not_copied_while_it_is_traced(how: str) -> None:
    class Copying(meta.Model):
        def build(self) -> None:
            self.w = meta.array([1.0])

        @meta.model.trace
        def forward(self, x: Any) -> Any:
            return x * COPIES[how](self.w)

    with pytest.raises(meta.errors.TraceError, match="values of a model's array"):
        Copying()(meta.array([2.0]))
