"""Parameter files: what is written is read, and nothing damaged is."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from meta.frontend.relay.errors import ParamsError
from meta.frontend.relay.params import read_params
from tests.together import together
from tools.relay_text.params import dump_params

DTYPES = [
    *(torch.bool, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.complex128),
]


def tensor_of(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Any bytes are an array, but those of a bool."""
    numpy = np.random.default_rng(seed)
    count = int(np.prod(shape)) * dtype.itemsize
    high = 2 if dtype == torch.bool else 256
    data = bytearray(numpy.integers(0, high, count, dtype=np.uint8).tobytes())
    return (
        torch.frombuffer(data, dtype=dtype).reshape(shape)
        if count
        else torch.empty(shape, dtype=dtype)
    )


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    def raw(t: torch.Tensor) -> bytes:
        return t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b""

    return (a.dtype, a.shape, raw(a)) == (b.dtype, b.shape, raw(b))


tensors = st.builds(
    tensor_of,
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 3), max_size=4).map(tuple),
    st.integers(0, 2**16),
)


@given(params=st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=8), tensors))
@settings(max_examples=60)
def test_round_trip(params: dict[str, torch.Tensor]) -> None:
    found = read_params(dump_params(params))
    assert list(found) == list(params)
    assert all(same(found[n], params[n]) for n in params)


def independent(name: bytes, code: tuple[int, int], shape: tuple[int, ...], data: bytes) -> bytes:
    """Write a file of one parameter from the description of the format."""
    parts = [
        struct.pack("<QQ", 0xF7E58D4F05049CB7, 0),
        struct.pack("<QQ", 1, len(name)) + name,
        struct.pack("<Q", 1),
        struct.pack("<QQiiiBBH", 0xDD5E40F096B4A13F, 0, 1, 0, len(shape), *code, 1),
        struct.pack(f"<{len(shape)}q", *shape),
        struct.pack("<q", len(data)) + data,
    ]
    return b"".join(parts)


def test_layout(tmp_path: Path) -> None:
    value = np.array([[1, -2, 3]], np.int16)
    data = independent("näme.0".encode(), (0, 16), (1, 3), value.tobytes())
    (tmp_path / "p.bin").write_bytes(data)
    found = read_params(tmp_path / "p.bin")
    assert found["näme.0"].tolist() == [[1, -2, 3]]
    assert dump_params(found) == data


def test_no_parameters() -> None:
    assert read_params(dump_params({})) == {}


def test_a_view_is_written_as_it_looks() -> None:
    view = torch.arange(12).reshape(3, 4).t()[1:]
    assert torch.equal(read_params(dump_params({"v": view}))["v"], view)


EXAMPLE = dump_params({"a": torch.arange(3.0), "b": torch.tensor(True), "c": torch.zeros(0, 2)})


@together(range(len(EXAMPLE)))
def test_truncated(length: int) -> None:
    with pytest.raises(ParamsError):
        read_params(EXAMPLE[:length])


@given(at=st.integers(0, len(EXAMPLE) - 8), value=st.integers(0, 2**64 - 1))
@settings(max_examples=150)
def test_any_length_may_be_anything(at: int, value: int) -> None:
    data = EXAMPLE[:at] + struct.pack("<Q", value) + EXAMPLE[at + 8 :]
    with contextlib.suppress(ParamsError):
        read_params(data)


REFUSED = [
    (b"", "no parameter file"),
    (b"\x7fELF" + bytes(100), "no parameter file"),
    (EXAMPLE + EXAMPLE, "several parameter files"),
    (EXAMPLE + b"x", "1 bytes after"),
    (independent(b"w", (0, 4), (2,), b"\0"), "'w'.*int4 is not supported"),
    (independent(b"w", (3, 64), (1,), bytes(8)), "'w'.*handle64 is not supported"),
    (independent(b"w", (9, 64), (1,), bytes(8)), "'w'.*code 9, 64 is not supported"),
    (independent(b"w", (2, 32), (2**40,), b""), "0 bytes of data"),
    (independent(b"w", (2, 32), (2**62, 2**62, 0), b""), "more elements than can be"),
    (independent(b"w", (2, 32), (-1,), b""), "negative extent"),
    (independent(b"\xff", (2, 32), (), bytes(4)), "valid UTF-8"),
    (independent(b"w", (1, 1), (1,), b"\2"), "bytes other than 0 and 1"),
    (independent(b"w", (2, 32), (1,) * 33, bytes(4)), "33 axes"),
    (struct.pack("<QQQQ", 0xF7E58D4F05049CB7, 0, 1, 2**31), "2147483648 bytes of a name"),
    (struct.pack("<QQQ", 0xF7E58D4F05049CB7, 0, 2**60), "names in 0 bytes"),
]


@pytest.mark.parametrize(("data", "message"), REFUSED, ids=[m for _, m in REFUSED])
def test_refused(data: bytes, message: str) -> None:
    with pytest.raises(ParamsError, match=message):
        read_params(data)


def test_a_name_that_occurs_twice() -> None:
    data = dump_params({"aa": torch.zeros(1), "ab": torch.zeros(1)}).replace(b"ab", b"aa")
    with pytest.raises(ParamsError, match="two parameters called 'aa'"):
        read_params(data)


def test_what_cannot_be_written() -> None:
    with pytest.raises(ParamsError, match="'q'"):
        dump_params({"q": torch.empty(1, dtype=torch.float8_e4m3fnuz)})
    with pytest.raises(ParamsError, match="UTF-8"):
        dump_params({"\ud800": torch.zeros(1)})


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ParamsError, match="cannot be read"):
        read_params(tmp_path / "nothing.bin")
