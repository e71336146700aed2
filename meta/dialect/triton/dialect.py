"""`TritonDialect`: a backend whose kernels are functions of ``@triton.jit``.

Nothing here imports Triton: that is done when a kernel is registered, or may run.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from meta.base import config
from meta.base.device import Device
from meta.base.errors import RegistrationError
from meta.base.source import Span
from meta.dialect.core import HANDWRITTEN, Dialect
from meta.dialect.core.dialect_op import DialectOp, Maker
from meta.dialect.core.plevel import Levels
from meta.dialect.core.scope import GENERIC, registering
from meta.dialect.triton.vendor_configs import with_vendor_configs
from meta.op.core.call import CallValues
from meta.op.core.op import Op
from meta.op.core.registration import require_function, require_op

INTERPRETED = 1
"""The level of kernels on the CPU, where the interpreter runs them: below all others."""


def probe() -> str | None:
    """Return why Triton cannot be used at all, or None."""
    return None if find_spec("triton") is not None else "the package triton is not installed"


def interpreted() -> AbstractContextManager[None]:
    """Let kernels of Triton run on the CPU in a ``with`` block, by Triton's interpreter. That is
    for tests and debuggers: it takes milliseconds for each block of a grid.

    META_TRITON_INTERPRET=1 does so for a process. A function that was made under Triton's own
    TRITON_INTERPRET=1 runs on the CPU in any case.
    """
    return config.override(META_TRITON_INTERPRET=True)


@dataclass(eq=False)
class TritonDialect(Dialect):
    """A backend of Triton kernels; parameters as of `Dialect`, with other defaults."""

    devices: tuple[str, ...] = ("cpu", "cuda")
    plevel: int = HANDWRITTEN
    probe: Callable[[], str | None] | None = probe
    restorer: str = "meta.dialect.triton.launch"
    compiles: bool = True

    def register(
        self,
        base: Op,
        make: Maker,
        site: Span,
        plevel: Levels | None = None,
        *,
        init: Callable[..., Any] | None = None,
        state_of: Op | None = None,
    ) -> DialectOp:
        """As `Dialect.register`: generic kernels are launched as the vendor of a chip states."""
        made = with_vendor_configs(base, make) if registering() == GENERIC else make
        return super().register(base, made, site, plevel, init=init, state_of=state_of)

    def refusal(self, device: Device) -> str | None:
        """Return why no kernel runs on a device, or None."""
        reason = super().refusal(device)
        if reason is not None:
            return reason
        if device.kind == "cuda":
            return _cuda_refusal()
        if config.get("META_TRITON_INTERPRET") or _triton_interprets():
            return None
        return (
            "Triton runs on the CPU by its interpreter, for tests only, where "
            "META_TRITON_INTERPRET=1 or `with meta.dialect.triton.interpreted():` says so"
        )

    def kernel(  # type: ignore[override]
        self,
        base: Op,
        *,
        grid: Any = None,
        configs: Sequence[Any] | Callable[[CallValues], Sequence[Any]] = (),
        heuristics: Mapping[str, Callable[[Mapping[str, Any]], Any]] | None = None,
        key: Sequence[str] | None = None,
        names: Mapping[str, str] | None = None,
        bind: Callable[[CallValues], Mapping[str, Any]] | None = None,
        when: Callable[[CallValues], str | None] | None = None,
        plevel: Levels | None = None,
        not_capturable: str = "",
    ) -> Callable[[Any], Any]:
        """Register a function of ``@triton.jit`` as the implementation of an operator: one launch
        of it runs a call. A decorator; the function is returned as it was.

        Its parameters are arguments and results of the operator, sizes and strides of these, and
        meta-parameters, by name: `binding.py` has the rules.

        Parameters
        ----------
        grid: how many thread blocks: a tuple, or a function of a mapping that has all parameters
            and meta-parameters by name, and everything else that `binding.py` names.
        configs: ``triton.Config``s, or dicts of meta-parameters and num_warps, num_stages,
            num_ctas, maxnreg; or a function of the call that returns such. The first runs where
            nothing was measured.
        heuristics: by parameter, a function of such a mapping that computes its value.
        key: what the choice among configurations depends on, as names that a grid may ask for.
            Calls that agree in them, and in dtypes, have the configuration that was measured in one
            of them; None: a call is measured by itself, or with others of about its extents.
        names: by parameter, what it is, where it has another name: ``{"x_ptr": "x"}``.
        bind: a function of the call that returns values of other parameters by name.
        when: returns a reason to decline the call, or None to accept it.
        plevel: of a number, the level on CUDA; on the CPU, where the interpreter runs it, it is
            asked after all others.
        not_capturable: as in `Dialect.kernel`.

        Raises RegistrationError, with the function's line, for a function that is not one of
        ``triton.jit``, for parameters that nothing states, and what names no parameter.
        """

        require_op(base, f"a kernel of the dialect {self.name!r}")
        for given, part in ((bind, "bind="), (when, "when=")):
            if given is not None:
                require_function(given, f"{part} of a kernel of {base.name!r}")
        for table, part in ((heuristics, "heuristics="), (names, "names=")):
            if table is not None and not isinstance(table, Mapping):
                raise RegistrationError(
                    f"{part} of a kernel of {base.name!r} is no mapping", found=f"{table!r:.200}"
                )
        for parameter, compute in (heuristics or {}).items():
            require_function(compute, f"the heuristic {parameter!r} of a kernel of {base.name!r}")

        def register(function: Any) -> Any:
            single = importlib.import_module("meta.dialect.triton.single_launch")
            kernel = single.SingleKernel(
                function, base, grid, configs, heuristics or {}, names or {}, bind, when,
                not_capturable, key,
            )  # fmt: skip
            made = self.register(base, kernel.make, kernel.source.site, self.levels(plevel))
            made.depends = kernel.depends
            self._note(kernel.source.site)
            return function

        return register

    def pointwise(
        self,
        base: Op,
        *,
        when: Callable[[CallValues], str | None] | None = None,
        configs: Sequence[Any] = (),
        plevel: Levels | None = None,
    ) -> Callable[[Any], Any]:
        """Register a function of elements, one of ``@triton.jit``, as an elementwise operator.

        Its parameters name arguments of the operator: elements of tensors (half precision as
        float32), run-time numbers, and attributes, which are constants. It returns the element of
        the result, or a tuple of several. It serves every rank, broadcast and layout. It is not
        fused with its neighbours: in a compiled program, generated kernels that are may be faster.

        Parameters
        ----------
        configs: of the meta-parameter BLOCK, elements of a thread block, as in `kernel`.
        when, plevel: as in `kernel`.

        Raises RegistrationError as `kernel` does. A decorator.
        """

        require_op(base, f"a function of elements of the dialect {self.name!r}")
        if when is not None:
            require_function(when, f"when= of a function of elements of {base.name!r}")

        def register(function: Any) -> Any:
            pointwise = importlib.import_module("meta.dialect.triton.pointwise")
            kernel = pointwise.PointwiseKernel(function, base, when, configs)
            self.register(base, kernel.make, kernel.source.site, self.levels(plevel))
            self._note(kernel.source.site)
            return function

        return register

    def _note(self, site: Span) -> None:
        """Note the file of a kernel that is not of this package: costs are of what is in it."""
        if not site.is_own:
            with suppress(OSError):
                content = sha256(Path(site.file).read_bytes()).hexdigest()
                if content not in self.registered_text:
                    self.registered_text += f"{content} "

    def levels(self, plevel: Levels | None) -> Levels | None:
        """Return the levels by device of a kernel that states one: on the CPU it runs last."""
        if plevel is None:
            plevel = self.plevel
        return {"cuda": plevel, "cpu": INTERPRETED} if isinstance(plevel, int) else plevel


def _cuda_refusal() -> str | None:
    if not torch.cuda.is_available():
        return "no CUDA device"
    return None if torch.version.hip is None else "not made for ROCm"


def _triton_interprets() -> bool:
    """Whether TRITON_INTERPRET=1 is set, which functions of Triton then follow."""
    triton = sys.modules.get("triton")
    return triton is not None and bool(triton.knobs.runtime.interpret)
