"""`tune_configs.yaml`: what is read, and the errors, which name key and line."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from meta.base.errors import FormatError
from meta.dialect.vendors import tune_configs
from meta.dialect.vendors.tune_configs import DEFAULTS, MOST, read_tune_configs


def read(folder: Path, text: str) -> dict[str, list[Any]]:
    file = folder / "tune_configs.yaml"
    file.write_text(text, "utf-8")
    found = {}
    for name, tuned in read_tune_configs(file).items():
        if isinstance(tuned, FormatError):
            raise tuned
        found[name] = list(tuned.configs)
    return found


def config(constants: dict[str, Any], **numbers: int | None) -> dict[str, Any]:
    return {"kwargs": constants, **DEFAULTS, **numbers}


def test_what_an_entry_leaves_out_is_the_default_not_its_neighbours(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        "softmax:\n"
        "  - META: {BLOCK: 128, EVEN: true, ORDER: rows}\n    num_warps: 8\n    num_stages: 5\n"
        "    num_ctas: 2\n    maxnreg: 64\n"
        "  - META: {BLOCK: 256}\n"
        "empty:\n  - META: {}\n    maxnreg: null\n",
    )
    first = config({"BLOCK": 128, "EVEN": True, "ORDER": "rows"}, num_warps=8, num_stages=5)
    assert found["softmax"] == [{**first, "num_ctas": 2, "maxnreg": 64}, config({"BLOCK": 256})]
    assert found["empty"] == [config({})]
    assert DEFAULTS == {"num_warps": 4, "num_stages": 2, "num_ctas": 1, "maxnreg": None}


def test_generated_entries_are_all_combinations(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        "mm:\n"
        "  - gen: true\n"
        "    param_map: {META: {M: tiles, N: tiles, G: 8, H: [1, 2]}, num_warps: warps}\n"
        "    tiles: [64, 128]\n    warps: [4, 8]\n"
        "attention:\n"
        "  - gen: true\n    param_map: {META: metas, num_stages: [3]}\n"
        "    metas: [{M: 16, N: 32}, {M: 32, N: 16}]\n"
        "  - META: {M: 1, N: 1}\n",
    )
    assert found["mm"] == [
        config({"M": m, "N": n, "G": 8, "H": h}, num_warps=w)
        for m in (64, 128) for n in (64, 128) for h in (1, 2) for w in (4, 8)
    ]  # fmt: skip
    assert found["attention"] == [
        config({"M": 16, "N": 32}, num_stages=3),
        config({"M": 32, "N": 16}, num_stages=3),
        config({"M": 1, "N": 1}),
    ]


def test_no_file_and_an_empty_one_state_nothing(tmp_path: Path) -> None:
    assert read_tune_configs(tmp_path / "tune_configs.yaml") == {}
    assert read(tmp_path, "# nothing\n") == {}


GEN = "mm:\n  - gen: true\n"
WRONG = [
    ("mm:\n  - META: {B: 1}\n    num_warp: 4\n", 3, "'num_warp'", "did you mean 'num_warps'"),
    ("mm:\n  - META: {B: 1}\n    num_warps: 0\n", 3, "num_warps is no positive number", "'0'"),
    ("mm:\n  - META: {B: 1}\n    num_warps: yes\n", 3, "num_warps is no positive", "'yes'"),
    ("mm:\n  - META: {B: 1}\n    num_stages: null\n", 3, "num_stages is no positive", "null"),
    ("mm:\n  - num_warps: 4\n", 2, "no META", ""),
    ("mm:\n  META: {B: 1}\n", 1, "'mm' is no list", "-"),
    ("mm:\n", 1, "'mm' is no list", ""),
    ("- mm\n", 1, "the file is no mapping", ""),
    ("mm:\n  - META:\n      B: 1.5\n", 3, "B is no constant", "'1.5'"),
    ("mm:\n  - META: {B: 1}\n\nmm:\n  - META: {B: 2}\n", 4, "'mm' twice", ""),
    ("mm:\n  - META: {B: 1, B: 2}\n", 2, "'B' twice", ""),
    ("mm:\n  - META: {B: 1}\n    gen: 1\n", 3, "gen is 1", "true or false"),
    (GEN + "    tiles: [1]\n", 2, "no param_map", ""),
    (GEN + "    param_map: {num_warps: warps}\n    warps: [4]\n", 2, "no META", ""),
    (GEN + "    param_map:\n      META: {B: tile}\n    tiles: [1]\n", 4, "'tile'", "'tiles'"),
    (GEN + "    param_map: {META: {B: t}}\n    t: [1]\n    unused: [2]\n", 5, "'unused'", ""),
    (GEN + "    param_map: {META: {B: t}}\n    t: []\n", 4, "'t' is empty", ""),
    (GEN + "    param_map: {META: {B: t}, num_warp: t}\n    t: [1]\n", 3, "'num_warp'", "warps'"),
    ("mm:\n  - META: {B: 1\n", 3, "no YAML", ""),
    ("mm: [\n  - {\n", 2, "no YAML", ""),
    ("mm: " + "[" * 5000 + "]" * 5000, 1, "nested too deep", ""),
    ("mm:\n  - META:\n      B: !!int abc\n", 3, "cannot be read", ""),
    ("mm:\n  - META:\n      B: !!python/object:os.system ls\n", 3, "cannot be read", ""),
    ("mm:\n  - META: {B: 1}\n    num_warps: !!timestamp x\n", 3, "cannot be read", ""),
    ("mm:\n  - META:\n      B: " + "9" * 5000 + "\n", 3, "cannot be read", ""),
    ("mm:\n  - META:\n      B: 2024-01-01\n", 3, "B is no constant", ""),
    ("mm:\n  - META: {[1]: 2}\n", 2, "no word", ""),
    ("mm: 3\n", 1, "'mm' is no list", ""),
    ("mm:\n  - 3\n", 2, "no mapping", ""),
    ("a: &a [*a]\n", 1, "no mapping", ""),
    ("# " + "x" * (1 << 18) + "\n", 1, "too large", ""),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "what", "also"), WRONG)
def test_errors_name_file_key_and_line(
    text: str, line: int, what: str, also: str, tmp_path: Path
) -> None:
    with pytest.raises(FormatError) as caught:
        read(tmp_path, text)
    said = str(caught.value)
    assert what in caught.value.what and also in said
    assert f"{tmp_path / 'tune_configs.yaml'}:{line}\n" in f"{said}\n", said


def test_there_are_not_too_many(tmp_path: Path) -> None:
    numbers = ", ".join(map(str, range(1, 66)))
    entry = "    param_map: {META: {A: t, B: t}}\n    t: [" + numbers + "]\n"
    with pytest.raises(FormatError, match="'mm' has 4225 configurations"):
        read(tmp_path, GEN + entry)
    assert MOST < 65**2


def test_a_million_combinations_are_counted_before_they_are_made(tmp_path: Path) -> None:
    lists = "".join(f"    t{i}: [{', '.join(map(str, range(1, 101)))}]\n" for i in range(4))
    axes = ", ".join(f"A{i}: t{i}" for i in range(4))
    start = time.perf_counter()
    with pytest.raises(FormatError, match="'mm' has 100000000 configurations"):
        read(tmp_path, GEN + f"    param_map: {{META: {{{axes}}}}}\n" + lists)
    assert time.perf_counter() - start < 20


def test_what_is_wrong_is_of_one_name(tmp_path: Path) -> None:
    file = tmp_path / "tune_configs.yaml"
    file.write_text("a:\n  - META: {B: 1}\n    num_warp: 2\nb:\n  - META: {B: 1}\n", "utf-8")
    found = read_tune_configs(file)
    assert isinstance(found["a"], FormatError) and isinstance(found["b"], tune_configs.Tuned)


def test_a_key_of_the_vendors_triton_is_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    triton = pytest.importorskip("triton")
    text = "mm:\n  - META: {B: 1}\n    num_ldmatrixes: 3\n"
    with pytest.raises(FormatError, match="unknown key 'num_ldmatrixes'"):
        read(tmp_path, text)

    class Config(triton.Config):  # type: ignore[misc, name-defined]
        def __init__(self, kwargs: Any, num_ldmatrixes: int = 0, **numbers: Any) -> None:
            super().__init__(kwargs, **numbers)

    monkeypatch.setattr(triton, "Config", Config)
    assert read(tmp_path, text)["mm"] == [config({"B": 1}, num_ldmatrixes=3)]
    generated = GEN + "    param_map: {META: {B: t}, num_ldmatrixes: t}\n    t: [1]\n"
    assert read(tmp_path, generated)["mm"] == [config({"B": 1}, num_ldmatrixes=1)]


def test_without_pyyaml_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "yaml", None)
    assert tune_configs.read_tune_configs(tmp_path / "absent.yaml") == {}
    with pytest.raises(FormatError, match="PyYAML") as caught:
        read(tmp_path, "mm:\n  - META: {B: 1}\n")
    assert caught.value.hint == "pip install pyyaml"
