"""What goes wrong on one rank is a readable error on all of them, within the limit of time."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import meta
from meta import distributed as dist
from meta.base.errors import DistributedError
from meta.runtime.mesh import first_difference, ranks_text
from tests.conftest import first_on_path, run_python
from tests.distributed.faults import LIMIT

ROOT = Path(__file__).parents[2]
HERE = r"tests/distributed/faults\.py:\d+"
TOLD = "told: "
# By fault: of each rank its exit code, and what it says.
COMMON = {
    "raises": [
        (1, rf"all_reduce: the ranks do not.*2 raised ZeroDivisionError: mine, at \S*{HERE}"
            rf".* at: +\S*{HERE}.*in a program that was called at \S*{HERE}"),
        (1, r"DistributedError: all_reduce.*rank 2 raised ZeroDivisionError: mine"),
        (1, "ZeroDivisionError: mine"),
    ],
    "is late": [
        (1, rf"DistributedError: all_reduce: .*expected: ranks 0, 1 in all_reduce\(float32\[4\], "
            rf"sum\) along 'dp' within 3 s.*rank 1 did not come: it is at \S*{HERE}, after 2 of 3"),
        (1, "rank 1 did not come"),
    ],
    "is killed": [
        (1, "DistributedError: all_reduce: .*rank 1 is gone: it gives no sign of life"),
        (-9, ""),
        *[(1, "DistributedError: all_reduce: .*rank 1 is gone: it gives no sign of life")] * 2,
    ],
    "other shapes": [
        (0, r"(?s:rank 0: all_reduce\(float32\[3\], sum\)\s+rank 1: all_reduce\(float32\[4\], sum\)"
            r".*rank 1: all_reduce\(float64\[3\], sum\).*rank 1: all_reduce\(float32\[3\], max\)"
            r".*rank 1: broadcast\(float32\[3\], 1\).*rank 1: all_reduce\(float32\[3\], sum\)"
            r".*after: \[2\.0, 2\.0, 2\.0\].*again: \[2\.0\])"),
    ] * 2,
    "other programs": [
        (0, r"(?s:do not agree on a program.*ranks 0, 2, 3: [^\n]* = torch\.tanh.*"
            r"rank 1: [^\n]* = torch\.exp.*do not agree on a program.*ranks 0-2: [^\n]*4\.0\]"
            r".*rank 3: [^\n]*5\.0\].*call different collectives.*after: \[1\.0, 1\.0)"),
    ] * 4,
}  # fmt: skip
RARE = {
    "keeper is killed": [(-9, ""), (1, "the store is gone, and with it rank 0 or the launcher")],
    "leaves": [
        (1, r"rank 1 has left \(meta\.distributed\.end\(\)\), after 1 of 2 collectives along 'dp'"),
        (0, ""),
    ],
    "does not come": [
        (1, "DistributedError: the ranks do not go.*all in init within 3 s.*rank 1 of 3 did not"),
        (0, ""),
        (1, "rank 1 of 3 did not come"),
    ],
    "other mesh": [(1, r"different meshes.*rank 0: Mesh.*'tp': 2.*rank 1: Mesh.*'dp': 2")] * 2,
}


def report(folder: Path, names: list[str], device: str = "cpu") -> dict[str, Any]:
    """Return what became of the ranks, by fault: all are the forks of one process."""
    program = ("-m", "tests.distributed.faults", folder, ",".join(names), device)
    return json.loads(run_python(*program, OMP_NUM_THREADS="1"))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "faults", [COMMON, pytest.param(RARE, marks=pytest.mark.slow)], ids=["common", "rare"]
)
@pytest.mark.long
def test_a_fault_is_an_error_on_all_ranks(
    faults: dict[str, list[tuple[int, str]]], tmp_path: Path
) -> None:
    found = report(tmp_path, list(faults))
    for name, expected in faults.items():
        for rank, ((code, pattern), ended) in enumerate(zip(expected, found[name], strict=True)):
            where = f"{name}, rank {rank}: code {ended['code']}\n{ended['said']}"
            assert ended["code"] == code, where
            assert re.search(pattern, ended["said"].replace(f"[rank{rank}]:", ""), re.S), where
            for seconds in re.findall(r"it took ([\d.]+) s", ended["said"]):
                # Late itself, one rank comes after the limit; machines of tests are slow.
                assert float(seconds) < LIMIT + 5, where


@pytest.mark.slow
def test_torchrun_ends_the_others(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import time, meta\nfrom meta import distributed as dist\ndist.init('cpu')\n"
        "with dist.Mesh(2):\n    if dist.rank('dp'):\n        raise ValueError('mine')\n"
        "    dist.all_reduce(meta.ones(2), 'dp')\n    time.sleep(1000)\n"
    )
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = subprocess.run(
        [sys.executable, *launcher, str(program)],
        capture_output=True,
        text=True,
        env=first_on_path(ROOT) | {"OMP_NUM_THREADS": "1"},
        timeout=120,
    )
    assert done.returncode != 0
    assert "rank 1 raised ValueError: mine" in done.stderr or "ValueError: mine" in done.stderr


def test_simulated_ranks_agree_on_programs() -> None:
    def rank(function: Any) -> Any:
        traced = meta.model.trace(lambda x: dist.all_reduce(function(x), "tp"))
        return meta.vm.compile(traced, meta.ones(2))(meta.zeros(2)).numpy().tolist()

    ranks = dist.simulate({"dp": 2, "tp": 2})
    assert ranks.run(lambda: rank(meta.exp)) == [[2.0, 2.0]] * 4
    with pytest.raises(DistributedError, match=r"do not agree on a program") as caught:
        ranks.run(lambda: rank(meta.exp if dist.rank("dp") or dist.rank("tp") else meta.tanh))
    assert re.search(r"rank 0: .* = \w+\.tanh.*rank 1: .* = \w+\.exp", str(caught.value), re.S)
    # Along "dp" they exchange nothing: there programs may differ.
    found = ranks.run(lambda: rank(meta.exp if dist.rank("dp") else meta.tanh))
    assert found == [[0.0, 0.0]] * 2 + [[2.0, 2.0]] * 2


def test_differences() -> None:
    assert (
        first_difference({0: "a\nb", 1: "a\nc", 2: "a\nb"})
        == "line 2\n    ranks 0, 2: b\n    rank 1: c"
    )
    assert "rank 1: (nothing more)" in first_difference({0: "a\nb", 1: "a"})
    assert [ranks_text(r) for r in ([3], [1, 0], [0, 1, 2, 5, 7, 8])] == [
        "rank 3",
        "ranks 0, 1",
        "ranks 0-2, 5, 7, 8",
    ]


def test_worlds_gather_by_place() -> None:
    """Of any lengths, along all axes or some, in the order of ranks."""

    def rank(over: tuple[str, ...] | None) -> Any:
        world = meta.runtime.mesh.current_mesh()
        return world.gather(str(world.rank).encode() * world.rank, "a test", over)

    ranks = dist.simulate({"dp": 2, "tp": 3})
    places = [(i, j) for i in range(2) for j in range(3)]
    whole = {place: str(n).encode() * n for n, place in enumerate(places)}
    for found in ranks.run(rank, None):
        assert list(found.items()) == list(whole.items())
    for place, found in zip(places, ranks.run(rank, ("tp",)), strict=True):
        assert found == {p: w for p, w in whole.items() if p[0] == place[0]}
