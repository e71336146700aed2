"""Random numbers, and new tensors without elements of their own."""

from __future__ import annotations

import math
from typing import Any

import meta
from meta import random
from tools.torch_samples.compose import shape_of
from tools.torch_samples.draws import Drawn, Unwritten
from tools.torch_samples.families.creation import plain

FLOAT = "float32"


def floating(x: Any) -> str:
    """Return the dtype in which numbers for a tensor are drawn."""
    return x.dtype if "float" in x.dtype else FLOAT


def normal(mean: Any, std: Any = 1.0, size: Any = None, *, dtype: Any = None, **kwargs: Any) -> Any:
    """Normal numbers, of given means and deviations or of a size. To torch they hang on neither."""
    plain(kwargs)
    arrays = [t for t in (mean, std) if hasattr(t, "dtype")]
    if not arrays:
        return random.normal(shape_of(size), mean=mean, std=std, dtype=dtype or FLOAT)
    shape = meta.broadcast_shapes(*[t.shape for t in arrays])
    with meta.no_grad():
        return random.normal(shape, mean=mean, std=std, dtype=arrays[0].dtype)


def like(draw: Any) -> Any:
    """Return randn_like or rand_like."""

    def drawn(input: Any, *, dtype: Any = None, **kwargs: Any) -> Any:
        plain(kwargs)
        return draw(input.shape, dtype=dtype or input.dtype)

    return drawn


def randint(*args: Any, dtype: Any = None, **kwargs: Any) -> Any:
    """Integers below a bound, or between two, as numbers of any dtype."""
    plain(kwargs)
    *bounds, size = args
    low, high = bounds if len(bounds) == 2 else (0, *bounds)
    return meta.astype(random.randint(shape_of(size), low=low, high=high), dtype or "int64")


def randint_like(input: Any, *bounds: int, dtype: Any = None, **kwargs: Any) -> Any:
    """Integers in the shape and dtype of a tensor."""
    return randint(*bounds, input.shape, dtype=dtype or input.dtype, **kwargs)


def bernoulli(input: Any, p: Any = None, **kwargs: Any) -> Any:
    """1 with a probability."""
    chance = input if p is None else meta.full(input.shape, p, floating(input))
    return meta.astype(random.bernoulli(chance), input.dtype)


def uniform_of(input: Any) -> Any:
    """Numbers on (0, 1) in the shape of a tensor, at least float32."""
    dtype = "float64" if input.dtype == "float64" else FLOAT
    u = random.uniform(input.shape, dtype=dtype)
    return meta.maximum(u, 2.0**-25)


def cauchy(input: Any, median: float = 0.0, sigma: float = 1.0) -> Any:
    """The distribution of Cauchy by its inverse."""
    y = meta.tan((uniform_of(input) - 0.5) * math.pi) * sigma + median
    return meta.astype(y, input.dtype)


def geometric(input: Any, p: float) -> Any:
    """How many trials it takes until one succeeds."""
    y = meta.ceil(meta.log(uniform_of(input)) / math.log1p(-p))
    return meta.astype(y, input.dtype)


