"""`value_and_grad`: a model that returns its result and the gradients of its parameters, as one
traced function.
"""

from __future__ import annotations

import inspect
from typing import Any

from meta import op
from meta.base.errors import GradientError
from meta.model.model import Model
from meta.model.trace import trace
from meta.op.core import tree
from meta.op.core.handler import current
from meta.op.core.tracing import Trace
from meta.passes import autodiff, dead_code, infer_type, simplify
from meta.vm.pipeline import before_autodiff


class ValueAndGrad(Model):
    """A model called as ``(dy, *inputs)``; see `value_and_grad`."""

    records = False

    def build(self, model: Model) -> None:
        """Wrap a model whose forward is traced."""
        self.model = model

    def call_signature(self) -> inspect.Signature:
        """Return what a call of the model takes, behind ``dy``."""
        given = self.model.traced_entry().given.parameters
        name = "dy" if "dy" not in given else "dy_of_result"
        dy = inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY)
        return inspect.Signature([dy, *given.values()])

    @trace
    def forward(self, dy: Any, *inputs: Any, **named: Any) -> Any:
        """Return (result of the model, gradients by parameter name)."""
        y, found = self.of_used(dy, *inputs, **named)
        return y, {
            name: found[name] if name in found else op.zeros_like(parameter)
            for name, parameter in self.model.parameters().items()
        }

    def of_used(self, dy: Any, *inputs: Any, **named: Any) -> tuple[Any, dict[str, Any]]:
        """Return what `forward` does, in code that is traced, with gradients of the parameters that
        the result is computed from only.
        """
        outer = current.get()
        assert isinstance(outer, Trace)
        entry = self.model.traced_entry()
        program = entry.program_on_types(outer.device, *inputs, **named)
        names = {id(a): n for n, a in self.model.parameters().items()}
        first = len(program.module.main.params) - len(program.arrays)
        wanted = [i for i, a in enumerate(program.arrays) if id(a) in names]
        module, wrt = program.module, [first + i for i in wanted]
        for step in before_autodiff(outer.device, wrt):
            module = step(module)
        module = infer_type(simplify(dead_code(autodiff(module, wrt=wrt))))
        dys = [outer.lift(d) for d in tree.flatten(dy)[0]]
        added = len(module.main.params) - len(program.module.main.params)
        expected = [p.type for p in module.main.params[:added]]
        if [d.type for d in dys] != expected:
            raise GradientError(
                "dy does not fit the model's result",
                expected=", ".join(map(str, expected)),
                found=", ".join(str(d.type) for d in dys) or "no array",
                hint="it comes before the inputs; for a loss it is meta.array(1.0)",
            )
        leaves = [*dys, *entry.leaves(*inputs, **named), *program.arrays]
        y, gradients = outer.inline(module, [outer.lift(v).atom for v in leaves])
        by_name = {names[id(program.arrays[i])]: g for i, g in zip(wanted, gradients, strict=True)}
        return program.convention.unflatten(y), by_name


def value_and_grad(model: Model) -> ValueAndGrad:
    """Return a model called as ``(dy, *inputs)`` that returns ``(y, gradients)``.

    ``dy`` is the gradient of the model's result ``y`` (one array per floating point array in it, in
    the same structure); inputs may be given by name. ``gradients`` maps the name of every parameter
    that requires a gradient to an array of its shape and dtype, zeros if the result does not depend
    on it. Forward and backward are one traced function.
    """
    return ValueAndGrad(model)
