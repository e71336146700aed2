"""A kernel of Triton that is the implementation of an operator by itself: one launch for a call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, NoReturn

from meta.base.errors import RegistrationError
from meta.base.source import Span
from meta.dialect.core import Config, Configs, OpEnv, Unsupported
from meta.dialect.core.openv import declining
from meta.dialect.core.scope import GENERIC, LaunchSettings, launch_settings, registering
from meta.dialect.triton import binding, build, configs
from meta.dialect.triton.binding import Binder, Bound
from meta.dialect.triton.configs import Tuning
from meta.dialect.triton.function import NO_DEFAULT, Source, read
from meta.dialect.triton.interpreter import interpreted_run
from meta.dialect.triton.launch import LaunchPlan, checked_grid
from meta.ir.types import TensorType
from meta.op.core.call import CallValues, written_positions
from meta.op.core.op import Op
from meta.op.core.slot import NUMBERS


class Meta(Mapping[str, Any]):
    """What a grid or a heuristic is computed of: parameters by name, tensors as their types, and
    all other words of `binding.py`. Numbers given at run time are not there.
    """

    def __init__(self, call: CallValues, source: Source, names: Mapping[str, str]) -> None:
        self.call, self.names = call, names
        self.given: dict[str, Any] = {}
        parameters = [p for p in source.parameters if p.default is not NO_DEFAULT]
        self.defaults = {p.name: p.default for p in parameters}

    def __getitem__(self, name: str) -> Any:
        if name in self.given:
            return self.given[name]
        word = binding.word_of(self.names.get(name, name), self.call.op)
        if word.kind == "given":
            return self.defaults[name]
        if word.kind == "argument":
            return self._argument(name, word.of)
        type_ = self._type(word)
        match word.kind:
            case "numel":
                return type_.size
            case "ndim":
                return len(type_.shape)
            case "size" if word.axis < len(type_.shape):
                return type_.static_shape[word.axis]
            case "dtype":
                return type_.dtype
            case "out":
                return type_
        raise KeyError(name)

    def _argument(self, name: str, slot: str) -> Any:
        value = self.call.args[self.call.op.schema.index[slot]]
        kind = self.call.op.schema.slots[self.call.op.schema.index[slot]].kind
        if kind != "attribute" and isinstance(value, NUMBERS):
            raise KeyError(name)
        return value

    def _type(self, word: binding.Word) -> TensorType:
        if word.of == "out" and (word.number or 0) < len(self.call.outputs):
            return self.call.outputs[word.number or 0]
        found = None if word.of == "out" else self._argument(word.of, word.of)
        if not isinstance(found, TensorType):
            raise KeyError(word.of)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter({**self.defaults, **self.given})

    def __len__(self) -> int:
        return len(set(self))


NO_OPTIONS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {}


class SingleKernel:
    """A kernel of an operator; parameters as in `TritonDialect.kernel`."""

    def __init__(
        self,
        function: Any,
        op: Op,
        grid: Any,
        stated: configs.ConfigList,
        heuristics: Mapping[str, Callable[[Mapping[str, Any]], Any]],
        names: Mapping[str, str],
        bind: Callable[[CallValues], Mapping[str, Any]] | None,
        when: Callable[[CallValues], str | None] | None,
        not_capturable: str = "",
        key: Sequence[str] | None = None,
    ) -> None:
        self.source, self.op, self.names = read(function), op, names
        self.grid, self.bind, self.when = grid, bind, when
        self.not_capturable = not_capturable
        self.scope, self.launch_scope = registering(), GENERIC
        self._check_grid()
        own = {**self.source.heuristics, **heuristics}
        self._tune(stated or self.source.configs, own, self.source.site)
        self.key = tuple(self.source.key if key is None else key)
        unknown = [n for n in self.key if not self._is_known(names.get(n, n))]
        if unknown:
            self._refuse(
                f"has a key of what is not known: {unknown}",
                "arguments, numel, x_size_0 and the like, which a grid may ask for",
            )

    def _is_known(self, word: str) -> bool:
        kind = binding.word_of(word, self.op).kind
        return kind in ("argument", "numel", "ndim", "size", "dtype", "out")

    @property
    def depends(self) -> Callable[[CallValues], str] | None:
        """What the choice among configurations depends on in a call, as text; see `DialectOp`."""
        return self._depends if self.key else None

    def _depends(self, call: CallValues) -> str:
        meta = Meta(call, self.source, self.names)
        types = (*call.tensors(), *call.outputs)
        dtypes = ", ".join(t.dtype for t in types if isinstance(t, TensorType))
        return f"{[(n, _shown(meta, n)) for n in self.key]} of {dtypes}"

    def _tune(
        self,
        stated: configs.ConfigList,
        heuristics: Mapping[str, Callable[[Mapping[str, Any]], Any]],
        site: Span,
        options: Mapping[str, Callable[[Mapping[str, Any]], Any]] = NO_OPTIONS,
    ) -> None:
        """Set how the kernel is launched. ``site``: where the configurations are stated.
        ``options``: heuristics of what is no parameter, such as num_warps.
        """
        self.stated, self.heuristics, self.options = stated, heuristics, options
        self.stated_at = site
        self._read_once: list[Tuning] | None = None
        self._check_heuristics()
        meta = [] if callable(self.stated) else self._read(self.stated)
        self._read_once = meta or None
        given = {*self.heuristics, *(n for one in meta for n in one.meta)}
        if callable(self.stated):  # which of them it states is seen when it is called
            words = {p: binding.word_of(self.names.get(p, p), self.op) for p in self._constexprs}
            given |= {p for p in self._constexprs if words[p].kind == "given"}
        self.binder = Binder(self.source, self.op, self.names, given, self.bind is not None)

    @property
    def _constexprs(self) -> list[str]:
        return [p.name for p in self.source.parameters if p.constexpr]

    def _read(self, stated: Sequence[Any]) -> list[Tuning]:
        names = [n for n in self._constexprs if n not in self.heuristics]
        return configs.read(stated, names, self.source.name, self.stated_at)

    def tunings(self, call: CallValues) -> list[Tuning]:
        """Return the configurations in a call."""
        if callable(self.stated):
            return self._read(self.stated(call))
        if self._read_once is None:
            self._read_once = self._read(self.stated)
        return self._read_once

    def launched_as(self, launch: LaunchSettings, call: CallValues) -> SingleKernel:
        """Return the same kernel, launched as the vendor of a chip wants: in its configurations if
        it states any, and with its heuristics before the kernel's own.

        Raises RegistrationError if these are not of such a kernel.
        """
        made = copy(self)
        options = {n: h for n, h in launch.heuristics.items() if n in configs.OPTIONS}
        theirs = {n: h for n, h in launch.heuristics.items() if n not in options}
        chosen = [_config_of(one, theirs) for one in launch.configs]
        if not chosen:
            own = [{**one.meta, **one.options} for one in self.tunings(call)]
            kept = ({n: v for n, v in o.items() if n not in launch.heuristics} for o in own)
            chosen = [dict(pairs) for pairs in dict.fromkeys(tuple(k.items()) for k in kept)]
        named = {n for one in chosen for n in one}
        ours = {n: h for n, h in self.heuristics.items() if n not in named}
        site = launch.place or self.source.site
        made.launch_scope = launch.scope
        made._tune(chosen, {**ours, **theirs}, site, options)
        return made

    def _refuse(self, what: str, expected: str, found: object = None) -> NoReturn:
        raise RegistrationError(
            f"the kernel {self.source.name!r} of {self.op.name!r} {what}",
            expected=expected,
            found=found,
            span=self.source.site,
        )

    def _check_grid(self) -> None:
        sound = callable(self.grid) or _is_grid(self.grid)
        if not sound:
            self._refuse(
                "has no grid",
                'grid=lambda meta: (triton.cdiv(meta["numel"], meta["BLOCK"]),), or a tuple of '
                "1 to 3 numbers",
                repr(self.grid),
            )

    def _check_heuristics(self) -> None:
        wrong = [n for n in self.heuristics if n not in self._constexprs]
        if wrong:
            self._refuse(
                f"has heuristics of what is no tl.constexpr parameter: {wrong}",
                f"some of {self._constexprs}",
            )

    def make(self, call: CallValues) -> OpEnv:
        """Return the kernel of a call; raises Unsupported."""
        known = self.scope == GENERIC
        launch = launch_settings(self.op.name, call.device) if known else LaunchSettings()
        if launch.scope == GENERIC:
            return self._make(call)
        try:
            return self.launched_as(launch, call)._make(call)
        except RegistrationError as error:
            where = "" if launch.place is None else f" at {launch.place}"
            raise Unsupported(
                f"the {launch.scope} states{where} how it is launched, which does not fit: "
                f"{error.what}, {error.expected or ''}"
            ) from error

    def _make(self, call: CallValues) -> OpEnv:
        declining(self.when, call)
        tunings = self.tunings(call)
        others = tuple(t.config for t in tunings[1:])
        made = Configs(lambda: others, lambda config: self._made(call, tunings, config))
        env = self._made(call, tunings, ())
        env.configs = made
        return env

    def _made(self, call: CallValues, tunings: Sequence[Tuning], config: Config) -> OpEnv:
        tuning = configs.chosen(tunings, config)
        bound, meta = self.bound(call, tuning)
        options = {n: self._option(n, h, meta) for n, h in self.options.items()}
        tuning = Tuning(tuning.meta, {**tuning.options, **options})
        grid = self._grid(meta)
        strided, plan, variants = self._plan(call, bound, grid)
        if not all(t.size for t in call.outputs):
            return self._env(_nothing, strided)
        empty = [n for n, p in bound.pointers.items() if not all(t.size for t in p.types)]
        if empty or 0 in grid:
            what = empty[0] if empty else "the grid"
            raise Unsupported(f"{what} is empty, and the result is not")
        if call.device.kind == "cpu":
            return self._env(interpreted_run(self.source, bound, grid), strided)
        unit = build.unit(self.source, variants, tuning, call.device, str(call))
        plan = LaunchPlan(
            tuple(v.passed for v in unit.variants), plan.grid, plan.strided, plan.compacted
        )
        return self._env(build.Ready(unit, plan, call.device.ordinal).deferred(), strided)

    def _env(self, run: Any, strided: bool) -> OpEnv:
        how = self.not_capturable
        env = OpEnv(run, allocates=False, strided=strided, not_capturable=how)
        env.launch_scope = self.launch_scope
        return env

    def _option(self, name: str, compute: Callable[[Mapping[str, Any]], Any], meta: Meta) -> int:
        value: int = self._computed(f"the heuristic {name!r}", compute, meta)
        configs.check_option(name, value, self.source.name, self.stated_at)
        return value

    def bound(self, call: CallValues, tuning: Tuning) -> tuple[Bound, Meta]:
        """Return what the parameters are in a call, and what grids are computed of."""
        meta = Meta(call, self.source, self.binder.names)
        meta.given.update(tuning.meta)
        if self.bind is not None:
            stated = dict(self.bind(call))
            known = {p.name for p in self.source.parameters}
            taken = {*meta.given, *self.heuristics}
            unknown = [n for n in stated if n not in known or n in taken]
            if unknown:
                self._refuse(
                    f"has a bind= that returns {unknown}",
                    f"parameters that nothing else states, of {sorted(known - taken)}",
                )
            meta.given.update(stated)
        for name, compute in self.heuristics.items():
            meta.given[name] = self._computed(f"the heuristic {name!r}", compute, meta)
        return self.binder.bound(call, meta.given), meta

    def _computed(self, who: str, compute: Callable[[Mapping[str, Any]], Any], meta: Meta) -> Any:
        try:
            return compute(meta)
        except KeyError as error:
            raise RegistrationError(
                f"{who} of the kernel {self.source.name!r} of {self.op.name!r} asks for {error}",
                expected=f"one of {sorted(meta)}, an argument, numel, x_size_0 and the like",
                hint="a number given at run time is not known when a kernel is prepared",
                span=self.source.site,
            ) from error

    def _grid(self, meta: Meta) -> tuple[int, int, int]:
        grid = self.grid
        if callable(grid):
            grid = self._computed("grid=", grid, meta)
        if not _is_grid(grid):
            self._refuse("has a grid that is none", "a tuple of 1 to 3 numbers", repr(grid))
        return checked_grid(grid)

    def _plan(
        self, call: CallValues, bound: Bound, grid: tuple[int, int, int]
    ) -> tuple[bool, LaunchPlan, tuple[build.Variant, build.Variant]]:
        variants = build.variants(self.source, bound)
        strided = tuple(sorted({s.place for s in bound.strides.values()}))
        first_result = bound.results
        inputs = [p for p in bound.compact if p < first_result]
        any_strides = bool(strided) and not set(inputs) & set(written_positions(call))
        plan = LaunchPlan(
            tuple(v.passed for v in variants),
            grid,
            tuple(p for p in strided if p < first_result),
            tuple(inputs) if any_strides else (),
        )
        return any_strides, plan, variants


def _config_of(config: Mapping[str, Any], heuristics: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration of a vendor as one of ours, without what heuristics compute."""
    meta = {n: v for n, v in config["kwargs"].items() if n not in heuristics}
    numbers = {n: v for n, v in config.items() if n != "kwargs" and v is not None}
    return {**meta, **numbers}


def _shown(meta: Meta, name: str) -> str:
    """Return a value of a key as text; a run-time number has none."""
    try:
        return str(meta[name])
    except KeyError:
        return "-"


def _is_grid(grid: Any) -> bool:
    return (
        isinstance(grid, tuple | list)
        and 1 <= len(grid) <= 3
        and all(type(n) is int and n >= 0 for n in grid)
    )


def _nothing(*values: Any) -> None:
    """Launch nothing: the results have no elements."""
