"""Which operator a function of a vendor's ``ops/`` implements, by the function's name: a table.

A function has the name and the arguments of one of ATen's operators, as FlagGems' have: ``softmax``
takes ``(self, dim, half_to_float)``. Where ATen has overloads, the name says which: ``eq`` takes
tensors, ``eq_scalar`` a tensor and a number, ``sum`` all axes, ``sum_dim`` some. A row is our
operator called with what stands for ATen's arguments, in ATen's order; ATen's keyword-only
arguments are keywords. A slot of the operator that a row leaves out has its default value in the
calls that the function serves. In a row stand

- the name of a slot: a tensor, several, or an attribute;
- ``f(slot)``, ``whole(slot)``, ``signed(slot)``, ``b(slot)``, ``number(slot)``: a tensor of
  floating point, not of it, not unsigned, of bool, not of it; ``rank(slot, n)``: of floats, with n
  axes; ``batch(x1, x2)``: the first of two batches of equally many matrices;
- ``n(slot)``: a number, not a tensor;
- ``dim(axis)``, ``dims(axis)``: one axis; a list of them, one or more;
- ``ints(slot)``, ``each(slot, n)``, ``along(slot, axis)``: a list of an attribute; of n, or as many
  as axes, where it may be one number;
- ``reps(reps, x)``: a list, not shorter than the shape; ``reduction(slot)``: ATen's number for it;
- ``flag(slot)``: an attribute that is True or False;
- ``dtype_of(slot)``, ``dtype(slot)``: torch's dtype of a tensor; of an attribute, or None;
  ``device(slot)``: torch's;
- ``last(x, axis)``: ``[extent]`` of the axis, which is the last one;
- a constant; and ``[i]`` after the call: which of several results is the operator's, where the
  function returns several.

Where ATen means something else, there is no row: it reads no index from the end (``gather``,
``index_select``), has 0 for the sign of NaN, and traps on integers that are divided by 0.
"""

from __future__ import annotations

from collections.abc import Iterator

