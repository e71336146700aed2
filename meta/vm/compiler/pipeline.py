"""The passes between a traced program and its code, and how a user changes them for a block.

`STEPS` is the order. To add a pass, write it (see `meta.passes` and docs/howto/pass.md) and give it
a line here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from types import MappingProxyType
from typing import Any

from meta import passes
from meta.base.device import Device
from meta.base.errors import ArgumentError, UnknownName
from meta.base.registry import nearest
from meta.ir import Module
from meta.passes import Pipeline
from meta.passes.manager import Pass

DEFAULT_LEVEL, MAX_LEVEL = 2, 3


@dataclass(frozen=True, slots=True)
class PassStep:
    """A pass and the least ``opt_level`` at which it runs.

    0: a program cannot run without it. 1: cheap clean-ups. 2: what makes programs fast, the
    default. 3: what takes long, or pays for some programs only.
    """

    level: int
    run: Callable[..., Module]

    @property
    def name(self) -> str:
        """The name of the pass."""
        return self.run.__name__

    @property
    def parameters(self) -> frozenset[str]:
        """The names of the pass's keyword arguments."""
        return _parameters(self.run)

    @property
    def options(self) -> frozenset[str]:
        """The keyword arguments that `PassContext` may give; the pipeline gives the others."""
        return self.parameters - {"device", "lower", "trained"}


@cache
def _parameters(run: Callable[..., Module]) -> frozenset[str]:
    found = inspect.signature(run).parameters.values()
    return frozenset(p.name for p in found if p.kind is p.KEYWORD_ONLY)


STEPS = (
    # What the program says, without detours.
    PassStep(0, passes.infer_type),  # every variable has a type
    PassStep(2, passes.inline),  # calls of small functions, and of those that are used once
    PassStep(1, passes.promote_refs),  # references that one function keeps to itself
    PassStep(2, passes.gather_rows),  # of tables, between ranks, before casts are taken away
    PassStep(2, passes.narrow_gathers),  # of parameters that are cast to half precision
    PassStep(1, passes.explicit_keys),  # random kernels that draw nothing on the host, on CUDA
    PassStep(1, passes.split_dropout),  # where its key is known
    PassStep(1, passes.canonicalize),  # one spelling for one thing
    PassStep(2, passes.simplify_attention),  # masks that are known, heads that are repeated
    PassStep(2, passes.attention_layout),  # heads where projections leave them
    PassStep(1, passes.simplify),  # identities, chains of views
    PassStep(2, passes.fold_batch_norm),  # into the weights before it
    PassStep(2, passes.integer_products),  # of frozen programs, where tensors are quantised
    PassStep(1, passes.fold_constant),  # what does not depend on the inputs
    PassStep(1, passes.deduplicate),  # functions and constants that are there twice
    PassStep(2, passes.fuse_composites),  # activations and norms that are written out
    PassStep(2, passes.fuse_quantized_products),  # of weights of 8 bits that are cast
    PassStep(2, passes.fuse_attention),  # where no gradient needs what is between the products
    PassStep(2, passes.unslice_scores),  # of losses that leave a few rows out
    PassStep(3, passes.fuse_cross_entropy),  # without all scores in memory, by one product more
    PassStep(2, passes.channels_last),  # of convolution networks, from end to end
    PassStep(2, passes.align_products),  # rows of products begin where libraries are fast
    PassStep(2, passes.carry_padding),  # of scores, up to their loss
    PassStep(2, passes.read_visible_slots),  # of caches, where a mask compares their numbers
    PassStep(2, passes.repeat_shared_heads),  # for kernels that would repeat them, on the CPU
    PassStep(2, passes.write_out_attention),  # of few keys, on the CPU
    PassStep(1, passes.eliminate_common_subexpressions),  # what is computed twice
    PassStep(2, passes.join_products),  # of one operand by several weights
    PassStep(2, passes.pack_weights),  # of frozen programs, in the layout of kernels
    PassStep(2, passes.bypass_casts),  # what kernels read in any dtype
    PassStep(2, passes.narrow_before_views),  # casts that fuse with what is before a view
    PassStep(1, passes.dead_code),  # what nobody uses
    PassStep(2, passes.prepare),  # what depends on a model's arrays alone
    PassStep(2, passes.rematerialize),  # within a memory budget, if there is one
    PassStep(2, passes.bucket_collectives),  # gradients that ranks reduce together
    PassStep(2, passes.reinplace),  # updates of a few elements, where nobody needs the old ones
    PassStep(2, passes.join_increments),  # of counters, in one launch
    # Who runs what.
    PassStep(2, passes.fuse_dialect),  # several calls for which a backend has one kernel
    PassStep(2, passes.tune),  # measures what was never measured, where that is asked for
    PassStep(2, passes.split_patterns),  # where their calls were measured to take less
    PassStep(2, passes.plan_dialects),  # by costs, the kernels of a whole program together
    PassStep(0, passes.dispatch),  # each call names its kernel
    PassStep(2, passes.fuse_operators),  # neighbours that one kernel can run
    PassStep(2, passes.join_casts),  # casts of weights, in one launch
    # Where results live.
    PassStep(2, passes.memory_schedule),  # an order in which less is in use at a time
    PassStep(2, passes.schedule_collectives),  # beside other work
    PassStep(2, passes.inplace_update),  # results over operands that die
    PassStep(0, passes.configure),  # how kernels are launched, by their costs
    PassStep(2, passes.plan_memory),  # lifetimes that do not meet share space
)


