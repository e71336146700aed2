"""`OpEnv`: the winner of a dispatch, an operator bound to one backend's kernel and ready to run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.autograd.graph import increment_version

from meta.base.log import timed
from meta.base.source import Span
from meta.dialect.core.backend_errors import building
from meta.dialect.core.preference import Config
from meta.dialect.core.scope import GENERIC
from meta.dialect.core.warmup import may_begin
from meta.ir.types import TensorType
from meta.op.core.registration import reason_of, require_function

if TYPE_CHECKING:
    from meta.dialect.core.dialect_op import DialectOp
    from meta.dialect.core.state import State

Kernel = Callable[..., Any]


class Unsupported(Exception):
    """Raised by an implementation that cannot serve a call: its limit, never a user's error.

    What it says is the reason that `meta.explain` and a DispatchError give.

    >>> x = meta.ones(2, dtype="complex64", device="cpu")
    >>> try:
    ...     with meta.dialect.only("tvm"):
    ...         meta.exp(x)
    ... except meta.errors.DispatchError as error:
    ...     print(str(error.expected).rpartition("refuses: ")[2])
    no code is generated for float8 and complex numbers
    """


def declining(when: Callable[[Any], str | None] | None, call: Any) -> None:
    """Raise Unsupported with the reason that an author's ``when`` gives to decline a call;
    RegistrationError, at its line, if it answers otherwise.
    """
    reason = None if when is None else reason_of(when, when(call), "when=")
    if reason is not None:
        raise Unsupported(reason)


def decline_if(condition: object, reason: str) -> None:
    """Raise Unsupported, with a reason, if a condition holds."""
    if condition:
        raise Unsupported(reason)


def require_static(*types: TensorType) -> None:
    """Raise Unsupported for types of which an extent is not a number."""
    known = all(t.is_static for t in types)
    decline_if(not known, "this kernel is made for extents that are numbers")


def config_text(config: Config) -> str:
    """Return a configuration as it is in the name of an operator: "split=2,tile=18"."""
    return ",".join(f"{name}={value}" for name, value in config)


def config_of(text: str) -> Config:
    """Return the configuration that `config_text` wrote; ValueError for anything else."""
    found: dict[str, int | str] = {}
    for part in text.split(",") if text else ():
        match = _PAIR.fullmatch(part)
        if match is None or match[1] in found:
            raise ValueError(text)
        found[match[1]] = int(match[2]) if match[2].isdecimal() else match[2]
    config = tuple(sorted(found.items()))
    if config_text(config) != text:
        raise ValueError(text)
    return config


_PAIR = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=([A-Za-z0-9_]+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Artifact:
    """The file in which a compiled kernel lies, so that it can be kept and run without a compiler.

    ``record`` is plain data (what JSON has); `Dialect.restore` makes the kernel of it again.
    """

    file: Path
    record: dict[str, Any]


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """What a compiler made of one source, or what was read from its file; ``artifact`` is None if
    it is in memory only. ``workspace``: the bytes that it takes while it runs, besides arguments.
    """

    run: Kernel
    artifact: Artifact | None = None
    workspace: int | None = None


@dataclass(frozen=True, slots=True)
class ObjectCode:
    """Kernels as object files, each of which is a function of C::

        int kernel(void *unused, const TVMFFIAny *values, int32_t count, TVMFFIAny *unused);

    The values are those of `OpEnv.run`, tensors as pointers to DLPack's ``DLTensor``; the result is
    0 unless they do not fit. What kernels call besides is declared in ``meta/vm/export/runtime.c``.

    Attributes
    ----------
    files: the contents of the files. symbols: the functions, in the order of the kernels.
    repeated: for each, the positions of values that are passed once more behind all others.
    features: what a processor must have, by LLVM's names.
    """

    files: tuple[bytes, ...]
    symbols: tuple[str, ...]
    repeated: tuple[tuple[int, ...], ...]
    features: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Deferred:
    """A kernel that is compiled when it is first needed: of a whole program, all in one go.

    ``compile`` takes a list of sources and returns as many kernels; ``source`` is one of them.
    ``text`` returns a source as people read it, by the endings of names of files. ``begin`` begins
    to compile it on threads, and does not wait.
    """

    source: Any
    compile: Callable[[Sequence[Any]], Sequence[CompiledKernel]]
    text: Callable[[Any], Mapping[str, str]] | None = None
    begin: Callable[[Any], None] | None = None


@dataclass(frozen=True, slots=True)
class Configs:
    """Other ways to launch the same kernel, of which measuring may choose one.

    ``listed`` returns those that are worth measuring, the best guess first, without (). ``made``
    returns the kernel with one of them; Unsupported if it has none such, as of another version.
    """

    listed: Callable[[], Sequence[Config]]
    made: Callable[[Config], OpEnv]

    def wrapped(self, wrapper: Callable[[Kernel], Kernel], kept: bool = True) -> Configs:
        """Return the same whose kernels are each given to a function; see `OpEnv.wrap`."""
        return Configs(self.listed, lambda config: self.made(config).wrap(wrapper, kept))


class OpEnv:
    """A kernel with everything but the tensors bound.

    Attributes
    ----------
    run: called with torch tensors and run-time numbers in slot order (tuples flattened, None left
    out). If ``allocates``,
        it returns the operator's own results as fresh tensors (one, a tuple, or None if there are
        none); otherwise it is given them as further arguments and fills them. In-out arguments are
        written in place. A `Deferred` given for it is compiled when it is asked for.
    allocates: see ``run``.
    strided: whether inputs may be non-contiguous; if not, the caller passes compact ones.
    polymorphic: whether it serves all extents of the symbolic dimensions it was made for.
    dialect_op: who made it.
    artifact: where the compiled kernel is kept, None if it is not, or was never compiled. Its file
        may vanish at any time, as all of a cache; `compile_together` makes it again.
    adjacent: whether its results are best laid side by side, evenly spaced: it is one launch then.
    not_capturable: why a CUDA graph cannot hold the kernel, for one because it reads a result on
        the host; empty if it can.
    workspace: the bytes of memory that the kernel takes while it runs, besides its arguments, as
        far as it is known; a number, or a function that returns it.
    fresh: a function of the same values that returns the one result, compact and in memory of its
        own, if the tensors given are compact. It serves these dtypes in every shape that the
        operator takes, and raises an error for others. Eager calls use it, as ATen allocates a
        result in less time than it fills one; None if there is none.
    state: what an init made for the device, which the kernel is given; None if it has none. It is
        released with the last OpEnv that uses it.
    configs: other ways to launch it; None if there is one only. config: the way of this one.
    site: where the kernel is defined, as far as that is known.
    scope: for which chips the kernel is. launch_scope: whose configurations and heuristics launch
        it, the kernel's own if `GENERIC`; see `scope.launch_settings`.

    >>> import torch
    >>> env = meta.dialect.OpEnv(lambda x, out: torch.exp(x, out=out), allocates=False)
    >>> env.run(torch.zeros(2), result := torch.empty(2)) is result, result.tolist()
    (True, [1.0, 1.0])
    """

    __slots__ = (
        "__weakref__",
        "_deferred",
        "_kept",
        "_kernel",
        "_workspace",
        "_wrappers",
        "adjacent",
        "allocates",
        "artifact",
        "config",
        "configs",
        "dialect_op",
        "fresh",
        "launch_scope",
        "not_capturable",
        "polymorphic",
        "scope",
        "site",
        "state",
        "strided",
    )

    def __init__(
        self,
        run: Kernel | Deferred,
        allocates: bool,
        strided: bool = False,
        dialect_op: DialectOp | None = None,
        polymorphic: bool = False,
        *,
        not_capturable: str = "",
        adjacent: bool = False,
        workspace: int | Callable[[], int] = 0,
        fresh: Kernel | None = None,
        configs: Configs | None = None,
    ) -> None:
        if not isinstance(run, Deferred):
            require_function(run, "the kernel of an OpEnv")
        self._kernel = run
        self._deferred = run if isinstance(run, Deferred) else None
        if isinstance(run, Deferred) and run.begin is not None and may_begin():
            run.begin(run.source)
        self._workspace = workspace
        self._wrappers: tuple[Callable[[Kernel], Kernel], ...] = ()
        self._kept = True
        self.artifact: Artifact | None = None
        self.allocates, self.strided, self.dialect_op = allocates, strided, dialect_op
        self.polymorphic = polymorphic
        self.not_capturable = not_capturable
        self.adjacent = adjacent
        self.fresh = fresh
        self.state: State | None = None
        self.configs = configs
        self.config: Config = ()
        self.scope = self.launch_scope = GENERIC
        self.site: Span | None = None

    def configured(self, config: Config) -> OpEnv:
        """Return the kernel launched in another way; Unsupported if it cannot be."""
        if config == self.config:
            return self
        if self.configs is None:
            raise Unsupported(f"the kernel has no configuration {config_text(config)}")
        made = self.configs.made(config)
        made.config, made.configs = config, self.configs
        return made

    @property
    def run(self) -> Kernel:
        """The kernel, compiled now if it was not."""
        if isinstance(self._kernel, Deferred):
            compile_together([self])
        assert not isinstance(self._kernel, Deferred)
        return self._kernel

    @property
    def is_deferred(self) -> bool:
        """Whether the kernel is compiled, or was, and not one of a library."""
        return self._deferred is not None

    @property
    def source(self) -> Any:
        """What the kernel is compiled of, as its dialect knows it; None where nothing is."""
        return None if self._deferred is None else self._deferred.source

    @property
    def workspace_bytes(self) -> int:
        """Memory that the kernel takes while it runs, besides its arguments."""
        return self._workspace() if callable(self._workspace) else self._workspace

    @property
    def state_bytes(self) -> int:
        """Memory of the state that the kernel keeps between calls; 0 until it is made."""
        return 0 if self.state is None else self.state.nbytes

    def source_text(self) -> Mapping[str, str]:
        """Return what the kernel was compiled of, by the endings of names of files (".cu"); nothing
        for a kernel of a library, or one that was loaded.
        """
        deferred = self._deferred
        if deferred is None or deferred.text is None:
            return {}
        return deferred.text(deferred.source)

    def wrap(self, wrapper: Callable[[Kernel], Kernel], kept: bool = True) -> OpEnv:
        """Let ``run`` be ``wrapper(run)``, in all configurations; returns the same object.

        ``kept``: whether a kernel that is read from its file is wrapped likewise; if not, it is
        made anew there.
        """
        self._kept = self._kept and kept
        if self.configs is not None:
            self.configs = self.configs.wrapped(wrapper, kept)
        if isinstance(self._kernel, Deferred):
            self._wrappers += (wrapper,)
        else:
            self._kernel = wrapper(self._kernel)
        return self

    def counts_writes(self, places: Sequence[int]) -> OpEnv:
        """Let the kernel say that it writes these arguments, as torch's do: the tape looks at the
        counters. Returns the same object.
        """

        def counting(run: Kernel) -> Kernel:
            def counted(*values: Any) -> Any:
                result = run(*values)
                increment_version([values[i] for i in places])
                return result

            return counted

        return self.wrap(counting)

    def launched_by(self, run: Kernel) -> OpEnv:
        """Return the same, with another function that runs it."""
        made = copy(self)
        made._kernel = run
        return made

    def kept_as(self, other: OpEnv) -> None:
        """Take over where the kernel of another, which this one calls, is kept."""
        self._deferred, self.artifact = other._deferred, other.artifact

    @property
    def _wanted(self) -> Deferred | None:
        """What is to be compiled: the kernel, or again what was kept of it and is gone."""
        gone = self.artifact is not None and not self.artifact.file.is_file()
        return self._deferred if gone or isinstance(self._kernel, Deferred) else None

    def _compiled(self, made: CompiledKernel) -> None:
        # A kernel that is read from its file is not given the state.
        self.artifact = made.artifact if self.state is None and self._kept else None
        if not isinstance(self._kernel, Deferred):
            return
        kernel = made.run
        for wrapper in self._wrappers:
            kernel = wrapper(kernel)
        self._kernel = kernel
        if made.workspace is not None:
            self._workspace = made.workspace


def compile_together(envs: Iterable[OpEnv]) -> None:
    """Compile what is deferred in as few goes as there are compilers, and what was compiled but is
    no longer in its file; BackendError if one fails.
    """
    waiting: dict[Callable[[Sequence[Any]], Sequence[CompiledKernel]], dict[OpEnv, Any]] = {}
    for env in envs:
        wanted = env._wanted
        if wanted is not None:
            waiting.setdefault(wanted.compile, {})[env] = wanted.source
    for compile, sources in waiting.items():
        owner = next(iter(sources)).dialect_op
        op, dialect = (None, None) if owner is None else (owner.base.name, owner.dialect.name)
        if len(sources) > 1:  # nobody would say which of them it was
            op = None
        building_them = building(op, None, dialect, "cannot compile kernels")
        with building_them, timed("made %d kernels", len(sources)):
            kernels = compile(list(sources.values()))
        for env, made in zip(sources, kernels, strict=True):
            env._compiled(made)
