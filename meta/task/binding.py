"""`OpTaskBinding`: which tensor, number or attribute stands in each slot of a task; and
`OpTaskInvocation`: a task with its values, which runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from meta.base.call_context import use
from meta.base.errors import ArgumentError, GradientError, MetaError
from meta.base.registry import nearest
from meta.dialect.core import dispatch, only
from meta.dialect.core.state import State
from meta.grad.core import no_grad
from meta.grad.core.rule import Rule, rule_of
from meta.ir.types import TensorType, compatible
from meta.op.core.call import array_type, map_tensors, result_types, runtime_args, written_args
from meta.op.core.op import by_schema
from meta.op.core.phases import TaskSlot
from meta.op.core.slot import NUMBERS
from meta.runtime.ndarray import as_array, ndarray
from meta.task.signature import OpTaskSignature
from meta.vm.eager.call import device_of

_ABSENT: Any = object()


class OpTaskBinding:
    """The values of a task's slots, each checked as it is bound.

    Tensors are bound with `bind`, gradients with `bind_grad`, attributes and numbers with
    `bind_arg`; each returns the binding. What the task writes may be bound: it is then written
    there, else to new arrays. What has a default may be left out.

    Raises ArgumentError, with operator, slot, expected and given, for a slot that does not exist
    (with the nearest name), is bound twice, has another role, or holds a value of another kind.

    >>> signature = meta.task.OpTaskSignature.of(meta.op.softmax, "forward")
    >>> binding = meta.task.OpTaskBinding(signature).bind("x", meta.zeros(4)).bind_arg("axis", 0)
    >>> binding.args()[0].shape
    (4,)
    >>> try:
    ...     binding.bind("y", meta.ones(2))
    ... except meta.errors.ArgumentError as error:
    ...     print(error.what)
    there is no slot 'y'
    """

    def __init__(self, signature: OpTaskSignature) -> None:
        if not isinstance(signature, OpTaskSignature):
            raise ArgumentError(
                "a binding is of a signature", expected="OpTaskSignature.of(op, phase)",
                found=f"{signature!r:.200}",
            )  # fmt: skip
        self.signature = signature
        self.values: dict[str, Any] = {}

    def bind(self, slot: str, value: Any) -> OpTaskBinding:
        """Bind an array (what `meta.array` takes), several as a tuple, or None, to a slot. An init
        task is told types only: for it, a tensor of the operator or its type.
        """
        signature = self.signature
        own = signature.of_init(slot)
        if own is not None:
            return self._keep(own, value)
        if slot not in signature.tensors:
            if slot in signature.arguments:
                self._refuse(slot, "an argument, bound with bind_arg", value)
            if any(s.name == slot and s.role == "gradient" for s in signature.slots):
                self._refuse(slot, "a gradient, bound with bind_grad", value)
            raise signature.error(
                f"there is no slot {slot!r}",
                expected=f"one of {signature.tensors}",
                found=_value_text(value),
                hint=nearest(slot, (*signature.tensors, *signature.arguments)),
            )
        if signature[slot].role == "gradient":
            self._refuse(slot, "a gradient, bound with bind_grad", value)
        return self._keep(signature[slot], value)

    def bind_grad(self, slot: str, value: Any) -> OpTaskBinding:
        """Bind the gradient of the result, "out", that a backward task reads, or where it is to
        write the gradient of an argument.
        """
        return self._keep(self.signature.gradient_of(slot), value)

    def bind_arg(self, name: str, value: Any) -> OpTaskBinding:
        """Bind an attribute or a number."""
        signature, index = self.signature, self.signature.op.schema.index
        if name not in signature.arguments:
            if name in index and any(s.name == name for s in signature.slots):
                self._refuse(name, f"a tensor ({signature[name].role}), bound with bind", value)
            raise signature.error(
                f"there is no argument {name!r}",
                expected=f"one of {signature.arguments}",
                found=_value_text(value),
                hint=nearest(name, (*signature.arguments, *signature.tensors)),
            )
        slot = signature.op.slots[index[name]]
        if slot.is_tensor and not isinstance(value, NUMBERS):
            self._refuse(name, "a number; a tensor is bound with bind", value)
        self._once(name, value)
        self.values[name] = signature.op.schema.read(slot, value, as_array)
        return self

    def args(self) -> tuple[Any, ...]:
        """Return the operator's canonical arguments, of an init or forward task, with defaults.

        Raises ArgumentError for what is missing, and the operator's own error, usually
        TypeInferError, for a dtype or rank that does not fit; it shows the types of all slots.
        """
        op, arguments = self.signature.op, []
        stated = self.signature.args if self.signature.phase == "init" else None
        for i, slot in enumerate(op.slots):
            value = _ABSENT if not slot.has_default else slot.default
            value = self.values.get(slot.name, value if stated is None else stated[i])
            if value is _ABSENT:
                of_init = self.signature.phase == "init" and slot.is_tensor
                raise self.signature.error(
                    f"slot {slot.name!r} is missing",
                    expected=slot.accepts,
                    found="nothing bound",
                    hint="a state is of a call: bind its tensors, or their types"
                    if of_init
                    else None,
                )
            arguments.append(value)
        try:
            args: tuple[Any, ...] = op.schema.bind(tuple(arguments), {}, _array_or_type)
            op.infer(types_of(self.signature, args))
        except MetaError as error:
            error.note(f"in the binding of the {self.signature.phase} task of {op.name}")
            raise
        return args

    def check(self) -> None:
        """Raise ArgumentError if a slot that is read is missing, or a value has another dtype, rank
        or shape than the call says: results, and gradients, which have the type of what they are
        the gradient of.
        """
        signature = self.signature
        types = signature.args
        if signature.phase != "backward":
            types = types_of(signature, self.args())
        elif types is None:
            raise signature.error(
                "a backward task is bound for one call",
                expected="OpTaskSignature.of(op, 'backward', *arguments of the call)",
                found="the signature of any call",
            )
        assert types is not None
        for slot in signature.slots:
            expected = None if slot.role == "argument" else self._expected(slot, types)
            if expected is None or isinstance(expected, NUMBERS):
                continue
            if slot.name not in self.values:
                if slot.access == "WO" or signature.phase != "backward":
                    continue
                raise signature.error(
                    f"slot {slot.name!r} is missing",
                    expected=f"{slot.role} {_text(expected)}",
                    found="nothing bound",
                )
            given = _types(self.values[slot.name])
            if not _fits(given, expected):
                raise signature.error(
                    f"slot {slot.name!r} holds another {_difference(expected, given)}",
                    expected=_text(expected),
                    found=_text(given),
                )

    def _expected(self, slot: TaskSlot, types: tuple[Any, ...]) -> Any:
        if slot.slot is None:
            result = result_types(self.signature.op.infer(types))
            return result if len(result) > 1 else result[0]
        return types[self.signature.op.schema.index[slot.of]]

    def _keep(self, slot: TaskSlot, value: Any) -> OpTaskBinding:
        self._once(slot.name, value)
        optional = slot.slot is not None and slot.slot.optional
        if isinstance(value, tuple | list):
            several = slot.slot is None or slot.slot.kind == "tensors"
            if not several:
                self._refuse(slot.name, "one tensor", value)
            self.values[slot.name] = tuple(map(self._lift, value))
        elif value is None and optional:
            self.values[slot.name] = None
        elif value is None or isinstance(value, NUMBERS | str):
            self._refuse(slot.name, f"a tensor ({slot.role})", value)
        else:
            if slot.slot is not None and slot.slot.kind == "tensors":
                self._refuse(slot.name, "a tuple of tensors", value)
            self.values[slot.name] = self._lift(value)
        return self

    def _lift(self, value: Any) -> Any:
        return _array_or_type(value) if self.signature.phase == "init" else as_array(value)

    def _once(self, name: str, value: Any) -> None:
        if name in self.values:
            raise self.signature.error(
                f"slot {name!r} is bound twice",
                expected="one value",
                found=f"{_value_text(self.values[name])}, then {_value_text(value)}",
            )

    def _refuse(self, name: str, expected: str, value: Any) -> None:
        raise self.signature.error(
            f"slot {name!r} has another role", expected=expected, found=_value_text(value)
        )


def types_of(signature: OpTaskSignature, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return canonical arguments with types in the place of arrays."""
    return map_tensors(signature.op, args, _types)


