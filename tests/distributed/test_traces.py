"""Traces of the ranks of a mesh: one file for each, and all of them as one, with clocks set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import meta
from meta import distributed as dist
from meta.base.errors import FormatError
from meta.cli.main import main
from meta.vm import merge_traces

AXES = {"dp": 2, "tp": 2}
NAMES = ["exp", "multi_tensor_all_reduce", "tanh_in_place", "all_gather"]


def program(x: Any) -> Any:
    y = dist.all_reduce(meta.exp(x), "dp", "mean")
    return dist.all_gather(meta.tanh(y), "tp")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The traces of four ranks, in order."""
    folder = tmp_path_factory.mktemp("traces")

    def rank() -> Path:
        x = meta.ones((4, 3))
        run = meta.vm.compile(meta.model.trace(program), x)
        written: Path = run.profile(x, repeat=2).chrome_trace(folder / "net.json")
        return written

    return dist.simulate(AXES).run(rank)


def read(file: Path) -> list[dict[str, Any]]:
    return json.loads(file.read_text("utf-8"))["traceEvents"]


def launches(events: list[dict[str, Any]], rank: int) -> list[dict[str, Any]]:
    return [e for e in events if e["ph"] == "X" and e["pid"] == rank]


def moved(file: Path, by: float, to: Path, **changes: Any) -> Path:
    """Write a trace with another clock, or other data about its rank."""
    content = json.loads(file.read_text("utf-8"))
    for event in content["traceEvents"]:
        if "ts" in event:
            event["ts"] += by
    content["otherData"] |= changes
    to.write_text(json.dumps(content), "utf-8")
    return to


def test_a_file_for_each_rank(files: list[Path]) -> None:
    assert [f.name for f in files] == [f"net.rank{rank}.json" for rank in range(4)]
    for rank, file in enumerate(files):
        names = {e["name"]: e["args"] for e in read(file) if e["ph"] == "M" and e["tid"] == 0}
        assert names["process_name"] == {"name": f"rank {rank} (dp={rank // 2}, tp={rank % 2})"}
        assert names["process_sort_index"] == {"sort_index": rank}
        found = launches(read(file), rank)
        assert [e["name"] for e in found] == NAMES
        told = [{n: e["args"].get(n) for n in ("over", "ranks", "bytes")} for e in found]
        assert told[0] == told[2] == {"over": None, "ranks": None, "bytes": None}
        assert told[1] == {"over": "dp", "ranks": 2, "bytes": 48}
        assert told[3] == {"over": "tp", "ranks": 2, "bytes": 96}
        assert found[1]["cat"] == "gloo"


def test_all_ranks_as_one(files: list[Path], tmp_path: Path) -> None:
    shifts = merge_traces(files[::-1], tmp_path / "all.json")
    assert sorted(shifts) == [0, 1, 2, 3] and shifts[0] == 0.0
    merged = read(tmp_path / "all.json")
    assert {e["pid"] for e in merged} == {0, 1, 2, 3}
    ends = {r: [e["ts"] + e["dur"] for e in launches(merged, r)] for r in range(4)}
    assert ends[1][3] == pytest.approx(ends[0][3]) and ends[2][1] == pytest.approx(ends[0][1])


def test_clocks_are_set_by_collectives(files: list[Path], tmp_path: Path) -> None:
    shifts = merge_traces(files, tmp_path / "all.json")
    offsets = (0.0, 5e6, -3e6, 1e9)
    others = [
        moved(file, by, tmp_path / file.name) for file, by in zip(files, offsets, strict=True)
    ]
    found = merge_traces(others, tmp_path / "others.json")
    for rank, by in enumerate(offsets):
        assert found[rank] == pytest.approx(shifts[rank] - by, abs=1e-3)
    for one, other in zip(read(tmp_path / "all.json"), read(tmp_path / "others.json"), strict=True):
        assert one.get("ts") == pytest.approx(other.get("ts"), abs=1e-3)


def test_what_goes_on_beside_kernels_has_a_line_of_its_own(tmp_path: Path) -> None:
    def beside(x: Any) -> Any:
        total = dist.all_reduce(meta.exp(x), "dp")
        return total + meta.tanh(meta.matmul(x, x))

    def rank() -> Path:
        x = meta.ones((8, 8))
        run = meta.vm.compile(meta.model.trace(beside), x)
        assert "collective_wait" in str(run.module)
        written: Path = run.profile(x, repeat=1).chrome_trace(tmp_path / "net.json")
        return written

    found = dist.simulate(2).run(rank)
    merge_traces(found, tmp_path / "all.json")
    for rank in range(2):
        events = launches(read(tmp_path / "all.json"), rank)
        start, wait = (
            next(e for e in events if e["name"] == name)
            for name in ("multi_tensor_all_reduce_start", "collective_wait")
        )
        (flight,) = (e for e in events if e["tid"] == 1)
        assert flight["name"] == "multi_tensor_all_reduce" and flight["args"]["bytes"] == 256
        assert flight["ts"] == start["ts"]
        assert flight["ts"] + flight["dur"] == pytest.approx(wait["ts"] + wait["dur"])
        between = [e["name"] for e in events if start["ts"] < e["ts"] < wait["ts"]]
        assert any("matmul" in name for name in between), between


def test_ranks_without_a_common_collective_keep_their_times(
    files: list[Path], tmp_path: Path
) -> None:
    assert merge_traces([files[0], files[3]], tmp_path / "two.json") == {0: 0.0, 3: 0.0}


def test_the_command(files: list[Path], tmp_path: Path, capsys: Any) -> None:
    output = str(tmp_path / "all.json")
    assert main(["traces", *map(str, files), "--output", output]) == 0
    assert "4 ranks" in capsys.readouterr().out
    assert main(["traces", *map(str, files), "--output", output, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["output"] == output and len(record["ranks"]) == 4
    assert main(["traces", str(files[0]), str(files[0]), "--output", output]) == 2
    assert "two traces are of rank 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"traceEvents": []}',
        '{"traceEvents": [3], "otherData": {"rank": 0, "axes": {}}}',
        '{"traceEvents": [{"ph": "X", "args": {}}], "otherData": {"rank": 0, "axes": {}}}',
        '{"traceEvents": [], "otherData": {"rank": "0", "axes": {}}}',
    ],
)
def test_what_is_no_trace_of_a_rank(content: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(content, "utf-8")
    with pytest.raises(FormatError, match=r"x\.json is no trace of a rank"):
        merge_traces([tmp_path / "x.json"], tmp_path / "all.json")
    assert not (tmp_path / "all.json").exists()


def test_traces_that_do_not_belong_together(files: list[Path], tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="there are no traces"):
        merge_traces([], tmp_path / "all.json")
    other = moved(files[1], 0.0, tmp_path / "other.json", axes={"pp": 1})
    with pytest.raises(FormatError, match="of different meshes"):
        merge_traces([files[0], other], tmp_path / "all.json")
    content = json.loads(files[1].read_text("utf-8"))
    content["traceEvents"] = [e for e in content["traceEvents"] if e["name"] != "all_gather"]
    other.write_text(json.dumps(content), "utf-8")
    with pytest.raises(FormatError, match="rank 0 and rank 1 ran different programs"):
        merge_traces([files[0], other], tmp_path / "all.json")
