"""Operators as tasks, in FlexFlow's vocabulary, derived from schema, gradient and dialects.

`OpTaskSignature` says what the init, the forward and the backward of an operator read and write,
with roles. `OpTaskBinding` puts values there, and `OpTaskInvocation` runs. `OperatorTasks`
registers an operator that is written as tasks, functions of a `TaskArgumentAccessor`; state per
device is that of dialect operators (`meta/dialect/core/state.py`). See docs/howto/tasks.md.

With META_CHECK_ACCESS=1 each eager launch is checked: what is read stays as it was, what is written
is filled, and a task asks for what it declares.
"""

from meta.op.core.phases import TaskSlot
from meta.task.binding import OpTaskBinding, OpTaskInvocation
from meta.task.operator import OperatorTasks, TaskArgumentAccessor
from meta.task.signature import OpTaskSignature

__all__ = [
    "OpTaskBinding",
    "OpTaskInvocation",
    "OpTaskSignature",
    "OperatorTasks",
    "TaskArgumentAccessor",
    "TaskSlot",
]
