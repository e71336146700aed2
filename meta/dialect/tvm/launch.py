"""How the kernel of a call is launched: what it is passed besides the values of the call.

A kernel of lists of tensors is compiled for dtypes only, not for how many tensors there are and of
which shapes. It is given

* the addresses of all tensors, list by list (int64[lists * n]), and n;
* chunks (int64[c, 3]): of which tensor, from which element, how many; those of one class of dtypes
  follow one another, from bounds[k] to bounds[k + 1];
* numbers (float64): those of the operator (`numbers`), then, of an optimizer, the learning rates of
  all parameters, then their weight decays;

then its outputs. Numbers in tensors are read on the host: the tensors are on the CPU.

To add a convention, add a field to `LaunchPlan` and its wrapper to `LaunchPlan.bind`; kernels are
kept on disk with it.

Kernels that access their arguments by vectors, called with arguments at any address.

A vector access to an address that is no multiple of its size kills the process. Fresh tensors are
aligned to far more than 16 bytes, but a view such as ``x[1:]`` need not be. So a function whose
kernels access a parameter by vectors begins with a check of the addresses, on the host, before
anything is launched (`cuda_source`): an `and` and a compare for each. What it raises,
`realigned` catches: the call is repeated with aligned copies, which are copied back. An aligned
call pays nothing for that.

Intermediate results between the kernels of one function: memory that the caller passes.

TVM takes them from a pool of its own, which knows no streams: two streams of one thread would be
given the same memory, and a CUDA graph would keep an address that the pool frees later. Here they
become parameters (see `cuda_source`), and `with_workspaces` allocates them from torch at each
call, on the current stream.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import torch
import tvm_ffi

from meta.base.dtype import TO_TORCH, bits
from meta.base.registry import OPERATORS
from meta.op.core.formula import Expr, Formula, evaluate
from meta.op.core.numbers import divide, pow
from meta.op.core.update import FORMULAS, RATES
from meta.runtime import random


def counts(value: Any) -> bool:
    """Whether a value out of a file is a list of integers that are not negative."""
    return isinstance(value, list | tuple) and all(type(n) is int and n >= 0 for n in value)


@dataclass(frozen=True, slots=True)
class Workspace:
    """One intermediate array."""

    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def read(cls, record: Any) -> Workspace | None:
        """Return the workspace of a ``[shape, dtype]`` out of a file, None if it is not one."""
        if not isinstance(record, list) or len(record) != 2:
            return None
        shape, dtype = record
        known = isinstance(dtype, str) and dtype in TO_TORCH
        return cls(tuple(shape), dtype) if known and counts(shape) else None

    def record(self) -> list[Any]:
        """Return what `read` reads."""
        return [list(self.shape), self.dtype]


def total_bytes(workspaces: Sequence[Workspace]) -> int:
    """Return the memory that a function takes for all of its intermediate arrays."""
    return sum(prod(w.shape) * bits(w.dtype) // 8 for w in workspaces)


def with_workspaces(run: Callable[..., Any], workspaces: Sequence[Workspace]) -> Callable[..., Any]:
    """Return ``run`` without its last parameters, the workspaces.

    They are allocated on the device of the last argument, an output. Torch may give their memory
    to the next call while the kernels still run: on the same stream, so after them.
    """
    if not workspaces:
        return run
    wanted = [(w.shape, TO_TORCH[w.dtype]) for w in workspaces]

    def launch(*values: Any) -> None:
        device = values[-1].device
        run(*values, *[torch.empty(shape, dtype=d, device=device) for shape, d in wanted])

    return launch


ALIGNMENT = 16
"""Bytes: the widest access of a thread."""
KIND = "MetaUnaligned"
"""What compiled code calls the error."""


@tvm_ffi.register_error(KIND)
class Unaligned(RuntimeError):
    """An argument's address is no multiple of `ALIGNMENT`."""


def realigned(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``run`` for arguments at any address."""

    def launch(*values: Any) -> None:
        try:
            run(*values)
        except Unaligned:
            copies: dict[tuple[int, int], torch.Tensor] = {}
            again = [_aligned(value, copies) for value in values]
            run(*again)
            for value, copied in zip(values, again, strict=True):
                if copied is not value:
                    value.copy_(copied)

    return launch


def _aligned(value: Any, copies: dict[tuple[int, int], torch.Tensor]) -> Any:
    """Return a value, or an aligned copy of it: the same one for the same memory."""
    if not isinstance(value, torch.Tensor) or value.data_ptr() % ALIGNMENT == 0:
        return value
    key = (value.data_ptr(), value.numel())
    if key not in copies:
        copies[key] = value.clone()
    return copies[key]


Kernel = Callable[..., Any]
CHUNK = 1 << 14
"""Elements of a chunk: enough that a thread's next one costs nothing."""


ARITHMETIC = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": divide,
    "**": pow,
}


