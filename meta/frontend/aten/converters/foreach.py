"""Lists of tensors: overloads that are applied to each, and optimizers' steps."""

from dataclasses import replace

from meta import op
from meta.frontend.aten.arguments import cast, cast_or_take_real
from meta.frontend.aten.registry import aten
from meta.frontend.core import Unconvertible


def applied(call, name, operands, **attributes):
    """Call another overload's converter."""
    return aten.apply(replace(call, name=name, given=frozenset(attributes)), operands, attributes)


def foreach(name, overload, keyword=None, ignore=()):
    """Register an overload for the members of lists; what is no list is for all of them.

    keyword: under which a list of numbers goes, which is else an operand.
    """

    @aten(f"_foreach_{name}", ignore=ignore)
    def converted(*operands, call, **attributes):
        numbers = [v for v in attributes.values() if isinstance(v, tuple)]
        shared = {n: v for n, v in attributes.items() if not isinstance(v, tuple)}
        values = (*operands, *numbers)
        count = next(len(v) for v in values if isinstance(v, tuple))
        rows = zip(*(v if isinstance(v, tuple) else (v,) * count for v in values), strict=True)
        if keyword is None or not numbers:
            return tuple(applied(call, overload, row, **shared) for row in rows)
        return tuple(applied(call, overload, row[:-1], **{keyword: row[-1]}) for row in rows)


UNARY = """
abs acos asin atan ceil clone cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2
neg reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc zero
"""
for _name in UNARY.split():
    foreach(_name, _name, ignore=("memory_format",) if _name == "clone" else ())
foreach("max", "max")
foreach("norm.Scalar", "linalg_vector_norm")
foreach("mm", "mm")
foreach("copy", "copy", ignore=("non_blocking",))

BINARY = {
    "add": ("add.Tensor", "add.Scalar"),
    "clamp_max": ("clamp_max.Tensor", "clamp_max"),
    "clamp_min": ("clamp_min.Tensor", "clamp_min"),
    "div": ("div.Tensor", "div.Scalar"),
    "lerp": ("lerp.Tensor", "lerp.Scalar"),
    "maximum": ("maximum", "clamp_min"),
    "minimum": ("minimum", "clamp_max"),
    "mul": ("mul.Tensor", "mul.Scalar"),
    "pow": ("pow.Tensor_Tensor", "pow.Tensor_Scalar"),
    "sub": ("sub.Tensor", "sub.Scalar"),
}
"""With a list of tensors; with a number for all, or a number for each."""
for _name, (_of_tensors, _of_numbers) in BINARY.items():
    foreach(f"{_name}.List", _of_tensors)
    foreach(f"{_name}.Scalar", _of_numbers)
    foreach(f"{_name}.ScalarList", _of_numbers)
for _name in ("add", "mul", "div"):
    foreach(f"{_name}.Tensor", f"{_name}.Tensor")
foreach("pow.ScalarAndTensor", "pow.Scalar")


def _register_product(name):
    foreach(f"{name}.Scalar", name)
    foreach(f"{name}.ScalarList", name, keyword="value")

    @aten(f"_foreach_{name}.Tensor", op.multiply)
    def by_tensor(tensors, first, second, values, *, call):
        """The factors are the elements of a vector."""
        factors = (op.reshape(v, ()) for v in op.unstack(values))
        rows = zip(tensors, first, second, factors, strict=True)
        return tuple(
            applied(call, name, (x, op.multiply(a, cast_or_take_real(v, a.dtype)), b))
            for x, a, b, v in rows
        )


_register_product("addcdiv")
_register_product("addcmul")


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
