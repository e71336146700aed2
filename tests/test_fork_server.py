"""A process of `fork_server` is like one of ``subprocess``, but that torch is imported already."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fork_server import ForkServer

PROGRAM = """
import os, sys
print(sys.argv[1:], sys.orig_argv, os.getcwd(), __name__, globals().get("__file__"))
print("meta" in sys.modules)
print(sys.path, sorted(os.environ.items()), sys.flags, sys.stdin.read())
print("torch" in sys.modules, file=sys.stderr)
import atexit, signal
atexit.register(lambda: print("at exit"))
print(signal.getsignal(signal.SIGCHLD), sorted(os.listdir("/proc/self/fd"))[:3])
"""
ENDS = {
    "status": "import sys; sys.exit(7)",
    "message": "import sys; sys.exit('it is over')",
    "error": "1 / 0",
    "signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "at once": "import os; os._exit(3)",
    "children": "import subprocess, sys; sys.exit(subprocess.run(['false']).returncode)",
}


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    server = ForkServer("torch")
    yield server
    server.close()


def both(
    server: ForkServer, arguments: list[str], cwd: Path, environment: dict[str, str]
) -> tuple[subprocess.CompletedProcess[str], subprocess.CompletedProcess[str]]:
    """Return what a forked process said, and an ordinary one."""
    assert server.can_run(arguments)
    ordinary = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    return server.run(arguments, cwd, environment, 60.0), ordinary


@pytest.mark.parametrize("kind", ["-c", "-m", "script"])
def test_a_process_is_as_another(server: ForkServer, kind: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    start = {"-c": ["-c", PROGRAM], "-m": ["-m", "program"], "script": ["program.py"]}[kind]
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"},
        "PYTHONPATH": f"{tmp_path}/a:{tmp_path}/b",
        "META_CACHE_DIR": str(tmp_path),
    }
    forked, ordinary = both(server, [*start, "a", "b c"], tmp_path, environment)
    assert forked.stdout == ordinary.stdout
    assert (forked.stderr, ordinary.stderr) == ("True\n", "False\n")
    assert forked.returncode == ordinary.returncode == 0


@pytest.mark.parametrize("how", ENDS)
def test_a_process_ends_as_another(server: ForkServer, how: str, tmp_path: Path) -> None:
    forked, ordinary = both(server, ["-c", ENDS[how]], tmp_path, dict(os.environ))
    assert forked.returncode == ordinary.returncode != 0
    assert forked.stderr.splitlines()[-1:] == ordinary.stderr.splitlines()[-1:]


def test_what_libraries_read_early_starts_another_server(
    server: ForkServer, tmp_path: Path
) -> None:
    program = [
        "-c",
        "import os, torch; print(os.environ['OMP_NUM_THREADS'], torch.get_num_threads())",
    ]
    for threads in ("1", "2"):
        environment = {**os.environ, "OMP_NUM_THREADS": threads}
        assert server.run(program, tmp_path, environment, 60.0).stdout == f"{threads} {threads}\n"


def test_a_process_that_takes_too_long(server: ForkServer, tmp_path: Path) -> None:
    program = ["-c", "import time; time.sleep(600)"]
    with pytest.raises(subprocess.TimeoutExpired):
        server.run(program, tmp_path, dict(os.environ), 0.2)


def test_options_of_the_interpreter_are_not_for_it() -> None:
    assert not ForkServer.can_run(["-X", "importtime", "-c", "pass"])
