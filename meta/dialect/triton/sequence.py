"""Sequences of launches: one launch of a kernel of Triton among several, for makers of their own.

An operator that takes more than one launch, or memory in between, is registered with
`TritonDialect.op`, as on any dialect. Its maker prepares each launch and says how they follow one
another; `launch_sequence` makes the `OpEnv`, whose kernels are compiled together::

    @triton_dialect.op(op.mean_of_squares)
    @tunable
    def mean_of_squares(call):
        x, n = call.args.x, call.args.x.size
        block = ask("BLOCK", 1024, (512, 2048))
        blocks = -(-n // block)
        given = {"x": x, "out": "float32", "n": n, "BLOCK": block}
        sums = TritonLaunch(sum_squares, call.device, (blocks,), **given)
        last = TritonLaunch(finish, call.device, (1,), x="float32", out=x, n=n, blocks=blocks)

        def run(x, out):
            partial = torch.empty(blocks, dtype=torch.float32, device=x.device)
            sums(x, partial)
            last(partial, out)

        return launch_sequence(run, sums, last, workspace=4 * blocks)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from meta.base.device import Device
from meta.base.dtype import TO_TORCH
from meta.base.errors import RegistrationError
from meta.dialect.core import CompiledKernel, Deferred, OpEnv
from meta.dialect.triton import build, type_names
from meta.dialect.triton.binding import Bound, Number, Pointers, Static
from meta.dialect.triton.configs import OPTIONS, Tuning, check_option
from meta.dialect.triton.function import NO_DEFAULT, Parameter, read
from meta.dialect.triton.interpreter import interpreted_run
from meta.dialect.triton.launch import LaunchPlan, Run, checked_grid
from meta.ir.types import TensorType
from meta.op.core.slot import NUMBERS


class TritonLaunch:
    """A launch of a function of ``@triton.jit``, whose arguments are described by name.

    Parameters
    ----------
    function, device, grid: of the launch; a grid has up to three numbers, and may be empty.
    arguments: by parameter, what it is:

    - a tensor's type, or a dtype such as "float32": a compact tensor, given at each launch;
    - a type of Triton, such as "i64" or "fp32": a number that is given at each launch;
    - a number, for a parameter that is no ``tl.constexpr``: known now;
    - of a ``tl.constexpr``: its value.

    num_warps, num_stages, num_ctas and maxnreg are those of a configuration. early: the kernel may
    begin before others end, for it waits for them itself (``gdc_wait``) before it reads or writes
    what they may, on devices that have it (`gpu_properties.begins_early`).

    Calling it launches the kernel with what is given at each launch, in the order of the
    parameters. Raises RegistrationError for parameters that are not stated, and Unsupported for
    dtypes that Triton does not have, and for grids that are too large.
    """

    def __init__(
        self,
        function: Any,
        device: Device,
        grid: Sequence[int],
        /,
        early: bool = False,
        **arguments: Any,
    ) -> None:
        self.source, self.device = read(function), device
        self.grid = checked_grid(grid)
        parameters = {p.name: p for p in self.source.parameters}
        options = {n: v for n, v in arguments.items() if n in OPTIONS and n not in parameters}
        for name, value in options.items():
            check_option(name, value, self.source.name, self.source.site)
        stated = {n: v for n, v in arguments.items() if n not in options}
        if early:
            options["launch_pdl"] = 1
        unknown = [n for n in stated if n not in parameters]
        if unknown:
            self._refuse(f"has no parameters {unknown}", f"some of {list(parameters)}")
        self.bound = Bound()
        self.count = 0
        for name, parameter in parameters.items():
            value = stated.get(name, parameter.default)
            if value is NO_DEFAULT:
                self._refuse(f"is not told {name!r}", "each parameter without a default")
            self._bind(parameter, value)
        self._run: Run | None = None
        self.unit: build.Unit | None = None
        if 0 in self.grid:
            self._run = _nothing
        elif device.kind == "cpu":
            self._run = interpreted_run(self.source, self.bound, self.grid)
        else:
            self._prepare(options)

    def _refuse(self, what: str, expected: str) -> NoReturn:
        raise RegistrationError(
            f"the kernel {self.source.name!r} {what}", expected=expected, span=self.source.site
        )

    def _bind(self, parameter: Parameter, value: Any) -> None:
        name = parameter.name
        if parameter.constexpr or value is None:
            self.bound.constants[name] = value
        elif isinstance(value, TensorType) or (isinstance(value, str) and value in TO_TORCH):
            type_ = value if isinstance(value, TensorType) else TensorType((0,), value)
            type_names.pointer(type_.dtype, name)
            self.bound.pointers[name] = Pointers(name, (self._next(),), (type_,))
        elif isinstance(value, str) and value in type_names.FORMAT:
            self.bound.numbers[name] = Number(name, self._next(), value)
        elif isinstance(value, NUMBERS):
            word = parameter.word or type_names.static_word(value, wide=False)
            self.bound.statics[name] = Static(name, word, value)
        else:
            self._refuse(
                f"is told {name}={value!r}",
                f"a tensor's type, a dtype, one of {', '.join(type_names.FORMAT)}, or a number",
            )

    def _next(self) -> int:
        self.count += 1
        return self.count - 1

    def _prepare(self, options: dict[str, int]) -> None:
        variants = build.variants(self.source, self.bound)
        self.unit = build.unit(self.source, variants, Tuning({}, options), self.device, "")

    def load(self) -> Run:
        """Return the kernel, loaded on the device, and compiled now if nobody has."""
        if self._run is None:
            assert self.unit is not None
            plan = LaunchPlan(tuple(v.passed for v in self.unit.variants), self.grid)
            self._run = plan.bind(build.kernels(self.unit), self.device.ordinal)
        return self._run

    def __call__(self, *values: Any) -> None:
        (self._run or self.load())(*values)


def _nothing(*values: Any) -> None:
    """The launch of an empty grid."""


def launch_sequence(run: Callable[..., Any], *launches: TritonLaunch, **how: Any) -> OpEnv:
    """Return a kernel that is a function of a run's values, which launches what was prepared.

    ``how``: as of `OpEnv`; the function fills its results unless ``allocates=True`` is given.
    """
    how = {"allocates": False, **how}
    return OpEnv(Deferred((run, launches), _compile_all, _text, _begin), **how)


Launches = tuple[Callable[..., Any], Sequence[TritonLaunch]]


def _text(kernel: Launches) -> dict[str, str]:
    """Return the functions that are launched, by the ending of the name of a file."""
    return {".py": "\n\n".join(dict.fromkeys(one.source.text for one in kernel[1]))}


def _begin(kernel: Launches) -> None:
    build.kernels.begin(one.unit for one in kernel[1] if one.unit is not None)


def _compile_all(kernels: Sequence[Launches]) -> list[CompiledKernel]:
    wanted = [one for _, launches in kernels for one in launches if 0 not in one.grid]
    build.kernels.all_of([one.unit for one in wanted if one.unit is not None])
    for one in wanted:
        one.load()
    return [CompiledKernel(run) for run, _ in kernels]
