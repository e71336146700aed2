"""`OperatorTasks`: an operator's kernel, its gradient and that one's kernel, written as tasks; and
`TaskArgumentAccessor`: what the function of a task sees of its call.
"""

from __future__ import annotations

import inspect
import typing
import warnings
from collections.abc import Callable, Mapping
from inspect import Parameter, Signature
from typing import Any

import torch

from meta.base import config
from meta.base.device import Device
from meta.base.dtype import has_gradient
from meta.base.errors import IRError, MetaWarning, RegistrationError
from meta.base.registry import nearest
from meta.base.source import Span, definition_span
from meta.dialect.core import Dialect, OpEnv
from meta.dialect.core.openv import declining
from meta.dialect.core.plevel import Levels
from meta.grad.core import gradient, not_differentiable
from meta.ir.types import TensorType
from meta.op.core import CallValues, Op, Tensor, op
from meta.op.core.call import result_types, runtime_args, slot_positions
from meta.op.core.check import require, require_like
from meta.op.core.registration import require_function, require_op
from meta.task.signature import OpTaskSignature

RESULT = "out"
"""The name of the operator's result in `get_output` and `get_gradient`."""


class TaskArgumentAccessor:
    """The tensors, arguments and state of one run of a forward or backward task.

    Tensors are torch's, on the device of the call. A task writes what `get_output` (forward) and
    `get_gradient` of arguments (backward) return, in place and all of it; everything else it only
    reads. A slot whose value is several tensors gives a tuple. An optional slot that holds nothing
    gives None, and so does its gradient.

    Attributes
    ----------
    signature: what is read and written in this call. device: where the task runs.

    >>> import torch
    >>> signature = meta.task.OpTaskSignature.of(meta.op.relu, "forward")
    >>> values = {"x": torch.tensor([-1.0, 2.0]), "out": torch.empty(2)}
    >>> task = meta.task.TaskArgumentAccessor(signature, meta.device("cpu"), values, None, False)
    >>> torch.clamp(task.get_tensor("x"), min=0.0, out=task.get_output()).tolist()
    [0.0, 2.0]
    """

    def __init__(
        self,
        signature: OpTaskSignature,
        device: Device,
        values: Mapping[str, Any],
        state: Any,
        stateful: bool,
    ) -> None:
        self.signature, self.device = signature, device
        self._values, self._state, self._stateful = values, state, stateful
        self._asked: set[str] = set()

    def get_tensor(self, slot: str) -> Any:
        """Return an argument of the operator, which is read only."""
        index = self.signature.op.schema.index
        if slot not in index or self.signature.op.slots[index[slot]].kind == "attribute":
            known = [s.name for s in self.signature.op.slots if s.is_tensor]
            raise self.signature.error(
                f"there is no tensor {slot!r}", expected=known, hint=nearest(slot, known)
            )
        self._asked.add(slot)
        return self._values.get(slot)

    def get_output(self, slot: str = RESULT) -> Any:
        """Return the result: to be written by a forward task, read only in a backward task."""
        found = [s for s in self.signature.slots if s.role == "output" and s.of == slot]
        if not found:
            what = "reads no result" if slot == RESULT else f"has no output {slot!r}"
            raise self.signature.error(
                f"this task {what}",
                expected="a forward task, or a backward task registered with output=True",
            )
        self._asked.add(found[0].name)
        return self._values[found[0].name]

    def get_gradient(self, slot: str) -> Any:
        """Return the gradient of the result, "out", which is read only, or where that of an
        argument is to be written. ArgumentError for an argument that has none.
        """
        found = self.signature.gradient_of(slot) if not self._is_unbound(slot) else None
        if found is None:
            return None
        self._asked.add(found.name)
        return self._values[found.name]

    def get_argument(self, name: str) -> Any:
        """Return an attribute or a number."""
        op = self.signature.op
        known = [s.name for s in op.slots if s.kind not in ("tensor", "tensors")]
        if name not in known:
            raise self.signature.error(
                f"there is no argument {name!r}", expected=known, hint=nearest(name, known)
            )
        self._asked.add(name)
        return self._values.get(name)

    def get_per_device_state(self) -> Any:
        """Return what the init task made for this device, which is read only."""
        if not self._stateful:
            raise self.signature.error(
                "there is no state", expected="an init task, registered before this one"
            )
        return self._state

    @property
    def stream(self) -> torch.cuda.Stream | None:
        """The CUDA stream that the task is to launch on; None on the CPU."""
        if self.device.kind != "cuda":
            return None
        return torch.cuda.current_stream(torch.device(self.device))

    @property
    def handle(self) -> int | None:
        """The cuBLAS handle of device and stream, as an address; None on the CPU."""
        if self.device.kind != "cuda":
            return None
        with torch.cuda.device(torch.device(self.device)):
            found: int = torch.cuda.current_blas_handle()  # type: ignore[no-untyped-call]
        return found

    @property
    def asks_to_write(self) -> bool:
        """Whether the task asked for anything that it is to write."""
        return any(slot.name in self._asked for slot in self.signature.writes)

    def check_asked(self) -> None:
        """Report what the task declares and did not ask for: IRError for what it is to write, a
        MetaWarning for what it reads in vain.

        Arguments, and in a backward task the operator's tensors, are there anyway.
        """
        for slot in self.signature.slots:
            if slot.name in self._asked or slot.role == "argument":
                continue
            title = f"the {self.signature.phase} task of {self.signature.op.name}"
            if slot.access != "RO":
                raise IRError(
                    f"{title} never asked for {slot.name!r}, which it is to write",
                    op=self.signature.op.name,
                    expected="get_output() or get_gradient(slot) of each slot that is written",
                    found=f"asked for {sorted(self._asked)}",
                )
            if self.signature.phase == "forward" or slot.slot is None:
                warnings.warn(
                    f"{title} never asked for {slot.name!r}, which it declares",
                    MetaWarning,
                    stacklevel=2,
                )

    def _is_unbound(self, slot: str) -> bool:
        """Whether an optional argument holds nothing in this call."""
        index, args = self.signature.op.schema.index, self.signature.args
        return args is not None and slot in index and args[index[slot]] is None