def dropped(axes: int | None) -> Any:
    """Return dropout of elements, or of whole channels behind the leading axes."""

    def drawn(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if not training or p == 0.0:
            return meta.copy(input)
        lead = input.ndim if axes is None else input.ndim - axes
        shape = (*input.shape[:lead], *(1,) * (input.ndim - lead))
        kept = random.bernoulli(meta.full(shape, 1.0 - p, "float32"))
        scale = 0.0 if p == 1.0 else 1.0 / (1.0 - p)
        return meta.where(kept > 0.5, input * scale, 0.0)

    return drawn


def alpha_dropped(axes: int | None) -> Any:
    """Return the dropout that keeps mean and variance (Klambauer et al., 2017)."""

    def drawn(input: Any, p: float = 0.5, training: bool = False, inplace: bool = False) -> Any:
        if not training or p == 0.0:
            return meta.copy(input)
        if p == 1.0:
            return meta.zeros_like(input)
        lead = input.ndim if axes is None else 2
        shape = (*input.shape[:lead], *(1,) * (input.ndim - lead))
        kept = random.bernoulli(meta.full(shape, 1.0 - p, "float32")) > 0.5
        low = -1.7580993408473766
        a = 1 / math.sqrt((1 - p) * (1 + p * low * low))
        return meta.where(kept, input, low) * a - a * low * p

    return drawn


def rrelu(
    input: Any,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Any:
    """Leaky relu with a random slope for every element, or the mean slope."""
    if not training:
        return meta.leaky_relu(input, (lower + upper) / 2)
    slopes = random.uniform(input.shape, low=lower, high=upper, dtype=input.dtype)
    return meta.where(input > 0, input, input * slopes)


def empty(*size: Any, dtype: Any = None, **kwargs: Any) -> Any:
    """A new tensor."""
    plain(kwargs)
    return meta.zeros(shape_of(*size), dtype or FLOAT)


def trained(*args: Any, p: float = 0.5, training: bool = True, **kwargs: Any) -> bool:
    """Whether something is dropped."""
    return training and 0.0 < p < 1.0


ADAPTERS = {
    "bernoulli": Drawn(bernoulli),
    "cauchy": Drawn(cauchy),
    "empty": Unwritten(empty),
    "empty_like": Unwritten(
        lambda input, *, dtype=None, **kwargs: empty(
            input.shape, dtype=dtype or input.dtype, **kwargs
        )
    ),
    "exponential": Drawn(
        lambda input, lambd=1.0: random.exponential(
            input.shape, scale=1.0 / lambd, dtype=input.dtype
        )
    ),
    "geometric": Drawn(geometric),
    "log_normal": Drawn(
        lambda input, mean=1.0, std=2.0: meta.exp(
            random.normal(input.shape, mean=mean, std=std, dtype=input.dtype)
        )
    ),
    "multinomial": Drawn(
        lambda input, num_samples, replacement=False: random.multinomial(
            input, num_samples, replacement
        )
    ),
    "new_empty": Unwritten(
        lambda input, *size, dtype=None, **kwargs: empty(
            *size, dtype=dtype or input.dtype, **kwargs
        )
    ),
    "nn.functional.alpha_dropout": Drawn(alpha_dropped(None)),
    "nn.functional.dropout": Drawn(dropped(None), trained),
    "nn.functional.dropout2d": Drawn(dropped(2), trained, 25),
    "nn.functional.dropout3d": Drawn(dropped(3), trained, 125),
    "nn.functional.feature_alpha_dropout|with_train": Drawn(alpha_dropped(2), together=125),
    "nn.functional.feature_alpha_dropout|without_train": alpha_dropped(2),
    "nn.functional.rrelu": Drawn(rrelu),
    "normal": Drawn(normal),
    "normal|in_place": Drawn(
        lambda input, mean=0.0, std=1.0: random.normal(
            input.shape, mean=mean, std=std, dtype=input.dtype
        )
    ),
    # To this entry of torch's, the deviation comes first.
    "normal|number_mean": Drawn(
        lambda std, mean, *size, **kwargs: normal(mean, std, *size, **kwargs)
    ),
    # This entry of torch's calls randn_like.
    "rand_like": Drawn(like(random.normal)),
    "randint": Drawn(randint),
    "randint_like": Drawn(randint_like),
    "randn": Drawn(
        lambda *size, dtype=None, **kwargs: normal(0.0, 1.0, shape_of(*size), dtype=dtype, **kwargs)
    ),
    "randn_like": Drawn(like(random.normal)),
    "uniform": Drawn(
        lambda input, low=0.0, high=1.0: random.uniform(
            input.shape, low=low, high=high, dtype=input.dtype
        )
    ),
}
