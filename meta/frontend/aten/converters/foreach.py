"""Lists of tensors, each of which an elementwise overload is applied to."""

from dataclasses import replace

from meta import op
from meta.frontend.aten.arguments import cast_or_real_part
from meta.frontend.aten.registry import aten


def applied(call, name, operands, **attributes):
    """Call another overload's converter."""
    return aten.apply(replace(call, name=name, given=frozenset(attributes)), operands, attributes)


def _each_of_one(name, overload):
    @aten(name)
    def of_one(tensors, *, call):
        return tuple(applied(call, overload, (x,)) for x in tensors)


_ONE = """
abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg
reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc max
"""
for _name in _ONE.split():
    _each_of_one(f"_foreach_{_name}", _name)


def _each_of_two(name, of_tensors, of_numbers):
    """With a list of others, a number for all, or a number for each."""

    @aten(f"_foreach_{name}.List")
    def by_tensors(tensors, others, *, call):
        pairs = zip(tensors, others, strict=True)
        return tuple(applied(call, of_tensors, pair) for pair in pairs)

    @aten(f"_foreach_{name}.Scalar")
    def by_number(tensors, number, *, call):
        return tuple(applied(call, of_numbers, (x, number)) for x in tensors)

    if name == "pow":
        return

    @aten(f"_foreach_{name}.ScalarList")
    def by_numbers(tensors, *, scalars, call):
        pairs = zip(tensors, scalars, strict=True)
        return tuple(applied(call, of_numbers, pair) for pair in pairs)


_each_of_two("mul", "mul.Tensor", "mul.Scalar")
_each_of_two("div", "div.Tensor", "div.Scalar")
_each_of_two("clamp_max", "clamp_max.Tensor", "clamp_max")
_each_of_two("clamp_min", "clamp_min.Tensor", "clamp_min")
_each_of_two("minimum", "minimum", "clamp_max")
_each_of_two("maximum", "maximum", "clamp_min")
_each_of_two("pow", "pow.Tensor_Tensor", "pow.Tensor_Scalar")


def _each_with_alpha(name):
    @aten(f"_foreach_{name}.List")
    def by_tensors(tensors, others, *, alpha, call):
        pairs = zip(tensors, others, strict=True)
        return tuple(applied(call, f"{name}.Tensor", pair, alpha=alpha) for pair in pairs)

    @aten(f"_foreach_{name}.Scalar")
    def by_number(tensors, number, *, call):
        return tuple(applied(call, f"{name}.Scalar", (x, number)) for x in tensors)

    @aten(f"_foreach_{name}.ScalarList")
    def by_numbers(tensors, *, scalars, call):
        pairs = zip(tensors, scalars, strict=True)
        return tuple(applied(call, f"{name}.Scalar", pair) for pair in pairs)


_each_with_alpha("add")
_each_with_alpha("sub")


@aten("_foreach_add.Tensor")
def add_one(tensors, other, *, alpha, call):
    return tuple(applied(call, "add.Tensor", (x, other), alpha=alpha) for x in tensors)


@aten("_foreach_mul.Tensor")
def multiply_by_one(tensors, other, *, call):
    return tuple(applied(call, "mul.Tensor", (x, other)) for x in tensors)


@aten("_foreach_div.Tensor")
def divide_by_one(tensors, other, *, call):
    return tuple(applied(call, "div.Tensor", (x, other)) for x in tensors)


@aten("_foreach_pow.ScalarList")
def power_by_each(tensors, *, exponent, call):
    pairs = zip(tensors, exponent, strict=True)
    return tuple(applied(call, "pow.Tensor_Scalar", pair) for pair in pairs)


@aten("_foreach_pow.ScalarAndTensor")
def power_of_one(base, exponents, *, call):
    return tuple(applied(call, "pow.Scalar", (base, y)) for y in exponents)


def _each_of_three(name):
    @aten(f"_foreach_{name}.Scalar")
    def by_number(tensors, first, second, *, value, call):
        each = zip(tensors, first, second, strict=True)
        return tuple(applied(call, name, xs, value=value) for xs in each)

    @aten(f"_foreach_{name}.ScalarList")
    def by_numbers(tensors, first, second, *, scalars, call):
        each = zip(tensors, first, second, scalars, strict=True)
        return tuple(applied(call, name, (x, a, b), value=v) for x, a, b, v in each)

    @aten(f"_foreach_{name}.Tensor", op.multiply)
    def by_tensor(tensors, first, second, values, *, call):
        """The factors are the elements of a vector."""
        factors = (op.reshape(v, ()) for v in op.unstack(values))
        each = zip(tensors, first, second, factors, strict=True)
        return tuple(
            applied(call, name, (x, op.multiply(a, cast_or_real_part(v, a.dtype)), b))
            for x, a, b, v in each
        )


_each_of_three("addcdiv")
_each_of_three("addcmul")


@aten("_foreach_lerp.List")
def lerp(tensors, ends, weights, *, call):
    each = zip(tensors, ends, weights, strict=True)
    return tuple(applied(call, "lerp.Tensor", xs) for xs in each)


@aten("_foreach_lerp.Scalar")
def lerp_by(tensors, ends, weight, *, call):
    pairs = zip(tensors, ends, strict=True)
    return tuple(applied(call, "lerp.Scalar", (*pair, weight)) for pair in pairs)


@aten("_foreach_lerp.ScalarList")
def lerp_by_each(tensors, ends, *, weight, call):
    each = zip(tensors, ends, weight, strict=True)
    return tuple(applied(call, "lerp.Scalar", xs) for xs in each)


@aten("_foreach_norm.Scalar")
def norm(tensors, *, ord, dtype, call):
    return tuple(applied(call, "linalg_vector_norm", (x,), ord=ord, dtype=dtype) for x in tensors)


@aten("_foreach_mm")
def product(tensors, others, *, call):
    pairs = zip(tensors, others, strict=True)
    return tuple(applied(call, "mm", pair) for pair in pairs)


@aten("_foreach_clone", op.copy, ignore=("memory_format",))
def clone(tensors):
    return tuple(op.copy(x) for x in tensors)


@aten("_foreach_copy", ignore=("non_blocking",))
def copy(tensors, sources, *, call):
    pairs = zip(tensors, sources, strict=True)
    return tuple(applied(call, "copy", pair) for pair in pairs)


@aten("_foreach_zero", op.zeros_like)
def zero(tensors):
    return tuple(op.zeros_like(x) for x in tensors)
