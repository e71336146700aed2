"""The gradient of a table between ranks: what becomes a gather of rows, and what stays a reduction.
That the results are the same is tested in tests/distributed.
"""

from __future__ import annotations

from typing import Any

import pytest

from meta.ir import parse, verify
from meta.passes.distributed import gather_rows

MEAN = 'over="dp", size=2, reduction="mean"'


def lines(body: str, **options: Any) -> list[str]:
    """Return the calls of a program after the pass, without their types."""
    text = f"""
func @main(%dy: float32[2, 3, 8], %i: int64[2, 3], %j: int64[], %p: bfloat16[50, 8],
           %q: float32[50, 8]) -> float32[50, 8] {{
{body}
  return %y
}}"""
    module = gather_rows(parse(text), **options)
    verify(module)
    return [f"{b.var.name} = {b.value}" for b in module.main.body.bindings]


TABLE = "  %t: float32[50, 8] = embedding_dx(%dy, %i, num_weight={rows})\n"
TIED = (
    TABLE.format(rows=50) + "  %w: float32[50, 8] = astype(%p, dtype=\"float32\")\n"
    "  %s: float32[50, 8] = add(%w, %t)\n"
)  # fmt: skip


def operators(found: list[str]) -> list[str]:
    return [line.partition(" = ")[2].partition("(")[0] for line in found]


@pytest.mark.parametrize("rows", ["50", "(50, 8)"])
def test_a_table_alone(rows: str) -> None:
    body = f"{TABLE.format(rows=rows)}  %y: float32[50, 8] = all_reduce(%t, {MEAN})"
    found = lines(body)
    assert operators(found) == ["divide", "all_gather", "all_gather", "embedding_dx"]
    assert found[-1].startswith("y = ")
    total = body.replace("mean", "sum")
    assert operators(lines(total)) == ["all_gather", "all_gather", "embedding_dx"]


def test_the_rest_of_a_tied_table_keeps_its_dtype() -> None:
    found = lines(f"{TIED}  %y: float32[50, 8] = all_reduce(%s, {MEAN})")
    assert operators(found)[-4:] == ["embedding_dx", "all_reduce", "astype", "add"]
    assert "all_reduce(%p" in found[-3]


def test_the_dtype_that_was_asked_for_is_that_of_the_reduction() -> None:
    cast = '  %c: float32[50, 8] = astype(%s, dtype="float32")\n'
    found = lines(f"{TIED}{cast}  %y: float32[50, 8] = all_reduce(%c, {MEAN})")
    assert not any("all_reduce(%p" in line for line in found)
    assert operators(found)[0] == "astype" and operators(found)[-1] == "add"
    wide = lines(f"{TIED}  %y: float32[50, 8] = all_reduce(%s, {MEAN})", narrow=False)
    assert not any("all_reduce(%p" in line for line in wide)


@pytest.mark.parametrize(
    "body",
    [
        # More rows than the table has, of all ranks together; a table with another use; a mesh of
        # one; a maximum; one index, which cannot be gathered along an axis.
        f'{TABLE.format(rows=50)}  %y: float32[50, 8] = all_reduce(%t, over="dp", size=9)',
        f"{TABLE.format(rows=50)}  %y: float32[50, 8] = all_reduce(%t, {MEAN})\n"
        "  %z: float32[50, 8] = exp(%t)",
        f'{TABLE.format(rows=50)}  %y: float32[50, 8] = all_reduce(%t, over="dp", size=1)',
        f"{TABLE.format(rows=50)}  %y: float32[50, 8] = "
        'all_reduce(%t, over="dp", size=2, reduction="max")',
        f"  %y: float32[50, 8] = all_reduce(%q, {MEAN})",
        "  %r: float32[8] = sum(%dy, axis=(0, 1))\n"
        "  %t: float32[50, 8] = embedding_dx(%r, %j, num_weight=50)\n"
        f"  %y: float32[50, 8] = all_reduce(%t, {MEAN})",
    ],
)
def test_what_stays(body: str) -> None:
    assert not any("all_gather" in line for line in lines(body))


def test_indices_that_are_written_in_between_are_read_before() -> None:
    body = (
        f"{TABLE.format(rows=50)}  %u: () = assign(%i, %i)\n"
        f"  %y: float32[50, 8] = all_reduce(%t, {MEAN})"
    )
    assert not any("all_gather" in line for line in lines(body))