# Names of ATen that are the operator's own, with one tensor.
_UNARY = """
    acos acosh asin asinh atan atanh cos cosh deg2rad digamma erf erfc erfinv exp
    exp2 expm1 frac hardsigmoid hardswish i0 i0e i1 i1e isfinite isinf isnan isneginf isposinf
    lgamma log log10 log1p log2 logical_not logsigmoid mish rad2deg reciprocal relu relu6
    rsqrt selu sigmoid signbit silu sin sinc sinh sqrt square tan tanh tanhshrink
"""
# By a name of ATen, the operator that is called otherwise here, with one tensor.
_UNARY_OTHERWISE = {
    "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh",
    "arctan": "atan", "arctanh": "atanh", "bitwise_not": "bitwise_invert", "clone": "copy",
    "log_sigmoid": "logsigmoid", "neg": "negative", "negative": "negative",
    "special_entr": "entr", "special_erfc": "erfc", "special_erfinv": "erfinv",
    "special_i0e": "i0e", "special_i1": "i1", "special_i1e": "i1e", "special_ndtr": "ndtr",
}  # fmt: skip
# By a name of ATen, the operator of two tensors; ``<name>_scalar`` takes a number as the second.
_BINARY = {
    "atan2": "atan2", "arctan2": "atan2", "bitwise_and_tensor": "bitwise_and",
    "bitwise_left_shift": "bitwise_left_shift", "bitwise_or_tensor": "bitwise_or",
    "bitwise_right_shift": "bitwise_right_shift", "bitwise_xor_tensor": "bitwise_xor",
    "copysign": "copysign", "eq": "equal", "fmax": "fmax", "fmin": "fmin", "ge": "greater_equal",
    "greater": "greater", "greater_equal": "greater_equal", "gt": "greater",
    "heaviside": "heaviside", "hypot": "hypot", "ldexp": "ldexp", "le": "less_equal",
    "less": "less", "less_equal": "less_equal", "logaddexp": "logaddexp",
    "logaddexp2": "logaddexp2", "logical_and": "logical_and", "logical_or": "logical_or",
    "logical_xor": "logical_xor", "lt": "less", "maximum": "maximum", "minimum": "minimum",
    "ne": "not_equal", "nextafter": "nextafter", "not_equal": "not_equal",
    "pow_tensor_tensor": "pow", "xlogy": "xlogy",
    "special_xlog1py": "xlog1py",
    # With the arguments by which ATen has more than two left out.
    "add": "add", "div": "divide", "divide": "divide", "mul": "multiply", "multiply": "multiply",
    "sub": "subtract", "subtract": "subtract", "true_divide": "divide",
}  # fmt: skip
_SCALAR = {
    "bitwise_and_scalar": "bitwise_and", "bitwise_or_scalar": "bitwise_or",
    "bitwise_xor_scalar": "bitwise_xor", "eq_scalar": "equal",
    "ge_scalar": "greater_equal", "greater_scalar": "greater", "gt_scalar": "greater",
    "le_scalar": "less_equal", "less_equal_scalar": "less_equal", "lt_scalar": "less",
    "ne_scalar": "not_equal", "not_equal_scalar": "not_equal", "pow_tensor_scalar": "pow",
    "xlogy_tensor_scalar": "xlogy",
}  # fmt: skip
# Where ATen's arguments are others: the operator's call, or several.
_OTHER: dict[str, str | tuple[str, ...]] = {
    # Elementwise.
    "abs": "abs(number(x))",
    "absolute": "abs(number(x))",
    "addcdiv": "addcdiv(x, tensor1, tensor2, value=n(value))",
    "addcmul": "addcmul(x, tensor1, tensor2, value=n(value))",
    "ceil": "ceil(number(x))",
    "celu": "celu(x, n(alpha))",
    "clamp": "clip(x, n(min), n(max))",
    "clip": "clip(x, n(min), n(max))",
    "elu": "elu(x, n(alpha))",
    "fix": "trunc(number(x))",
    "floor": "floor(number(x))",
    "floor_divide": "floor_divide(f(x1), f(x2))",
    "fmod": "fmod(f(x1), f(x2))",
    "fmod_tensor": "fmod(f(x1), f(x2))",
    "gelu": "gelu(f(x), approximate=approximate)",
    "hardshrink": "hardshrink(x, n(lambd))",
    "leaky_relu": "leaky_relu(x, n(negative_slope))",
    "lerp_scalar": "lerp(x, end, n(weight))",
    "lerp_tensor": "lerp(x, end, weight)",
    "logit": "logit(x, eps)",
    "nan_to_num": "nan_to_num(x, nan, posinf, neginf)",
    "pow_scalar": "pow(n(x1), x2)",
    "remainder": "remainder(f(x1), f(x2))",
    "round": "round(number(x))",
    "sgn": "sign(whole(x))",
    "sign": "sign(whole(x))",
    "prelu": "prelu(f(x), weight)",
    "softplus": "softplus(x, n(beta), n(threshold))",
    "softshrink": "softshrink(x, n(lambd))",
    "threshold": "threshold(x, n(threshold), n(value))",
    "trunc": "trunc(number(x))",
    "where_scalar_other": "where(b(condition), x, n(y))",
    "where_scalar_self": "where(b(condition), n(x), y)",
    "where_self": "where(b(condition), x, y)",
    "xlogy_scalar_tensor": "xlogy(n(x1), x2)",
    # Their gradients.
    "elu_backward": "elu_dx(dy, n(alpha), 1, 1, False, x)",
    "gelu_backward": "gelu_dx(dy, x, approximate=approximate)",
    "hardswish_backward": "hardswish_dx(dy, x)",
    "leaky_relu_backward": "leaky_relu_dx(dy, x, n(negative_slope), False)",
    "log_softmax_backward": "log_softmax_dx(dy, y, dim(axis), dtype_of(y))",
    "mish_backward": "mish_dx(dy, x)",
    "sigmoid_backward": "sigmoid_dx(dy, y)",
    "silu_backward": "silu_dx(dy, x)",
    "softmax_backward": "softmax_dx(dy, y, dim(axis), dtype_of(y))",
    "softplus_backward": "softplus_dx(dy, x, n(beta), n(threshold))",
    "tanh_backward": "tanh_dx(dy, y)",
    "threshold_backward": (
        "threshold_dx(dy, x, n(threshold))",
        "relu_dx(dy, x, 0)",
        "relu_dx(dy, y, 0)",
    ),
    # Losses.
    "binary_cross_entropy_backward": (
        "binary_cross_entropy_dpred(dy, prediction, target, None, reduction(reduction))"
    ),
    "mse_loss": "mse_loss(prediction, target, reduction(reduction))",
    "mse_loss_backward": "mse_loss_dpred(dy, prediction, target, reduction(reduction))",
    # Rows.
    "cumprod": "cumprod(signed(x), axis, dtype=dtype(dtype))",
    "cumsum": "cumsum(signed(x), axis, dtype=dtype(dtype))",
    "glu": "glu(x, axis)",
    "log_softmax": "log_softmax(x, axis, False)",
    "softmax": "softmax(x, axis, False)",
    # Reductions.
    "all": "all(signed(x))",
    "all_dim": "all(signed(x), dim(axis), flag(keepdims))",
    "all_dims": "all(signed(x), dims(axis), flag(keepdims))",
    "amax": "max(x, dims(axis), flag(keepdims))",
    "amin": "min(x, dims(axis), flag(keepdims))",
    "any": "any(signed(x))",
    "any_dim": "any(signed(x), dim(axis), flag(keepdims))",
    "any_dims": "any(signed(x), dims(axis), flag(keepdims))",
    "argmax": ("argmax(number(x), dim(axis), flag(keepdims))", "argmax(number(x))"),
    "argmin": ("argmin(number(x), dim(axis), flag(keepdims))", "argmin(number(x))"),
    "logsumexp": "logsumexp(f(x), dims(axis), flag(keepdims))",
    "max": "max(x)",
    "max_dim": "max(x, dim(axis), flag(keepdims))[0]",
    "mean": "mean(f(x))",
    "mean_dim": "mean(f(x), dims(axis), flag(keepdims))",
    "min": "min(x)",
    "min_dim": "min(x, dim(axis), flag(keepdims))[0]",
    "prod": "prod(signed(x))",
    "prod_dim": "prod(signed(x), dim(axis), flag(keepdims))",
    "std": "std(f(x), dims(axis), correction=correction, keepdim=flag(keepdims))",
    "sum": "sum(signed(x))",
    "sum_dim": "sum(signed(x), dims(axis), flag(keepdims))",
    "var": "var(f(x), dims(axis), correction=correction, keepdim=flag(keepdims))",
    "var_correction": "var(f(x), dims(axis), correction=correction, keepdim=flag(keepdims))",
    # Norms, of which ATen also returns what the gradient keeps.
    "layer_norm": "layer_norm(x, last(x, axis), scale, bias, eps)[0]",
    "native_layer_norm": "layer_norm(x, last(x, axis), scale, bias, eps)[0]",
    "rms_norm": "rms_norm(x, last(x, axis), scale, eps)",
    # Products.
    "bmm": "batch_matmul(batch(x1, x2), rank(x2, 3))",
    "linear": "dense(f(x1), f(x2))",
    "matmul": "matmul(f(x1), f(x2))",
    "mm": "matmul(rank(x1, 2), rank(x2, 2))",
    # Convolutions, in the layouts that ATen has.
    "conv1d": "conv1d(f(x), w, None, each(stride, 1), each(padding, 1), each(dilation, 1), groups)",
    "conv2d": "conv2d(f(x), w, None, each(stride, 2), each(padding, 2), each(dilation, 2), groups)",
    "conv3d": "conv3d(f(x), w, None, each(stride, 3), each(padding, 3), each(dilation, 3), groups)",
    # Elements and their places.
    "broadcast_to": "broadcast_to(x, ints(shape))",
    "cat": "concat(arrays, dim(axis))",
    "concatenate": "concat(arrays, dim(axis))",
    "embedding": "embedding(rank(x, 2), indices)",
    "full_like": "full_like(x, n(fill_value), dtype=dtype(dtype))",
    "flip": "flip(x, dims(axis))",
    "isclose": "isclose(f(x1), f(x2), n(rtol), n(atol), equal_nan)",
    "ones": "ones(ints(shape), dtype=dtype(dtype), device=device(device))",
    "ones_like": "ones_like(x, dtype=dtype(dtype))",
    "repeat": "tile(x, reps(reps, x))",
    "repeat_interleave_self_int": "repeat(x, repeats, axis)",
    "roll": "roll(x, along(shift, axis), ints(axis))",
    "scatter": "scatter(x, axis, index, src)",
    "scatter_add": "scatter_add(x, axis, index, src)",
    "scatter_reduce": "scatter_reduce(x, axis, index, src, reduce)",
    "sort": "sort(number(x), axis, descending)[0]",
    "stack": "stack(arrays, axis)",
    "tile": "tile(x, ints(reps))",
    "tril": "tril(x, k)",
    "triu": "triu(x, k)",
    "zeros": "zeros(ints(shape), dtype=dtype(dtype), device=device(device))",
    "zeros_like": "zeros_like(x, dtype=dtype(dtype))",
}