def _checked_level(level: int) -> int:
    if type(level) is not int or not 0 <= level <= MAX_LEVEL:
        raise ArgumentError(
            "there is no such optimisation level",
            expected=f"opt_level from 0 to {MAX_LEVEL}",
            found=repr(level),
        )
    return level


def _names(names: Iterable[str]) -> frozenset[str]:
    if isinstance(names, str):
        raise ArgumentError(
            "names of passes come as a list", expected=f"[{names!r}]", found=repr(names)
        )
    found = frozenset(names)
    known = {step.name for step in STEPS}
    for name in sorted(found - known):
        raise UnknownName(f"the pipeline has no pass named {name!r}", hint=nearest(name, known))
    return found


class PassContext:
    """Change which passes run, and how, in a ``with`` block: in this thread (or task) only.

    Blocks nest. The inner one's level, and what it says of a pass, count; what it leaves open is
    as outside.

    Parameters
    ----------
    opt_level: 0 (what is needed to run), 1 (cheap clean-ups), 2 (the default: fusion, memory
        planning) or 3 (everything); `meta.vm.compile`'s own argument counts more.
    disabled: names of passes that do not run. required: names of passes that run at any level.
    config: options by pass: ``{"fuse_operators": {"max_members": 8}}``.

    Raises UnknownName for a pass or an option that is not there, ArgumentError for a level out of
    range, a pass both disabled and required, and a disabled pass that no program runs without.

    >>> from meta.base.device import CPU
    >>> from meta.vm.compiler.pipeline import pipeline
    >>> with meta.vm.PassContext(opt_level=0, required=["dead_code"]):
    ...     print(pipeline(CPU))
    Pipeline(infer_type, dead_code, dispatch, configure)
    """

    def __init__(
        self,
        opt_level: int | None = None,
        disabled: Iterable[str] = (),
        required: Iterable[str] = (),
        config: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    ) -> None:
        self.opt_level = None if opt_level is None else _checked_level(opt_level)
        self.disabled, self.required = _names(disabled), _names(required)
        self.config = {name: dict(options) for name, options in config.items()}
        self._check()
        self._outer: PassContext | None = None

    def _check(self) -> None:
        both = sorted(self.disabled & self.required)
        if both:
            raise ArgumentError("a pass is both disabled and required", found=", ".join(both))
        needed = sorted(
            step.name for step in STEPS if not step.level and step.name in self.disabled
        )
        if needed:
            raise ArgumentError("no program runs without this pass", found=", ".join(needed))
        _names(self.config)
        known = {step.name: step.options for step in STEPS if step.name in self.config}
        for name, options in self.config.items():
            for option in options:
                if option not in known[name]:
                    raise UnknownName(
                        f"the pass {name} has no option {option!r}",
                        expected=", ".join(sorted(known[name])) or "no options",
                        hint=nearest(option, known[name]) if known[name] else None,
                    )

    def __enter__(self) -> PassContext:
        _current.set(self._inside(_current.get()))
        return self

    def __exit__(self, *_: object) -> None:
        outer = _current.get()._outer
        assert outer is not None, "__exit__ follows __enter__"
        _current.set(outer)

    def _inside(self, outer: PassContext) -> PassContext:
        """Return the context of a block in a block."""
        both = PassContext(
            outer.opt_level if self.opt_level is None else self.opt_level,
            (outer.disabled - self.required) | self.disabled,
            (outer.required - self.disabled) | self.required,
            {
                name: {**outer.config.get(name, {}), **self.config.get(name, {})}
                for name in (*outer.config, *self.config)
            },
        )
        both._outer = outer
        return both

    def runs(self, step: PassStep, opt_level: int) -> bool:
        """Whether a pass runs at a level, in this context."""
        if step.name in self.disabled:
            return False
        return step.level <= opt_level or step.name in self.required


