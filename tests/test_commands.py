"""Commands of the README and other pages run as they are printed: every `python -m meta ...`, in a
block of the shell or in a line, with the files that its page makes and with no other option.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from meta.cli.main import main
from meta.dialect import vendors

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`((?:\S+ )?python -m meta [^`]*)`")
COMMAND = re.compile(r"(?:(?P<env>[A-Z_]+=\S+) )?python -m meta (?P<words>.*)")
NETWORK = re.compile(r"^class Net\(meta\.Model\):\n.*?(?=\n\n\n)", re.MULTILINE | re.DOTALL)
STANDS_FOR = {"NAME": "softmax", "FILE": "model.json", "FILE.py:NAME": "model.py:Net"}
"""Words in capitals, and what a test puts in their place."""
INCOMPLETE = {"compile", "import", "profile", "serve"}
"""Commands that a sentence names without what they are about: they print what they take."""
ELSEWHERE = {"op isru", "op multi_tensor_adadelta"}
"""Of what a reader of the page has added: tests/test_howto.py follows these pages."""
HOURS = {"selftest", "selftest --device cuda"}
"""All operators on all backends: hours. What the pages print of it besides runs everywhere."""
SLOW = ("tune", "selftest --markdown", "demo")


def printed() -> list[tuple[str, str]]:
    """Return (page, command) of each command, with the first page that prints it."""
    found: dict[str, tuple[str, str]] = {}
    for page in PAGES:
        text, name = page.read_text("utf-8"), page.relative_to(ROOT).as_posix()
        commands: list[str] = []
        for language, code in BLOCK.findall(text):
            if language == "bash":
                lines = [line.partition(" && ")[2] or line for line in code.splitlines()]
                commands += [line for line in lines if "python -m meta " in line]
        commands += [" ".join(span.split()) for span in SPAN.findall(BLOCK.sub("", text))]
        for command in commands:
            match = COMMAND.search(command)
            assert match is not None
            found.setdefault(f"{match['env'] or ''}{words_of(command)}", (name, command))
    return list(found.values())


def marks(command: str) -> list[pytest.MarkDecorator]:
    words = words_of(command)
    if words in HOURS:
        return [pytest.mark.sweep]
    if "--device cuda" in words:
        return [pytest.mark.cuda]
    return [pytest.mark.slow] if words.startswith(SLOW) else []


def words_of(command: str) -> str:
    """Return what is behind the name of the program, without a comment and a file to write to."""
    match = COMMAND.search(command)
    assert match is not None, command
    return re.sub(r"\s+(#|>|-q?\s*#).*", "", match["words"]).strip()


CASES = [
    pytest.param(page, command, id=f"{page}: {words_of(command)}", marks=marks(command))
    for page, command in printed()
]


def files(page: Path, folder: Path) -> None:
    """Write what the commands of a page read: a network of the page, a Relay model, traces."""
    text = page.read_text("utf-8")
    network = NETWORK.search(text)
    if network is not None:
        (folder / "net.py").write_text(f"import meta\n\n\n{network[0]}\n", "utf-8")
    linear = (
        "class Net(meta.Model):\n    def build(self):\n        self.a = meta.model.Linear(64, 8)"
    )
    body = "    @meta.model.trace\n    def forward(self, x):\n        return self.a(x)\n"
    (folder / "model.py").write_text(f"import meta\n\n\n{linear}\n\n{body}", "utf-8")
    relay = ROOT / "tests" / "data" / "relay" / "models" / "mlp_anf"
    for theirs, ours in {"json": "model.json", "bin": "model.params"}.items():
        shutil.copy(next(relay.glob(f"*.{theirs}")), folder / ours)
    shutil.copy(relay / "inputs.npz", folder / "in.npz")
    for rank in range(2):
        trace = {"traceEvents": [], "otherData": {"rank": rank, "axes": {"dp": [0, 1]}}}
        (folder / f"net.rank{rank}.json").write_text(json.dumps(trace), "utf-8")
    vendor = (
        "from backend_utils import VendorInfoBase\nvendor_info = VendorInfoBase('acme', 'cpu')\n"
    )
    (folder / "_acme").mkdir()
    (folder / "_acme" / "__init__.py").write_text(vendor, "utf-8")


@pytest.fixture
def no_vendor_stays() -> Iterator[None]:
    known = {verdict.known.name for verdict in vendors.verdicts()}
    yield
    for name in {verdict.known.name for verdict in vendors.verdicts()} - known:
        vendors.remove(name)


@pytest.mark.usefixtures("no_vendor_stays")
@pytest.mark.parametrize(("page", "command"), CASES)
def test_command_runs_as_it_is_printed(
    page: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    words = words_of(command)
    if words in ELSEWHERE:
        pytest.skip("tests/test_howto.py follows the page")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("META_CACHE_DIR", str(tmp_path / "cache"))
    set_before = COMMAND.search(command)["env"]  # type: ignore[index]
    if set_before is not None:
        monkeypatch.setenv(*set_before.split("=", 1))
    files(ROOT / page, tmp_path)
    arguments = [STANDS_FOR.get(word, word) for word in shlex.split(words)]
    arguments = [n for a in arguments for n in (sorted(map(str, Path().glob(a))) or [a])]
    if arguments[0] in INCOMPLETE and len(arguments) == 1:
        arguments += ["--help"]
    if arguments[-1] in ("--help", "--version"):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0
    else:
        before = {"costs --import": ["costs", "--export", "costs.json"]}
        for start, first in before.items():
            if words.startswith(start):
                assert main(first) == 0
        assert main(arguments) == 0, capsys.readouterr()
    assert capsys.readouterr().out.strip()


def test_what_is_left_out_is_printed() -> None:
    """An exception is of a command that is there."""
    every = {words_of(command) for _, command in printed()}
    assert every >= ELSEWHERE | HOURS
    assert any(words.startswith("selftest --op") for words in every), "a start without options"
