"""The calling convention: from a graph's inputs to its program, from results to the outputs.

A graph of hundreds of layers has hundreds of parameters, of values kept for its gradient, and of
gradients: what is done at each call for each of them is a loop of C's, and what can be found out
once is found out once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any

import torch
from torch import Tensor

from meta.frontend.core.memory_order import copy_with_strides
from meta.frontend.dynamo.conversion import ConvertedGraph
from meta.frontend.dynamo.outputs import ConstantOutput, InputOutput, Output, Result, View, size_of
from meta.frontend.dynamo.saved_tensors import Bundle, SavedTensors
from meta.frontend.dynamo.training_memory import TrainingMemory
from meta.runtime.allocate import ALIGNMENT, storage_address
from meta.vm.bound_executable import InputAdapter

OutputAdapter = Callable[[Tensor], Tensor]

_detach_all = partial(map, attrgetter("data"))  # tensors of the same memory, for autograd no views


def compact(tensor: Tensor) -> Tensor:
    """Return a tensor, compact: what is done with most inputs, all at once where none needs it."""
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def picker(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return a function that returns the values in these places of a sequence."""
    if len(places) > 1:
        return itemgetter(*places)
    if not places:
        return lambda _: ()
    (only,) = places
    return lambda values: (values[only],)


class Arguments:
    """What a program is given of a graph's inputs.

    Parameters
    ----------
    places: the numbers of the inputs. fits: what gives each as the program takes it. ready: those
    that are as the program takes them.
    """

    def __init__(
        self, places: Sequence[int], fits: Sequence[InputAdapter], ready: Collection[int]
    ) -> None:
        self._pick = picker(places)
        fitting = [(i, p, f) for i, (p, f) in enumerate(zip(places, fits, strict=True))]
        fitting = [each for each in fitting if each[1] not in ready]
        self._compact = [i for i, _, fit in fitting if fit is compact]
        self._pick_compact = picker(self._compact)
        self._others = [each for each in fitting if each[2] is not compact]

    def __call__(self, inputs: Sequence[Any]) -> list[Tensor]:
        """Return the arguments."""
        tensors = list(self._pick(inputs))
        for i, place, fit in self._others:
            tensors[i] = fit(inputs[place])
        if not all(map(Tensor.is_contiguous, self._pick_compact(tensors))):
            for i in self._compact:
                tensors[i] = compact(tensors[i])
        return tensors


