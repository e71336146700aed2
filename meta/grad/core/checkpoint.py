"""Running a block again in the backward pass of the tape, instead of keeping what it computes.

Chen et al., "Training deep nets with sublinear memory cost", arXiv:1604.06174.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import copy_context
from typing import Any

import torch

from meta.base.call_context import Default, current, use
from meta.base.dtype import has_gradient
from meta.base.errors import GradientError
from meta.base.source import Span, user_line
from meta.grad.core.tape import (
    Edge,
    detach_result,
    next_order,
    propagate,
    source_id,
    source_of,
    version_of,
)
from meta.op.core import tree
from meta.op.core.call import written_args
from meta.op.core.op import Op
from meta.op.core.promotion import cast_together, common_dtype, with_complex
from meta.runtime import random
from meta.runtime.array_key import ArrayKey
from meta.runtime.buffer_replacement import replace_buffer
from meta.runtime.ndarray import as_array, ndarray
from meta.runtime.no_gradient import is_recording, set_recording
from meta.runtime.torch_leaf import TorchLeaf

Keeps = Callable[[object], bool]


def run_checkpointed(
    run: Callable[[], Any], held: Iterable[ndarray], keeps: Keeps | None = None
) -> Any:
    """Return ``run()``, of which the tape keeps nothing; the backward pass runs it again.

    The second run sees what the first one saw: the same random keys, and what the first one wrote
    in place as it was before; its own writes are lost. held: arrays that ``run`` may write to,
    through views of them too; what it writes to without having made it is found in any case.
    keeps: says of a base operator whether its results are kept, and not computed again.

    ``run`` must compute the same each time, and return nested tuples, lists and dicts of arrays.
    """
    if not is_recording():
        return run()
    watch = Recorder(held, keeps if current() is None else None)
    with set_recording(False), use(watch), random.record_keys() as keys:
        result = run()
    if not watch.sources:
        return result
    leaves, structure = tree.flatten(result)
    leaves = [ndarray(a.tensor, a.key) if has_gradient(a.key.dtype) else a for a in leaves]
    sources = list(watch.sources.values())
    node = _Node(run, watch, keys, sources, tuple(a.key for a in leaves))
    for i, array in enumerate(leaves):
        if has_gradient(array.key.dtype):
            array.tracked = True
            array.node = Edge(node, i)
    return tree.unflatten(structure, leaves)


class _MemorySnapshot:
    """The values of some memory before it was written, and the arrays that are in it."""

    def __init__(self, arrays: list[ndarray]) -> None:
        self.arrays = arrays
        self.values = arrays[0].tensor.untyped_storage().clone()

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Let the arrays be in other memory, with the values of then."""
        tensors = [a.tensor for a in self.arrays]
        values = self.values.clone()
        try:
            for array, tensor in zip(self.arrays, tensors, strict=True):
                place = (tensor.storage_offset(), tensor.shape, tensor.stride())
                replace_buffer(array, tensor.new_empty(0).set_(values, *place))
            yield
        finally:
            for array, tensor in zip(self.arrays, tensors, strict=True):
                replace_buffer(array, tensor)


