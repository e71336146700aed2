"""`check`: what of a model of another system is supported, before it is converted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meta.base.errors import ArgumentError, FormatError
from meta.base.files import open_file
from meta.frontend.core import Failure, grouped

_ZIP = b"PK"
_HEAD = 64


@dataclass(frozen=True)
class Report:
    """What is known of a model of another system.

    Attributes
    ----------
    source: "torch", "onnx", "relay" or "relax". operators: how often each is called, the most
    frequent first. failures: what stands against the model, each call by itself.
    """

    source: str
    operators: Mapping[str, int]
    failures: tuple[Failure, ...]

    @property
    def supported(self) -> bool:
        """Whether the model can be imported."""
        return not self.failures

    def unsupported(self) -> list[tuple[str, int, str, str, str]]:
        """Return a row for each operator and reason: name, number of calls, the place of the first,
        why, and what to try.
        """
        return [
            (group[0].operator, len(group), group[0].place, group[0].why, group[0].hint or "")
            for group in grouped(self.failures)
        ]

    def __str__(self) -> str:
        calls = sum(self.operators.values())
        what = "supported" if self.supported else "not supported"
        lines = [f"{self.source}: {what}; {calls} calls of {len(self.operators)} operators"]
        for name, count, place, why, hint in self.unsupported():
            times = "once" if count == 1 else f"{count} times, first"
            where = f" at {place}" if place else ""
            lines.append(f"  {name}, {times}{where}: {why}{f' ({hint})' if hint else ''}")
        return "\n".join(lines)


def check(
    model: Any,
    example_inputs: Sequence[Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    training: bool = False,
) -> Report:
    """Report what of a model is supported, without converting it.

    model: a `torch.nn.Module`, a `torch.export.ExportedProgram`, an `onnx.ModelProto`, a
        `tvm.ir.IRModule` of Relax, or the path of a file: ``.pt2``, ONNX, or Relay as text, JSON or
        an archive.
    example_inputs, example_kwargs, dynamic_shapes: of a torch module, as for `from_torch`.
    training: whether the module is looked at in train mode.

    The report lists the operators and all calls that stand against the model. It is true of
    operators and their attributes; what depends on shapes and dtypes is found when the model is
    first called.

    Raises ArgumentError for something else, and FormatError for a file that is damaged.

    >>> import torch
    >>> print(meta.frontend.check(torch.nn.Linear(2, 3), (torch.ones(1, 2),)))
    torch: supported; 1 calls of 1 operators
    """
    kind = kind_of(model)
    if kind == "torch":
        return _of_torch(model, example_inputs, example_kwargs, dynamic_shapes, training)
    if example_inputs or example_kwargs or dynamic_shapes is not None:
        raise ArgumentError(f"examples are for modules of torch, not for a model of {kind}")
    if kind == "onnx":
        return _of_onnx(model)
    return _of_relax(model) if kind == "relax" else _of_relay(model)


def kind_of(model: Any) -> str:
    """Return which system a model is of; ArgumentError if that is not known."""
    if isinstance(model, str | Path):
        return _kind_of_file(Path(model))
    for base in type(model).__mro__:
        library = base.__module__.partition(".")[0]
        if library == "torch":
            return "torch"
        if library == "onnx":
            return "onnx"
        if library == "tvm":
            return "relax"
    raise ArgumentError(
        "check takes a model of torch, ONNX, Relay or Relax, or a file of one",
        found=type(model).__name__,
    )


def _kind_of_file(path: Path) -> str:
    if path.suffix == ".onnx":
        return "onnx"
    with open_file(path) as file:
        head = file.read(_HEAD)
    if path.suffix == ".pt2" and head.startswith(_ZIP):
        return "torch"
    return "relay"


def _of_torch(
    model: Any, inputs: Sequence[Any], keywords: Any, dynamic_shapes: Any, training: bool
) -> Report:
    from torch.export import ExportedProgram

    from meta.frontend.aten.registry import AtenError
    from meta.frontend.torch.export import export_module, of_program
    from meta.frontend.torch.model import load
    from meta.frontend.torch.program import TorchProgram

    if isinstance(model, str | Path):
        model = load(model)
    try:
        if isinstance(model, ExportedProgram):
            found = of_program(model)
        else:
            found = export_module(model, inputs, keywords or {}, dynamic_shapes, training=training)
        program = TorchProgram(found)
    except AtenError as error:
        return Report("torch", {}, (Failure("torch.export", error.what, error.hint),))
    return Report("torch", _by_count(program.operators()), tuple(program.unsupported()))


def _of_onnx(model: Any) -> Report:
    import onnx

    from meta.frontend.onnx import from_onnx

    failures: tuple[Failure, ...] = ()
    try:
        from_onnx(model)
    except FormatError as error:
        if not error.failures:
            raise
        failures = error.failures
    proto = onnx.load(model, load_external_data=False) if isinstance(model, str | Path) else model
    return Report("onnx", _by_count(_onnx_operators(proto.graph)), failures)


def _onnx_operators(graph: Any) -> Counter[str]:
    found: Counter[str] = Counter()
    for node in graph.node:
        found[f"{node.domain}.{node.op_type}" if node.domain else node.op_type] += 1
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                found += _onnx_operators(inner)
    return found


def _of_relay(path: Any) -> Report:
    from meta.frontend.relay import ast
    from meta.frontend.relay.convert import RelayProgram
    from meta.frontend.relay.convert.program import unsupported
    from meta.frontend.relay.model import load_module

    program = RelayProgram(load_module(path)[0])
    operators = Counter(c.op.name for c in program.calls() if isinstance(c.op, ast.Op))
    return Report("relay", _by_count(operators), tuple(unsupported(program)))


def _of_relax(module: Any) -> Report:
    from meta.frontend.relax.model import operators, unsupported

    return Report("relax", _by_count(operators(module)), tuple(unsupported(module)))


def _by_count(operators: Mapping[str, int]) -> dict[str, int]:
    return dict(Counter(operators).most_common())
