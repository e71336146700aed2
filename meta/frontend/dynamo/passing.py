"""How tensors are passed: from a graph's inputs to its program, from the results to the outputs.

A graph of hundreds of layers has hundreds of parameters, of values kept for its gradient, and of
gradients: what is done at each call for each of them is a loop of C's, and what can be found out
once is found out once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import count
from operator import attrgetter, itemgetter
from typing import Any

import torch
from torch import Tensor

from meta.frontend.dynamo.conversion import Converted
from meta.frontend.dynamo.layout import placed
from meta.frontend.dynamo.outputs import Given, Known, Result, View, size_of
from meta.vm.loans import Loans

Fit = Callable[[Tensor], Tensor]
Form = Callable[[Tensor], Tensor]

addresses = partial(map, Tensor.data_ptr)
"""The addresses of tensors."""
_given_out = partial(map, attrgetter("data"))  # tensors of the same memory, for autograd no views
_numbers = count()


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
    places: the numbers of the inputs. fits: what gives each as the program takes it. loans: of the
    graph that lends some of them, if there is one.
    """

    def __init__(self, places: Sequence[int], fits: Sequence[Fit], loans: Loans | None) -> None:
        self._loans, self._pick = loans, picker(places)
        self._all = [*zip(range(len(places)), places, fits, strict=True)]
        self._fits = fits
        # Those that were lent when it was last looked at each, and the others; by the addresses of
        # those, a number for them, and all arguments without the others.
        self._lent: tuple[int, ...] = ()
        self._pick_lent, self._others = picker(()), self._all
        self._known: dict[tuple[int, ...], tuple[int, list[Any]]] = {}
        if loans is not None:
            self._known = loans.memo()

    def __call__(self, inputs: Sequence[Any]) -> tuple[list[Tensor], int | None]:
        """Return the arguments; beside them the same number for the same loans among them."""
        loans = self._loans
        if loans is None:
            return [fit(t) for fit, t in zip(self._fits, self._pick(inputs), strict=True)], None
        found = self._known.get(tuple(addresses(self._pick_lent(inputs))))
        if found is None:
            return self._look(inputs, loans)
        number, tensors = found[0], found[1].copy()
        for i, place, fit in self._others:
            tensor = fit(inputs[place])
            if loans.own(i, tensor) is not tensor:
                return self._look(inputs, loans)
            tensors[i] = tensor
        return tensors, number

    def _look(self, inputs: Sequence[Any], loans: Loans) -> tuple[list[Tensor], int | None]:
        """Find out which arguments are lent."""
        tensors = [loans.own(i, fit(inputs[place])) for i, place, fit in self._all]
        lent = tuple(i for i, t in enumerate(tensors) if id(t) in loans.ids)
        if lent != self._lent:
            self._known.clear()
            self._lent = lent
            self._pick_lent = picker([self._all[i][1] for i in lent])
            self._others = [a for a in self._all if a[0] not in lent]
        number = next(_numbers)
        found = [t if i in lent else None for i, t in enumerate(tensors)]
        self._known[tuple(addresses(self._pick_lent(inputs)))] = number, found
        return tensors, number


class Returns:
    """What a graph returns, of its inputs, its program's results, and what is known.

    Parameters
    ----------
    converted: the graph. lent: results that are tensors of a CUDA graph's own, when they are among
    ``loans``. copied: results that lie in memory of somebody else.
    """

    def __init__(
        self, converted: Converted, lent: Collection[int], loans: Loans, copied: Collection[int]
    ) -> None:
        self._loans = loans
        results = [o for o in converted.outputs if isinstance(o, Result)]
        views = [o for o in results if o.number in lent and o.number not in copied]
        views = [o for o in views if o.strides is None and o.device is None]
        others = [o for o in results if o not in views]
        self._lent = [(o.axes, _form(o, copied)) for o in views]
        self._others = [(o.number, _form(o, copied)) for o in others]
        self._pick_lent = picker([o.number for o in views])
        given = [o for o in converted.outputs if isinstance(o, Given)]
        self._pick_given = picker([o.number for o in given])
        self._known = [o.value for o in converted.outputs if isinstance(o, Known)]
        self._is_known = not any(hasattr(value, "evaluate") for value in self._known)
        # An output's place among these kinds, one behind the other.
        kinds = [*given, *views, *others, *(o for o in converted.outputs if isinstance(o, Known))]
        at = {id(o): i for i, o in enumerate(kinds)}
        # A view stands for itself until what it is a view of is there.
        self._pick = picker([at.get(id(o), 0) for o in converted.outputs])
        self._views = [(i, o) for i, o in enumerate(converted.outputs) if isinstance(o, View)]
        # By the ids of what is lent, the tensors to be given out.
        self._known_loans: dict[tuple[int, ...], list[Tensor]] = loans.memo()

    def __call__(
        self, inputs: Sequence[Any], results: Sequence[Tensor], extents: dict[str, int]
    ) -> list[Any]:
        """Return the outputs."""
        lent: Any = self._pick_lent(results)
        ids = tuple(map(id, lent))
        ready = self._known_loans.get(ids)
        lent = self._look(lent, ids) if ready is None else _given_out(ready)
        others = [results[i] if form is None else form(results[i]) for i, form in self._others]
        known: Sequence[Any] = self._known
        if not self._is_known:
            known = [size_of(value, extents) for value in known]
        found = list(self._pick([*self._pick_given(inputs), *lent, *others, *known]))
        for at, view in self._views:
            found[at] = found[view.of].as_strided(view.shape, view.strides, view.offset)
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


def _form(output: Result, copied: Collection[int]) -> Form | None:
    """Return what makes an output of a result; None if nothing is to be done."""
    steps: list[Form] = []
    if output.number in copied:
        steps.append(torch.clone)
    if output.axes is not None:
        axes = output.axes
        steps.append(lambda t: t.permute(axes))
    elif output.strides is not None:
        strides = output.strides
        steps.append(lambda t: placed(t, strides))
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