Task = Callable[[TaskArgumentAccessor], None]
Tensors = tuple[Tensor, ...]


class OperatorTasks:
    """The tasks of an operator on a dialect. Its methods are decorators, in this order.

    `init` (if there is state), `forward`, and `backward` (if there is a gradient). From the schema
    follows what each reads and writes. The operator then runs as any other: called, differentiated,
    in models and in compiled programs. ``plevel`` and ``when`` as in `Dialect.kernel`.

    docs/howto/tasks.md writes an operator with all three.

    >>> from meta.dialect.core.catalog import DIALECTS
    >>> from meta.op.core import Op
    >>> mine = Op(meta.op.exp.type_function, name="mine", schema=meta.op.exp.schema, random=False)
    >>> tasks = meta.task.OperatorTasks(mine, DIALECTS["torch"])
    >>> @tasks.init
    ... def init(device):
    ...     return {"table": [0.0, 1.0]}
    >>> tasks.op.name, tasks.dialect.name, init("cpu")
    ('mine', 'torch', {'table': [0.0, 1.0]})
    """

    def __init__(
        self,
        operator: Op,
        dialect: Dialect,
        *,
        plevel: Levels | None = None,
        when: Callable[[CallValues], str | None] | None = None,
    ) -> None:
        require_op(operator, "what is written as tasks")
        if not isinstance(dialect, Dialect):
            raise RegistrationError(
                f"the tasks of {operator.name!r} are of no dialect",
                expected="the Dialect object, not its name",
                found=f"{dialect!r:.200}",
            )
        if when is not None:
            require_function(when, f"when= of the tasks of {operator.name!r}")
        self.op, self.dialect, self.plevel, self.when = operator, dialect, plevel, when
        self._init: Callable[..., Any] | None = None

    def init(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Register what makes the state of a device.

        It names what it needs: attributes, tensors (as types), ``device``. It is called once for
        each device and values of these, and returns anything; the tasks get it from
        `get_per_device_state`. It is an `init` of the dialect operator; see `dialect/core/state.py`
        for what may be in a state.
        """
        if self.op.name in self.dialect.ops:
            raise self._error("init comes before forward", function)
        self._require_task(function, "init")
        if self._init is not None:
            raise self._error(f"there is an init at {definition_span(self._init)}", function)
        self._init = function
        return function

    def forward(self, task: Task) -> Task:
        """Register what computes the result: the kernel of the operator on the dialect."""
        self._require_task(task, "forward")
        self.dialect.register(
            self.op, self._maker(task), definition_span(task), self.plevel, init=self._init
        )
        return task

    def backward(self, task: Task | None = None, *, output: bool = False) -> Any:
        """Register what computes the gradients of all floating point arguments.

        The operator's gradient is then a new operator, ``<name>_backward``, and the task its
        kernel. It reads the arguments, the gradient of the result, and with ``output`` the result.

        Raises RegistrationError without a forward task, for an operator that writes arguments, or
        that has a gradient already.
        """
        if task is None:
            return lambda function: self.backward(function, output=output)
        site = definition_span(task)
        self._require_task(task, "backward")
        if self.op.name not in self.dialect.ops:
            raise self._error("forward comes before backward", task)
        if self.op.schema.written:
            raise self._error("an operator that writes its arguments has no backward task", task)
        if self.op.aspects.gradient is not None:
            raise self._error(
                f"it has a gradient already, stated at {self.op.aspects.gradient.site}", task
            )
        made = gradient_operator(self.op, output, site)
        state = None if self._init is None else self.op
        self.dialect.register(
            made, self._maker(task, backward=True), site, self.plevel, state_of=state
        )
        return task

    def _maker(self, task: Task, backward: bool = False) -> Callable[[CallValues], OpEnv]:
        stateful, forward = self._init is not None, self.op

        def make(call: CallValues) -> OpEnv:
            declining(None if backward else self.when, call)
            count = len(forward.slots)
            phase = "backward" if backward else "forward"
            signature = OpTaskSignature.derived(forward, phase, tuple(call.args)[:count])
            constants = {
                s.name: v
                for s, v in zip(call.op.slots, call.args, strict=True)
                if s.kind == "attribute" or v is None
            }
            places, given = slot_positions(call), len(runtime_args(call.op, call.args))
            (out,) = (s.name for s in signature.writes) if not backward else (None,)

            def run(*values: Any) -> None:
                state, rest = (values[0], values[1:]) if stateful else (None, values)
                named = {**constants, **{n: rest[p] for n, p in places.items()}}
                made = rest[given:]
                if out is not None:
                    named[out] = made if len(call.outputs) > 1 else made[0]
                else:
                    named.update(_gradients_by_slot(signature, made))
                    for name in _reserved_names(forward):
                        if name in named and len(named[name]) == 1:
                            (named[name],) = named[name]
                accessor = TaskArgumentAccessor(signature, call.device, named, state, stateful)
                returned: Any = task(accessor)  # type: ignore[func-returns-value]
                if returned is not None and not accessor.asks_to_write:
                    raise self._error(f"its {phase} task returns what it is to write", task)
                if config.get("META_CHECK_ACCESS"):
                    accessor.check_asked()

            return OpEnv(run, allocates=False, strided=True)

        return make

    def _require_task(self, task: Any, phase: str) -> None:
        """Raise RegistrationError for what is no function, or not one of the accessor alone."""
        what = f"the {phase} task of {self.op.name!r}"
        require_function(task, what)
        if phase == "init":
            return
        try:
            inspect.signature(task).bind(None)
        except TypeError:
            raise self._error(f"{what} takes other parameters than the accessor", task) from None
        except ValueError:
            return  # it is not written in Python, and does not say

    def _error(self, what: str, function: Callable[..., Any]) -> RegistrationError:
        return RegistrationError(
            f"tasks of {self.op.name!r} on {self.dialect.name!r}: {what}",
            span=definition_span(function),
        )


def _reserved_names(forward: Op) -> tuple[str, str]:
    """Return the names of the result and of its gradient in the gradient operator."""
    return forward.schema.reserved("y"), forward.schema.reserved("dy")


def _gradients_by_slot(signature: OpTaskSignature, made: tuple[Any, ...]) -> dict[str, Any]:
    """Return the gradients that a backward task writes by the names of their slots."""
    assert signature.args is not None
    rest, found = iter(made), {}
    for slot in signature.writes:
        value = signature.args[signature.op.schema.index[slot.of]]
        if isinstance(value, tuple):
            found[slot.name] = tuple(next(rest) if has_gradient(t.dtype) else None for t in value)
        else:
            found[slot.name] = next(rest)
    return found


def gradient_operator(forward: Op, output: bool, site: Span) -> Op:
    """Make the operator that a backward task implements, and state the gradient that calls it.

    It takes the forward arguments, the results if ``output``, and their gradients; the latter two
    as tuples. It returns the gradients of all tensors that have one, as a tuple.
    """
    y, dy = _reserved_names(forward)
    own = (y, dy) if output else (dy,)
    hints = typing.get_type_hints(forward.type_function, include_extras=True)
    missing = [n for n in forward.schema.names if n not in hints]
    if missing:
        raise RegistrationError(
            f"the gradient of {forward.name!r} cannot be derived from its signature",
            expected="an operator whose type function annotates every argument",
            found=f"no annotation of {missing}",
            span=site,
        )
    annotations = {**{n: hints[n] for n in forward.schema.names}, **dict.fromkeys(own, Tensors)}
    names = tuple(annotations)
    count = len(forward.slots)

    def infer(*args: Any) -> tuple[TensorType, ...]:
        results: Any = result_types(forward.infer(args[:count]))
        for name, given in zip(own, args[count:], strict=True):
            fits = len(given) == len(results)
            require(fits, f"{name} is not of all results", expected=len(results), found=len(given))
            for one, expected in zip(given, results, strict=True):
                require_like(one, expected, f"{name} is not of the result's type")
        found = []
        for i in forward.schema.tensor_slots:
            several = args[i] if isinstance(args[i], tuple) else (args[i],)
            found += [t for t in several if isinstance(t, TensorType) and has_gradient(t.dtype)]
        return tuple(found)

    kind = Parameter.POSITIONAL_OR_KEYWORD
    infer.__name__ = f"{forward.name}_backward"
    infer.__doc__ = f"Gradients of `{forward.name}`, as its backward task computes them."
    infer.__annotations__ = annotations
    infer.__signature__ = Signature(  # type: ignore[attr-defined]
        [Parameter(n, kind, annotation=a) for n, a in annotations.items()]
    )
    made = op(infer)
    made.site = site

    def rule(*values: Any) -> Any:
        given = dict(zip(names, values, strict=True))
        for name in own:
            given[name] = given[name] if isinstance(given[name], tuple) else (given[name],)
        called = made(*given.values())
        rest = iter(called if isinstance(called, tuple) else (called,))
        found = tuple(
            _gradient(given[forward.schema.names[i]], rest) for i in forward.schema.tensor_slots
        )
        return found if len(found) > 1 else found[0]

    taken = [Parameter(n, kind) for n in names]
    rule.__signature__ = Signature(taken)  # type: ignore[attr-defined]
    gradient(forward)(rule)
    not_differentiable(made, why="a backward task has no gradient of its own")
    return made


def _gradient(value: Any, rest: Any) -> Any:
    """Take the gradient of an argument from those that follow; None if it has none."""
    if isinstance(value, tuple):
        return tuple(_gradient(v, rest) for v in value)
    return next(rest) if has_gradient(getattr(value, "dtype", "")) else None
