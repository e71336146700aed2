"""`Wrapper`: base of models that stand for another one; and `Autocast`, such a one: a model in
mixed precision, what `meta.amp.autocast` makes of a `Model`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from meta import op
from meta.base.call_context import current
from meta.ir import TensorType
from meta.model.model import Model
from meta.model.trace import trace
from meta.op.core import tree
from meta.op.core.tracing import Trace
from meta.passes import CastReport, autocast, explain_autocast
from meta.runtime.ndarray import ndarray
from meta.vm.compiler.calling_convention import Program
from meta.vm.compiler.pipeline import PassContext


class Wrapper(Model):
    """A model whose arrays, their names, and mode are those of another one, ``model``.

    A subclass sets ``model`` in ``build``; what else it holds it adds in `members`, `models` and
    `paths`.
    """

    model: Model

    # One mode for both, also where a model around this one sets it.
    @property
    def _training(self) -> bool:
        return self.model._training

    @_training.setter
    def _training(self, training: bool) -> None:
        if "model" in vars(self):
            self.model._training = training

    @property
    def records(self) -> bool:  # type: ignore[override]
        """Whether calls are recorded for `backward`."""
        return self.model.records

    def members(self) -> dict[str, Any]:
        """Return what ``model`` holds, under the same names."""
        return self.model.members()

    def models(self) -> list[Model]:
        """Return this model, the one that it wraps, and all inside."""
        return [self, *self.model.models()]

    def paths(self) -> Iterator[tuple[str, ndarray | Model]]:
        """Iterate over what is inside of ``model``, itself included."""
        return self.model.paths()

    def signature(self) -> tuple[Any, ...]:
        """Return what a trace depends on."""
        return (*super().signature(), tree.IdentityKey(self.model), self.model._checkpointed)


class Autocast(Wrapper):
    """A model called as ``model`` is, whose program is cast.

    >>> model = meta.amp.autocast(meta.model.Linear(2, 2), "bfloat16")
    >>> isinstance(model, meta.model.Autocast), model(meta.ones((1, 2))).dtype
    (True, 'float32')
    >>> [b.var.type.dtype for b in model.program(meta.ones((1, 2))).module.main.body.bindings]
    ['bfloat16', 'bfloat16', 'bfloat16', 'bfloat16', 'bfloat16', 'float32']
    """

    def build(self, model: Model, dtype: str, out_dtype: str | None) -> None:
        """Wrap a model whose forward is traced."""
        self.model, self.dtype, self.out_dtype = model, dtype, out_dtype

    def call_signature(self) -> inspect.Signature:
        """Return what a call of ``model`` takes."""
        given: inspect.Signature = self.model.traced_entry().given
        return given

    def signature(self) -> tuple[Any, ...]:
        """Return what a trace depends on."""
        return (*super().signature(), self.dtype, self.out_dtype)

    @trace
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result of ``model``, computed in mixed precision."""
        outer = current()
        assert isinstance(outer, Trace)
        args, kwargs = self._widened((args, kwargs))
        with PassContext(config={"fuse_attention": {"half": True}}):  # if it is differentiated
            entry = self.model.traced_entry()
            program: Program = entry.program_on_types(outer.device, *args, **kwargs)
        module = autocast(program.module, **self._options(program))
        inputs = (*entry.leaves(*args, **kwargs), *program.arrays)
        atoms = [outer.lift(v).atom for v in inputs]
        return program.convention.unflatten(outer.inline(module, atoms))

    def _widened(self, given: Any) -> Any:
        """Return half precision arguments in float32 if other arrays are: all meet in one dtype."""
        own = {a.dtype for a in self.model.state().values()}
        leaves, structure = tree.flatten(given)
        wide = "float32" in own or any(a.dtype == "float32" for a in leaves)
        halves = {"float16", "bfloat16"} - own if wide else ()
        return tree.unflatten(structure, [_wide(a) if a.dtype in halves else a for a in leaves])

    def explain(self, *args: Any, **kwargs: Any) -> CastReport:
        """Return which casts there are for arguments of these types, where, for whom and why."""
        args, kwargs = self._widened((args, kwargs))
        program = self.model.program(*args, **kwargs)
        return explain_autocast(program.module, **self._options(program))

    def _options(self, program: Program) -> dict[str, Any]:
        """Return the options of the pass: the model's arrays come last among the parameters."""
        first = len(program.module.main.params) - len(program.arrays)
        trained = [first + i for i, a in enumerate(program.arrays) if a.requires_grad]
        return {"dtype": self.dtype, "out_dtype": self.out_dtype, "trained": trained}


def _wide(value: Any) -> Any:
    if isinstance(value, TensorType):
        return value.with_dtype("float32")
    return op.astype(value, "float32")


def _autocast(model: Model, dtype: str, out_dtype: str | None) -> Autocast:
    return Autocast(model, dtype, out_dtype)


Model.__autocast__ = _autocast
