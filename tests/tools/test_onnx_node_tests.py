"""onnx's node tests through `from_onnx`: the command, and what it calls passed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import meta
from tools.onnx_node_tests import AS_IT_IS, FAILED, WITH_CONSTANTS, cases, main, outcome, report

IMAGE = "test_image_decoder_decode_bmp_rgb"
NAMES = ["test_relu", "test_unsqueeze_axis_0", IMAGE, "test_elu"]


def test_outcomes_and_report() -> None:
    by_name = {c.name: c for c in cases("test_")}
    assert len(by_name) > 1500
    chosen = [by_name[n] for n in NAMES]
    inputs, (expected,) = chosen[-1].data_sets[0]
    wrong = type("Case", (), {**vars(chosen[-1]), "data_sets": [(inputs, [expected + 1])]})
    with meta.dialect.prefer("torch"):
        found = [outcome(c) for c in [*chosen[:-1], wrong]]
    assert [o.result for o in found] == [AS_IT_IS, WITH_CONSTANTS, FAILED, FAILED]
    assert found[1].operators == ("Unsqueeze",)
    assert (found[2].stage, found[3].stage) == ("import", "compare")
    assert "ImageDecoder" in found[2].reason
    text = report([*found, replace(found[3], name="another")], names=True)
    assert text.startswith("2 of 5 tests pass: 1 as they are, 1 with inputs given as constants")
    assert "    2  compare: other values" in text
    assert IMAGE in text


@pytest.mark.slow
def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--filter", "test_relu", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert results and {r["result"] for r in results} == {AS_IT_IS}
    assert main(["--filter", "no such test"]) == 2
