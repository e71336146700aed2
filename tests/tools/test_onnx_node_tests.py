"""onnx's node tests through `from_onnx`: the command, and what it calls passed."""

from __future__ import annotations

import json
import re
import warnings
from dataclasses import replace

import numpy as np
import pytest

import meta
from tools.onnx_node_tests import (
    AS_IT_IS,
    FAILED,
    KINDS,
    WITH_CONSTANTS,
    cases,
    main,
    outcome,
    report,
)

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


PARTS = 8
KNOWN = (
    ("import", "ImageDecoder"),
    ("import", "RegexFullMatch"),
)
"""Stage and operator of what is refused."""
OTHER_NUMBERS = re.compile(
    # Drawn; of half precision by one unit in the last place; by 1e-6 of 450.
    r"test_(bernoulli|training_dropout|attention_4d_(causal_)?fp16|dft_inverse)"
)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_nodes(part: int) -> None:
    """All tests of nodes pass but for what is known; nothing is wrong without an error."""
    with warnings.catch_warnings(), np.errstate(all="ignore"), meta.dialect.prefer("torch"):
        warnings.simplefilter("ignore")
        found = [outcome(c) for c in cases("")[part::PARTS]]
    failed = [o for o in found if o.result == FAILED]
    unknown = [
        o
        for o in failed
        if not any(o.stage == stage and o.reason.startswith(op) for stage, op in KNOWN)
        and not (o.stage == "compare" and OTHER_NUMBERS.match(o.name))
    ]
    assert not unknown, "\n".join(f"{o.name}: {o.stage}: {o.reason}" for o in unknown)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS[1:])
def test_models_in_files(kind: str) -> None:
    with warnings.catch_warnings(), meta.dialect.prefer("torch"):
        warnings.simplefilter("ignore")
        failed = {o.name for o in map(outcome, cases("", kind)) if o.result == FAILED}
    # Of `Gradient` onnx's reference has no implementation either.
    assert failed <= {"test_gradient_of_add", "test_gradient_of_add_and_mul"}
