"""Random numbers. They are drawn by our own keys, so their distributions are torch's, and not
their values; a generator of torch's is not asked.
"""

import math

import torch

from meta import op, random
from meta.base.dtype import COMPLEX, TO_TORCH, is_float, limits
from meta.frontend.aten.arguments import (
    cast,
    cast_or_take_real,
    default_dtype,
    full_tensor,
    number,
    promote,
    real_dtype,
    require_strided,
)
from meta.frontend.aten.registry import aten
from meta.frontend.core import Unconvertible
from meta.ir.dims import SymbolicDim

PLACEMENT = ("device", "pin_memory")
LIKE = (*PLACEMENT, "memory_format")


def uniform_of(shape, dtype, call, low=0.0, high=1.0):
    """Of complex numbers both parts are of [low, high)."""
    if dtype in COMPLEX:
        parts = (uniform_of(shape, real_dtype(dtype), call, low, high) for _ in range(2))
        return op.complex(*parts)
    if not is_float(dtype):
        raise Unconvertible(f"uniform numbers of {dtype} are not supported")
    return random.uniform(tuple(shape), low=low, high=high, dtype=dtype, device=call.device)


def normal_of(shape, dtype, call, mean=0.0, std=1.0):
    """Of complex numbers the parts have half the variance each."""
    if dtype in COMPLEX:
        part, scale = real_dtype(dtype), std * math.sqrt(0.5)
        real, imag = (normal_of(shape, part, call, m, scale) for m in (mean, 0.0))
        return op.complex(real, imag)
    return random.normal(
        tuple(shape), mean=float(mean), std=float(std), dtype=dtype, device=call.device
    )


def _register_drawn(name, draw):
    """The overloads of numbers that have a shape, or that of a tensor."""

    @aten(name, op.random_key, ignore=PLACEMENT)
    def of_shape(*, size, dtype, layout, call):
        require_strided(layout)
        return draw(size, dtype or default_dtype(), call)

    @aten(f"{name}.generator", op.random_key, ignore=(*PLACEMENT, "generator"))
    def of_shape_by(*, size, dtype, layout, call):
        require_strided(layout)
        return draw(size, dtype or default_dtype(), call)

    @aten(f"{name}_like", op.random_key, ignore=LIKE)
    def like(x, *, dtype, layout, call):
        require_strided(layout)
        return draw(x.shape, dtype or x.dtype, call)

    @aten(f"{name}_like.generator", op.random_key, ignore=(*LIKE, "generator"))
    def like_by(x, *, dtype, layout, call):
        require_strided(layout)
        return draw(x.shape, dtype or x.dtype, call)


_register_drawn("rand", uniform_of)
_register_drawn("randn", normal_of)


def integers(shape, low, high, dtype, call):
    """Integers of [low, high), in a dtype that may be floating point."""
    if isinstance(low, SymbolicDim) or isinstance(high, SymbolicDim):
        raise Unconvertible("random integers below an extent that is no number")
    if dtype in COMPLEX:
        raise Unconvertible(f"random integers of {dtype} are not supported")
    whole = dtype if not is_float(dtype) and dtype != "bool" else "int64"
    drawn = random.randint(tuple(shape), low=low, high=high, dtype=whole, device=call.device)
    return cast_or_take_real(drawn, dtype)


def _register_integers(form, ignore):
    @aten(f"randint{form}", op.random_integers, ignore=ignore)
    def randint(*, high, size, dtype, layout, call):
        require_strided(layout)
        return integers(size, 0, high, dtype or "int64", call)


def _register_integers_from(form, ignore):
    @aten(f"randint{form}", op.random_integers, ignore=ignore)
    def randint(*, low, high, size, dtype, layout, call):
        require_strided(layout)
        return integers(size, low, high, dtype or "int64", call)


_register_integers("", PLACEMENT)
_register_integers(".generator", (*PLACEMENT, "generator"))
_register_integers_from(".low", PLACEMENT)
_register_integers_from(".low_generator", (*PLACEMENT, "generator"))


def _register_integers_like(form, ignore):
    @aten(f"randint_like{form}", op.random_integers, ignore=ignore)
    def like(x, *, high, dtype, layout, call):
        require_strided(layout)
        return integers(x.shape, 0, high, dtype or x.dtype, call)

    between = ".low_dtype" if not form else ".low_generator_dtype"

    @aten(f"randint_like{between}", op.random_integers, ignore=ignore)
    def like_from(x, *, low, high, dtype, layout, call):
        require_strided(layout)
        return integers(x.shape, low, high, dtype or x.dtype, call)


