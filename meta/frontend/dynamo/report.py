"""What `meta.explain_compile` says: operators, kernels, calls back into PyTorch, graph breaks."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from meta.frontend.aten.graph import target_name
from meta.frontend.core import Failure
from meta.frontend.dynamo.compiler import GraphCompiler, backend, record_compiled_graphs
from meta.vm.compiler.bytecode import Invoke
from meta.vm.executable import Executable

CALL_BACK = "torch_call"


@dataclass(frozen=True)
class GraphReport:
    """What became of one graph of AOTAutograd's.

    Attributes
    ----------
    role: "inference", "forward" or "backward". operators: how often PyTorch's operators occur in
    it. kernels: how often each kernel is launched, by dialect and name; "" where the sizes of a
    call decide the dialect. calls_back: the calls that PyTorch runs, and why.
    for_all_sizes: False if programs are compiled for the sizes of each call.
    """

    role: str
    operators: Mapping[str, int]
    kernels: Mapping[tuple[str, str], int]
    calls_back: tuple[Failure, ...]
    for_all_sizes: bool

    def __str__(self) -> str:
        count = sum(self.operators.values())
        lines = [f"{self.role}: {count} operators, {sum(self.kernels.values())} kernels"]
        if not self.for_all_sizes:
            lines.append("  compiled for the sizes of each call")
        by_dialect: dict[str, list[str]] = {}
        for (dialect, name), times in sorted(self.kernels.items()):
            shown = name.removeprefix(f"{dialect}.")
            by_dialect.setdefault(dialect or "by sizes", []).append(_times(shown, times))
        lines += [f"  {dialect}: {', '.join(names)}" for dialect, names in by_dialect.items()]
        grouped = Counter((f.operator, f.why) for f in self.calls_back)
        first = {(f.operator, f.why): f.place for f in reversed(self.calls_back)}
        for (name, why), times in grouped.most_common():
            place = first[name, why]
            lines.append(f"  calls back {_times(name, times)}: {why} (first at {place})")
        return "\n".join(lines)


def _times(name: str, count: int) -> str:
    return name if count == 1 else f"{name} x {count}"


@dataclass(frozen=True)
class CompileReport:
    """What ``torch.compile(model, backend="meta")`` makes of a model; ``print`` it.

    Attributes
    ----------
    graphs: in the order in which they were compiled. breaks: why TorchDynamo split the model, and
    where; empty if it is one graph.
    """

    graphs: tuple[GraphReport, ...]
    breaks: tuple[str, ...]

    @property
    def calls_back(self) -> tuple[Failure, ...]:
        """The calls of all graphs that PyTorch runs."""
        return tuple(f for graph in self.graphs for f in graph.calls_back)

    def __str__(self) -> str:
        breaks = len(self.breaks)
        head = (
            f"{len(self.graphs)} graphs, {breaks} graph breaks, "
            f"{len(self.calls_back)} calls back into PyTorch"
        )
        return "\n".join(
            [head, *(f"break: {text}" for text in self.breaks), *map(str, self.graphs)]
        )


def explain(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> CompileReport:
    """Compile a copy of a model for these arguments, run it, and say what happened; see
    `meta.explain_compile`.
    """
    with torch.random.fork_rng():
        torch._dynamo.reset()
        explained: Any = torch._dynamo.explain(_own(model))
        found = explained(*_own(args), **_own(kwargs))
        breaks = [_break_text(reason) for reason in found.break_reasons if reason.graph_break]
        torch._dynamo.reset()
        with record_compiled_graphs() as graphs:
            run: Any = torch.compile(_own(model), backend=backend)
            _differentiate(run(*_own(args), **_own(kwargs)))
        torch._dynamo.reset()
    return CompileReport(tuple(map(_report_of, graphs)), tuple(breaks))


def _own(values: Any) -> Any:
    """Return a copy of a model, or of arguments, which running must not change."""
    if isinstance(values, nn.Module):
        return copy.deepcopy(values)

    def copied(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.detach().clone().requires_grad_(value.requires_grad)

    return values if callable(values) else pytree.tree_map(copied, values)


def _differentiate(result: Any) -> None:
    """Run the gradient, if there is one, so that it is compiled."""
    tensors = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
    trained = [t.float().sum() for t in tensors if t.requires_grad and not t.is_complex()]
    if trained:
        total: Any = torch.stack(trained).sum()  # torch gives `backward` no types
        total.backward()


def _break_text(reason: Any) -> str:
    where = reason.user_stack[-1] if reason.user_stack else None
    text = str(reason.reason).splitlines()[0]
    return text if where is None else f"{text}, at {where.filename}:{where.lineno}"


def _report_of(compiler: GraphCompiler) -> GraphReport:
    called = [node.target for node in compiler.graph.graph.nodes]
    kinds = (torch._ops.OpOverload, torch._ops.HigherOrderOperator)
    operators = Counter(target_name(target) for target in called if isinstance(target, kinds))
    programs = compiler.programs()
    executables = [one.executable for one in programs if one.executable is not None]
    kernels = Counter(kernel for executable in executables for kernel in _kernels_of(executable))
    back = tuple(f for one in programs for f in one.calls_back)
    return GraphReport(compiler.role, operators, kernels, back, compiler.for_all is not None)


def _kernels_of(executable: Executable) -> Iterator[tuple[str, str]]:
    """Iterate over the kernels that are launched, without the calls back."""
    for function in executable.code.functions.values():
        for i in function.instructions():
            if isinstance(i, Invoke) and executable.code.kernels[i.kernel].base != CALL_BACK:
                kernel = executable.code.kernels[i.kernel]
                yield kernel.dialect, kernel.name
