"""Methods of arrays and of traced symbols."""

import inspect
import re

import numpy as np
import pytest
import torch

import meta
from meta.base.errors import ArgumentError
from meta.base.registry import FUNCTIONS, OPERATORS
from meta.op.core import Tensor, op

VALUES = np.linspace(-2, 2, 12, dtype="float32").reshape(3, 4)
CALLS = [
    (lambda x: x.sum(axis=0), lambda t: t.sum(0)),
    (lambda x: x.mean(), lambda t: t.mean()),
    (lambda x: x.max(axis=1, keepdims=True), lambda t: t.amax(1, keepdim=True)),
    (lambda x: x.argmin(axis=1), lambda t: t.argmin(1)),
    (lambda x: x.clip(-1, 1).exp(), lambda t: t.clip(-1, 1).exp()),
    (lambda x: x.reshape(2, 6), lambda t: t.reshape(2, 6)),
    (lambda x: x.reshape((2, -1)), lambda t: t.reshape(2, -1)),
    (lambda x: x.unsqueeze(0).permute(2, 0, 1), lambda t: t.unsqueeze(0).permute(2, 0, 1)),
    (lambda x: x.T, lambda t: t.T),
    (lambda x: x.unsqueeze(0).mT, lambda t: t.unsqueeze(0).mT),
    (lambda x: x.unsqueeze(0).mH, lambda t: t.unsqueeze(0).mH),
    (lambda x: x.astype("complex64").mH, lambda t: t.to(torch.complex64).mH.resolve_conj()),
    (lambda x: x.flatten(), lambda t: t.flatten()),
    (lambda x: x.flatten(1), lambda t: t.flatten(1)),
    (lambda x: x.flatten(0, -1), lambda t: t.flatten(0, -1)),
    (lambda x: x[:0].flatten(1), lambda t: t[:0].flatten(1)),
    (lambda x: x.expand_dims(0).flatten(1, -2), lambda t: t.unsqueeze(0).flatten(1, -2)),
    (lambda x: x.unsqueeze(0).transpose(), lambda t: t[None].permute(2, 1, 0)),
    (lambda x: x.unsqueeze(0).transpose(1, 0, 2), lambda t: t[None].permute(1, 0, 2)),
    (lambda x: +x.clone(), lambda t: t),
    (lambda x: x.astype("int64"), lambda t: t.long()),
    (lambda x: x.softmax(), lambda t: t.softmax(-1)),
]


@pytest.mark.parametrize("call, oracle", CALLS)
def test_method_is_the_operator(call, oracle):
    x, want = meta.array(VALUES), oracle(torch.from_numpy(VALUES)).numpy()
    for y in (call(x), meta.model.trace(call)(x)):
        np.testing.assert_allclose(y.numpy(), want, rtol=1e-6)
        assert y.dtype == str(want.dtype) and y.shape == want.shape


def test_two_axes_of_transpose_are_refused():
    x = meta.array(VALUES)
    with pytest.raises(ArgumentError, match="permute"):
        x.transpose(0, 1)
    assert x.transpose((1, 0)).shape == (4, 3)


def test_numpy_drops_no_gradient():
    x = meta.array(VALUES)
    x.requires_grad = True
    for call in (np.asarray, np.sin, np.sum, lambda x: np.concatenate([x, x]), np.array):
        with pytest.raises(meta.errors.GradientError, match="detach"):
            call(x)
    assert isinstance(np.sin(x.detach()), np.ndarray)
    y = VALUES + x  # ours, as numpy leaves it to us
    y.sum().backward()
    assert (x.grad.numpy() == 1).all()


def test_transposed_needs_axes():
    with pytest.raises(ArgumentError, match=r"x\.T is of a matrix"):
        _ = meta.array([1.0]).T
    with pytest.raises(ArgumentError, match=r"x\.mT is of matrices"):
        _ = meta.array([1.0]).mT
    with pytest.raises(ArgumentError, match=r"x\.mT is of matrices"):
        _ = meta.array([1.0]).mH


@pytest.mark.parametrize("name", ["T", "mT", "mH"])
def test_an_array_without_axes_to_transpose_has_no_such_attribute(name: str) -> None:
    assert hasattr(meta.array(VALUES), name)
    assert not hasattr(meta.array([1.0]), name)

    @meta.model.trace
    def of_a_vector(x):
        return x + int(hasattr(x, name))

    assert of_a_vector(meta.array([1.0])).tolist() == [1.0]


def test_numpy_functions_still_give_numpy_arrays():
    x = meta.array(VALUES)
    assert isinstance(np.sum(x, axis=0), np.ndarray)
    assert np.array_equal(np.concatenate([x, x]), np.concatenate([VALUES, VALUES]))
    assert np.argmax(x) == 11


