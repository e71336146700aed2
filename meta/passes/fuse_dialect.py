"""Fused patterns of the dialects: several calls become one function, which one kernel runs.

A dialect registers a pattern with its kernel: `Dialect.pattern`, docs/howto/backend.md.
"""

from __future__ import annotations

import warnings
from functools import lru_cache

from meta.base.device import Device
from meta.base.errors import MetaWarning
from meta.dialect.core import (
    ADJACENT,
    ALLOCATES,
    ARGUMENTS,
    DIALECTS,
    FUSED,
    FUSED_ONLY,
    KERNEL,
    LITERALS,
    DialectOp,
    FusedPattern,
    OpEnv,
    Unsupported,
    candidates,
    dialects,
)
from meta.dialect.core.backend_errors import building, located
from meta.dialect.core.ir_calls import called_op, declared_call
from meta.dialect.core.preference import Preference, current
from meta.ir import Call, Constant, Expr, Function, Literal, Module, TensorType, Var
from meta.op.core import CallValues, result_types
from meta.op.core.indices import checks_indices
from meta.passes.call_graph import PREPARED_BY
from meta.passes.index_ranges import index_atoms
from meta.passes.pattern import Match, Pattern, explain, match, pattern
from meta.passes.pattern.matches import captured_atoms
from meta.passes.pattern.nodes import Called, walk_nodes
from meta.passes.pattern.replacement import outlined
from meta.passes.pattern.scope import Facts


def fuse_dialect(module: Module, *, device: Device) -> Module:
    """Make functions of what the dialects have fused kernels for.

    Patterns are tried by their level on the device, largest first; of one level those of more calls
    first, then those of fewer results. A match stays as it is where the pattern's dialect is not to
    be used, where its kernel declines, and where one of the calls has a kernel of a larger level or
    a preferred dialect. `explain_fusion` says which, and why. To be run before `dispatch`, which
    leaves these functions.

    >>> from meta.base.device import CPU
    >>> from meta.dialect import only
    >>> from meta.ir import parse
    >>> with only("torch"):
    ...     print(meta.passes.fuse_dialect(parse('''
    ... func @main(%x: float32[2, 3], %w: float32[4, 3], %b: float32[4]) -> float32[2, 4] {
    ...   %0: float32[2, 4] = dense(%x, %w)
    ...   %1: float32[2, 4] = bias_add(%0, %b)
    ...   return %1
    ... }'''), device=CPU))
    func @main(%x: float32[2, 3], %w: float32[4, 3], %b: float32[4]) -> float32[2, 4] {
      %0: float32[2, 4] = @linear(%x, %w, %b)
      return %0
    }
    <BLANKLINE>
    func @linear(%x: float32[2, 3], %w: float32[4, 3], %b: float32[4]) -> float32[2, 4] \
attrs(fused="torch", kernel="linear", arguments=(("x", 0), ("w", 1), ("b", 2))) {
      %0: float32[2, 4] = dense(%x, %w)
      %1: float32[2, 4] = bias_add(%0, %b)
      return %1
    }
    """
    known: dict[Function, Facts] = {}
    for fused in _in_order(device):
        module = _partitioned(module, fused, device, known)
    return module


def _may_fuse(name: str, function: Function, module: Module) -> bool:
    """Whether a function is neither a kernel nor made by `prepare`, whose calls have kernels."""
    main = module.functions.get("main")
    prepared = None if main is None else main.attrs.get(PREPARED_BY)
    return FUSED not in function.attrs and name != prepared


def explain_fusion(module: Module, *, device: Device) -> str:
    """Return what `fuse_dialect` does with every pattern, and why not more, as text.

    >>> module = meta.model.Linear(3, 2).program(meta.ones((4, 3))).module
    >>> module = meta.passes.canonicalize(module)
    >>> with meta.dialect.only("torch"):
    ...     text = meta.passes.explain_fusion(module, device=meta.device("cpu"))
    >>> [line.split("#")[0].strip() for line in text.splitlines() if "matched  %" in line]
    ['matched  %1: float32[4, 2] = bias_add(%0, %bias)']
    """
    broken = [_broken(f, device) for d in DIALECTS.values() for f in d.patterns.values()]
    lines = [text for text in broken if text is not None]
    known: dict[Function, Facts] = {}
    for fused in _in_order(device):
        described = _pattern(fused, device)
        texts = [
            explain(described, f, module=module, writing=True)
            for name, f in module.functions.items()
            if _may_fuse(name, f, module)
        ]
        level = fused.plevels.get(device.kind, fused.dialect.plevel)
        lines.append(f"{fused.dialect.name} plevel {level} {fused.site}")
        lines += [f"  {line}" for text in texts for line in text.splitlines()]
        module = _partitioned(module, fused, device, known)
    return "\n".join(lines)


def _in_order(device: Device) -> list[FusedPattern]:
    """Return the patterns that may be used on a device, in the order in which they are tried."""
    preference, found = current(), []
    for dialect in dialects():
        if preference.refusal(dialect.name) is None and dialect.refusal(device) is None:
            dialect.load()
            found += [f for f in dialect.patterns.values() if _broken(f, device) is None]
    order = {f: (*_rank(f, device, preference), *_size(f, device)) for f in found}
    return sorted(found, key=order.__getitem__)


def _rank(
    fused: FusedPattern, device: Device, preference: Preference, op: str = ""
) -> tuple[int, int]:
    """Return where a pattern of a dialect stands, for a call of an operator: the smaller, the
    earlier.
    """
    level = fused.plevels.get(device.kind, fused.dialect.plevel)
    return preference.place(fused.dialect.name, op), -level


