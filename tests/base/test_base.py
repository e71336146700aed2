"""Floor 0: registries, knobs, dtypes, the text of errors, the user's line."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from meta.base import config, errors
from meta.base import dtype as dtypes
from meta.base.errors import ArgumentError, MetaError, RegistrationError, UnknownName
from meta.base.registry import Registry, nearest
from meta.base.source import Span, definition_span, user_span

HERE, THERE = Span("here.py", 1), Span("there.py", 2)


class TestRegistry:
    def test_entries(self) -> None:
        registry: Registry[int] = Registry("thing")
        assert registry.register("two", 2, HERE) == 2
        registry.register("one", 1, THERE)
        assert registry["two"] == registry.get("two") == 2 and registry.get("three") is None
        assert list(registry) == ["one", "two"] and registry.values() == [2, 1]
        assert "two" in registry and len(registry) == 2 and registry.site("one") == THERE
        registry.remove("two")
        assert "two" not in registry and registry.register("two", 3, HERE) == 3

    def test_entries_among_the_attributes_of_a_module(self) -> None:
        registry: Registry[int] = Registry("thing")
        registry.register("one", 1, HERE)
        module: dict[str, object] = {"two": "its own"}
        registry.show_in(module)
        registry.register("two", 2, HERE)
        registry.register("three", 3, HERE)
        assert module == {"one": 1, "two": "its own", "three": 3}
        registry.remove("two")
        registry.remove("three")
        assert module == {"one": 1, "two": "its own"}
        registry.register("three", 4, HERE)
        assert module["three"] == 4

    def test_a_clash_names_both_sites(self) -> None:
        registry: Registry[int] = Registry("thing")
        registry.register("one", 1, HERE)
        with pytest.raises(RegistrationError) as caught:
            registry.register("one", 2, THERE)
        assert "the thing 'one' is defined twice" in str(caught.value)
        assert "there.py:2 and here.py:1" in str(caught.value) and caught.value.span == THERE
        assert registry["one"] == 1

    def test_unknown_names(self) -> None:
        registry: Registry[int] = Registry("thing")
        registry.register("softmax", 1, HERE)
        for use in (registry.__getitem__, registry.remove, registry.site):
            with pytest.raises(UnknownName, match="no thing named 'sofmax'") as caught:
                use("sofmax")
            assert caught.value.hint == "did you mean 'softmax'?"
        assert isinstance(caught.value, LookupError) and isinstance(caught.value, AttributeError)
        assert nearest("zzz", registry) == "see the list of known names"


class TestKnobs:
    def test_default_environment_override(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("META_FUEL", raising=False)
        assert config.get("META_FUEL") == -1
        monkeypatch.setenv("META_FUEL", "3")
        assert config.get("META_FUEL") == 3
        with config.override(META_FUEL=5, META_DEBUG=True):
            assert config.get("META_FUEL") == 5 and config.get("META_DEBUG") is True
            with config.override(META_FUEL=6):
                assert config.get("META_FUEL") == 6 and config.get("META_DEBUG") is True
            assert config.get("META_FUEL") == 5
        assert config.get("META_FUEL") == 3
        del os.environ["META_FUEL"]
        assert config.get("META_FUEL") == -1
        os.environ.update(META_FUEL="4", META_DUMP_IR="\udcff")
        assert config.get("META_FUEL") == 4 and config.get("META_DUMP_IR") == "\udcff"
        os.environ.pop("META_DUMP_IR")

    def test_an_override_ends_with_an_exception(self) -> None:
        before = config.get("META_FUEL")
        with pytest.raises(ZeroDivisionError), config.override(META_FUEL=5):
            raise ZeroDivisionError
        assert config.get("META_FUEL") == before

    def test_an_override_is_of_one_thread(self) -> None:
        found: list[Any] = []
        with config.override(META_FUEL=12):
            thread = threading.Thread(target=lambda: found.append(config.get("META_FUEL")))
            thread.start()
            thread.join()
        assert found != [12]

    @pytest.mark.parametrize(
        ("text", "value"),
        [("1", True), ("TRUE", True), ("on", True), ("0", False), ("No", False), ("", False)],
    )
    def test_flags(self, text: str, value: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("META_DEBUG", text)
        assert config.get("META_DEBUG") is value

    @pytest.mark.parametrize(
        ("name", "kind"), [("META_DEBUG", "expected: flag"), ("META_FUEL", "expected: int")]
    )
    def test_what_cannot_be_read(
        self, name: str, kind: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(name, "perhaps")
        with pytest.raises(ArgumentError, match=f"{name} cannot be read") as caught:
            config.get(name)
        assert kind in str(caught.value) and "found:    'perhaps'" in str(caught.value)

    def test_unknown(self) -> None:
        for use in (lambda: config.get("META_FEUL"), lambda: config.override(META_FEUL=1)):
            with pytest.raises(UnknownName, match="no knob named 'META_FEUL'") as caught:
                use()
            assert "did you mean 'META_FUEL'" in str(caught.value)
            assert caught.value.span is not None and caught.value.span.file == __file__

    def test_table(self) -> None:
        rows = config.table()
        assert [r["name"] for r in rows] == list(config.KNOBS)
        assert all(r["help"] and set(r) == {"name", "value", "default", "help"} for r in rows)


class TestDtypes:
    @pytest.mark.parametrize("name", dtypes.DTYPES)
    def test_spellings(self, name: str) -> None:
        for spelling in (name, dtypes.TO_TORCH[name], dtypes.TO_NUMPY[name]):
            assert dtypes.canonical(spelling) == name
        assert dtypes.bits(name) == 8 * dtypes.TO_NUMPY[name].itemsize

    def test_other_spellings(self) -> None:
        assert [dtypes.canonical(t) for t in (float, int, bool)] == ["float64", "int64", "bool"]
        assert dtypes.canonical(complex) == dtypes.canonical("c16") == "complex128"
        assert dtypes.canonical(np.float16) == dtypes.canonical("f2") == "float16"
        assert dtypes.canonical(ml_dtypes.bfloat16) == "bfloat16"

    @pytest.mark.parametrize("name", dtypes.DTYPES)
    def test_of_arrays(self, name: str) -> None:
        """It equals what names the same dtype elsewhere, from both sides, and nothing else."""
        dtype = dtypes.NAMED[name]
        assert hash(dtype) == hash(name) and type(dtypes.canonical(dtype)) is str
        for other in dtypes.DTYPES:
            numpy = dtypes.TO_NUMPY[other]
            for spelling in (other, dtypes.TO_TORCH[other], numpy, numpy.type):
                assert (dtype == spelling) is (spelling == dtype) is (name == other)
                assert (dtype != spelling) is (name != other)
        assert (
            dtype not in (None, 3, [], object, "")
            and dtype.itemsize == dtypes.TO_NUMPY[name].itemsize
        )

    @pytest.mark.parametrize(
        "dtype",
        [None, "complex32", np.clongdouble, torch.complex32, "", "f4, f4", 3, [], {}, "O", ">f4"],
    )
    def test_unknown(self, dtype: Any) -> None:
        with pytest.raises(ArgumentError, match="unknown dtype") as caught:
            dtypes.canonical(dtype)
        assert caught.value.found == repr(dtype)

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")  # numpy's, of old spellings
    @given(st.text(max_size=8))
    def test_any_text_is_a_dtype_or_the_users_error(self, text: str) -> None:
        with contextlib.suppress(ArgumentError):
            assert dtypes.canonical(text) in dtypes.DTYPES

    def test_limits(self) -> None:
        assert dtypes.limits("int8") == dtypes.Limits(-128, 127)
        assert dtypes.limits("bool") == dtypes.Limits(0, 1)
        assert dtypes.limits("float16").max == 65504.0
        assert dtypes.limits("bfloat16").max == torch.finfo(torch.bfloat16).max
        assert [d for d in dtypes.DTYPES if dtypes.is_float(d)] == list(dtypes.DTYPES[-4:])


class TestErrors:
    def test_text(self) -> None:
        error = MetaError(
            "it failed", op="softmax", found=[1], expected="a 2", hint="try 2", span=HERE
        )
        assert str(error) == (
            "softmax: it failed\n"
            "  expected: a 2\n"
            "  found:    [1]\n"
            "  at:       here.py:1\n"
            "  try:      try 2"
        )
        error.note("in the first layer")
        error.note("in the model")
        assert str(error).endswith("try 2\n  in the first layer\n  in the model")
        assert str(MetaError("short", span=HERE)) == "short\n  at:       here.py:1"
        assert "found:    0" in str(MetaError("zero is shown", found=0))

    def test_the_tree(self) -> None:
        classes = [c for c in vars(errors).values() if isinstance(c, type)]
        for cls in (c for c in classes if issubclass(c, Exception) and not issubclass(c, Warning)):
            assert issubclass(cls, MetaError) and cls.__doc__
            error = cls("it failed", op="x", span=HERE)
            assert str(error) == "x: it failed\n  at:       here.py:1"
        assert issubclass(errors.ArgumentError, TypeError)
        assert issubclass(errors.TypeInferError, ValueError)
        assert issubclass(errors.IndexOutOfRange, IndexError)
        assert issubclass(errors.DeviceError, RuntimeError)

    def test_errors_cross_processes(self) -> None:
        error = pickle.loads(pickle.dumps(ArgumentError("it failed", op="x", found=3, span=HERE)))
        assert str(error) == "x: it failed\n  found:    3\n  at:       here.py:1"


class TestSpans:
    def test_the_line_of_the_call(self) -> None:
        span = user_span()
        assert span is not None and span.file == __file__
        line = span.line
        assert user_span() == Span(__file__, line + 3)
        assert MetaError("here").span == Span(__file__, line + 4)
        assert str(span) == f"{__file__}:{line}"

    def test_frames_of_the_package_are_skipped(self) -> None:
        with pytest.raises(ArgumentError) as caught:
            dtypes.canonical("none")
        span = caught.value.span
        assert span is not None and span.file == __file__

    def test_definitions(self) -> None:
        @functools.lru_cache
        def cached() -> None: ...

        span = definition_span(cached.__wrapped__)
        assert span.file == __file__
        assert definition_span(TestSpans.test_definitions).line < span.line
