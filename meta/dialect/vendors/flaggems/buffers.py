"""Memory of a tensor in another shape or dtype, and text that is indented: what vendors' code
generators are built of.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import torch

from meta.base import caches

__all__ = [
    "IndentedBuffer", "StridedBuffer", "TypedPtr", "_broadcast_vec", "_check_sized_list",
    "_check_typed_list", "_cs", "_tuple_content", "_type_name", "cache_dir", "code_cache_dir",
    "write_atomic",
]  # fmt: skip


class TypedPtr:
    """An address of elements of a dtype, which Triton takes as a tensor."""

    def __init__(self, ptr: int, dtype: torch.dtype) -> None:
        self.ptr, self.dtype = ptr, dtype

    def data_ptr(self) -> int:
        """Return the address."""
        return self.ptr

    def untyped_storage(self) -> TypedPtr:
        """Return this: of its memory no more is known."""
        return self

    @classmethod
    def reinterpret_tensor(
        cls, tensor: torch.Tensor, dtype: torch.dtype, offset: int = 0
    ) -> TypedPtr:
        """Return the address of an element of a tensor's memory as another dtype."""
        return cls(tensor.data_ptr() + offset * dtype.itemsize, dtype)


class StridedBuffer:
    """The memory of a tensor in another shape, with strides that may be negative. It has what
    generated code asks of a tensor.

    Attributes
    ----------
    offset: of its first element, in elements. pointer: what a launch takes.
    """

    def __init__(
        self,
        base: torch.Tensor,
        shape: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
        dtype: torch.dtype | None = None,
        offset: int = 0,
    ) -> None:
        self._base, self.dtype, self.offset = base, dtype or base.dtype, offset
        self.shape = tuple(base.shape if shape is None else shape)
        self._strides = tuple(base.stride() if strides is None else strides)
        self.device, self.ndim = base.device, len(self.shape)

    @property
    def pointer(self) -> torch.Tensor:
        """A tensor that begins at its first element."""
        flat = torch.empty(0, dtype=self.dtype, device=self.device)
        start = self._base.storage_offset() * self._base.element_size() // self.dtype.itemsize
        return flat.set_(self._base.untyped_storage(), start + self.offset, (1,), (1,))

    def stride(self, axis: int | None = None) -> Any:
        """Return the strides, or one of them."""
        return self._strides if axis is None else self._strides[axis]

    def size(self, axis: int | None = None) -> Any:
        """Return the shape, or one of its extents."""
        return self.shape if axis is None else self.shape[axis]

    def element_size(self) -> int:
        """Return the bytes of an element."""
        return self.dtype.itemsize

    def numel(self) -> int:
        """Return the number of elements."""
        return prod(self.shape)

    def dim(self) -> int:
        """Return the number of axes."""
        return self.ndim

    def data_ptr(self) -> int:
        """Return the address of the first element."""
        return self._base.data_ptr() + self.offset * self.dtype.itemsize

    def unwrap(self) -> torch.Tensor:
        """Return the tensor whose memory this is."""
        return self._base

    def clone(self) -> StridedBuffer:
        """Return the same of a copy of the tensor."""
        return StridedBuffer(self._base.clone(), self.shape, self._strides, self.dtype, self.offset)

    def __getattr__(self, name: str) -> Any:
        """Return what Triton's interpreter asks of a tensor that it copies to the host."""
        if name in ("untyped_storage", "storage_offset", "new_empty"):
            return getattr(self.pointer, name)
        raise AttributeError(f"a StridedBuffer has no {name!r}")


class IndentedBuffer:
    """Lines of a program's text."""

    tabwidth = 4

    def __init__(self, initial_indent: int = 0) -> None:
        self._lines: list[str] = []
        self._level = initial_indent

    def getvalue(self) -> str:
        """Return the text."""
        return "".join(f"{line}\n" for line in self._lines)

    def newline(self) -> None:
        """Add an empty line."""
        self._lines.append("")

    def writeline(self, line: str) -> None:
        """Add a line."""
        indent = " " * (self._level * self.tabwidth)
        self._lines.append(indent + line if line.strip() else "")

    def writelines(self, lines: Sequence[str]) -> None:
        """Add lines."""
        for line in lines:
            self.writeline(line)

    def writemultiline(self, text: str) -> None:
        """Add the lines of a text."""
        self.writelines(text.splitlines())

    def tpl(self, format_str: str, **values: Any) -> None:
        """Add the lines of a text with values for its holes."""
        self.writelines(format_str.format(**values).strip().expandtabs(self.tabwidth).splitlines())

    @contextmanager
    def indent(self, offset: int = 1) -> Iterator[None]:
        """Indent lines by so many levels in a block."""
        self._level += offset
        try:
            yield
        finally:
            self._level -= offset


def _cs(texts: Iterable[str]) -> str:
    """Return texts with commas between them."""
    return ", ".join(texts)


def _tuple_content(texts: Sequence[str]) -> str:
    """Return the same, as what stands in the parentheses of a tuple."""
    return f"{texts[0]}," if len(texts) == 1 else _cs(texts)


def _broadcast_vec(axis: int, ndim: int) -> str:
    """Return the index that makes a vector an axis of a block."""
    return f"[{_cs(':' if i == axis else 'None' for i in range(ndim))}]"


def _type_name(type_: Any) -> str:
    """Return how the text of a signature calls a type."""
    return type_ if isinstance(type_, str) else str(type_.__name__)


def _check_typed_list(values: Sequence[Any], type_: Any) -> None:
    """Raise TypeError for a value of another type."""
    for value in values:
        if not isinstance(value, type_):
            raise TypeError(f"{value!r} is no {type_}")


def _check_sized_list(values: Sequence[Any], size: int) -> None:
    """Raise ValueError where there are not so many values."""
    if len(values) != size:
        raise ValueError(f"{len(values)} values, expected {size}")


def cache_dir() -> Path:
    """Return the folder for text that is generated; it is this user's, and made if need be."""
    folder = caches.cache_folder("vendors")
    problem = caches.open_private(folder)
    if problem:
        raise PermissionError(problem)
    return folder


def code_cache_dir() -> Path:
    """Return the folder for the text of kernels."""
    return cache_dir()


def write_atomic(
    path: str | os.PathLike[str], content: str, make_dirs: bool = False, encoding: str = "utf-8"
) -> None:
    """Write a file that has its name when it is complete."""
    file = Path(path)
    if make_dirs:
        file.parent.mkdir(parents=True, exist_ok=True)
    caches.write_atomically(file, content.encode(encoding))