def test_places_and_values():
    x = meta.array(VALUES)
    assert x.tolist() == VALUES.tolist() and meta.array(2.5).tolist() == 2.5
    assert (x.itemsize, x.nbytes) == (4, 48)
    assert x.cpu() is x and x.to("cpu") is x and x.to("float32") is x
    for half in (x.to("float16"), x.to(torch.float16), x.to(np.float16), x.to(dtype="float16")):
        assert half.dtype == "float16"
    with pytest.raises(ArgumentError, match="unknown dtype"):
        x.to("gpu")
    with pytest.raises(ArgumentError, match="device or a dtype"):
        x.to("cpu", dtype="float16")


def test_gradients_pass_a_clone_and_not_what_is_detached():
    x = meta.array(VALUES)
    x.requires_grad = True
    (x.clone() * x.detach()).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), VALUES)
    assert not x.detach().requires_grad
    x.detach().update(VALUES + 1)
    np.testing.assert_array_equal(x.numpy(), VALUES + 1)


def test_values_of_a_traced_model_are_not_read():
    class Net(meta.Model):
        def build(self):
            self.w = meta.array(VALUES)

        @meta.model.trace
        def forward(self, x):
            return x * self.w.tolist()[0][0]

    with pytest.raises(meta.errors.TraceError):
        Net()(meta.array(VALUES))


def test_methods_are_the_operators_themselves():
    x = meta.array(VALUES)
    assert meta.ndarray.sum is meta.sum and x.sum.__func__ is meta.sum
    assert x.tanh.__doc__ == meta.tanh.__doc__
    assert list(inspect.signature(x.sum).parameters) == ["axis", "keepdims", "dtype"]
    assert x.masked_fill(x > 0, 0.0).max().item() == 0
    np.testing.assert_allclose(x.T.matmul(x).numpy(), VALUES.T @ VALUES, rtol=1e-6)


# What torch's tensors and numpy's arrays have and arrays here do not, neither by a method nor by a
# hint: other devices, layouts, storages, quantized, sparse and nested tensors, torch's inside, and
# functions that there are not.
EXOTIC = re.compile(
    r"is_.*|q_.*|.*sparse.*|.*indices|.*storage.*|unsafe_.*|as_.*|set.*|grad_dtype|getfield|"
    r"(ipu|xpu|mtia|module_load|names|rename|align_.*|refine_names|has_names|output_nr|layout|"
    r"record_stream|register_.*|reinforce|requires_grad|retains_grad|volatile|new|new_.*|qscheme|"
    r"dequantize|int_repr|to_.*|coalesce|values|dense_dim|hash_tensor|const_data_ptr|dim_order|"
    r"byteswap|ctypes|flags|newbyteorder|itemset|index|slice_inverse|pin_memory|resolve_.*|"
    r"trace|type|chalf|narrow_copy|nonzero_static|split_with_sizes|diagonal_scatter)|"
    r"addbmm|addr|cholesky_.*|corrcoef|cov|cummax|cummin|dist|dsplit|eig|frexp|gcd|lcm|geqrf|"
    r"histc|igammac?|index_reduce|istft|stft|logcumsumexp|lu|lu_solve|matrix_exp|mvlgamma|orgqr|"
    r"ormqr|polygamma|renorm|smm|solve|sspaddmm|symeig|unfold|unique_consecutive"
)


@pytest.mark.parametrize("other", [torch.Tensor, np.ndarray], ids=["torch", "numpy"])
def test_every_usual_name_is_there_or_answered(other):
    x = meta.array(VALUES)
    lost = []
    for name in dir(other):
        if name.startswith("_") or name in dir(x):
            continue
        try:
            getattr(x, name)
        except meta.errors.UnknownName as error:
            assert error.hint
        except AttributeError:
            lost += [] if EXOTIC.fullmatch(name) else [name]
    assert not lost


def test_an_operator_of_a_usual_name_is_a_method():
    usual = set(dir(torch.Tensor)) | set(dir(np.ndarray))
    # Spelled with care in `Methods`, properties, with another meaning in torch or NumPy, or, as
    # `detach`, of an array's own.
    apart = {"conj", "detach", "equal", "imag", "numel", "real", "repeat", "reshape"}
    apart |= {"shape", "size", "split", "where"}
    for name in usual & ({*OPERATORS} | {*FUNCTIONS}) - apart:
        assert getattr(meta.ndarray, name) is (OPERATORS.get(name) or FUNCTIONS[name])


def test_a_new_operator_of_a_usual_name_is_a_method_until_it_is_removed():
    def renorm(x: Tensor) -> Tensor:
        return x

    made = op(renorm)
    try:
        assert meta.ndarray.renorm is made
        assert meta.array(VALUES).renorm.__func__ is made
    finally:
        OPERATORS.remove("renorm")
    assert not hasattr(meta.ndarray, "renorm")


def test_an_operator_of_another_name_is_no_method():
    for name in ("hardswish", "array_split", "where"):
        assert name in {*OPERATORS} | {*FUNCTIONS}
        assert not hasattr(meta.ndarray, name)
