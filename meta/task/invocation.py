"""`OpTaskInvocation`: a task with its values, which runs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from meta.base.errors import GradientError
from meta.dialect.core import dispatch, only
from meta.dialect.core.state import State
from meta.grad.core import no_grad
from meta.grad.core.rule import Rule, rule_of
from meta.op.core.call import array_type, runtime_args, written_args
from meta.op.core.handler import use
from meta.op.core.op import by_schema
from meta.runtime.ndarray import ndarray
from meta.task.binding import OpTaskBinding, types_of
from meta.task.signature import OpTaskSignature
from meta.vm.eager.call import device_of


class OpTaskInvocation:
    """A signature and a binding that fits it.

    dialect: whose kernels run; None leaves that to the dispatcher, as for any call. A backward task
    is the operator's gradient rule; each operator that it consists of runs on that dialect.

    Raises what `OpTaskBinding.check` does, and UnknownName for a dialect that does not exist.
    """

    def __init__(
        self, signature: OpTaskSignature, binding: OpTaskBinding, dialect: str | None = None
    ) -> None:
        if not isinstance(binding, OpTaskBinding):
            raise signature.error(
                "an invocation takes a binding", expected="OpTaskBinding(signature)",
                found=f"{binding!r:.200}",
            )  # fmt: skip
        if binding.signature is not signature and binding.signature != signature:
            raise signature.error(
                "the binding is of another task", expected=signature, found=binding.signature
            )
        binding.check()
        self.signature, self.binding, self.dialect = signature, binding, dialect
        self._where()  # an unknown dialect is an error here

    def run(self) -> Any:
        """Run the task, and return what it computes.

        An init task returns the state for the types that are bound, of the device of what is an
        array, of the CPU without one; None if the kernel has none. A forward task returns what a
        call of the operator does: the result, or several. A backward task returns the gradients by
        the names of the arguments. What it writes goes to the arrays that are bound for it, if
        there are any. Errors are those of a call.
        """
        with self._where(), no_grad(), use(None):
            if self.signature.phase == "init":
                state = self.state
                return None if state is None else state.get(state.device)
            return self._forward() if self.signature.phase == "forward" else self._backward()

    @property
    def state(self) -> State | None:
        """The state of the kernel that an init or forward task runs on; None if it has none.

        It may not be made yet. DispatchError if there is no kernel, ArgumentError for a backward
        task, which is a program and may run on several.
        """
        if self.signature.phase == "backward":
            raise self.signature.error(
                "a backward task has no state of its own", hint="ask the forward task for it"
            )
        op, args = self.signature.op, self.binding.args()
        arrays = [v for v in runtime_args(op, args) if isinstance(v, ndarray)]
        call = op.call_values(types_of(self.signature, args), device_of(op, args, arrays))
        with self._where():
            return dispatch(call, eager=True).state

    def backward(self, dy: Any, y: Any = None) -> OpTaskInvocation:
        """Return the backward task of a forward one, with the gradient of its result.

        y: the result, if the gradient reads it; None: the task is run once more for it, which is an
        error if it would not do the same again.
        """
        if self.signature.phase != "forward":
            raise self.signature.error("only a forward task has a backward one")
        op, args = self.signature.op, self.binding.args()
        types = types_of(self.signature, args)
        signature = OpTaskSignature.derived(op, "backward", types)
        binding = OpTaskBinding(signature)
        for slot in signature.reads:
            if slot.role == "output":
                if y is None and (op.has_effect or op.random):
                    raise self.signature.error(
                        "the gradient reads the result, and another run has another one",
                        expected="backward(dy, y) with what run() returned",
                        found="no y",
                    )
                binding.bind(slot.name, self.run() if y is None else y)
            elif slot.role == "gradient":
                binding.bind_grad("out", dy)
            elif slot.role != "argument":
                binding.values[slot.name] = args[op.schema.index[slot.name]]
        return OpTaskInvocation(signature, binding, self.dialect)

    def _where(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.dialect is None else only(self.dialect)

    def _forward(self) -> Any:
        signature = self.signature
        op, args = signature.op, self.binding.args()
        result = by_schema(op)(*args)
        out = next(s.name for s in signature.writes if s.slot is None)
        if out not in self.binding.values:
            return result
        target, written = self.binding.values[out], written_args(op, args)
        if not written:
            return _written(target, result)
        own = result[: len(result) - len(written)]
        if not isinstance(target, tuple):
            return (_written(target, own[0]), *written)
        return (*_written(target, own), *written)

    def _backward(self) -> dict[str, Any]:
        signature, values = self.signature, self.binding.values
        op, types = signature.op, signature.args
        assert types is not None
        rule = rule_of(op)
        # What is kept as its type only, attributes and numbers are those of the call.
        kept = {
            name: types[index] if index >= 0 else op.infer(types)
            for name, index, type_only in rule.kept
            if type_only or name not in values
        }
        gradients = rule({**values, **kept})
        names = [op.schema.names[i] for i in op.schema.tensor_slots]
        by_slot, found = dict(zip(names, gradients, strict=True)), {}
        for slot in signature.writes:
            gradient = by_slot[slot.of]
            if gradient is None:
                raise GradientError(f"there is no gradient for argument {slot.of!r}", op=op.name)
            _require(rule, op.schema.index[slot.of], gradient, types)
            bound = values.get(slot.name)
            found[slot.of] = gradient if bound is None else _written(bound, gradient)
        return found


def _require(rule: Rule, slot: int, gradient: Any, types: Sequence[Any]) -> None:
    """Raise GradientError unless the gradient of an argument, or of several, has its type."""
    argument, given = types[slot], (gradient,)
    if isinstance(argument, tuple):
        given = rule.several(slot, gradient, len(argument))
    else:
        argument = (argument,)
    for one, type_ in zip(given, argument, strict=True):
        if one is not None:
            found = array_type(one.key) if isinstance(one, ndarray) else one
            rule.require(slot, found, type_, None)


def _written(targets: Any, results: Any) -> Any:
    """Copy results to the arrays that are bound for them; return these."""
    if isinstance(targets, tuple):
        return tuple(map(_written, targets, results))
    targets.tensor.copy_(results.tensor)
    return targets
