"""The pieces of source texts by key, as one mapping.

A key is ``"<target>.<operator>.<piece>"``, as ``"cuda.add_one.gen_function"``. The mapping keeps
nothing of its own: it shows the kernels of the dialect, and what is written through it is theirs.

========================  ============================================================
``gen_function``          the whole source
``func_signature``        the signature of the host function
``func_decl``             its declaration
``func_call``             its call
``config``                the configurations
``filter``                which of them apply to a call
``gen_profiler``          what times the kernel in all of them
========================  ============================================================

The value of one of the first four is a function of a call's arguments that returns the text. What
is set in its place is a template, or a function of the names that templates see. Deleting a key
takes back what was set for this target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from functools import partial
from typing import TYPE_CHECKING, Any

from meta.base.errors import ArgumentError, UnknownName
from meta.base.registry import nearest
from meta.dialect.core.chooser import current_chooser
from meta.dialect.core.preference import only
from meta.dialect.template.kernel import CONFIG, FILTER, Template, targets
from meta.dialect.template.source_kernels import call_of, source_for
from meta.dialect.template.target import TargetSpec

if TYPE_CHECKING:
    from meta.dialect.template import TemplateDialect

PIECE_OF = {
    "gen_function": "function",
    "func_signature": "signature",
    "func_decl": "declaration",
    "func_call": "call",
}
"""The piece of a key's last part."""
PROFILER = "gen_profiler"
LAST = (*PIECE_OF, CONFIG, FILTER, PROFILER)


class UnknownKey(UnknownName, KeyError):
    """A key that no kernel has; a mapping's errors are KeyErrors."""


class Pieces(MutableMapping[str, Any]):
    """The mapping; there is one, ``template.pieces``."""

    def __init__(self, dialect: TemplateDialect) -> None:
        self._dialect = dialect

    def _found(self, key: str) -> tuple[TargetSpec, Template, str]:
        """Return target, kernel and last part of a key; UnknownKey with the nearest keys."""
        parts = key.split(".") if isinstance(key, str) else []
        if len(parts) == 3 and parts[1] in self._dialect.kernels and parts[2] in LAST:
            for target in targets():
                if target.name == parts[0]:
                    return target, self._dialect.kernels[parts[1]], parts[2]
        raise UnknownKey(
            f"no source text has the key {key!r}",
            expected="target.operator.piece",
            hint=nearest(str(key), self),
        )

    def __getitem__(self, key: str) -> Any:
        target, kernel, last = self._found(key)
        if last in (CONFIG, FILTER):
            return kernel.override(target.name, last)
        if last == PROFILER:
            return partial(_measured, self._dialect.name, kernel)
        return _text(kernel, target, PIECE_OF[last])

    def __setitem__(self, key: str, value: Any) -> None:
        target, kernel, last = self._found(key)
        if last == PROFILER:
            raise ArgumentError(
                f"{key!r} cannot be set: kernels are timed by meta.measure",
                hint="set config and filter, which say what is timed",
            )
        if last in PIECE_OF:
            value = kernel.written(PIECE_OF[last], value)
        kernel.overrides[target.name, PIECE_OF.get(last, last)] = value
        self._dialect.changed()

    def __delitem__(self, key: str) -> None:
        target, kernel, last = self._found(key)
        if kernel.overrides.pop((target.name, PIECE_OF.get(last, last)), None) is None:
            raise UnknownKey(f"nothing was set for {key!r}: it is derived, or of all targets")
        self._dialect.changed()

    def __iter__(self) -> Iterator[str]:
        for target in targets():
            for name in sorted(self._dialect.kernels):
                for last in LAST:
                    yield f"{target.name}.{name}.{last}"

    def __len__(self) -> int:
        return len(targets()) * len(self._dialect.kernels) * len(LAST)


def _text(kernel: Template, target: TargetSpec, piece: str) -> Callable[..., str]:
    """Return the function from the arguments of a call to a piece's text."""

    def text(*args: Any, **kwargs: Any) -> str:
        call = call_of(kernel.op, args, kwargs)
        found: str = getattr(source_for(kernel, target, call), piece)
        return found

    return text


def _measured(dialect: str, kernel: Template, *args: Any, **kwargs: Any) -> list[Any]:
    """Return what a call costs in each configuration, as measured dispatch has it."""
    call = call_of(kernel.op, args, kwargs)
    with only(dialect):
        return list(current_chooser().measure(call))
