"""What is printed reads back: random programs, and the texts that printing them gives."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

from meta.frontend.relay import ast
from meta.frontend.relay.text import parse_text
from tests.frontend.relay.text.programs import modules
from tools.relay_text import difference, print_text

COMMON = settings(
    max_examples=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@COMMON
@given(modules())
def test_print_reads_back(module: ast.Module) -> None:
    text = print_text(module)
    again = parse_text(text)
    assert difference(module, again) is None
    assert again.version == module.version
    assert again.warnings == []
    assert print_text(again) == text
