"""Which overloads of ATen can be enabled, and which of them a name stands for.

An overload can be enabled if it has a converter (`meta.frontend.aten`), computes tensors of tensors
and nothing else, and has kernels of its own for a device: then PyTorch's formulas of gradients,
which stand above these kernels, hold as they are. What is composed of other overloads is enabled by
enabling those.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import torch

from meta.base.errors import ArgumentError, UnknownName
from meta.base.registry import OPERATORS, nearest
from meta.frontend.aten import aten
from meta.frontend.aten.graph import CHECKS, STRIDED
from meta.frontend.aten.registry import overload_of
from meta.op.core import Op

Overload = torch._ops.OpOverload
_COMPOSITE_KEYS = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
_SERVED_KEYS = ("CPU", "CUDA", *_COMPOSITE_KEYS)
_TENSORS = {"Tensor", "List[Tensor]"}

_MEMORY = re.compile(
    r"(copy|clone|lift|fill|zero|repeat|_lazy_clone|_pin_memory|_to_dense|_unsafe_view|narrow_copy"
    r"|(lift_fresh|alias|detach|expand|permute|select|slice|squeeze|t|transpose|unbind|unfold"
    r"|unsqueeze|view|split|split_with_sizes|diagonal|view_as_complex|view_as_real|_conj|_neg_view"
    r"|_reshape|_reshape_alias|_to)_copy|unsafe_split(_with_sizes)?"
    r"|(empty|full|ones|zeros)_like|new_(empty|empty_strided|full|ones|zeros))(\..*)?"
)
"""Overloads that only place, copy or fill memory: PyTorch's programs, and its own kernels, do that
all the time.
"""
_TENSOR_LISTS = re.compile(r"_foreach_.*|_fused_(adagrad|adam|adamw|sgd)(\..*)?|_chunk_cat")
"""Overloads of lists of tensors, which one native kernel serves and here each tensor has its own.
"""
_AMBIGUOUS = re.compile(
    r"(kthvalue|median|mode|nanmedian|sort|topk|_linalg_(eigh|svd|eigvals)|linalg_(eig|qr|lu"
    r"|lu_factor_ex|householder_product)|lu_unpack|nonzero_static)(\..*)?"
)
"""Overloads with several right results, of which programs may rely on PyTorch's."""


COMPOSED = "it is composed of other overloads, which are enabled instead"


@cache
def refusal(name: str) -> str | None:
    """Return why an overload that has a name among the converters cannot be enabled; None if it
    can.
    """
    converter, overload = aten.get(name), overload_of(name)
    if converter is None or overload is None or overload.namespace != "aten":
        return "there is no converter"
    if converter.function is None:
        return converter.reason or "it is not converted"
    schema, tags = overload._schema, overload.tags
    if schema.is_mutable:
        return "it writes to an argument, in place or given with out="
    if any(a.alias_info for a in (*schema.arguments, *schema.returns)):
        return "its result is a view"
    if torch.Tag.nondeterministic_seeded in tags:
        return "its random numbers are those of PyTorch's generator"
    if torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags:
        return "the extents of its result depend on data"
    returned = {str(r.type) for r in schema.returns}
    if not returned or not returned <= _TENSORS or name in CHECKS | STRIDED:
        return "its result is no tensor, or says how one lies in memory"
    if not any("Tensor" in str(a.type) for a in schema.arguments):
        return "it takes no tensor"
    for pattern, why in (
        (_MEMORY, "it only copies or fills memory"),
        (_TENSOR_LISTS, "one kernel of PyTorch's serves many tensors"),
        (_AMBIGUOUS, "it has several right results, and programs may rely on PyTorch's"),
    ):
        if pattern.fullmatch(name):
            return why
    if not any(has_kernel(overload, key) for key in _SERVED_KEYS):
        return COMPOSED
    return None


def has_kernel(overload: Overload, key: str) -> bool:
    """Whether an overload has a kernel that was registered for a dispatch key."""
    found: bool = torch._C._dispatch_has_kernel_for_dispatch_key(overload._name, key)
    return found


def is_reachable(overload: Overload, key: str) -> bool:
    """Whether an overload that can be enabled runs at the dispatch key of a device."""
    return any(has_kernel(overload, k) for k in (key, *_COMPOSITE_KEYS))


@cache
def all_names() -> tuple[str, ...]:
    """Return the names of all overloads that can be enabled.

    >>> import meta.interop.torch
    >>> [name for name in meta.interop.torch.names() if "softmax" in name][:2]
    ['_log_softmax', '_log_softmax_backward_data']
    """
    return tuple(name for name in aten if refusal(name) is None)


