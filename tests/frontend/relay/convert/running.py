"""Runs a Relay text under the interpreter and the VM, which have to agree."""

from __future__ import annotations

from typing import Any

import numpy as np

import meta
from meta.frontend.relay.model import RelayModel
from meta.frontend.relay.text import parse_text
from meta.op.core import tree


def model_of(text: str, **params: Any) -> RelayModel:
    """Return the model of a text."""
    return RelayModel(parse_text('#[version = "0.0.5"]\n' + text), params)


def run(text: str, *args: Any) -> Any:
    """Return what main gives: numbers and nested lists and tuples of them."""
    model = model_of(text)
    given = [a if isinstance(a, tuple) else meta.array(a) for a in args]
    results = [model(*given), meta.vm.compile(model, *given)(*given)]
    first, second = (tree.flatten(r)[0] for r in results)
    for a, b in zip(first, second, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    leaves, structure = tree.flatten(results[0])
    return tree.unflatten(structure, [a.numpy().tolist() for a in leaves])
