"""The calling convention: from a graph's inputs to its program, from results to the outputs.

A graph of hundreds of layers has hundreds of parameters, of values kept for its gradient, and of
gradients: what is done at each call for each of them is a loop of C's, and what can be found out
once is found out once.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from operator import attrgetter, itemgetter
from typing import Any

import torch
from torch import Tensor

from meta.frontend.core.memory_order import copy_with_strides
from meta.frontend.dynamo.conversion import ConvertedGraph
from meta.frontend.dynamo.outputs import ConstantOutput, InputOutput, Output, Result, View, size_of
from meta.frontend.dynamo.saved_tensors import Bundle, LastingToken, SavedTensors
from meta.vm.graphs.borrowed_outputs import Loans, Lot

InputAdapter = Callable[[Tensor], Tensor]
OutputAdapter = Callable[[Tensor], Tensor]

addresses = partial(map, Tensor.data_ptr)
"""The addresses of tensors."""
_detach_all = partial(map, attrgetter("data"))  # tensors of the same memory, for autograd no views
_numbers = count()


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
    places: the numbers of the inputs. fits: what gives each as the program takes it. kept: inputs
    that come from a bundle, and so are as the program takes them. loans: which may be among these.
    """

    def __init__(
        self,
        places: Sequence[int],
        fits: Sequence[InputAdapter],
        kept: SavedTensors | None = None,
        loans: Loans | None = None,
    ) -> None:
        self._places, self._pick, self._loans = places, picker(places), loans
        comes = range(0) if kept is None else range(kept.first, kept.first + kept.count)
        fitting = [(i, p, fit) for i, (p, fit) in enumerate(zip(places, fits, strict=True))]
        self._fitting = [each for each in fitting if each[1] not in comes]
        self._compact = [i for i, _, fit in self._fitting if fit is compact]
        self._pick_compact = picker(self._compact)
        self._others = [each for each in self._fitting if each[2] is not compact]
        # By the number of a bundle, the arguments that are lent, and how the others are found.
        self._known: dict[int, tuple[list[Any], list[tuple[int, int, InputAdapter | None]]]] = {}
        if loans is not None:
            self._known = loans.memo()

    def __call__(self, inputs: Sequence[Any], number: int | None) -> list[Tensor]:
        """Return the arguments; ``number``: of the bundle."""
        if number is not None and (found := self._known.get(number)) is not None:
            tensors = found[0].copy()
            for i, place, fit in found[1]:
                tensors[i] = inputs[place] if fit is None else fit(inputs[place])
            return tensors
        tensors = list(self._pick(inputs))
        for i, place, fit in self._others:
            tensors[i] = fit(inputs[place])
        if not all(map(Tensor.is_contiguous, self._pick_compact(tensors))):
            for i in self._compact:
                tensors[i] = compact(tensors[i])
        if number is not None and self._loans is not None:
            self._look(tensors, self._loans.ids, number)
        return tensors

    def _look(self, tensors: list[Tensor], ids: Collection[int], number: int) -> None:
        """Note which arguments are lent."""
        lent = [t if id(t) in ids else None for t in tensors]
        fits = {i: fit for i, _, fit in self._fitting}
        others = [i for i, t in enumerate(lent) if t is None]
        self._known[number] = lent, [(i, self._places[i], fits.get(i)) for i in others]