_register_integers_like("", LIKE)
_register_integers_like(".generator", (*LIKE, "generator"))


def _permutation(n, dtype, call):
    if isinstance(n, SymbolicDim):
        words = random.randint((n,), low=-(2**63), high=2**63 - 1, device=call.device)
        return cast_or_take_real(op.argsort(words), dtype)
    return cast_or_take_real(random.permutation(n, device=call.device), dtype)


@aten("randperm.generator", op.argsort, ignore=(*PLACEMENT, "generator"))
@aten("randperm", op.argsort, ignore=PLACEMENT)
def randperm(*, n, dtype, layout, call):
    require_strided(layout)
    return _permutation(n, dtype or "int64", call)


# In the place of a tensor's values.

GENERATOR = ("generator",)


def _below(p, shape, dtype, call):
    """1 with probability p, a number or a tensor, else 0."""
    wide = "float64" if not isinstance(p, float) and p.dtype == "float64" else "float32"
    p = p if isinstance(p, float) else cast(p, wide)
    return cast(op.less(uniform_of(shape, wide, call), p), dtype)


@aten("bernoulli", op.random_uniform, op.less, ignore=GENERATOR)
def bernoulli(x, *, call):
    return _below(x, x.shape, x.dtype, call)


@aten("bernoulli.p", op.random_uniform, op.less, ignore=GENERATOR)
def bernoulli_of(x, *, p, call):
    return _below(float(p), x.shape, x.dtype, call)


@aten("bernoulli.Tensor", op.random_uniform, op.less, ignore=GENERATOR)
def bernoulli_by(x, p, *, call):
    return _below(op.broadcast_to(p, tuple(x.shape)), x.shape, x.dtype, call)


@aten("uniform", op.random_uniform, ignore=GENERATOR)
def uniform(x, *, call, **bounds):
    return uniform_of(x.shape, x.dtype, call, bounds["from"], bounds["to"])


@aten("normal_functional", op.random_normal, ignore=GENERATOR)
def normal_functional(x, *, mean, std, call):
    return normal_of(x.shape, x.dtype, call, mean, std)


def _scaled(mean, std, shape, dtype, call):
    """As torch has it, no gradient goes to mean and deviation."""
    z = normal_of(shape, dtype, call)
    return op.detach(op.add(op.multiply(z, std), mean))


@aten("normal.Tensor_Tensor", op.random_normal, ignore=GENERATOR)
def normal_by(mean, std, *, call):
    mean, std = promote(mean, std)
    shape = tuple(op.broadcast_arrays(mean, std)[0].shape)
    return _scaled(mean, std, shape, mean.dtype, call)


@aten("normal.Tensor_float", op.random_normal, ignore=GENERATOR)
def normal_by_mean(mean, *, std, call):
    return _scaled(mean, float(std), mean.shape, mean.dtype, call)


@aten("normal.float_Tensor", op.random_normal, ignore=GENERATOR)
def normal_by_std(std, *, mean, call):
    return _scaled(float(mean), std, std.shape, std.dtype, call)


@aten("normal.float_float", op.random_normal, ignore=(*GENERATOR, *PLACEMENT))
def normal(*, mean, std, size, dtype, layout, call):
    require_strided(layout)
    return normal_of(size, dtype or default_dtype(), call, mean, std)


@aten("exponential", op.random_uniform, op.log, ignore=GENERATOR)
def exponential(x, *, lambd, call):
    return random.exponential(tuple(x.shape), scale=1 / lambd, dtype=x.dtype, device=call.device)


def _wide(dtype):
    return "float64" if dtype == "float64" else "float32"


@aten("cauchy", op.random_uniform, op.tan, ignore=GENERATOR)
def cauchy(x, *, median, sigma, call):
    u = uniform_of(x.shape, _wide(x.dtype), call)
    drawn = op.tan(op.multiply(op.subtract(u, 0.5), math.pi))
    return cast(op.add(op.multiply(drawn, float(sigma)), float(median)), x.dtype)


@aten("log_normal", op.random_normal, op.exp, ignore=GENERATOR)
def log_normal(x, *, mean, std, call):
    return cast(op.exp(normal_of(x.shape, _wide(x.dtype), call, mean, std)), x.dtype)


