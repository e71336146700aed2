"""The operators of `programs.py` are registered while these tests run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import meta.namespace  # noqa: F401  (what looks into operators is imported before ours are there)
from meta.base.errors import UnknownName
from meta.base.registry import OPERATORS, nearest
from meta.ir import OP_RESOLVERS, OpNode
from tests.ir.programs import PLAIN_OPS, SITE, SOFTMAX


def resolve_fake(name: str) -> OpNode:
    """Stand in for a dialect's resolver: it has a softmax."""
    if name != "softmax":
        raise UnknownName(f"fake has no operator {name!r}", hint=nearest(name, ["softmax"]))
    return SOFTMAX


@pytest.fixture(scope="module", autouse=True)
def fake_ops() -> Iterator[None]:
    for op in PLAIN_OPS:
        OPERATORS.register(op.name, op, SITE)
    OP_RESOLVERS["fake"] = resolve_fake
    yield
    for op in PLAIN_OPS:
        OPERATORS.remove(op.name)
    del OP_RESOLVERS["fake"]
