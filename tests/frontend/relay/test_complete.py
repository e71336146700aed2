"""Every operator that Relay has had is converted and tested, or refused with a reason."""

from __future__ import annotations

import re
from pathlib import Path

from meta.cli.relay import COMMAND, markdown, records
from meta.frontend.relay.registry import operators, relay
from tests.conftest import run_python
from tests.frontend.relay.test_converters import CASES

PAGE = Path(__file__).parents[3] / "docs" / "relay.md"


def test_every_operator_is_converted_or_refused_with_a_reason() -> None:
    assert [name for name in operators() if name not in relay] == []
    assert [name for name in relay if name not in operators()] == []


def test_every_converter_has_a_case() -> None:
    tested = {case.name for case in CASES}
    assert [r["name"] for r in records() if r["converted"] and r["name"] not in tested] == []


def test_most_operators_are_converted() -> None:
    assert sum(r["converted"] for r in records()) >= 260


def test_the_page_has_the_tables() -> None:
    assert markdown(records()) in PAGE.read_text("utf-8"), f"docs/relay.md: run {COMMAND}"


def test_the_page_runs(tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    script.write_text("\n\n".join(blocks), "utf-8")
    assert "['w']" in run_python(script, tvm=True)
