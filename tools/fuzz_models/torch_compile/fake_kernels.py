"""What PyTorch's fake kernels state of a program's tensors, beside what its kernels return.

A compiler counts on the statements. Where they are wrong, it cannot be right: neither Inductor is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch.utils import _pytree as pytree

from meta.frontend.dynamo.decompositions import decompositions
from meta.frontend.dynamo.extents import Extents
from tools.fuzz_models.torch_compile.observe import observe, strides_of
from tools.fuzz_models.torch_compile.program import Program, namespace


class _Run(fx.Interpreter):
    """Runs a graph by PyTorch's kernels and notes what they return otherwise than stated."""

    def __init__(self, graph: fx.GraphModule, args: Sequence[Any], wrong: set[str]) -> None:
        super().__init__(graph)
        stated = [node.meta.get("val") for node in graph.graph.find_nodes(op="placeholder")]
        self.extents = Extents.of_call(stated, args)
        self.wrong = wrong

    def run_node(self, n: fx.Node) -> Any:
        """Run a node, and compare."""
        found = super().run_node(n)
        if n.op == "call_function":
            leaves = map(pytree.tree_leaves, (n.meta.get("val"), found))
            for stated, result in zip(*leaves, strict=True):
                if isinstance(stated, torch.Tensor) and isinstance(result, torch.Tensor):
                    self._compare(stated, result)
        return found

    def _compare(self, stated: torch.Tensor, result: torch.Tensor) -> None:
        try:
            shape = self.extents.shape_of(stated)
            strides = tuple(map(self.extents.of, stated.stride()))
        except KeyError:  # a symbol that no input has: nothing is stated for this call
            return
        if (stated.dtype, shape) != (result.dtype, tuple(result.shape)):
            self.wrong.add("type")
        elif strides_of(shape, strides) != strides_of(result.shape, result.stride()):
            self.wrong.add("strides")


def misstated(program: Program, device: str) -> set[str]:
    """Return which PyTorch states otherwise than its kernels return: "type", "strides"."""
    wrong: set[str] = set()

    def compile_graph(graph: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        return lambda *args: _Run(graph, args, wrong).run(*args)

    torch._dynamo.reset()
    names = namespace(program, device)
    backend = aot_autograd(fw_compiler=compile_graph, decompositions=decompositions)
    compiled = torch.compile(names["f"], backend=backend, dynamic=program.dynamic)
    for call in program.calls:
        observe(program, call, names, compiled)
    return wrong
