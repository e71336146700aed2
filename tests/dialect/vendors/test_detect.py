"""Which vendor is in force, and why: by the rule of `meta/dialect/vendors/detect.py`."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import meta
from meta.base import config
from meta.base.errors import ArgumentError, DeviceError, FormatError, RegistrationError, UnknownName
from meta.cli.main import main
from meta.dialect import vendors
from meta.dialect.vendors import Vendor, detect, registry
from meta.dialect.vendors.idioms import spoken
from tests.dialect.vendors.conftest import Write


def known(*stated: Vendor) -> None:
    for vendor in stated:
        registry._register(registry.Known(vendor.name, vendor))


def verdict(name: str) -> detect.Verdict:
    return next(v for v in vendors.verdicts() if v.known.name == name)


def in_force(kind: str = "cpu") -> str | None:
    found = vendors.active(kind)
    return None if found is None else found.name


def here() -> None:
    """A probe that finds its chip."""


def test_no_vendor_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert (in_force("cpu"), in_force("cuda"), vendors.verdicts()) == (None, None, [])
    meta.relu(meta.ones(2))
    main(["env"])
    assert "\nvendors\n" not in capsys.readouterr().out


def test_without_a_device_nobody_is_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    known(Vendor("acme", "cuda"), Vendor("bolt", "cuda", query_command="false"))
    assert in_force("cuda") is None
    assert verdict("acme").why == "torch has no device cuda"
    assert verdict("bolt").why == "'false' ends with status 1"
    meta.relu(meta.ones(2))


def test_a_probe_goes_before_the_device_and_that_before_a_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(detect, "is_in_torch", lambda kind: True)
    known(Vendor("a_device", "cuda", query_command="true"), Vendor("z_probed", "cuda", probe=here))
    assert in_force("cuda") == "z_probed"
    assert "z_probed comes before it" in verdict("a_device").why
    known(Vendor("a_refuses", "cuda", probe=lambda: "another chip", query_command="true"))
    assert in_force("cuda") == "z_probed"
    assert (verdict("a_refuses").here, verdict("a_refuses").why) == (False, "another chip")
    monkeypatch.setattr(detect, "is_in_torch", lambda kind: False)
    detect._verdicts.clear()
    vendors.remove("z_probed")
    assert in_force("cuda") == "a_device", "its command answers where torch has no device"


def test_two_that_both_answer_a_command_breaks_the_tie_and_then_the_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(detect, "is_in_torch", lambda kind: True)
    known(Vendor("acme", "cuda", query_command="false"), Vendor("bolt", "cuda"))
    assert in_force("cuda") == "acme", "by name"
    known(Vendor("zinc", "cuda", query_command="true"))
    assert in_force("cuda") == "zinc"
    assert verdict("zinc").why == (
        "torch has the device cuda, and its query command succeeds; before acme, bolt"
    )
    assert [v.here for v in vendors.verdicts()] == [True] * 3
    known(Vendor("yard", "cuda", query_command="true"))
    assert in_force("cuda") == "yard"
    assert verdict("yard").why.endswith("; before zinc, acme, bolt by name")
    capsys.readouterr()
    main(["env"])
    said = capsys.readouterr().out
    assert "yard  on cuda  in force" in said and "zinc  on cuda  here" in said


def test_that_there_is_a_cpu_does_not_say_whose(capsys: pytest.CaptureFixture[str]) -> None:
    known(Vendor("acme", "cpu"))
    assert in_force() is None and "META_VENDOR" in verdict("acme").why
    known(Vendor("bolt", "cpu", query_command="true"))
    assert (in_force(), in_force("cuda")) == ("bolt", None)
    with config.override(META_VENDOR="acme"):
        assert in_force() == "acme"
        assert verdict("bolt").why == "META_VENDOR is acme"
        assert verdict("acme").why == "named in META_VENDOR"
    with config.override(META_VENDOR="none"):
        assert in_force() is None


def test_an_unknown_vendor_lists_the_choices(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("META_VENDOR", "amce")
    with pytest.raises(UnknownName, match="no vendor 'amce'") as caught:
        meta.relu(meta.ones((2, 7)))
    assert "no vendor is installed" in str(caught.value)
    known(Vendor("acme", "cpu"), Vendor("bolt", "cpu"))
    with pytest.raises(UnknownName) as caught:
        vendors.active("cpu")
    said = str(caught.value)
    assert "expected: one of acme, bolt, or none" in said and "did you mean 'acme'?" in said
    main(["env"])
    assert "there is no vendor 'amce'; one of acme, bolt, or none" in capsys.readouterr().out
    monkeypatch.delenv("META_VENDOR")


def test_a_device_that_torch_does_not_have() -> None:
    known(Vendor("acme", "npu", query_command="true"))
    assert verdict("acme").why == "torch has no device npu: import the package that brings it"
    with config.override(META_VENDOR="acme"), pytest.raises(DeviceError, match="does not have"):
        vendors.verdicts()


def test_what_hangs_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "SECONDS", 0.2)
    known(
        Vendor("acme", "cpu", probe=lambda: time.sleep(60)),
        Vendor("bolt", "cpu", query_command="sleep 60"),
        Vendor("clay", "cpu", query_command="true"),
    )
    start = time.monotonic()
    assert in_force() == "clay"
    assert time.monotonic() - start < 10
    assert verdict("acme").why == "its probe did not answer within 0.2 s"
    assert verdict("bolt").why == "its query command 'sleep 60' did not end within 0.2 s"


def test_what_fails_refuses() -> None:
    def fails() -> str | None:
        raise OSError("no driver")

    known(
        Vendor("acme", "cpu", probe=fails),
        Vendor("bolt", "cpu", query_command="there-is-no-such-command"),
        Vendor("clay", "cpu", query_command="'"),
    )
    assert in_force() is None
    assert verdict("acme").why == "its probe fails: OSError: no driver"
    for name in ("bolt", "clay"):
        assert "cannot be run" in verdict(name).why


def test_what_a_vendor_states_is_checked() -> None:
    with pytest.raises(RegistrationError, match="a vendor's name is a word"):
        Vendor("none", "cpu")
    with pytest.raises(RegistrationError, match="states no device"):
        Vendor("acme", "")
    with pytest.raises(ArgumentError, match="unknown dtype") as caught:
        Vendor("acme", "cpu", dtypes=("float23",))
    assert "'float32'" in str(caught.value)
    with pytest.raises(ArgumentError, match="unknown limit"):
        Vendor("acme", "cpu", limits={"elephants": 3})
    assert (Vendor("a", "cuda").dispatch_key, Vendor("a", "cuda").triton_extra) == ("CUDA", "cuda")


def test_flag_gems_words_for_a_vendor() -> None:
    with spoken():
        from backend_utils import VendorDescriptor, VendorInfoBase  # type: ignore[import-not-found]
    made = VendorInfoBase(
        vendor_name="acme", device_name="npu", device_query_cmd="npu-smi", fp64_enabled=False,
        bf16_enabled=False, int64_enabled=False, dispatch_key="PrivateUse1",
        triton_extra_name="cann",
    )  # fmt: skip
    assert (made.name, made.device, made.query_command) == ("acme", "npu", "npu-smi")
    assert (made.dispatch_key, made.triton_extra) == ("PrivateUse1", "cann")
    lacking = {"float64", "complex128", "bfloat16", "int64", "uint64"}
    assert made.dtypes is not None and not lacking & set(made.dtypes)
    assert VendorDescriptor("acme", "cuda", "").dtypes is None


def test_a_folder_is_added_once_and_described(write: Write, tmp_path: Path) -> None:
    folder = write()
    assert vendors.add(folder) is vendors.add(str(folder))
    assert verdict("acme").known.folder == folder
    with pytest.raises(RegistrationError, match="'acme' is there twice"):
        vendors.add(write("other", **{"__init__.py": (folder / "__init__.py").read_text("utf-8")}))
    with pytest.raises(FormatError, match="not the folder of a vendor"):
        vendors.add(tmp_path / "nowhere")
    with pytest.raises(FormatError, match="does not describe a vendor") as caught:
        vendors.add(write("empty", **{"__init__.py": "vendor = 3"}))
    assert "found:    int" in str(caught.value)
    with pytest.raises(FormatError, match=r"cannot be imported: ZeroDivisionError"):
        vendors.add(write("broken", **{"__init__.py": "1 / 0"}))


def test_the_knob_takes_a_path(write: Write) -> None:
    with config.override(META_VENDOR=str(write("bolt"))):
        assert in_force() == "bolt"


def test_architectures_are_found_by_what_a_device_says(monkeypatch: pytest.MonkeyPatch) -> None:
    from meta.base.device import Device
    from meta.dialect.vendors.folder import architecture_of

    said = SimpleNamespace(major=9, minor=4, gcnArchName="gfx942:sramecc+")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda ordinal: said)

    def found(**names: str) -> str:
        listed = {name.removeprefix("v").replace("_", "."): to for name, to in names.items()}
        return architecture_of(Vendor("acme", "cuda", architectures=listed), Device("cuda"))

    assert found(v9="hopper", v9_4="later", gfx942="cdna") == "cdna"
    assert found(v9="hopper", v9_4="later") == "later"
    assert found(v9="hopper", v8="ampere") == "hopper"
    assert found(v8="ampere") == ""
