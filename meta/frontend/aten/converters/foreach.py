"""Lists of tensors: overloads that are applied to each, and optimizers' steps."""

from dataclasses import replace

from meta import op
from meta.frontend.aten.arguments import cast, cast_or_real_part
from meta.frontend.aten.registry import aten
from meta.frontend.core import Unconvertible


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


# Steps of optimizers for lists of parameters, as functions: the new lists are results.
#
# They are the operators that update several parameters in place, on copies. torch counts the steps
# of each parameter in a tensor of its own; those that share one are updated by one call.


def _grouped(steps):
    """Return the places of parameters that share a tensor of steps, for each such tensor."""
    groups = {}
    for i, step in enumerate(steps):
        groups.setdefault(id(step), []).append(i)
    return list(groups.values())


def _scaled(grads, scale, found_inf):
    """Return the gradients as torch leaves them: divided by the loss scale, if there is one and
    the step is taken.
    """
    if scale is None:
        return grads
    factor = op.reciprocal(op.reshape(scale, ()))
    if found_inf is not None:
        factor = op.where(_skip(found_inf), 1.0, factor)
    return tuple(op.multiply(g, cast(factor, g.dtype)) for g in grads)


def _skip(found_inf):
    return None if found_inf is None else op.not_equal(op.reshape(found_inf, ()), 0)


def _rate(lr):
    return lr if isinstance(lr, int | float) else op.reshape(lr, ())


def _updated(update, lists, grads, steps, found_inf, maximize, **numbers):
    """Return the new lists of an update, in their order.

    update: the operator, of the first list, the gradients, and the others. steps: None for an
    update that does not count them.
    """
    new = [list(map(op.copy, tensors)) for tensors in lists]
    numbers |= {"factor": -1.0 if maximize else 1.0, "skip": _skip(found_inf)}
    for places in _grouped(steps or (None,) * len(grads)):
        x, *state = (tuple(tensors[i] for i in places) for tensors in new)
        dx = tuple(grads[i] for i in places)
        if steps:
            numbers["step"] = op.reshape(steps[places[0]], ())
        written = list(update(x, dx, *state, **numbers))
        for tensors in new:
            for i in places:
                tensors[i] = written.pop(0)
    return [tuple(tensors) for tensors in new]


def _adam(update, x, grads, m, v, largest, steps, lr, scale, found_inf, options):
    if options.pop("amsgrad"):
        raise Unconvertible("it takes the largest of all second moments, amsgrad")
    grads = _scaled(grads, scale, found_inf)
    if not grads:
        return x, grads, m, v, largest
    new = _updated(update, (x, m, v), grads, steps, found_inf, learning_rate=_rate(lr), **options)
    return new[0], grads, new[1], new[2], largest


def _register_adam(name, update):
    @aten(f"_fused_{name}", update)
    def adam(x, grads, m, v, largest, steps, scale, found_inf, **options):
        lr = options.pop("lr")
        return _adam(update, x, grads, m, v, largest, steps, lr, scale, found_inf, options)

    @aten(f"_fused_{name}.tensor_lr", update)
    def adam_of_tensor(x, grads, m, v, largest, steps, lr, scale, found_inf, **options):
        return _adam(update, x, grads, m, v, largest, steps, lr, scale, found_inf, options)


_register_adam("adam", op.multi_tensor_adam)
_register_adam("adamw", op.multi_tensor_adamw)


def _sgd(x, grads, velocity, lr, scale, found_inf, options):
    momentum, first = options.pop("momentum"), options.pop("is_first_step")
    if options.pop("dampening") and momentum and not first:
        raise Unconvertible("it dampens gradients")
    grads, nesterov = _scaled(grads, scale, found_inf), options.pop("nesterov")
    if not grads:
        return x, grads, velocity
    lists, options["momentum"] = (x, velocity), momentum
    if not momentum:
        lists = (x,)
    elif first:
        # What torch passes is not written yet: the velocity begins as the gradient.
        lists = (x, tuple(map(op.zeros_like, velocity)))
    update = op.multi_tensor_sgd if momentum else _without_velocity
    new = _updated(
        update,
        lists,
        grads,
        None,
        found_inf,
        learning_rate=_rate(lr),
        nesterov=bool(nesterov and momentum),
        **options,
    )
    return new[0], grads, new[1] if momentum else velocity


def _without_velocity(x, dx, **numbers):
    return op.multi_tensor_sgd(x, dx, (), **numbers)


@aten("_fused_sgd", op.multi_tensor_sgd)
def sgd(x, grads, velocity, scale, found_inf, **options):
    return _sgd(x, grads, velocity, options.pop("lr"), scale, found_inf, options)


@aten("_fused_sgd.tensor_lr", op.multi_tensor_sgd)
def sgd_of_tensor(x, grads, velocity, lr, scale, found_inf, **options):
    return _sgd(x, grads, velocity, lr, scale, found_inf, options)


def _adagrad(x, grads, sums, steps, lr, scale, found_inf, options):
    grads = _scaled(grads, scale, found_inf)
    if not grads:
        return x, grads, sums
    options["learning_rate_decay"] = options.pop("lr_decay")
    update = op.multi_tensor_adagrad
    new = _updated(update, (x, sums), grads, steps, found_inf, learning_rate=_rate(lr), **options)
    return new[0], grads, new[1]


@aten("_fused_adagrad", op.multi_tensor_adagrad)
def adagrad(x, grads, sums, steps, scale, found_inf, **options):
    lr = options.pop("lr")
    return *_adagrad(x, grads, sums, steps, lr, scale, found_inf, options), steps


@aten("_fused_adagrad.tensor_lr", op.multi_tensor_adagrad)
def adagrad_of_tensor(x, grads, sums, steps, lr, scale, found_inf, **options):
    return _adagrad(x, grads, sums, steps, lr, scale, found_inf, options)
