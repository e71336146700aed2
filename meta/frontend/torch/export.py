"""`torch.export` of modules, with few decompositions: composite operators stay whole where they are
converted, and what is written to in place is written functionally.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from meta.base.errors import MetaError
from meta.frontend.aten.graph import missing_converters
from meta.frontend.aten.registry import AtenError
from meta.frontend.torch.autograd_function import imported_functions
from meta.frontend.torch.containers import flatten, is_leaf, register_classes, register_containers
from meta.model.host_rng import refuse_host_rng
from meta.op.core import tree

LOCK = threading.RLock()
"""Simulated ranks are threads, and torch traces one function at a time."""
NO_GRADIENT = torch.ops.higher_order.wrap_with_set_grad_enabled
_detach = torch.ops.aten.detach.default
_FLAT_WEIGHTS = r"The tensor attributes? (self[\w.]*\._flat_weights\[\d+\],? )+w"


@dataclass(frozen=True)
class ExportedModule:
    """A program of torch's, and how it is called.

    Attributes
    ----------
    program: without decompositions, functional. objects: the structures of the objects among the
    inputs, which the program takes as lists of their leaves. result: makes the result of its
    outputs.
    """

    program: ExportedProgram
    objects: list[Any]
    result: Callable[[list[Any]], Any]


def of_program(program: ExportedProgram) -> ExportedModule:
    """Return a program that torch.export made, ready to be converted."""
    structure = program.call_spec.out_spec
    register_classes(structure)
    return ExportedModule(
        functionalize(program), [], lambda leaves: pytree.tree_unflatten(leaves, structure)
    )


def export_module(
    module: torch.nn.Module,
    inputs: Sequence[Any],
    keywords: Mapping[str, Any],
    dynamic_shapes: Any,
    *,
    training: bool,
) -> ExportedModule:
    """Export a module in train or eval mode, which it is in afterwards again if it was before.

    Raises AtenError if torch.export refuses it, and TraceError if the module draws random numbers
    that are none of torch's.
    """
    given = (tuple(inputs), dict(keywords))
    register_containers(given)
    (args, kwargs), objects = flatten(given)
    forward = module.forward
    structures: list[Any] = []

    @functools.wraps(forward)
    def flattened(*args: Any, **kwargs: Any) -> list[Any]:
        if objects:
            _, whole = tree.flatten(given, is_leaf)
            args, kwargs = tree.unflatten(whole, tree.flatten((args, kwargs), is_leaf)[0])
        found = forward(*args, **kwargs)
        register_containers(found)
        leaves, structure = tree.flatten(found, is_leaf)
        structures.append(structure)
        return leaves

    def run() -> ExportedProgram:
        return functionalize(
            torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes)
        )

    mode, own = _mode(module, training), _with_forward(module, flattened)
    with LOCK, mode, own, _convert_errors(), imported_functions():
        program = refuse_host_rng(run, lambda: forward(*inputs, **keywords), forward, None)
    return ExportedModule(program, objects, lambda leaves: tree.unflatten(structures[-1], leaves))


def functionalize(program: ExportedProgram) -> ExportedProgram:
    """Return a program that writes to nothing. Its composite operators are whole, but for those
    that have no converter: these are decomposed as torch does.
    """
    known = torch.export.default_decompositions()
    table: dict[Any, Callable[..., Any]] = {}
    with _convert_errors(), _detach_no_grad_blocks(program.graph_module):
        while True:
            found: ExportedProgram = program.run_decompositions(dict(table))
            missing = missing_converters(found.graph_module)
            more = {op: known[op] for op in missing if op in known and op not in table}
            if not more:
                return found
            table |= more


@contextlib.contextmanager
def _detach_no_grad_blocks(module: fx.GraphModule) -> Iterator[None]:
    """Detach what comes out of blocks of `torch.no_grad`, which decomposing inlines: the blocks
    themselves are lost. (A block inside of another is exported beside it.)
    """
    added: list[tuple[fx.Graph, fx.Node, fx.Node]] = []
    try:
        for graph in _blocks_without_gradient(module):
            for node in list(graph.nodes):
                outside = [u for u in node.users if u.op == "output"]
                if not outside or not isinstance(node.meta.get("val"), torch.Tensor):
                    continue
                with graph.inserting_after(node):
                    made = graph.call_function(_detach, (node,))
                made.meta["val"] = node.meta["val"]
                for user in outside:
                    user.replace_input_with(node, made)
                added.append((graph, node, made))
        yield
    finally:
        for graph, node, made in added:
            made.replace_all_uses_with(node)
            graph.erase_node(made)


def _blocks_without_gradient(module: fx.GraphModule) -> Iterator[fx.Graph]:
    for inner in module.modules():
        if not isinstance(inner, fx.GraphModule):
            continue
        for node in inner.graph.nodes:
            if node.op == "call_function" and node.target is NO_GRADIENT and not node.args[0]:
                yield getattr(inner, node.args[1].target).graph


@contextlib.contextmanager
def _convert_errors() -> Iterator[None]:
    """Make an AtenError of what torch.export or the module, which it runs, raises; keep back
    warnings that torch gives about its own code: of torch.export, of `torch.nn.LSTM` and `GRU`.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)`", FutureWarning)
        warnings.filterwarnings("ignore", _FLAT_WEIGHTS, UserWarning)
        try:
            yield
        except MetaError:
            raise
        except Exception as error:
            raise AtenError(
                f"torch.export refuses the module: {type(error).__name__}: {error}",
                hint="call the module with the example inputs; if that works, write what is named "
                "with other operators of torch",
            ) from error


@contextlib.contextmanager
def _mode(module: torch.nn.Module, training: bool) -> Iterator[None]:
    """Put a module in a mode for a block. One that is in train mode already stays as it is, with
    parts of it in eval mode.
    """
    modes = {m: m.training for m in module.modules()}
    if not (training and module.training):
        module.train(training)
    try:
        yield
    finally:
        for m, mode in modes.items():
            m.training = mode


@contextlib.contextmanager
def _with_forward(module: torch.nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Let a module have another forward for a block."""
    own = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if own is not None:
            module.forward = own