def _array_or_type(value: Any) -> Any:
    return value if isinstance(value, TensorType) else as_array(value)


def _types(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_types, value))
    return array_type(value.key) if isinstance(value, ndarray) else value


def _as_tuple(types: Any) -> tuple[Any, ...]:
    return types if isinstance(types, tuple) else (types,)


def _fits(given: Any, expected: Any) -> bool:
    """Whether types are those expected, as far as these are known before the call runs."""
    if isinstance(expected, tuple):
        several = _as_tuple(given)
        return len(several) == len(expected) and all(map(_fits, several, expected))
    types = isinstance(given, TensorType) and isinstance(expected, TensorType)
    return compatible(given, expected) if types else bool(given == expected)


def _difference(expected: Any, given: Any) -> str:
    """Return in what types differ first: number of tensors, dtype, rank or shape."""
    if len(_as_tuple(expected)) != len(_as_tuple(given)):
        return "number of tensors"
    for one, other in zip(_as_tuple(expected), _as_tuple(given), strict=True):
        if isinstance(one, TensorType) and isinstance(other, TensorType) and one != other:
            return (
                "dtype" if one.dtype != other.dtype
                else "rank" if one.ndim != other.ndim else "shape"
            )  # fmt: skip
    return "value"


def _text(types: Any) -> str:
    return ", ".join(map(str, _as_tuple(types)))


def _value_text(value: Any) -> str:
    """Return a value for an error: the type of an array, a number or a word itself."""
    if isinstance(value, ndarray):
        return str(array_type(value.key))
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_value_text, value))})"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}{list(value.shape)}"
    return f"{value!r:.60} ({type(value).__name__})"


class OpTaskInvocation:
    """A signature and a binding that fits it.

    dialect: whose kernels run; None leaves that to the dispatcher, as for any call. A backward task
    is the operator's gradient rule; each operator that it consists of runs on that dialect.

    Raises what `OpTaskBinding.check` does, and UnknownName for a dialect that does not exist.

    >>> signature = meta.task.OpTaskSignature.of(meta.op.softmax, "forward")
    >>> binding = meta.task.OpTaskBinding(signature).bind("x", meta.zeros(4)).bind_arg("axis", 0)
    >>> meta.task.OpTaskInvocation(signature, binding, dialect="torch").run().tolist()
    [0.25, 0.25, 0.25, 0.25]
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
