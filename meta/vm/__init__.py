"""Floor 5: execution: eager calls, the interpreter, the compiler and the machine."""

from meta.op.core.handler import Default
from meta.vm.eager import eager

Default.handler = eager
