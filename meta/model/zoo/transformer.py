"""What the transformers of this folder have in common: `Config`, attention over heads, masks,
activations, initial values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, ClassVar, TypeVar

import torch

from meta import op
from meta.base.dtype import is_float
from meta.base.errors import ArgumentError, TypeInferError
from meta.base.registry import nearest
from meta.model import init
from meta.model.layers.basic import Embedding
from meta.model.model import Model
from meta.op.core.function import device_of

__all__ = ["causal_lm_loss", "masked_lm_loss"]


C = TypeVar("C", bound="Config")


@dataclass(frozen=True)
class Config:
    """Base of frozen dataclasses with the field names of transformers' class of the same name.

    ``fixed``: fields of theirs that change the network and have one value here. Fields that say
    nothing about the network (``use_cache``, ``torch_dtype``) are not kept.
    """

    fixed: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def from_dict(cls: type[C], values: Mapping[str, Any]) -> C:
        """Return the configuration that a ``config.json`` of transformers describes.

        Raises ArgumentError if that network is another one than is built here.
        """
        require_dict(cls.__name__, values)
        for name, built in cls.fixed.items():
            if values.get(name, built) not in (built, None):
                raise ArgumentError(
                    f"{cls.__name__} has no networks with another {name}",
                    expected=f"{name}={built!r}",
                    found=repr(values[name]),
                )
        known = {f.name for f in fields(cls)}
        return cls(**{n: v for n, v in values.items() if n in known})

    @classmethod
    def require(cls, config: object) -> None:
        """Raise ArgumentError for something else than a configuration of this class."""
        if not isinstance(config, cls):
            raise ArgumentError(
                f"this network is made from meta's {cls.__name__}",
                found=f"{type(config).__module__}.{type(config).__qualname__}",
                hint=f"meta.model.zoo.{cls.__name__}.from_dict(config.to_dict())",
            )


def require_dict(name: str, values: object) -> None:
    """Raise ArgumentError for something else than the values of a configuration by name."""
    if not isinstance(values, Mapping):
        raise ArgumentError(
            f"{name}.from_dict takes a dict",
            found=type(values).__name__,
            hint="config.to_dict() of transformers' class, or json.load of a config.json",
        )


def require_divides(part: int, whole: int, parts: str, wholes: str) -> None:
    """Raise ArgumentError unless ``part`` divides ``whole``."""
    if part < 1 or whole % part:
        raise ArgumentError(
            f"{parts} must divide {wholes}", expected=f"a divisor of {whole}", found=part
        )


ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "gelu": op.gelu,
    "gelu_new": partial(op.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(op.gelu, approximate="tanh"),
    "relu": op.relu,
    "sigmoid": op.sigmoid,
    "silu": op.silu,
    "swish": op.silu,
    "tanh": op.tanh,
}
"""Activation functions by the names that configurations use."""


def activation(name: str) -> Callable[[Any], Any]:
    """Return the activation function of a name; ArgumentError for an unknown one."""
    if name not in ACTIVATIONS:
        raise ArgumentError(
            f"there is no activation function {name!r}",
            expected=", ".join(ACTIVATIONS),
            hint=nearest(name, ACTIVATIONS),
        )
    return ACTIVATIONS[name]


def embed_positions(table: Embedding, steps: int, position_ids: Any = None) -> Any:
    """Return the rows of a table for positions, integers [n or 1, steps]; without them, [steps,
    width] for 0, 1, ... TypeInferError for more steps than there are rows.
    """
    if position_ids is not None:
        return table(position_ids)
    known = table.weight.shape[0]
    if steps > known:
        raise TypeInferError(
            "these texts are longer than the model's",
            expected=f"at most {known} tokens",
            found=f"{steps} tokens",
        )
    return op.strided_slice(table.weight, (0,), (steps,))


def split_heads(x: Any, heads: int) -> Any:
    """Return [n, steps, heads * d] as [n, steps, heads, d]."""
    n, steps, width = x.shape
    return op.reshape(x, (n, steps, heads, width // heads))


def merge_heads(x: Any) -> Any:
    """Return [n, steps, heads, d] as [n, steps, heads * d]."""
    n, steps, heads, width = x.shape
    return op.reshape(x, (n, steps, heads * width))


def bool_mask(mask: Any) -> Any:
    """Return a mask of the tokens, or of pairs of them, as `attend` takes it.

    mask: integers or bool, not 0 where a token may be looked at: [n, keys], or [n, 1 or heads,
    queries, keys]; None stays None. Result: bool, four axes.
    """
    if mask is None:
        return None
    if mask.ndim not in (2, 4) or is_float(mask.dtype):
        raise TypeInferError(
            "this is no attention mask",
            expected="bool or integers, [n, keys] or [n, heads, queries, keys]",
            found=f"{mask.dtype}{list(mask.shape)}",
        )
    seen = mask if mask.dtype == "bool" else op.not_equal(mask, 0)
    return op.reshape(seen, (mask.shape[0], 1, 1, mask.shape[1])) if mask.ndim == 2 else seen


def attend(
    query: Any,
    key: Any,
    value: Any,
    mask: Any = None,
    causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
) -> Any:
    """`scaled_dot_product_attention` of heads behind the steps, as projections leave them.

    query: [b, l, h, d]. key: [b, s, g, d], value: [b, s, g, e], where g divides h. mask: bool that
    broadcasts to [b, h, l, s]. Result: [b, l, h, e]; 0 for a query that sees no key.
    """
    how: dict[str, Any] = {"causal": causal, "scale": scale, "layout": "BSHD"}
    if dropout_p != 0:
        how |= {"dropout_key": op.random_key(device_of(query)), "dropout_p": dropout_p}
    return op.fused_attention(query, key, value, mask, **how)[0]


def initialize(model: Model, std: float, scaled: dict[str, float] | None = None) -> None:
    """Give every matrix normal values and every bias of one zero; normalisations stay as they are.

    std: the standard deviation. scaled: another one, for parameters whose name ends so.
    """
    padded = {id(m.weight): m for m in model.models() if isinstance(m, Embedding)}
    for name, array in model.named_parameters():
        if array.ndim > 1:
            own = [s for end, s in (scaled or {}).items() if name.endswith(end)]
            init.normal(array, std=own[0] if own else std)
        elif name.endswith("bias"):
            init.zeros(array)
        row = padded[id(array)].padding_idx if id(array) in padded else None
        if row is not None:
            init.change(array, partial(_zero_row, row))


def _zero_row(row: int, table: torch.Tensor) -> None:
    table[row] = 0


IGNORED = -100
"""The label of a token that is not counted."""


def masked_lm_loss(logits: Any, labels: Any) -> Any:
    """Return the mean cross entropy of the tokens that are to be predicted.

    logits: [n, steps, vocabulary]. labels: integers [n, steps]; -100 where nothing is predicted.
    Result: shape (); NaN if no token is.

    >>> labels = meta.array([[2, -100, -100]])  # one token of three
    >>> round(meta.model.zoo.masked_lm_loss(meta.zeros((1, 3, 4)), labels).item(), 4)  # log 4
    1.3863
    """
    rows = op.reshape(logits, (-1, logits.shape[-1]))
    return op.cross_entropy(rows, op.reshape(labels, (-1,)))


def causal_lm_loss(logits: Any, labels: Any) -> Any:
    """Return the mean cross entropy of each token's successor: `masked_lm_loss` of shifted labels.

    logits: [n, steps, vocabulary]. labels: [n, steps], as a rule the model's own input; -100 for a
    token that is not counted as a successor.

    >>> logits = meta.array([[[0.0, 9.0], [9.0, 0.0], [0.0, 0.0]]])  # word 1 follows, then word 0
    >>> round(meta.model.zoo.causal_lm_loss(logits, meta.array([[0, 1, 0]])).item(), 4)
    0.0001
    >>> round(meta.model.zoo.causal_lm_loss(logits, meta.array([[0, 1, 1]])).item(), 4)
    4.5001
    """
    n, steps = labels.shape
    last = op.full((n, 1), IGNORED, labels.dtype, device_of(labels))
    following = op.strided_slice(labels, (0, 1), (2**31 - 1, steps))  # any number of rows
    return masked_lm_loss(logits, op.concat((following, last), 1))