class Recorder:
    """A call handler that runs calls as usual, saves what they are about to write, and notes what
    requires a gradient.
    """

    def __init__(self, held: Iterable[ndarray], keeps: Keeps | None) -> None:
        self.keeps = keeps
        # Results of calls of what is kept, in order, and how often each had been written.
        self.kept: list[tuple[Any, Any]] = []
        # By place.
        self.sources: dict[Any, Any] = {}
        self.saved: dict[int, _MemorySnapshot] = {}
        self._inner = current() or Default.handler
        self._held: dict[int, list[ndarray]] = {}
        for array in held:
            self._held.setdefault(_storage_address(array.tensor), []).append(array)
        self._made: set[int] = set()
        self._since = next_order()
        self._aliases: dict[int, ndarray] = {}

    def __call__(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found = tree.flatten((args, kwargs))[0]
        given = [a for a in found if isinstance(a, ndarray)]
        tensors = [t for t in found if isinstance(t, torch.Tensor) and t.requires_grad]
        sources = [source_of(a) for a in given]
        if tensors and torch.is_grad_enabled():
            sources += map(TorchLeaf, tensors)
        self._note(sources)
        if op.schema.written:
            bound = op.schema.bind(args, kwargs, as_array)
            for array in written_args(op, bound):
                self._save(array)
        result = self._inner(op, args, kwargs)
        known = {_storage_address(a.tensor) for a in given}
        results = [a for a in tree.flatten(result)[0] if isinstance(a, ndarray)]
        self._made.update({_storage_address(a.tensor) for a in results} - known)
        if self.keeps is not None and self.keeps(getattr(op, "base", op)):
            self.kept.append((result, version_of(result)))
        return result

    def alias(self, alias: ndarray, array: ndarray) -> None:
        """Take an alias, by which a derivative inside of the block is, for what it stands for."""
        self._aliases[id(alias)] = alias
        self._note([source_of(array)])
        if isinstance(self._inner, Recorder):
            self._inner.alias(alias, array)

    def _note(self, sources: Iterable[Any]) -> None:
        """Note sources; not what was recorded in the block, by a derivative inside of it."""
        for s in sources:
            inside = isinstance(s, Edge) and s.node.order > self._since
            if s is not None and not inside and id(s) not in self._aliases:
                self.sources[source_id(s)] = s

    def _save(self, array: ndarray) -> None:
        memory = _storage_address(array.tensor)
        if memory in self._made or memory in self.saved:
            return
        arrays = self._held.get(memory, [])
        if not any(a is array for a in arrays):
            arrays = [*arrays, array]
        self.saved[memory] = _MemorySnapshot(arrays)


def _storage_address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class _Node:
    """One run of a block on the tape; see `tape.Node`, whose place it takes."""

    def __init__(
        self,
        run: Callable[[], Any],
        watch: Recorder,
        keys: list[int],
        sources: list[Any],
        outputs: tuple[ArrayKey, ...],
    ) -> None:
        self.run, self.keys, self.outputs = run, keys, outputs
        self.saved, self.keeps, self.kept = watch.saved, watch.keeps, watch.kept
        self.sources = sources
        self.context = copy_context()  # which dialects are preferred, ...
        self.line = user_line()
        self.order = next_order()

    def gradients(self, dys: list[ndarray | None]) -> Iterator[tuple[Any, ndarray]]:
        """Run the block again; yield (source, gradient) for what it was computed from: what was
        recorded before, and leaves.
        """
        first = next_order()
        with ExitStack() as stack:
            for saved in self.saved.values():
                stack.enter_context(saved.restored())
            leaves = self.context.copy().run(self._run_again)
            if tuple(a.key for a in leaves) != self.outputs:
                raise GradientError(
                    "a checkpointed block returns something else when it is run again",
                    expected=f"{len(self.outputs)} arrays of the same types",
                    span=None if self.line is None else Span(*self.line),
                )
            found: list[tuple[Any, ndarray]] = []
            starts = [
                (a if a.node is None else a.node, dy)
                for a, dy in zip(leaves, dys, strict=True)
                if dy is not None and a.requires_grad
            ]
            propagate(starts, lambda source, dy: found.append((source, dy)), since=first)
        yield from found

    def _run_again(self) -> list[ndarray]:
        """Return the results, recorded; called in the context of the first run."""
        again = nullcontext() if self.keeps is None else use(_Replay(self.keeps, self.kept))
        with set_recording(True), random.replay_keys(self.keys), again:
            return tree.flatten(self.run())[0]


class _Replay:
    """A call handler that records calls of what was kept with their results, in the order in which
    they were computed; what follows, and all else, it runs.
    """

    def __init__(self, keeps: Keeps, kept: list[tuple[Any, Any]]) -> None:
        self._keeps, self._kept = keeps, iter(kept)

    def __call__(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found = next(self._kept, None) if self._keeps(getattr(op, "base", op)) else None
        if found is None or version_of(found[0]) != found[1]:  # written since
            return Default.handler(op, args, kwargs)
        args, kwargs = with_complex(op, args, kwargs)
        bound = op.schema.bind(args, kwargs, as_array)
        common = common_dtype(op, bound) if op.promotes else None
        bound = bound if common is None else cast_together(op, bound, common)
        return Default.recorded(op, bound, detach_result(found[0]))