@aten("geometric", op.random_uniform, op.log, op.ceil, ignore=GENERATOR)
def geometric(x, *, p, call):
    """How often one tries until a success of probability p, by the inverse of the distribution."""
    if p == 1:
        return full_tensor(x.shape, 1, x.dtype, call)
    waits = random.exponential(tuple(x.shape), dtype=_wide(x.dtype), device=call.device)
    return cast(op.ceil(op.divide(waits, -math.log1p(-p))), x.dtype)


def _greatest(dtype):
    """Up to where `random` draws: all whole numbers that a floating point dtype has in a row."""
    if dtype == "bool":
        return 1
    if is_float(dtype):
        return 2 ** (1 - int(math.log2(torch.finfo(TO_TORCH[dtype]).eps)))
    return int(limits(dtype).max)


@aten("random", op.random_integers, ignore=GENERATOR)
def random_(x, *, call):
    return integers(x.shape, 0, _greatest(x.dtype) + 1, x.dtype, call)


@aten("random.to", op.random_integers, ignore=GENERATOR)
def random_to(x, *, to, call):
    return integers(x.shape, 0, to, x.dtype, call)


@aten("random.from", op.random_integers, ignore=GENERATOR)
def random_from(x, *, call, **bounds):
    end = _greatest(x.dtype) + 1 if bounds["to"] is None else bounds["to"]
    return integers(x.shape, bounds["from"], end, x.dtype, call)


@aten("multinomial", op.random_uniform, op.topk, op.searchsorted, ignore=GENERATOR)
def multinomial(x, *, num_samples, replacement):
    return random.multinomial(x, num_samples, replacement)


for _name in ("poisson", "binomial", "_standard_gamma", "_sample_dirichlet"):
    aten.refuse(_name, why="there are no random numbers of this distribution here")


# Dropout.


@aten("native_dropout", op.dropout_train)
def native_dropout(x, *, p, train, call):
    if p == 0 or train is False:
        return x, full_tensor(x.shape, 1, "bool", call)
    if p == 1:
        return full_tensor(x.shape, 0, x.dtype, call), full_tensor(x.shape, 0, "bool", call)
    y, mask, _ = op.dropout_train(x, float(p))
    return y, mask


@aten("native_dropout_backward", op.multiply)
def native_dropout_backward(dy, mask, *, scale):
    dy, factor = promote(dy, float(scale))
    return op.multiply(dy, op.multiply(cast(mask, dy.dtype), factor))


@aten("_fused_dropout", op.dropout_train, ignore=GENERATOR)
def fused_dropout(x, *, p, call):
    """p is how probable it is that an element stays; the mask is of bytes."""
    y, mask = native_dropout(x, p=1 - p, train=True, call=call)
    return y, op.astype(mask, "uint8")


@aten("dropout", op.dropout_train)
def dropout(x, *, p, train):
    return op.dropout(x, float(p), bool(train))


def _dropout_mask(x, p, whole, call):
    """1 for what stays, else 0; whole: all of a feature, which the first two axes name."""
    shape = (*x.shape[:2], *(1,) * (x.ndim - 2)) if whole else x.shape
    return _below(1.0 - p, shape, x.dtype, call)


def _alpha_dropped(x, p, whole, call):
    """Dropped elements get the value that keeps mean and variance (Klambauer et al., 2017)."""
    if p == 1:
        return op.multiply(x, number(0, x.dtype, call.device))
    alpha = 1.7580993408473766
    scale = 1 / math.sqrt((alpha**2 * p + 1) * (1 - p))
    kept = _dropout_mask(x, p, whole, call)
    # (kept - 1) * alpha * a + alpha * a * p is what is added.
    shift = op.add(op.multiply(op.subtract(kept, 1.0), alpha * scale), alpha * scale * p)
    return op.add(op.multiply(x, op.multiply(kept, scale)), shift)


@aten("feature_dropout", op.random_uniform, op.multiply)
def feature_dropout(x, *, p, train, call):
    if p == 0 or not train or 0 in x.shape:
        return x
    if p == 1:
        return op.multiply(x, number(0, x.dtype, call.device))
    return op.multiply(x, op.multiply(_dropout_mask(x, p, True, call), 1 / (1 - p)))


@aten("alpha_dropout", op.random_uniform, op.multiply, op.add)
def alpha_dropout(x, *, p, train, call):
    return x if p == 0 or not train or 0 in x.shape else _alpha_dropped(x, p, False, call)


@aten("feature_alpha_dropout", op.random_uniform, op.multiply, op.add)
def feature_alpha_dropout(x, *, p, train, call):
    return x if p == 0 or not train or 0 in x.shape else _alpha_dropped(x, p, True, call)