_NOTHING = PassContext()
_current: ContextVar[PassContext] = ContextVar("meta_pass_context", default=_NOTHING)


def pipeline(device: Device, opt_level: int | None = None) -> Pipeline:
    """Return the passes for a device, in the current `PassContext`.

    Without an ``opt_level``, that of the context counts, and without that one 2.
    """
    context = _current.get()
    if opt_level is None:
        opt_level = context.opt_level
    level = DEFAULT_LEVEL if opt_level is None else _checked_level(opt_level)
    found: list[Pass] = []
    for step in reversed([s for s in STEPS if context.runs(s, level)]):
        found.insert(0, _bound(step, context, device, tuple(found)))
    return Pipeline(*found)


def before_autodiff(device: Device, trained: Sequence[int]) -> tuple[Pass, ...]:
    """Return the passes for a program that is about to be differentiated by its parameters
    ``trained``, in the current `PassContext`: those after which its gradient is another one.
    """
    context = _current.get()
    return tuple(
        _bound(step, context, device, (), trained=trained) for step in _before_autodiff(context)
    )


def before_autodiff_key() -> tuple[str, ...]:
    """Return what of the current `PassContext` gradients depend on."""
    return _key(_current.get())


@lru_cache(maxsize=16)
def _key(context: PassContext) -> tuple[str, ...]:
    return tuple(f"{s.name}{context.config.get(s.name, {})}" for s in _before_autodiff(context))


def _before_autodiff(context: PassContext) -> list[PassStep]:
    level = DEFAULT_LEVEL if context.opt_level is None else context.opt_level
    return [step for step in _WITH_TRAINED if context.runs(step, level)]


_WITH_TRAINED = tuple(step for step in STEPS if "trained" in step.parameters)


def _bound(
    step: PassStep,
    context: PassContext,
    device: Device,
    following: tuple[Pass, ...],
    **options: Any,
) -> Pass:
    """Return a pass with its options; the device, and the passes that follow, if it asks for it."""
    options |= context.config.get(step.name, {})
    if "device" in step.parameters:
        options["device"] = device
    if "lower" in step.parameters:
        if step.run is not passes.rematerialize:  # the others ask for kernels, not for memory
            following = tuple(p for p in following if _decides_kernels(p))
        options["lower"] = partial(_all, following)
    return partial(step.run, **options) if options else step.run


def _decides_kernels(step: Pass) -> bool:
    """Whether programs before this pass may be told by their kernels only after it."""
    return getattr(step, "func", step) is not passes.plan_memory


def _all(following: tuple[Pass, ...], module: Module) -> Module:
    for step in following:
        module = step(module)
    return module