class Returns:
    """What a graph returns, of its inputs, its program's results, and what is known.

    Parameters
    ----------
    converted: the graph. lent: results that are tensors of a CUDA graph's own, when they are among
    ``loans``. copied: results that lie in memory of somebody else. gives: outputs, the last, in
    place of which there is a token. takes: inputs that come from one.
    """

    def __init__(
        self,
        converted: ConvertedGraph,
        lent: Collection[int],
        loans: Loans,
        copied: Collection[int],
        gives: SavedTensors | None = None,
        takes: SavedTensors | None = None,
    ) -> None:
        self._loans = loans
        outputs = converted.outputs if gives is None else converted.outputs[: gives.first]
        self._bundling = None
        if gives is not None:
            self._bundling = SavedTensorsPacker(converted.outputs, gives, loans, copied)
        results = [o for o in (*outputs, *converted.bases) if isinstance(o, Result)]
        views = [o for o in results if o.number in lent and o.number not in copied]
        views = [o for o in views if o.strides is None and o.device is None]
        others = [o for o in results if o not in views]
        self._lent = [(o.axes, _output_adapter(o, copied)) for o in views]
        self._others = [(o.number, _output_adapter(o, copied)) for o in others]
        # What nobody lends, as on the CPU, may need a form, too.
        self._forms = [(i, form) for i, (_, form) in enumerate(self._lent) if form is not None]
        self._pick_lent = picker([o.number for o in views])
        bases = [o.base if isinstance(o, View) else o for o in outputs]
        given = [o for o in bases if isinstance(o, InputOutput)]
        self._pick_given = picker([o.number for o in given])
        self._copied_given: list[tuple[int, OutputAdapter]] = []
        if takes is not None:  # nobody else has what comes from a bundle
            within = range(takes.first, takes.first + takes.count)
            owned = [(i, o.number) for i, o in enumerate(given) if o.number in within]
            self._copied_given = [(i, takes.copier(n - takes.first)) for i, n in owned]
        self._known = [o.value for o in outputs if isinstance(o, ConstantOutput)]
        self._is_known = not any(hasattr(value, "evaluate") for value in self._known)
        # An output's place among these kinds, one behind the other.
        kinds = [*given, *views, *others, *(o for o in outputs if isinstance(o, ConstantOutput))]
        at = {id(o): i for i, o in enumerate(kinds)}
        # A view's base stands for it until it is there.
        self._pick = picker([at.get(id(o), 0) for o in bases])
        self._views = [(i, o.make) for i, o in enumerate(outputs) if isinstance(o, View)]
        # By the ids of what is lent, the tensors to be given out.
        self._known_loans: dict[tuple[int, ...], list[Tensor]] = loans.memo()

    def __call__(
        self, inputs: Sequence[Any], results: Sequence[Tensor], extents: dict[str, int]
    ) -> list[Any]:
        """Return the outputs."""
        lent: Any = self._pick_lent(results)
        if self._loans.ids:
            ids = tuple(map(id, lent))
            ready = self._known_loans.get(ids)
            lent = self._look(lent, ids) if ready is None else _detach_all(ready)
        elif self._forms:
            lent = list(lent)
            for i, form in self._forms:
                lent[i] = form(lent[i])
        others = [results[i] if form is None else form(results[i]) for i, form in self._others]
        known: Sequence[Any] = self._known
        if not self._is_known:
            known = [size_of(value, extents) for value in known]
        given = self._pick_given(inputs)
        if self._copied_given:
            given = list(given)
            for i, copy in self._copied_given:
                given[i] = copy(given[i])
        found = list(self._pick([*given, *lent, *others, *known]))
        for at, make in self._views:
            found[at] = make(found[at], inputs)
        if self._bundling is not None:
            found.append(self._bundling(results))
        return found

    def _look(self, tensors: Sequence[Tensor], ids: tuple[int, ...]) -> list[Tensor]:
        """Find out which results are lent, and return the outputs."""
        found, ready = [], []
        for tensor, (axes, form) in zip(tensors, self._lent, strict=True):
            loan = self._loans.of(tensor)
            if loan is not None:
                ready.append(loan.tensor if axes is None else loan.permuted(axes))
                found.append(ready[-1].data)
            else:
                found.append(tensor if form is None else form(tensor))
        if ready and len(ready) == len(tensors):
            self._known_loans[ids] = ready
        return found