def numbers(formula: Formula) -> tuple[str, ...]:
    """Return the numbers that a kernel is given, in order, before those of each tensor."""
    return *(n for n in formula.numbers if n not in (*RATES, "step")), *formula.derived


def _values(formula: Formula, given: Mapping[str, Any]) -> list[float]:
    """Return these numbers' values in a call, given those of its slots."""
    known: dict[Expr, float] = {}

    def leaf(node: Expr) -> float:
        return float(given[node.parts[0]] if node.kind == "number" else node.parts[0])

    derived = formula.derived
    return [
        evaluate(derived[n], leaf, ARITHMETIC, known) if n in derived else float(given[n])
        for n in numbers(formula)
    ]


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
        each = [places.pop(name) for name in RATES if name in places]
        formula = FORMULAS[OPERATORS[self.operator]]
        chunks, bounds = self.chunks()
        n, outputs = len(self.sizes), self.outputs

        def launch(*values: Any) -> None:
            if skip is not None and values[skip]:
                return
            addresses = [t.data_ptr() for some in lists for t in values[some]]
            given = {name: values[place] for name, place in places.items()}
            found = _values(formula, given)
            for place in each:
                found += _per_tensor(values[place], n)
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
        return asdict(self)

    @classmethod
    def read(cls, record: Any) -> ListLaunch:
        """Return the launch of a record out of a file; ValueError if it is not one."""
        wrong = ValueError("a record does not say how to launch a kernel of lists")
        if not isinstance(record, dict) or set(record) != set(cls.__slots__):
            raise wrong
        slots, sizes, classes = record["slots"], record["sizes"], record["classes"]
        fits = (
            OPERATORS.get(record["operator"]) in FORMULAS
            and all(map(counts, (sizes, classes, [record["outputs"]])))
            and len(sizes) == len(classes) > 0
            and isinstance(slots, list | tuple)
            and all(isinstance(slot, list | tuple) and len(slot) == 2 for slot in slots)
            and all(isinstance(name, str) and type(count) is int for name, count in slots)
            and all(count in (-1, 0, len(sizes)) for _, count in slots)
        )
        if not fits:
            raise wrong
        return cls(
            record["operator"],
            tuple(map(tuple, slots)),
            tuple(sizes),
            tuple(classes),
            record["outputs"],
        )


def _per_tensor(value: Any, count: int) -> list[float]:
    """Return a hyperparameter of each of ``count`` parameters."""
    if not isinstance(value, torch.Tensor):
        return [float(value)] * count
    found = value.flatten().tolist()
    return found if len(found) == count else found * count


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """What is passed besides the values of the call.

    repeated: positions of values that are written in place; they come once more at the end, as
        outputs.
    key_after: the number of values after which a fresh random key is passed; None: none is.
    lists: how a kernel of lists of tensors is given their addresses; None: it is another kernel.
    aligned: whether the kernel may refuse addresses that are no multiples of 16; see `realigned`.
    """

    repeated: tuple[int, ...] = ()
    key_after: int | None = None
    lists: ListLaunch | None = None
    aligned: bool = False

    def bind(self, run: Kernel) -> Kernel:
        """Return a function of the values of the call."""
        if self.lists is not None:
            return self.lists.bind(run)
        if self.repeated:
            run = _repeating(run, self.repeated)
        if self.aligned:
            run = realigned(run)
        return run if self.key_after is None else _drawing(run, self.key_after)

    def record(self) -> dict[str, Any]:
        """Return what `read` reads."""
        found = {"repeated": self.repeated, "key_after": self.key_after}
        record: dict[str, Any] = {n: value for n, value in found.items() if value not in ((), None)}
        if self.lists is not None:
            record["lists"] = self.lists.record()
        if self.aligned:
            record["aligned"] = True
        return record

    @classmethod
    def read(cls, record: dict[str, Any]) -> LaunchPlan:
        """Return the launch of a record out of a file; ValueError if it is not one."""
        repeated, key_after = record.get("repeated", ()), record.get("key_after")
        aligned = record.get("aligned", False)
        numbers = () if key_after is None else (key_after,)
        known = set(record) <= {"repeated", "key_after", "lists", "aligned"}
        if not (known and counts(repeated) and counts(numbers) and type(aligned) is bool):
            raise ValueError(f"{record!r} does not say how to launch a kernel")
        lists = ListLaunch.read(record["lists"]) if "lists" in record else None
        return cls(tuple(repeated), key_after, lists, aligned)


PLAIN = LaunchPlan()


def _repeating(run: Kernel, places: tuple[int, ...]) -> Kernel:
    def launch(*values: Any) -> None:
        run(*values, *[values[i] for i in places])

    return launch


def _drawing(run: Kernel, count: int) -> Kernel:
    def draw(*values: Any) -> None:
        run(*values[:count], random.default.key(), *values[count:])

    return draw
