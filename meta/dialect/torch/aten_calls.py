"""Which overloads of ATen compute which base operators: a table for each family, of `AtenCall`s.

There is no record where ATen means something else: it reads no index from the end (``gather``,
``index_select``), has 0 for the sign of NaN, and traps on integers that are divided by 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from meta import op
from meta.base.registry import OPERATORS
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.correspondence import (
    BOOL,
    INTEGER,
    MATRICES,
    MATRIX,
    NUMBER,
    REAL,
    SIGNED,
    AtenCall,
    Computed,
    Promotion,
    aten_calls,
)
from meta.op.core.op import Op

NONE, COMMON, FLOATING = Promotion.NONE, Promotion.COMMON, Promotion.FLOATING

FUNCTIONS: Mapping[Op, str] = {
    op.acos: "acos arccos",
    op.acosh: "acosh arccosh",
    op.asin: "asin arcsin",
    op.asinh: "asinh arcsinh",
    op.atan: "atan arctan",
    op.atanh: "atanh arctanh",
    op.cos: "cos",
    op.cosh: "cosh",
    op.deg2rad: "deg2rad",
    op.digamma: "digamma special_digamma special_psi",
    op.entr: "special_entr",
    op.erf: "erf special_erf",
    op.erfc: "erfc special_erfc",
    op.erfinv: "erfinv special_erfinv",
    op.exp: "exp",
    op.exp2: "exp2 special_exp2",
    op.expm1: "expm1 special_expm1",
    op.i0: "i0 special_i0",
    op.i0e: "special_i0e",
    op.i1: "special_i1",
    op.i1e: "special_i1e",
    op.lgamma: "lgamma special_gammaln",
    op.log: "log",
    op.log10: "log10",
    op.log1p: "log1p special_log1p",
    op.log2: "log2",
    op.ndtr: "special_ndtr",
    op.rad2deg: "rad2deg",
    op.reciprocal: "reciprocal",
    op.rsqrt: "rsqrt",
    op.sigmoid: "sigmoid special_expit",
    op.sin: "sin",
    op.sinc: "sinc special_sinc",
    op.sinh: "sinh",
    op.sqrt: "sqrt",
    op.tan: "tan",
    op.tanh: "tanh",
}
"""Functions of one tensor whose result is floating point, of integers too."""

SAME_DTYPE: Mapping[Op, str] = {
    op.bitwise_invert: "bitwise_not",
    op.frac: "frac",
    op.isfinite: "isfinite",
    op.isinf: "isinf",
    op.isnan: "isnan",
    op.isneginf: "isneginf",
    op.isposinf: "isposinf",
    op.logical_not: "logical_not",
    op.negative: "neg negative",
    op.signbit: "signbit",
    op.square: "square",
}
"""Functions of one tensor as it is."""

OF_NUMBERS: Mapping[Op, str] = {
    op.abs: "abs absolute",
    op.ceil: "ceil",
    op.floor: "floor",
    op.round: "round",
    op.trunc: "trunc fix",
}
"""The same, which ATen has for bool otherwise."""

BINARY: Mapping[Op, str] = {
    op.bitwise_left_shift: """
        bitwise_left_shift.Tensor bitwise_left_shift.Tensor_Scalar bitwise_left_shift.Scalar_Tensor
        __lshift__.Tensor __lshift__.Scalar
    """,
    op.bitwise_right_shift: """
        bitwise_right_shift.Tensor bitwise_right_shift.Tensor_Scalar
        bitwise_right_shift.Scalar_Tensor __rshift__.Tensor __rshift__.Scalar
    """,
    op.equal: "eq.Tensor eq.Scalar",
    op.fmax: "fmax",
    op.fmin: "fmin",
    op.greater: "gt.Tensor gt.Scalar greater.Tensor greater.Scalar",
    op.greater_equal: "ge.Tensor ge.Scalar greater_equal.Tensor greater_equal.Scalar",
    op.heaviside: "heaviside",
    op.hypot: "hypot",
    op.less: "lt.Tensor lt.Scalar less.Tensor less.Scalar",
    op.less_equal: "le.Tensor le.Scalar less_equal.Tensor less_equal.Scalar",
    op.logaddexp: "logaddexp",
    op.logaddexp2: "logaddexp2",
    op.maximum: "maximum max.other",
    op.minimum: "minimum min.other",
    op.multiply: "mul.Tensor mul.Scalar multiply.Tensor multiply.Scalar",
    op.nextafter: "nextafter",
    op.not_equal: "ne.Tensor ne.Scalar not_equal.Tensor not_equal.Scalar",
    op.pow: "pow.Tensor_Tensor pow.Scalar",
}
"""Functions of two operands in their common dtype."""

BINARY_FLOATING: Mapping[Op, str] = {
    op.atan2: "atan2 arctan2",
    op.copysign: "copysign.Tensor copysign.Scalar",
    op.divide: """
        div.Tensor div.Scalar divide.Tensor divide.Scalar true_divide.Tensor true_divide.Scalar
    """,
    op.xlog1py: "special_xlog1py special_xlog1py.self_scalar special_xlog1py.other_scalar",
    op.xlogy: """
        xlogy.Tensor special_xlogy special_xlogy.self_scalar special_xlogy.other_scalar
    """,
}
"""The same, of which integers give floating point."""


def _elementwise() -> Iterator[AtenCall]:
    for base, names in FUNCTIONS.items():
        yield from aten_calls(base, names, promotion=FLOATING)
    for base, names in SAME_DTYPE.items():
        yield from aten_calls(base, names, promotion=COMMON)
    for base, names in OF_NUMBERS.items():
        yield from aten_calls(base, names, promotion=COMMON, x=NUMBER)
    for base, names in BINARY.items():
        yield from aten_calls(base, names, promotion=COMMON)
    for base, names in BINARY_FLOATING.items():
        yield from aten_calls(base, names, promotion=FLOATING)
    for base in (op.bitwise_and, op.bitwise_or, op.bitwise_xor):
        plain, short = base.name, f"__{base.name.removeprefix('bitwise_')}__"
        yield from aten_calls(
            base, f"{plain}.Tensor", promotion=COMMON, functions=f"{plain}_tensor"
        )
        names = f"{plain}.Scalar {plain}.Scalar_Tensor {short}.Tensor {short}.Scalar"
        yield from aten_calls(base, names, promotion=COMMON)
    for base in (op.logical_and, op.logical_or, op.logical_xor):
        yield from aten_calls(base, base.name, promotion=NONE)
    for base in (op.fmod, op.floor_divide, op.remainder):
        names = (
            f"{base.name} {base.name}.Scalar" if base is op.floor_divide else f"{base.name}.Scalar"
        )
        yield from aten_calls(base, names, promotion=COMMON, x1=REAL, x2=REAL)
    yield from aten_calls(
        op.fmod, "fmod.Tensor", promotion=COMMON, functions="fmod fmod_tensor", x1=REAL, x2=REAL
    )
    names = "remainder.Tensor remainder.Scalar_Tensor"
    yield from aten_calls(op.remainder, names, promotion=COMMON, x1=REAL, x2=REAL)
    names = "xlogy.Scalar_Self"
    yield from aten_calls(op.xlogy, names, promotion=FLOATING, functions="xlogy_scalar_tensor")
    names = "xlogy.Scalar_Other"
    yield from aten_calls(op.xlogy, names, promotion=FLOATING, functions="xlogy_tensor_scalar")
    for base in (op.i0, op.i1):  # ATen's own kernels of these names are of float32 and float64
        names = f"special_modified_bessel_{base.name}"
        yield from aten_calls(base, names, promotion=FLOATING, functions=None)
    yield from aten_calls(op.i0e, "special_i0e", functions="i0e")
    yield from aten_calls(op.i1, "special_i1", functions="i1")
    yield from aten_calls(op.i1e, "special_i1e", functions="i1e")
    # Of these a converter looks at more than their arguments.
    for base, names in {op.add: "add", op.subtract: "sub subtract"}.items():
        yield from aten_calls(base, " ".join(f"{n}.Tensor" for n in names.split()))
    yield from aten_calls(op.addcdiv, "addcdiv", "x tensor1 tensor2 value=value")
    yield from aten_calls(op.addcmul, "addcmul", "x tensor1 tensor2 value=value")
    yield from aten_calls(op.clip, "clamp clip", "x min max")
    yield from aten_calls(op.copy, "clone")
    yield from aten_calls(
        op.isclose, "isclose", "x1 x2 rtol atol equal_nan", promotion=COMMON, x1=REAL, x2=REAL
    )
    yield from aten_calls(op.ldexp, "ldexp.Tensor")
    yield from aten_calls(op.lerp, "lerp.Scalar", "x end weight")
    yield from aten_calls(op.lerp, "lerp.Tensor", "x end weight", functions="lerp_tensor")
    yield from aten_calls(op.logit, "logit special_logit", "x eps", promotion=FLOATING)
    yield from aten_calls(op.nan_to_num, "nan_to_num", "x nan posinf neginf")
    yield from aten_calls(op.pow, "pow.Tensor_Scalar")
    yield from aten_calls(op.sign, "sgn sign", x=INTEGER)
    names = "where.self where.ScalarOther where.ScalarSelf"
    yield from aten_calls(op.where, names, "condition x y", condition=BOOL)


def _activations() -> Iterator[AtenCall]:
    for base in (op.hardsigmoid, op.hardswish, op.mish, op.relu, op.selu):
        yield from aten_calls(base, base.name, promotion=NONE)
    yield from aten_calls(op.celu, "celu", "x alpha", promotion=NONE)
    yield from aten_calls(op.elu, "elu", "x alpha")
    yield from aten_calls(op.gelu, "gelu", "x approximate=approximate", promotion=NONE, x=REAL)
    yield from aten_calls(op.glu, "glu", "x axis", promotion=NONE)
    yield from aten_calls(op.hardshrink, "hardshrink", "x lambd", promotion=NONE)
    yield from aten_calls(op.leaky_relu, "leaky_relu", "x negative_slope", promotion=NONE)
    yield from aten_calls(
        op.logsigmoid, "log_sigmoid", promotion=NONE, functions="log_sigmoid logsigmoid"
    )
    yield from aten_calls(op.prelu, "prelu", "x weight", promotion=NONE, x=REAL)
    yield from aten_calls(op.relu6, "relu6")
    yield from aten_calls(op.silu, "silu")
    yield from aten_calls(op.softplus, "softplus", "x beta threshold", promotion=NONE)
    yield from aten_calls(op.softshrink, "softshrink", "x lambd", promotion=NONE)
    yield from aten_calls(op.threshold, "threshold", "x threshold value", promotion=NONE)
    yield AtenCall(op.tanhshrink, None, ("x",), functions=("tanhshrink",))
    for base in (op.softmax, op.log_softmax):
        name = base.name
        yield from aten_calls(base, f"_{name}", "x axis", False, functions=f"_{name} {name}")
    # Their gradients.
    for base in (op.softmax_dx, op.log_softmax_dx):
        name = base.name.removesuffix("_dx")
        yield from aten_calls(
            base,
            f"_{name}_backward_data",
            "dy y axis",
            Computed("dtype", ("y",)),
            functions=f"_{name}_backward_data {name}_backward",
        )
    yield from aten_calls(op.elu_dx, "elu_backward", "dy alpha", 1, 1, False, "x")
    yield from aten_calls(
        op.gelu_dx, "gelu_backward", "dy x approximate=approximate", promotion=NONE
    )
    yield from aten_calls(op.hardswish_dx, "hardswish_backward", "dy x", promotion=NONE)
    yield from aten_calls(op.leaky_relu_dx, "leaky_relu_backward", "dy x negative_slope", False)
    yield from aten_calls(op.mish_dx, "mish_backward", "dy x", promotion=NONE)
    yield from aten_calls(op.sigmoid_dx, "sigmoid_backward", "dy y", promotion=NONE)
    yield from aten_calls(op.silu_dx, "silu_backward", "dy x")
    yield from aten_calls(
        op.softplus_dx, "softplus_backward", "dy x beta threshold", promotion=NONE
    )
    yield from aten_calls(op.tanh_dx, "tanh_backward", "dy y")
    yield from aten_calls(op.threshold_dx, "threshold_backward", "dy x threshold")
    yield from aten_calls(op.relu_dx, "threshold_backward", "dy x", 0)
    yield from aten_calls(op.relu_dx, "threshold_backward", "dy y", 0)


def _reductions() -> Iterator[AtenCall]:
    for base in (op.all, op.any):
        yield from aten_calls(base, base.name, "x", x=SIGNED)
        yield from aten_calls(
            base, f"{base.name}.dim {base.name}.dims", "x axis keepdims", x=SIGNED
        )
    for base, form in ((op.sum, "dim_IntList"), (op.prod, "dim_int")):
        name = base.name
        yield from aten_calls(base, name, "x", x=SIGNED)
        yield from aten_calls(
            base, f"{name}.{form}", "x axis keepdims", functions=f"{name}_dim", x=SIGNED
        )
    for base in (op.max, op.min):
        yield from aten_calls(base, base.name, "x", promotion=NONE)
        yield from aten_calls(base, f"{base.name}.dim", "x axis keepdims", result=0)
        yield from aten_calls(base, f"a{base.name}", "x axis keepdims")
    for base in (op.argmax, op.argmin):
        yield from aten_calls(base, base.name, "x axis keepdims", x=NUMBER)
    yield from aten_calls(op.logsumexp, "logsumexp", "x axis keepdims", x=REAL)
    yield from aten_calls(op.mean, "mean", "x", x=REAL)
    yield from aten_calls(op.mean, "mean.dim", "x axis keepdims", x=REAL)
    for base, functions in ((op.std, "std"), (op.var, "var var_correction")):
        arguments = "x axis correction=correction keepdim=keepdims"
        overload = f"{base.name}.correction"
        yield from aten_calls(base, overload, arguments, functions=functions, x=REAL)
    for base in (op.cumprod, op.cumsum):
        yield from aten_calls(base, base.name, "x axis dtype=dtype", x=SIGNED)
    yield from aten_calls(op.sort, "sort", "x axis descending", result=0, x=NUMBER)


def _networks() -> Iterator[AtenCall]:
    yield from aten_calls(
        op.binary_cross_entropy_dpred,
        "binary_cross_entropy_backward",
        "dy prediction target",
        None,
        "reduction",
    )
    yield from aten_calls(op.mse_loss, "mse_loss", "prediction target reduction")
    yield from aten_calls(op.mse_loss_dpred, "mse_loss_backward", "dy prediction target reduction")
    last = Computed("last", ("x", "axis"))
    for name in ("layer_norm", "native_layer_norm"):
        yield from aten_calls(op.layer_norm, name, "x", last, "scale bias eps", result=0)
    yield from aten_calls(op.rms_norm, "rms_norm", "x", last, "scale eps")
    batch = Computed("batch", ("x1", "x2"))
    yield from aten_calls(op.batch_matmul, "bmm", batch, "x2", x1=MATRICES, x2=MATRICES)
    yield from aten_calls(op.dense, "linear", "x1 x2", x1=REAL, x2=REAL)
    yield from aten_calls(op.matmul, "matmul", "x1 x2", x1=REAL, x2=REAL)
    yield from aten_calls(op.matmul, "mm", "x1 x2", x1=MATRIX, x2=MATRIX)
    for base in (op.conv1d, op.conv2d, op.conv3d):
        yield from aten_calls(
            base, base.name, "x w", None, "stride padding dilation groups", x=REAL
        )


def _arrays() -> Iterator[AtenCall]:
    yield from aten_calls(op.broadcast_to, "broadcast_to", "x shape")
    yield from aten_calls(op.concat, "cat concatenate", "arrays axis")
    yield from aten_calls(op.embedding, "embedding", "x indices", x=MATRIX)
    yield from aten_calls(op.flip, "flip", "x axis")
    for base in (op.ones, op.zeros):
        yield from aten_calls(base, base.name, "shape dtype=dtype device=device")
    yield from aten_calls(op.full_like, "full_like", "x fill_value dtype=dtype")
    for base in (op.ones_like, op.zeros_like):
        yield from aten_calls(base, base.name, "x dtype=dtype")
    yield from aten_calls(op.repeat, "repeat_interleave.self_int", "x repeats axis")
    rows, axes = Computed("along", ("shift", "axis")), Computed("integers", ("axis",))
    yield from aten_calls(op.roll, "roll", "x", rows, axes)
    yield from aten_calls(op.scatter, "scatter.src", "x axis index src", functions="scatter")
    yield from aten_calls(op.scatter_add, "scatter_add", "x axis index src")
    yield from aten_calls(
        op.scatter_reduce,
        "scatter_reduce.two",
        "x axis index src reduce",
        functions="scatter_reduce",
    )
    yield from aten_calls(op.stack, "stack", "arrays axis")
    yield from aten_calls(op.tile, "repeat", "x", Computed("repeats", ("reps", "x")))
    yield from aten_calls(op.tile, "tile", "x", Computed("integers", ("reps",)))
    yield from aten_calls(op.tril, "tril", "x k", promotion=NONE)
    yield from aten_calls(op.triu, "triu", "x k", promotion=NONE)


CALLS: tuple[AtenCall, ...] = (
    *_elementwise(),
    *_activations(),
    *_reductions(),
    *_networks(),
    *_arrays(),
)
"""All records."""


def _grouped(keys: Callable[[AtenCall], tuple[str, ...]]) -> dict[str, tuple[AtenCall, ...]]:
    found: dict[str, list[AtenCall]] = {}
    for call in CALLS:
        for key in keys(call):
            found.setdefault(key, []).append(call)
    return {key: tuple(calls) for key, calls in found.items()}


BY_FUNCTION = _grouped(lambda call: call.functions)
"""By the name of a vendor's function, which may be called in several ways."""
BY_OPERATOR = _grouped(lambda call: (call.op.name,))
"""By the name of an operator."""

_NAMESPACES = (torch, torch._C._nn, torch.special)


def functions_of(*bases: Op) -> dict[Op, Callable[..., Any]]:
    """Return the functions of torch that compute operators, of the first record of each."""
    return {base: _function(BY_OPERATOR[base.name][0]) for base in bases}


def without_kernel(family: str) -> list[Op]:
    """Return the elementwise operators of one argument in a family that have a record, and no
    kernel of this dialect yet: their function is one.
    """
    known = [OPERATORS[name] for name in BY_OPERATOR if name not in dialect.ops]
    return [o for o in known if o.family == family and o.elementwise and len(o.slots) == 1]


def _function(call: AtenCall) -> Callable[..., Any]:
    name = (call.overload or "").partition(".")[0].removeprefix("special_")
    for namespace in _NAMESPACES:
        function: Callable[..., Any] | None = getattr(namespace, name, None)
        if function is not None:
            return function
    raise AssertionError(f"torch has no function {name!r}")