class SavedTensorsPacker:
    """How results become a bundle, and that a token.

    Parameters
    ----------
    outputs: of a forward graph, the last of which are ``kept``. copied: results that lie in memory
    of somebody else.
    """

    def __init__(
        self, outputs: Sequence[Output], kept: SavedTensors, loans: Loans, copied: Collection[int]
    ) -> None:
        self._kept, self._loans = kept, loans
        ours = outputs[kept.first :]
        self._results = [(i, o) for i, o in enumerate(ours) if isinstance(o, Result)]
        self._views = [(i, o) for i, o in enumerate(ours) if isinstance(o, View)]
        numbers = {result.number: i for i, result in self._results}
        self._bases = {i: numbers[view.base.number] for i, view in self._views}
        self._places = [i for i, _ in self._results]
        self._pick = picker([o.number for _, o in self._results])
        self._copies = [i for i, o in self._results if o.number in copied]
        # By the ids of results, if all are lent: the values, but for views that are copies; and
        # those.
        self._known: dict[tuple[int, ...], _BorrowedGroup] = loans.memo()

    def __call__(self, results: Sequence[Tensor]) -> Tensor:
        """Return the token of the bundle of a call."""
        ours = self._pick(results)
        if not self._loans.ids:
            return self._kept.token(Bundle(self._values(ours)))
        ids = tuple(map(id, ours))
        found = self._known.get(ids)
        if found is None:
            return self._look(ours, ids)
        return self._token(found)

    def _token(self, lent: _BorrowedGroup) -> Tensor:
        """Return the token of a call that lends what others lent before."""
        if lent.token is not None:
            for lot in lent.lots:
                lot.is_kept = lent.token.is_out
            return self._kept.token(lent.bundle, lent.token)
        values = list(lent.bundle.values)
        for i, view in lent.copies:
            values[i] = self._viewed(values, i, view)
        return self._of_this_call(Bundle(values, lent.bundle.number), lent.lots)

    def _of_this_call(self, bundle: Bundle, lots: Sequence[Lot]) -> Tensor:
        """Return a token for the values of one call alone."""
        for lot in lots:
            lot.is_kept = partial(_is_alive, weakref.ref(bundle))
        return self._kept.token(bundle)

    def _look(self, ours: Sequence[Tensor], ids: tuple[int, ...]) -> Tensor:
        """Find out which values are lent, and return the token."""
        values = self._values(ours, views=False)
        lent = [self._loans.of(t) for _, t in zip(self._results, ours, strict=True)]
        loans = [loan for loan in lent if loan is not None]
        of = {i: loan for (i, _), loan in zip(self._results, lent, strict=True)}
        copies = []
        for i, view in self._views:
            values[i] = self._viewed(values, i, view)
            loan = of[self._bases[i]]
            if loan is not None and values[i].data_ptr() == loan.tensor.data_ptr():
                values[i] = self._loans.view(loan, values[i])
            else:
                copies.append((i, view))
        lots = list(dict.fromkeys(loan.lot for loan in loans))
        if not lots or len(loans) < len(ours) or self._copies:
            return self._of_this_call(Bundle(values), lots)
        bundle = Bundle(values, next(_numbers))
        token = None if copies else LastingToken(bundle)
        found = self._known[ids] = _BorrowedGroup(bundle, lots, copies, token)
        return self._token(found)

    def _values(self, ours: Sequence[Tensor], views: bool = True) -> list[Any]:
        """Return the values, nothing in the place of views if without."""
        values: list[Any] = [None] * self._kept.count
        for i, tensor in zip(self._places, ours, strict=True):
            values[i] = tensor
        for i in self._copies:
            values[i] = values[i].clone()
        for i, view in self._views if views else ():
            values[i] = self._viewed(values, i, view)
        return values

    def _viewed(self, values: Sequence[Tensor], number: int, view: View) -> Tensor:
        """Return a view as programs have it."""
        return self._kept.view(values, self._bases[number], number, view)


@dataclass(frozen=True)
class _BorrowedGroup:
    """What is lent together.

    lots: whose loans these are. copies: values that are made anew for each call. token: None if
    there are some.
    """

    bundle: Bundle
    lots: list[Lot]
    copies: list[tuple[int, View]]
    token: LastingToken | None


def _is_alive(bundle: weakref.ref[Bundle]) -> bool:
    return bundle() is not None


def _output_adapter(output: Result, copied: Collection[int]) -> OutputAdapter | None:
    """Return what makes an output of a result; None if nothing is to be done."""
    steps: list[OutputAdapter] = []
    if output.number in copied:
        steps.append(torch.clone)
    if output.axes is not None:
        axes = output.axes
        steps.append(lambda t: t.permute(axes))
    elif output.strides is not None:
        strides = output.strides
        steps.append(lambda t: copy_with_strides(t, strides))
    if output.device is not None:
        device = output.device
        steps.append(lambda t: t.to(device))
    if len(steps) < 2:
        return steps[0] if steps else None

    def form(tensor: Tensor) -> Tensor:
        for step in steps:
            tensor = step(tensor)
        return tensor

    return form