def _rows() -> Iterator[tuple[str, tuple[str, ...]]]:
    yield from ((name, (f"{name}(x)",)) for name in _UNARY.split())
    yield from ((name, (f"{op}(x)",)) for name, op in _UNARY_OTHERWISE.items())
    yield from ((name, (f"{op}(x1, x2)",)) for name, op in _BINARY.items())
    yield from ((name, (f"{op}(x1, n(x2))",)) for name, op in _SCALAR.items())
    for name, stated in _OTHER.items():
        yield name, (stated,) if isinstance(stated, str) else stated


def _spellings() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the rows, and for ATen's private names such as ``_softmax`` the same."""
    for name, forms in _rows():
        yield name, forms
        if name in ("softmax", "log_softmax"):
            yield f"_{name}", forms
            yield f"_{name}_backward_data", dict(_rows())[f"{name}_backward"]


ROWS: dict[str, tuple[str, ...]] = dict(_spellings())
"""By the name of a function, how the operators that it implements are called."""


def is_other_form(name: str) -> bool:
    """Whether a name is that of a form in a row that writes its argument or takes ``out=``: our
    operators are functions of their arguments, so that nothing would call it.
    """
    plain = name.removesuffix("_out").removesuffix("_")
    return plain != name and any(one in ROWS for one in (plain, f"{plain}_tensor"))
