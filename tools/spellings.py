"""Spellings of NumPy's and torch's manuals, as they are typed: run there, and run here.

They are the lines of tests/data/spellings: np.txt, torch.txt, and meta.txt with what is typed of
names that are nobody's. `outcome` says which of "same", "clear" (an error that says what to write),
"raw" (another error) and "another result" a spelling is. None is raw, and those that have another
result are in `DIFFERENT`, which docs/coming_from_torch.md lists.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import meta
from meta.base.errors import MetaError
from meta.base.registry import nearest

FOLDER = Path(__file__).parents[1] / "tests" / "data" / "spellings"
NO_HINT = nearest("", ())
VALUES = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.5]]

# `x` and `y` are 2 x 3 floats, `v` three floats, `n` two integers, `i` indices, `m` a mask of x,
# `s` a 0-d float, `c` complex numbers, `b` a batch of images (2, 3, 4, 4), `model` a linear layer.


DIFFERENT: dict[str, str] = {
    "x.strides": "in elements, as torch's `x.stride()`; NumPy counts bytes",
    "x.sort()": "a new array, neither in place as NumPy's nor a pair as torch's",
    "x.sort(descending=True)": "one array, not a pair",
    "str(s)": 'a line more, with shape, device and dtype; `f"{s}"` is the number alone',
    "round(s, 2)": "rounds; an array of NumPy refuses",
    "x.device.index": "`x.device.ordinal`: a device is a text, and `index` a method of it",
    "n.mean()": "float32, as NumPy's is float64; torch refuses",
    "x.max(1)": "one array, not a pair",
    "torch.max(x, 1)": "one array, not a pair",
    "torch.sort(x)": "one array, not a pair",
    "x.median()": "the mean of the middle two, as in NumPy",
    "x.std()": "`correction=0`, as in NumPy",
    "torch.std(x)": "`correction=0`, as in NumPy",
    "x.dot(v)": "as NumPy's, of a matrix, too",
    "x.nonzero()": "a tuple of vectors, as in NumPy; `meta.argwhere` is torch's matrix",
    "torch.nonzero(m)": "a tuple of vectors, as in NumPy; `meta.argwhere` is torch's matrix",
    'f"{x.mean()}"': "the digits of the dtype, as NumPy's",
    "print(s)": "as NumPy's, with shape, device and dtype",
    "repr(x)": "as NumPy's, with shape, device and dtype",
    "torch.equal(x, x)": "by element, as in NumPy",
    "F.pad(x, (1, 1))": "of every axis, as in NumPy",
    "p = x.clone(); p.requires_grad = True; p.numpy()": "a copy of the values; torch refuses",
}
"""By a spelling whose result is another one: why."""


def worlds(theirs: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the names of either side: ``theirs`` is "np", "torch", or "meta"."""
    from torch.optim import lr_scheduler
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    a = np.array([1.0, 2.0, 4.0])
    layer, model = torch.nn.Linear(3, 2), meta.model.Linear(3, 2)
    model.load_state_dict(layer.state_dict())
    arrays = {
        "x": np.array(VALUES, "float32"),
        "y": np.array(VALUES, "float32") * 2,
        "v": a.astype("float32"),
        "n": np.array([3, 1]),
        "i": np.array([2, 0]),
        "m": np.array(VALUES) > 2,
        "s": np.array(2.25, "float32"),
        "c": np.array([1 + 2j, 3 - 1j], "complex64"),
        "b": np.arange(96, dtype="float32").reshape(2, 3, 4, 4) / 9,
    }
    shared = {"a": a, "math": math, "print": repr, "lr_scheduler": lr_scheduler}
    shared |= {"DataLoader": DataLoader, "TensorDataset": TensorDataset}
    ours: dict[str, Any] = {k: meta.array(value) for k, value in arrays.items()}
    ours |= {"np": meta, "torch": meta, "F": meta, "nn": meta.model, "meta": meta, "model": model}
    there: dict[str, Any] = dict(arrays)
    if theirs == "torch":
        there = {k: torch.tensor(value) for k, value in arrays.items()}
        there |= {"torch": torch, "nn": torch.nn, "F": torch.nn.functional, "np": np}
        ours["np"] = np
    return shared | there | {"np": np, "model": layer}, shared | ours


def value(code: str, names: dict[str, Any]) -> Any:
    """Return the value of the last expression."""
    *before, last = code.split("; ")
    for statement in before:
        exec(statement, names)
    return eval(last, names)


def same(a: Any, b: Any) -> bool:
    """Whether two results are equal; of arrays, their shapes and numbers."""
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(map(same, a, b))
    plain = [_plain(v) for v in (a, b)]
    if any(isinstance(p, np.ndarray) for p in plain):
        return np.shape(plain[0]) == np.shape(plain[1]) and np.allclose(*plain, 1e-4, 1e-5)
    if isinstance(plain[0], float) and isinstance(plain[1], float):
        return math.isclose(*plain, rel_tol=1e-6)
    if isinstance(plain[0], bool | int | float | str | None):
        return bool(plain[0] == plain[1])
    return True  # an object of theirs, beside one of ours


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor | meta.ndarray):
        return np.asarray(value.detach().cpu())
    if isinstance(value, np.generic):
        return np.asarray(value)
    return value


def outcome(side: str, code: str) -> tuple[str, str]:
    """Return what a spelling is, and what is said of it."""
    there, here = worlds(side)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected: Any = value(code, there)
        except Exception as error:
            expected = error
        try:
            found = value(code, here)
        except MetaError as error:
            if error.hint and error.hint != NO_HINT:
                return "clear", error.hint
            # Neither side takes it: there is nothing to write instead.
            return ("same" if isinstance(expected, Exception) else "raw"), repr(error)
        except Exception as error:
            return "raw", repr(error)
    if isinstance(expected, Exception):
        return "another result", f"{expected!r} there: {found}"
    return ("same", "") if same(expected, found) else ("another result", f"{expected} {found}")


def rows() -> Iterator[tuple[str, str]]:
    """Yield the side and the text of every spelling."""
    for side in ("np", "torch", "meta"):
        for line in (FOLDER / f"{side}.txt").read_text("utf-8").splitlines():
            yield side, line