class Returns:
    """What a graph returns, of its inputs, its program's results, and what is known.

    Parameters
    ----------
    converted: the graph. copied: results that lie in memory of somebody else. cut: of how many
    columns results are, the first ones, of which the program has more. offsets: where others lie in
    a `TrainingMemory`, if they do. gives: outputs, the last, in place of which there is a token.
    takes: inputs that come from one.

    Attributes
    ----------
    lent: the results that are lent.
    """

    def __init__(
        self,
        converted: ConvertedGraph,
        copied: Collection[int],
        cut: Mapping[int, int],
        offsets: Sequence[int | None] = (),
        gives: SavedTensors | None = None,
        takes: SavedTensors | None = None,
    ) -> None:
        outputs = converted.outputs if gives is None else converted.outputs[: gives.first]
        self._packer = None
        if gives is not None:
            self._packer = SavedTensorsPacker(converted.outputs, gives, copied, offsets)
        results = [o for o in (*outputs, *converted.bases) if isinstance(o, Result)]
        lent = {i for i, at in enumerate(offsets) if at is not None}.difference(copied)
        self.lent = [o for o in results if o.number in lent]
        others = [o for o in results if o not in self.lent]
        self._others = [(o.number, _output_adapter(o, copied, cut.get(o.number))) for o in others]
        bases = [o.base if isinstance(o, View) else o for o in outputs]
        given = [o for o in bases if isinstance(o, InputOutput)]
        self._pick_given = picker([o.number for o in given])
        self._copied_given: list[tuple[int, OutputAdapter]] = []
        if takes is not None:  # nobody else has what comes from a bundle
            owned = [(i, o.number) for i, o in enumerate(given) if o.number in takes.numbers]
            self._copied_given = [(i, takes.copier(n - takes.first)) for i, n in owned]
        self._known = [o.value for o in outputs if isinstance(o, ConstantOutput)]
        self._is_known = not any(hasattr(value, "evaluate") for value in self._known)
        # An output's place among these kinds, one behind the other.
        kinds = [*given, *self.lent, *others]
        kinds += [o for o in outputs if isinstance(o, ConstantOutput)]
        at = {id(o): i for i, o in enumerate(kinds)}
        # A view's base stands for it until it is there.
        self._pick = picker([at.get(id(o), 0) for o in bases])
        self._views = [(i, o.make) for i, o in enumerate(outputs) if isinstance(o, View)]

    def of_inputs(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return the outputs that are inputs, before the program uses the memory of these."""
        given = self._pick_given(inputs)
        if self._copied_given:
            given = list(given)
            for i, copy in self._copied_given:
                given[i] = copy(given[i])
        return given

    def __call__(
        self,
        inputs: Sequence[Any],
        given: Sequence[Any],
        results: Sequence[Tensor],
        extents: dict[str, int],
        memory: TrainingMemory | None,
        copies: bool,
    ) -> list[Any]:
        """Return the outputs. given: those that are inputs. copies: of what would be lent."""
        lent: Any = ()
        if memory is not None and self.lent:
            tensors = memory.gradients.tensors
            lent = map(torch.clone, tensors) if copies else _detach_all(tensors)
        others = [results[i] if form is None else form(results[i]) for i, form in self._others]
        known: Sequence[Any] = self._known
        if not self._is_known:
            known = [size_of(value, extents) for value in known]
        found = list(self._pick([*given, *lent, *others, *known]))
        for at, make in self._views:
            found[at] = make(found[at], inputs)
        if self._packer is not None:
            found.append(self._packer(results, memory))
        return found


class SavedTensorsPacker:
    """How results become a bundle, and that a token.

    Parameters
    ----------
    outputs: of a forward graph, the last of which are ``kept``. copied: results that lie in memory
    of somebody else. offsets: where others lie in the memory of a call.
    """

    def __init__(
        self,
        outputs: Sequence[Output],
        kept: SavedTensors,
        copied: Collection[int],
        offsets: Sequence[int | None],
    ) -> None:
        self._kept, self._copied, self._offsets = kept, copied, offsets
        ours = outputs[kept.first :]
        self._results = [(i, o.number) for i, o in enumerate(ours) if isinstance(o, Result)]
        self._views = [(i, o) for i, o in enumerate(ours) if isinstance(o, View)]
        numbers = {number: i for i, number in self._results}
        self._bases = {i: numbers[view.base.number] for i, view in self._views}

    def __call__(self, results: Sequence[Tensor], memory: TrainingMemory | None) -> Tensor:
        """Return the token of the bundle of a call."""
        if memory is None:
            return self._kept.token(Bundle(self._values(results)))
        bundle = memory.bundle
        if not bundle.values:
            self._place(bundle, results)
        elif bundle.moving:
            values = self._values(results)
            for i in bundle.moving:
                bundle.values[i] = values[i].clone() if i in self._bases else values[i]
        return self._kept.token(bundle, memory.token)

    def _place(self, bundle: Bundle, results: Sequence[Tensor]) -> None:
        """Find out which values are the same tensors in each call in the memory of a bundle."""
        values = bundle.values = self._values(results)
        offsets: dict[int, int] = {}
        for i, number in self._results:
            at = self._offsets[number]
            if at is not None and number not in self._copied:
                offsets[i] = at
        for i, _ in self._views:
            base = self._bases[i]
            if base in offsets and storage_address(values[i]) == storage_address(values[base]):
                at = offsets[base] + values[i].data_ptr() - values[base].data_ptr()
                if at % ALIGNMENT:
                    values[i] = values[i].clone()
                else:
                    offsets[i] = at
        bundle.offsets = offsets
        bundle.moving = [i for i in range(len(values)) if i not in offsets]

    def _values(self, results: Sequence[Tensor]) -> list[Any]:
        """Return the values as programs have them."""
        values: list[Any] = [None] * self._kept.count
        for i, number in self._results:
            values[i] = results[number].clone() if number in self._copied else results[number]
        for i, view in self._views:
            values[i] = self._kept.view(values, self._bases[i], i, view)
        return values


def _output_adapter(
    output: Result, copied: Collection[int], columns: int | None
) -> OutputAdapter | None:
    """Return what makes an output of a result; None if nothing is to be done."""
    axes, strides, device = output.axes, output.strides, output.device
    clones = output.number in copied
    if not clones and axes is None and strides is None and device is None and columns is None:
        return None

    def adapt(tensor: Tensor) -> Tensor:
        if columns is not None:
            tensor = tensor.narrow(-1, 0, columns)
        if clones:
            tensor = tensor.clone()
        if axes is not None:
            tensor = tensor.permute(axes)
        elif strides is not None:
            tensor = copy_with_strides(tensor, strides)
        return tensor if device is None else tensor.to(device)

    return adapt
