"""How kernels of lists of tensors are launched: with a table of addresses.

Such a kernel is compiled for dtypes only, not for how many tensors there are and of which shapes.
It is given

* the addresses of all tensors, list by list (int64[lists * n]), and n;
* chunks (int64[c, 3]): of which tensor, from which element, how many; those of one class of dtypes
  follow one another, from bounds[k] to bounds[k + 1];
* numbers (float64): those of the operator (`NUMBERS`), then, of an optimizer, the learning rates of
  all parameters, then their weight decays;

then its outputs. Numbers in tensors are read on the host: the tensors are on the CPU. To add an
operator, add what it is given to `NUMBERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from meta.op.core.numbers import divide, power

Kernel = Callable[..., Any]
CHUNK = 1 << 14
"""Elements of a chunk: enough that a thread's next one costs nothing."""


def _correction(values: Mapping[str, Any], beta: str) -> float:
    return divide(1.0, 1.0 - power(float(values[beta]), float(values["step"])))


def _given(name: str) -> Callable[[Mapping[str, Any]], float]:
    return lambda values: float(values[name])


_GRADIENT = {"factor": _given("factor"), "clip_value": _given("clip_value")}
_ADAPTIVE = {
    **_GRADIENT,
    **{name: _given(name) for name in ("beta1", "beta2", "eps")},
    "new1": lambda values: 1.0 - float(values["beta1"]),
    "new2": lambda values: 1.0 - float(values["beta2"]),
    "unbias1": lambda values: _correction(values, "beta1"),
    "unbias2": lambda values: _correction(values, "beta2"),
}
NUMBERS: dict[str, dict[str, Callable[[Mapping[str, Any]], float]]] = {
    "multi_tensor_sgd": {**_GRADIENT, "momentum": _given("momentum")},
    **{f"multi_tensor_{name}": _ADAPTIVE for name in ("adam", "adamw", "lamb", "lans")},
    "multi_tensor_axpby": {"alpha": _given("alpha"), "beta": _given("beta")},
    "multi_tensor_norm": {},
    "multi_tensor_cast": {},
}
"""The numbers of an operator's kernel by name, each from the values of a call by slot."""


@dataclass(frozen=True, slots=True)
class ListLaunch:
    """What is known of a call before it runs.

    operator: its name. slots: the slots with run-time values in order, each with the number of its
    tensors, -1 for a number or a single tensor. sizes: the elements of each tensor of a list.
    classes: the class of each, by its dtypes. outputs: how many values at the end are results.
    """

    operator: str
    slots: tuple[tuple[str, int], ...]
    sizes: tuple[int, ...]
    classes: tuple[int, ...]
    outputs: int = 0

    def bind(self, run: Kernel) -> Kernel:
        """Return a function of the values of a call."""
        places: dict[str, int] = {}
        lists: list[slice] = []
        end = 0
        for name, count in self.slots:
            if count < 0:
                places[name] = end
            else:
                lists.append(slice(end, end + count))
            end += abs(count)
        skip = places.pop("skip", None)
        each = [places.pop(name) for name in ("learning_rate", "weight_decay") if name in places]
        numbers = list(NUMBERS[self.operator].values())
        chunks, bounds = self.chunks()
        n, outputs = len(self.sizes), self.outputs

        def launch(*values: Any) -> None:
            if skip is not None and values[skip]:
                return
            addresses = [t.data_ptr() for some in lists for t in values[some]]
            given = {name: values[place] for name, place in places.items()}
            found = [number(given) for number in numbers]
            for place in each:
                found += _of_each(values[place], n)
            table = torch.tensor(addresses, dtype=torch.int64)
            plain = torch.tensor(found, dtype=torch.float64)
            run(table, n, chunks, bounds, plain, *values[len(values) - outputs :])

        return launch

    def chunks(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the chunks of all tensors, by class, and where each class begins and ends."""
        found: list[tuple[int, int, int]] = []
        bounds = [0]
        for which in range(max(self.classes) + 1):
            for i, size in enumerate(self.sizes):
                if self.classes[i] == which:
                    starts = range(0, size, CHUNK)
                    found += [(i, at, min(CHUNK, size - at)) for at in starts]
            bounds.append(len(found))
        table = torch.tensor(found, dtype=torch.int64).reshape(len(found), 3)
        return table, torch.tensor(bounds, dtype=torch.int64)

    def record(self) -> dict[str, Any]:
        """Return what `read` reads."""
        return {
            "operator": self.operator,
            "slots": [list(slot) for slot in self.slots],
            "sizes": list(self.sizes),
            "classes": list(self.classes),
            "outputs": self.outputs,
        }

    @classmethod
    def read(cls, record: Any) -> ListLaunch:
        """Return the launch of a record out of a file; ValueError if it is not one."""
        wrong = ValueError("a record does not say how to launch a kernel of lists")
        if not isinstance(record, dict) or set(record) != set(cls.__slots__):
            raise wrong
        slots, sizes, classes = record["slots"], record["sizes"], record["classes"]
        if record["operator"] not in NUMBERS or not isinstance(slots, list):
            raise wrong
        pairs = [tuple(s) for s in slots if isinstance(s, list) and len(s) == 2]
        fits = len(pairs) == len(slots) and all(
            isinstance(name, str) and type(count) is int and count >= -1 for name, count in pairs
        )
        lists_fit = isinstance(sizes, list) and isinstance(classes, list) and len(sizes) > 0
        if not fits or not lists_fit or len(sizes) != len(classes):
            raise wrong
        if not all(type(n) is int and n >= 0 for n in (*sizes, *classes, record["outputs"])):
            raise wrong
        if any(count > 0 and count != len(sizes) for _, count in pairs):
            raise wrong
        return cls(
            record["operator"], tuple(pairs), tuple(sizes), tuple(classes), record["outputs"]
        )


def _of_each(value: Any, count: int) -> list[float]:
    """Return a hyperparameter of each of ``count`` parameters."""
    if not isinstance(value, torch.Tensor):
        return [float(value)] * count
    found = value.flatten().tolist()
    return found if len(found) == count else found * count
