"""A kernel that may hang, made and run once in a process of its own, which can be killed.

A dialect says so by `Dialect.time_limit`: seconds in which a kernel is made and has run once, if
ever. Neither a compiler nor a kernel can be interrupted from within a process. The other process
imports the modules in which dialect and operator are registered; those of a program that is run as
``__main__`` cannot be imported.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from meta.base.device import Device
from meta.base.registry import OPERATORS
from meta.cost.chooser import choosing
from meta.dialect.core import DIALECTS, Unsupported
from meta.dialect.core.openv import config_of, config_text
from meta.dialect.core.preference import Config
from meta.ir import Module, TensorType, parse, parse_literal, parse_type, text
from meta.ir.constants import from_base64, to_base64
from meta.ir.literals import literal_text
from meta.op.core import map_tensors
from meta.op.core.call import CallValues, array_type
from meta.runtime.ndarray import ndarray
from meta.vm.benchmark.contender import Contender, kernel_of, reason_of
from meta.vm.benchmark.workload import Workload, call_workload, function_workload, random_arguments
from meta.vm.eager.example_calls import ExampleCall

START_SECONDS = 300.0
"""In which the process is there and has imported what it needs."""
_CHILD = """
import json, sys
sys.path[:] = json.loads(sys.argv[2])
from meta.vm.benchmark.isolated import serve
serve(int(sys.argv[1]))
"""


def trial(
    workload: Workload, dialect: str, config: Config, limit: float, *, eager: bool
) -> str | None:
    """Make a kernel and run it once in a process of its own; return why it cannot take part, or
    None if it ran.
    """
    files = {DIALECTS[dialect].site.file}
    if isinstance(workload.what, CallValues):
        op = workload.what.op
        files |= {op.site.file, DIALECTS[dialect].ops[op.name].site.file}
        given: Any = [op.name, list(map(_plain, workload.given))]
    else:
        given = text(Module({"main": workload.what}))
    modules = []
    for file in sorted(files):
        name = _module_of(file)
        if name is None:
            return f"it may hang, and a process of its own cannot import {file}, which registers it"
        modules.append(name)
    request = {
        "modules": modules,
        "workload": given,
        "device": str(workload.device),
        "dialect": dialect,
        "config": config_text(config),
        "eager": eager,
    }
    return _answer(json.dumps(request).encode(), limit)


def _module_of(file: str) -> str | None:
    """Return the name of the module that is in a file; None if no other process can import it."""
    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) == file and name != "__main__":
            return name
    return None


def _answer(request: bytes, limit: float) -> str | None:
    """Start the process, and return what it says, or that it said nothing in time."""
    connection, theirs = Pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(theirs.fileno()), json.dumps(sys.path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(theirs.fileno(),),
        start_new_session=True,  # what it starts, such as a compiler, ends with it
    )
    theirs.close()
    answer = b""
    try:
        connection.send_bytes(request)
        for seconds in (START_SECONDS, limit):
            if not connection.poll(seconds):
                return f"did not finish within {seconds:g} s in a process of its own"
            answer = connection.recv_bytes()
        reason: str | None = json.loads(answer)
        return reason
    except (EOFError, ConnectionResetError, BrokenPipeError):
        return f"ended a process of its own with status {process.wait()}"
    finally:
        connection.close()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def serve(descriptor: int) -> None:
    """Do what the request on a connection asks, and answer when that begins, and how it ended: why
    the kernel cannot take part, or null.
    """
    connection = Connection(descriptor)
    request = json.loads(connection.recv_bytes())
    for name in request["modules"]:
        import_module(name)
    device, dialect = Device(request["device"]), request["dialect"]
    if isinstance(request["workload"], str):
        workload = function_workload(parse(request["workload"]).main, device)
    else:
        name, plain = request["workload"]
        op = OPERATORS[name]
        args = tuple(_argument(one, device) for one in plain)
        call = op.call_values(map_tensors(op, args, _type), device)
        workload = call_workload(ExampleCall(call, args))
    DIALECTS[dialect].load()
    connection.send_bytes(b"ready")
    reason = None
    contender = Contender(dialect, config_of(request["config"]))
    try:
        with choosing(races=True):
            contender.env = kernel_of(workload, dialect, contender.config, eager=request["eager"])
            contender.results(workload, random_arguments(workload))
    except Unsupported as refusal:
        reason = str(refusal)
    except Exception as error:
        reason = f"fails: {reason_of(error)}"
    connection.send_bytes(json.dumps(reason).encode())


def _plain(value: Any) -> Any:
    """Return an argument as values that JSON has: a type, an array by its values, several of these,
    or a literal.
    """
    if isinstance(value, TensorType):
        return {"type": str(value)}
    if isinstance(value, ndarray):
        tensor = value.tensor
        return {"values": to_base64(tensor), "type": str(array_type(value.key))}
    if isinstance(value, tuple) and any(isinstance(v, TensorType | ndarray) for v in value):
        return {"several": list(map(_plain, value))}
    return {"literal": literal_text(value)}


def _argument(plain: Any, device: Device) -> Any:
    """Return what `_plain` was given, arrays on a device."""
    if "literal" in plain:
        return parse_literal(plain["literal"])
    if "several" in plain:
        return tuple(_argument(one, device) for one in plain["several"])
    type_ = parse_type(plain["type"])
    if "values" not in plain:
        return type_
    assert isinstance(type_, TensorType)
    tensor = from_base64(plain["values"], type_.static_shape, type_.dtype)
    return ndarray(tensor.to(str(device)))


def _type(value: Any) -> Any:
    return array_type(value.key) if isinstance(value, ndarray) else value
