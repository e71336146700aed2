"""Processes that have imported torch already, or torch, its TorchDynamo and TVM: they are forked
from one that has nothing else.

Half of what a small program costs is the import of torch, a quarter that of TVM or TorchDynamo, and
tests run hundreds of programs. A process that is forked here is a fresh one but for that: `meta` is
not imported, its arguments, its environment, its folder, ``sys.path`` and ``__main__`` are those of
``python ARGUMENTS``.

This file is the server's program, too, which tests reach by `ForkServer`.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from types import ModuleType

READ_LATER = ("META_", "PYTEST_")
"""What variables begin with that no library reads as it is loaded."""

PATHS = os.devnull
"""What stands in the server's ``sys.path`` for the folders of a request's ``PYTHONPATH``."""


def read_early(environment: dict[str, str]) -> dict[str, str]:
    """Return what the interpreter and torch may have read of an environment before the fork."""
    return {
        name: value
        for name, value in environment.items()
        if name != "PYTHONPATH" and not name.startswith(READ_LATER)
    }


class ForkServer:
    """A process, started when it is first needed, that ends with this one. It serves one
    environment, but for what is read later: a request with another starts a server in its place.
    modules: what its processes have imported.
    """

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._lock = Lock()
        self._environment: dict[str, str] = {}
        self._requests: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def can_run(arguments: Sequence[str]) -> bool:
        """Return whether these are a script, ``-c`` or ``-m``: no option of Python."""
        return arguments[0] in ("-c", "-m") or not arguments[0].startswith("-")

    def run(
        self, arguments: Sequence[str], cwd: Path, environment: dict[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Return what a process printed and its status, as ``subprocess.run`` does.
        ``TimeoutExpired`` if it takes longer than ``timeout`` seconds.
        """
        with (
            tempfile.TemporaryFile("w+") as request,
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
        ):
            json.dump([arguments, os.fspath(cwd), environment], request)
            request.seek(0)
            here, there = socket.socketpair()
            with here, here.makefile("r") as answer:
                with there, self._lock:
                    files = [request.fileno(), out.fileno(), err.fileno(), there.fileno()]
                    socket.send_fds(self._server_for(read_early(environment)), [b"."], files)
                process = int(answer.readline())
                here.settimeout(timeout)
                try:
                    status = int(answer.readline())
                except TimeoutError:
                    os.kill(process, signal.SIGKILL)
                    raise subprocess.TimeoutExpired(arguments, timeout) from None
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode())
        return subprocess.CompletedProcess(arguments, status, *texts)

    def _server_for(self, environment: dict[str, str]) -> socket.socket:
        if self._requests is not None and self._environment == environment:
            return self._requests
        self.close()
        self._requests, there = socket.socketpair()
        self._environment = environment
        with there:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(there.fileno()), *self._modules],
                env={**environment, "PYTHONPATH": PATHS},
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
            )
        atexit.register(self.close)
        return self._requests

    def close(self) -> None:
        """End the server, if there is one; what it forked runs on."""
        atexit.unregister(self.close)
        if self._requests is not None and self._process is not None:
            self._requests.close()
            self._process.wait()
            self._requests = self._process = None


def serve(requests: socket.socket) -> None:
    """Fork a process for each request, until nobody is there to make one; return in the process
    that is to run a program, after `become`.
    """
    while True:
        message, files, _, _ = socket.recv_fds(requests, 1, 4)
        if not message:
            os._exit(0)
        if os.fork() == 0:
            break
        for file in files:
            os.close(file)
    requests.close()
    request, out, err, answer = files
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    process = os.fork()
    if process:
        os.write(answer, f"{process}\n".encode())
        _, status = os.waitpid(process, 0)
        os.write(answer, f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os._exit(0)
    os.close(answer)
    os.dup2(out, 1)
    os.dup2(err, 2)
    with open(request, encoding="utf-8") as file:
        arguments, cwd, environment = json.load(file)
    os.close(out)
    os.close(err)
    become(arguments, cwd, environment)


def become(arguments: list[str], cwd: str, environment: dict[str, str]) -> None:
    """Make this process that of ``python ARGUMENTS`` in a folder and an environment, and run it."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.orig_argv = [sys.executable, *arguments]
    program, *rest = arguments
    if program in ("-c", "-m"):
        name, *rest = rest
        first = "" if program == "-c" else cwd
        sys.argv = [program, *rest]
    else:
        name = os.path.abspath(program)
        first, sys.argv = os.path.dirname(name), arguments
    sys.path[0] = first
    where = sys.path.index(PATHS)
    sys.path[where : where + 1] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    importlib.invalidate_caches()
    if program == "-m":
        runpy.run_module(name, run_name="__main__", alter_sys=True)
        return
    main = sys.modules["__main__"] = ModuleType("__main__")
    if program == "-c":
        code = compile(name, "<string>", "exec")
    else:
        main.__file__ = name
        code = compile(Path(name).read_bytes(), name, "exec")
    exec(code, main.__dict__)


if __name__ == "__main__":
    for module in sys.argv[2:]:
        importlib.import_module(module)
    gc.freeze()  # pages that no collection writes to are shared
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for who waits for a process
    serve(socket.socket(fileno=int(sys.argv[1])))