def _size(fused: FusedPattern, device: Device) -> tuple[int, int]:
    """Return what orders patterns of one level: more calls first, then fewer results."""
    described = _pattern(fused, device)
    calls = sum(isinstance(node, Called) for node in walk_nodes(*described.results))
    return -calls, len(described.results)


@lru_cache(maxsize=1024)
def _broken(fused: FusedPattern, device: Device) -> str | None:
    """Return what is wrong with what a pattern describes, which a MetaWarning says; None if it is
    right. It is left out, so that programs without such calls are compiled.
    """
    try:
        _pattern(fused, device)
    except Exception as error:
        text = f"the pattern {fused.name!r} of {fused.dialect.name!r} is not used: {located(error)}"
        warnings.warn(f"{text}; its kernel is at {fused.site}", MetaWarning, stacklevel=2)
        return text
    return None


@lru_cache(maxsize=1024)
def _pattern(fused: FusedPattern, device: Device) -> Pattern:
    def check(match: Match) -> str | None:
        try:
            _prepared(fused, match, device)
        except Unsupported as refusal:
            return str(refusal)
        hidden = _hidden_argument(match) or _hidden_indices(match, device)
        return hidden or _better(fused, match, device, current())

    return pattern(check=check)(fused.describes)


def _prepared(fused: FusedPattern, found: Match, device: Device) -> OpEnv:
    """Return the kernel for a match; raises Unsupported if there is none."""
    made = (one.var.type for one in found.results)
    results = tuple(t for type_ in made if type_ is not None for t in result_types(type_))
    types = (*results, *found.types.values())
    if not all(isinstance(t, TensorType) for t in results):
        raise Unsupported("a result of a fused kernel is a tensor, or a tuple of tensors")
    if any(isinstance(t, TensorType) and not t.is_static for t in types):
        raise Unsupported("extents are known at run time only")
    one = results if len(results) > 1 else results[0]
    with building(fused.name, one, fused.dialect.name, f"cannot prepare a kernel ({fused.site})"):
        try:
            return fused.prepare(found.types, one, device)
        except Unsupported as error:
            refusal = error
    try:
        raise refusal
    finally:
        del refusal  # its traceback has this frame, and through it all that is being compiled


def _hidden_argument(found: Match) -> str | None:
    """Return which argument the pattern computes itself, as in ``y + y`` for a sum with c."""
    made = {member.var for member in found.members}
    inside = [name for name, value in found.captures.items() if value in made]
    return f"it computes {inside[0]}, which is one of its arguments" if inside else None


def _hidden_indices(found: Match, device: Device) -> str | None:
    """Return of which call the pattern computes indices that are to be looked at."""
    made = {member.var for member in found.members} if checks_indices(device) else set()
    for member in found.members if made else ():
        call = member.value
        for _, atom, _ in index_atoms(call) if isinstance(call, Call) else ():
            if atom in made:
                op = called_op(call)
                assert op is not None
                return f"it computes the indices of {op.name}, at which somebody is to look"
    return None


def _better(
    fused: FusedPattern, found: Match, device: Device, preference: Preference
) -> str | None:
    """Return which kernel of a call goes before the pattern's: that of another dialect."""
    for member in found.members:
        op = called_op(member.value)
        if op is None:
            continue
        mine = _rank(fused, device, preference, op.name)
        assert isinstance(member.value, Call)
        call = declared_call(op, member.value, device)
        for one in candidates(op, preference, device, call=call):
            level = one.plevel(device, call)
            if (preference.place(one.dialect.name, op.name), -level) >= mine:
                break
            other = one.dialect is not fused.dialect and level > FUSED_ONLY
            if other and _takes(one, call, preference):
                return f"{op.name} has the kernel {one.name} of level {level}"
    return None


def _takes(one: DialectOp, call: CallValues, preference: Preference) -> bool:
    """Whether a dialect operator has a kernel for a call."""
    dialect = one.dialect
    if preference.refusal(dialect.name) is not None or dialect.refusal(call.device) is not None:
        return False
    if dialect.declines is not None and dialect.declines(call) is not None:
        return False
    try:
        one.make(call)
    except Unsupported:
        return False
    return True


def _partitioned(
    module: Module, fused: FusedPattern, device: Device, known: dict[Function, Facts]
) -> Module:
    """``known``: the facts of functions, which hold as long as a function stays as it is."""
    described = _pattern(fused, device)

    def find(name: str, function: Function) -> list[Match]:
        if not _may_fuse(name, function, module):
            return []
        facts = known.setdefault(function, Facts(function, module))
        found = match(described, function, module=module, writing=True, facts=facts)
        if found:
            del known[function]
        return found

    return outlined(module, find, fused.name, lambda one: _attrs(fused, one, device))


def _attrs(fused: FusedPattern, found: Match, device: Device) -> dict[str, Literal]:
    """Return the attributes by which `Dialect.fused_kernel` finds the kernel and its arguments."""
    atoms = list(captured_atoms(found))
    arguments, literals = [], []
    for name, value in found.captures.items():
        if isinstance(value, Var | Constant) and value in atoms:
            arguments.append((name, atoms.index(value)))
        elif not isinstance(value, Expr):
            literals.append((name, value))
    attrs: dict[str, Literal] = {FUSED: fused.dialect.name, KERNEL: fused.name}
    attrs[ARGUMENTS] = tuple(arguments)
    if literals:
        attrs[LITERALS] = tuple(literals)
    env = _prepared(fused, found, device)
    if env.allocates:
        attrs[ALLOCATES] = True
    if env.adjacent:
        attrs[ADJACENT] = True
    return attrs
