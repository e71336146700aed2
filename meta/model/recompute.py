"""Calling a block that is called again for its gradients (`meta.model.checkpoint`), traced and
elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from meta import op
from meta.base.call_context import current
from meta.base.errors import ArgumentError
from meta.cost.flops import is_product
from meta.grad.core import run_checkpointed
from meta.ir import CHECKPOINT, Call, Function, FuncType, GlobalVar, Var
from meta.model.loop import Carry, pack, packed_type, unpack
from meta.op.core import tree
from meta.op.core.tracing import FunctionTrace, Symbol, Trace, Value
from meta.runtime.ndarray import ndarray

POLICIES = ("nothing", "everything", "products", "offload")


def call_checkpointed(
    block: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    held: Iterable[ndarray],
    name: str,
    policy: str,
) -> Any:
    """Return ``block(*args, **kwargs)``, a nested container of arrays.

    Traced, it is a global function with the attribute CHECKPOINT, whose name begins with ``name``.
    Elsewhere the tape keeps no more of it than the arguments and what the policy says, one of
    `POLICIES`. held: arrays of its own.
    """
    trace, held = current(), list(held)
    given = [a for a in tree.flatten((args, kwargs))[0] if isinstance(a, ndarray)]
    if policy == "offload":
        devices = (
            {trace.device} if isinstance(trace, Trace) else {a.device for a in (*given, *held)}
        )
        for device in devices:
            if device.kind != "cpu":
                raise ArgumentError(
                    "values for the backward pass are not moved to the host",
                    found=f"{name} on {device}",
                    hint='checkpoint(block, "nothing") or "products" needs less memory, too',
                )
    if policy in ("everything", "offload"):
        return block(*args, **kwargs)
    if isinstance(trace, Trace):
        return _traced(trace, block, (args, dict(kwargs)), name, policy)
    keeps = is_product if policy == "products" else None
    return run_checkpointed(lambda: block(*args, **kwargs), [*held, *given], keeps)


def _traced(trace: Trace, block: Callable[..., Any], arguments: Any, name: str, policy: str) -> Any:
    leaves, structure = tree.flatten(arguments)
    given = [trace.lift(leaf) for leaf in leaves]
    scope = _CheckpointTrace(trace)
    names = [n.rpartition(".")[2] for n in tree.leaf_names(structure)]
    names = [n if n.isidentifier() else "x" for n in names]
    params = [scope.parameter(v.type, n)[1] for v, n in zip(given, names, strict=True)]
    args, kwargs = tree.unflatten(structure, params)
    result = Carry(scope.run(lambda: block(*args, **kwargs)), scope)
    body = scope.builder.finish(pack([leaf.atom for leaf in result.leaves]))
    type_ = packed_type(result.types)
    outside = [*given, *(first for first, _ in scope.keys)]
    inside = [*params, *(key for _, key in scope.keys), *scope.captured.values()]
    variables = tuple(cast(Var, value.atom) for value in inside)
    unique = trace.global_names.unique(name if name.isidentifier() else "checkpoint")
    attrs = {CHECKPOINT: policy}
    trace.functions[unique] = Function(variables, body, type_, attrs)
    callee = GlobalVar(unique, FuncType(tuple(v.type for v in inside), type_))
    call = Call(callee, (*(v.atom for v in outside), *scope.captured))
    return result.tree(unpack(trace.emit(call, type_)))


class _CheckpointTrace(FunctionTrace):
    """A function whose random keys are parameters: called again, it computes the same."""

    def __init__(self, outer: Trace) -> None:
        super().__init__(outer)
        self.keys: list[tuple[Value, Value]] = []  # of each random call, outside and inside

    def draw_key(self) -> Symbol:
        """Return a key of this call alone."""
        first = self.outer.draw_key()
        if first is None:
            first = cast(Symbol, self.outer.run(op.random_key, str(self.device)))
        _, key = self.parameter(first.type, "key")
        self.keys.append((first, key))
        return cast(Symbol, key)