@cache
def _by_packet() -> Mapping[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for name in all_names():
        found.setdefault(name.partition(".")[0], []).append(name)
    return MappingProxyType({packet: tuple(names) for packet, names in found.items()})


@cache
def _by_operator() -> Mapping[str, tuple[str, ...]]:
    """By base operator, the overloads that first of all become it."""
    found: dict[str, list[str]] = {}
    for name in all_names():
        becomes = aten[name].becomes
        if becomes:
            found.setdefault(becomes[0].name, []).append(name)
    return MappingProxyType({op: tuple(names) for op, names in found.items()})


def _of_operator(op: str) -> tuple[str, ...]:
    """Return the overloads of a base operator, of its form that keeps what the gradient needs, and
    of its gradients: ``layer_norm``, ``layer_norm_train``, ``layer_norm_train_dx``.
    """
    related = re.compile(rf"{re.escape(op)}(_train)?(_d[a-z]+)?")
    known = _by_operator()
    return tuple(n for o in known if related.fullmatch(o) for n in known[o])


def overloads_of(name: str | Op | Overload) -> tuple[str, ...]:
    """Return the overloads that a name stands for: an overload ("add.Tensor", "aten::_softmax",
    ``torch.ops.aten.add.Tensor``), all of one function ("add"), or those of a base operator
    (`meta.softmax`, "softmax" where ATen composes it of others) and of its gradients.

    Raises UnknownName for a name that stands for none, with the nearest, and ArgumentError for what
    cannot be enabled, with the reason, and for what is no name.
    """
    if isinstance(name, Op):
        text, found = name.name, _of_operator(name.name)
    elif isinstance(name, str | Overload):
        text = str(name).removeprefix("aten::").removeprefix("aten.")
        plain = text.removesuffix(".default")
        found = (plain,) if plain in all_names() else _by_packet().get(plain, ())
        if not found:
            found = _composed_overloads(plain)
    else:
        raise ArgumentError(
            "an operator is named by a text, an overload of torch.ops, or an operator of meta",
            found=repr(name)[:80],
        )
    if found:
        return found
    plain = text.removesuffix(".default")
    overloads = [n for n in aten if n == plain or n.partition(".")[0] == plain]
    if overloads:
        raise ArgumentError(
            f"{text!r} cannot be enabled: {refusal(overloads[0])}",
            hint=nearest(plain, _known_names()),
        )
    raise UnknownName(
        f"no overload that can be enabled is named {text!r}", hint=nearest(plain, _known_names())
    )


def _composed_overloads(name: str) -> tuple[str, ...]:
    """Return what is enabled in place of a function that ATen composes of others: the overloads of
    the same base operator.
    """
    overloads = [n for n in aten if n == name or n.partition(".")[0] == name]
    composed = [n for n in overloads if refusal(n) == COMPOSED and aten[n].becomes]
    bases = [aten[n].becomes[0].name for n in composed]
    if not overloads and name in OPERATORS:
        bases = [name]
    return tuple(dict.fromkeys(found for base in bases for found in _of_operator(base)))


@cache
def _known_names() -> tuple[str, ...]:
    return tuple(dict.fromkeys((*_by_packet(), *all_names(), *_by_operator())))


def select_overloads(include: Iterable[Any] | None, exclude: Iterable[Any]) -> tuple[str, ...]:
    """Return the overloads that are included and not excluded, all if ``include`` is None.

    Raises as `overloads_of`, and ArgumentError for lists that contradict each other: exclusion of
    all that a name includes, or of what is not included.
    """
    for given in (include, exclude):
        if isinstance(given, str | Op | Overload):
            raise ArgumentError("names come as a list", expected=f"[{given!r}]", found=repr(given))
    included = {
        _text(one): overloads_of(one) for one in (all_names() if include is None else include)
    }
    wanted = {name for names in included.values() for name in names}
    if not wanted:
        raise ArgumentError("nothing is included", found="include=[]")
    excluded = {_text(one): overloads_of(one) for one in exclude}
    for text, names in excluded.items():
        if wanted.isdisjoint(names):
            raise ArgumentError(
                f"{text!r} is excluded, but it is not included", found=f"include={list(included)}"
            )
    left = wanted.difference(*excluded.values())
    for text, names in included.items():
        if include is not None and left.isdisjoint(names):
            raise ArgumentError(
                f"{text!r} is both included and excluded", found=f"exclude={list(excluded)}"
            )
    return tuple(n for n in all_names() if n in left)


def _text(name: Any) -> str:
    return name.name if isinstance(name, Op) else str(name)
