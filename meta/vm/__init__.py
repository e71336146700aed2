"""Floor 5: execution: eager calls, the interpreter, the compiler and the machine."""

from meta.op.core.handler import Default
from meta.vm.compiler import compile
from meta.vm.eager import eager
from meta.vm.executable import Executable
from meta.vm.interpreter import interpret
from meta.vm.load import load
from meta.vm.pipeline import PassContext
from meta.vm.program import Program

Default.handler = eager

__all__ = ["Executable", "PassContext", "Program", "compile", "interpret", "load"]
