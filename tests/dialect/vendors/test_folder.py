"""Folders of vendors: what is in them is used without another edit, and errors name the line."""

from __future__ import annotations

import platform
import re
import sys
import textwrap
import threading
from pathlib import Path

import pytest

import meta
from meta.base import config
from meta.base.device import CPU
from meta.base.errors import FormatError, MetaWarning, RegistrationError, UnknownName
from meta.cli.main import main
from meta.dialect import Dialect, only, vendors
from meta.dialect.core.scope import LaunchSettings, launch_settings
from tests.dialect.vendors.conftest import DESCRIBED, Write

X = meta.array([[-1.0, 2.0, 3.0]])
MACHINE = platform.machine()
RELU = """
    def relu(self):
        return self * 0 + {value}
    __all__ = ["relu"]
    """


def relu(value: float) -> str:
    return RELU.format(value=value)


def use(folder: Path) -> None:
    vendors.add(folder)


@pytest.fixture(autouse=True)
def chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("META_VENDOR", "")


def value() -> float:
    with config.override(META_VENDOR="acme"):
        return meta.relu(X).numpy()[0, 0].item()


def test_a_folder_is_picked_up_without_another_edit(write: Write, chips: Dialect) -> None:
    folder = write(**{"ops/__init__.py": relu(7.0)})
    before = set(sys.modules)
    use(folder)
    assert value() == 7.0
    with config.override(META_VENDOR="acme"):
        explained = meta.explain(meta.relu, X)
        assert "accepts, kernel of the vendor acme" in str(explained)
        assert str(explained.chosen.dialect_op.site).startswith(str(folder))
        compiled = meta.vm.compile(meta.model.trace(lambda x: meta.relu(x)), X)
        assert compiled.kernels() == {"chips.relu": 1}
        assert compiled(X).numpy()[0, 0] == 7.0
    assert meta.relu(X).numpy()[0, 0] == 0.0, "not in force"
    added = {name for name in set(sys.modules) - before if not name.startswith("meta.")}
    assert "backend_utils" not in added and not any(n.startswith("flag_gems") for n in added)
    vendors.remove("acme")
    assert "relu" not in chips.ops and "acme" not in sys.modules


FLAG_GEMS = {
    "__init__.py": """
        from backend_utils import VendorInfoBase

        vendor_info = VendorInfoBase(
            vendor_name="acme", device_name="cpu", device_query_cmd="true", fp64_enabled=False
        )
        ARCH_MAP = {MACHINE: "fast"}
        CUSTOMIZED_UNUSED_OPS = ("exp",)
        __all__ = ["*"]
        """,
    "heuristics_config_utils.py": """
        def block(args):
            return 256 if args["N"] > 128 else 128

        HEURISTICS_CONFIGS = {"softmax": {"BLOCK": block}}
        """,
    "tune_configs.yaml": """
        softmax:
          - META:
              BLOCK: 128
            num_warps: 8
          - META:
              BLOCK: 256
        gelu:
          - gen: true
            param_map:
              META:
                BLOCK: blocks
              num_warps: warps
            blocks: [64, 128]
            warps: [2]
        """,
    "utils/__init__.py": "SCALE = 1.0\n",
    "ops/__init__.py": """
        from .exp import exp
        from .gelu import gelu, gelu_

        __all__ = ["exp", "gelu", "gelu_"]
        """,
    "ops/exp.py": "def exp(A):\n    raise AssertionError('unused')\n",
    "ops/gelu.py": """
        import torch
        import triton
        import triton.language as tl
        from _acme.utils import SCALE
        from flag_gems import runtime
        from flag_gems.runtime import device, torch_device_fn
        from flag_gems.utils import libentry, libtuner, tl_extra_shim
        from flag_gems.utils import triton_lang_extension as ext

        assert not device.support_fp64 and device.vendor_name == "acme"
        blocks = [c.kwargs["BLOCK"] for c in runtime.get_tuned_config("gelu")]
        block = runtime.get_heuristic_config("softmax")["BLOCK"]

        def gelu(A, *, approximate="none"):
            with torch_device_fn.device(A.device):
                return torch.full_like(A, float(sum(blocks) + block({"N": 1000})) * SCALE)

        def gelu_(A, *, approximate="none"):
            return A
        """,
    "fast/__init__.py": "",
    "fast/tune_configs.yaml": "softmax:\n  - META: {BLOCK: 512}\n",
    "fast/ops/__init__.py": """
        def tanh(self):
            return self * 0 + 9.0

        __all__ = ["tanh"]
        """,
}


def test_flag_gems_layout_works_unchanged(write: Write, chips: Dialect) -> None:
    pytest.importorskip("triton")
    files = {name: text.replace("MACHINE", repr(MACHINE)) for name, text in FLAG_GEMS.items()}
    folder = write("_acme", **files)
    # The words of FlagGems have none for the dialect: theirs is Triton's.
    text = (folder / "__init__.py").read_text("utf-8") + (
        "import dataclasses\nvendor_info = dataclasses.replace(vendor_info, dialect='chips')\n"
    )
    (folder / "__init__.py").write_text(text, "utf-8")
    use(folder)
    assert meta.gelu(X).numpy()[0, 0] == 64 + 128 + 256
    assert meta.tanh(X).numpy()[0, 0] == 9.0
    scopes = {r["dialect"]: r["scope"] for r in meta.explain(meta.tanh, X).records()}
    assert scopes["chips"] == "architecture acme/fast"
    assert abs(meta.exp(X).numpy()[0, 0] - 0.36787945) < 1e-6, "among CUSTOMIZED_UNUSED_OPS"
    wide = X.astype("float64")
    assert meta.explain(meta.gelu, wide)[0].reason == "acme has no float64"
    own, of_vendor = vendors.files_on(CPU)
    assert (own.scope.architecture, own.functions) == ("fast", ("tanh",))
    assert (of_vendor.functions, of_vendor.other_forms) == (("gelu",), ("gelu_",))
    assert "flag_gems" not in sys.modules and "backend_utils" not in sys.modules


def test_configurations_and_heuristics_are_the_most_specific_ones(
    write: Write, chips: Dialect
) -> None:
    more = f'architectures={{{MACHINE!r}: "fast"}}'
    use(
        write(
            more=more,
            **{
                "tune_configs.yaml": "\na:\n  - META: {B: 1}\nb:\n  - META: {B: 2}\n",
                "heuristics_config_utils.py": "HEURISTICS_CONFIGS = {'a': {'E': lambda args: 3}}\n",
                "fast/__init__.py": "",
                "fast/tune_configs.yaml": "b:\n  - META: {B: 4}\n    num_warps: 1\n",
            },
        )
    )
    assert launch_settings("a", CPU) == LaunchSettings()
    with config.override(META_VENDOR="acme"):
        a, b, c = (launch_settings(name, CPU) for name in "abc")
    assert (a.configs[0]["kwargs"], str(a.configs_of)) == ({"B": 1}, "vendor acme")
    assert a.heuristics["E"]({}) == 3 and str(a.heuristics_of) == "vendor acme"
    assert str(a.place).endswith("tune_configs.yaml:2")
    assert (b.configs[0]["kwargs"], b.configs[0]["num_warps"]) == ({"B": 4}, 1)
    assert str(b.scope) == "architecture acme/fast" and not b.heuristics
    assert c == LaunchSettings()


def test_nothing_comes_from_another_vendor(write: Write, chips: Dialect) -> None:
    use(write("bolt", **{"tune_configs.yaml": "a:\n  - META: {B: 1}\n"}))
    asks = """
        from meta.dialect.vendors import get_tuned_config
        get_tuned_config("a")
        __all__ = []
        """
    use(write(**{"ops/__init__.py": asks, "tune_configs.yaml": "aa:\n  - META: {B: 2}\n"}))
    with pytest.raises(UnknownName, match="'acme' has no configurations of 'a'") as caught:
        value()
    assert "did you mean 'aa'?" in str(caught.value)
    with pytest.raises(UnknownName, match="outside of the folder"):
        vendors.get_heuristic_config("a")


def test_registrations_on_a_dialect_are_the_vendors(write: Write, chips: Dialect) -> None:
    text = """
        import meta
        from meta.dialect.core import DIALECTS
        chips = DIALECTS["chips"]

        @chips.kernel(meta.op.relu, when=lambda call: "never" if call.args.x.ndim == 1 else None)
        def relu(x):
            return x * 0 + 5.0

        __all__ = ["relu"]
        """
    use(write(**{"ops/__init__.py": text}))
    assert value() == 5.0
    with config.override(META_VENDOR="acme"):
        assert meta.explain(meta.relu, meta.ones(2))[0].reason == "never"
    with only("chips"), pytest.raises(meta.errors.DispatchError):
        meta.relu(X)


ERRORS = [
    ("ops/__init__.py", "__all__ = 3\n", "no list of names", 1),
    ("ops/__init__.py", "\n1 / 0\n", "cannot be imported", 2),
    ("tune_configs.yaml", "- a\n", "is no mapping", 1),
    ("heuristics_config_utils.py", "HEURISTICS_CONFIGS = 3\n", "is no mapping", 1),
    ("heuristics_config_utils.py", 'HEURISTICS_CONFIGS = {"a": {"B": 3}}\n', "no functions", 1),
    ("heuristics_config_utils.py", "\n1 / 0\n", "ZeroDivisionError", 2),
]


@pytest.mark.parametrize(("file", "text", "what", "line"), ERRORS)
def test_what_is_wrong_is_said_each_time(
    file: str, text: str, what: str, line: int | None, write: Write, chips: Dialect
) -> None:
    folder = write(**{file: text})
    use(folder)
    for _ in range(2):
        with pytest.raises(FormatError) as caught:
            value()
        said = str(caught.value)
        assert what in caught.value.what, said
        assert line is None or f"{folder / file}:{line}\n" in f"{said}\n", said
    assert meta.relu(X).numpy()[0, 0] == 0.0, "what is not in force does no harm"


OPS = "from .relu import relu\nfrom .exp import exp\n__all__ = ['relu', 'exp']\n"
UNAVAILABLE = [
    ("import torch_acme\n", "needs torch_acme, which is not here", 1),
    ("import torch\nhas = torch.acme.cores()\n", "needs torch.acme, which is not here", None),
    ("from flag_gems.ops.max import max_kernel_1\n", "needs flag_gems.ops.max.max_kernel_1", 1),
    ("from flag_gems.utils import nothing\n", "needs flag_gems.utils.nothing, which", 1),
    ("import flag_gems.nothing\n", "needs flag_gems.nothing, which meta does not have", 1),
    ("from ..exotic import CORES\n", "needs triton_acme, which is not here", None),
    ("from flag_gems.runtime.backend._state import x\n", "needs flag_gems.runtime.backend._s", 1),
    ("import triton\ntriton.autotune([], [], cores=2)\n", "needs another Triton", None),
    ("from flag_gems.runtime import get_tuned_config\nget_tuned_config('b')\n", "no conf", 2),
    ("from flag_gems.runtime import get_tuned_config\nget_tuned_config('mm')\n", "'ld'", None),
    ("1 / 0\n", "ZeroDivisionError", 1),
    ("3 +\n", "SyntaxError", None),
]


@pytest.mark.parametrize(("text", "why", "line"), UNAVAILABLE)
def test_what_a_file_lacks_makes_its_functions_unavailable_and_no_other(
    text: str, why: str, line: int | None, write: Write, chips: Dialect
) -> None:
    pytest.importorskip("triton")
    folder = write(
        **{
            "ops/__init__.py": OPS,
            "ops/relu.py": text + textwrap.dedent(RELU.format(value=7.0)),
            "ops/exp.py": "def exp(A):\n    return A * 0 + 5.0\n",
            "exotic/__init__.py": "import triton_acme\nCORES = triton_acme.cores()\n",
            "tune_configs.yaml": "mm:\n  - META: {B: 1}\n    ld: 3\n",
        }
    )
    use(folder)
    assert value() == 0.0
    with config.override(META_VENDOR="acme"):
        assert meta.exp(X).numpy()[0, 0] == 5.0
        refused = meta.explain(meta.relu, X)[0]
        assert refused.dialect_op.scope.vendor == "acme" and refused.env is None
        assert refused.reason.startswith("relu is not available") and why in refused.reason
        (files,) = vendors.files_on(CPU)
    assert files.functions == ("exp",) and why in files.unavailable["relu"].what
    said = str(files.unavailable["relu"])
    assert line is None or f"relu.py:{line}\n" in f"{said}\n", said


def test_functions_that_no_operator_has_or_that_are_called_otherwise(
    write: Write, chips: Dialect, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """
        __all__ = ["softmx", "softmax", "nothing", "relu", "tanh"]
        def softmx(self): return self
        def softmax(self): return self
        relu = 3
        def tanh(self): return self * 0 + 2.0
        """
    use(write(**{"ops/__init__.py": text}))
    with config.override(META_VENDOR="acme"):
        assert meta.tanh(X).numpy()[0, 0] == 2.0
        (files,) = vendors.files_on(CPU)
        assert main(["env"]) == 0
    why = {name: error.what for name, error in files.unavailable.items()}
    assert "no operator of meta has the name of 'softmx'" in why["softmx"]
    assert "does not take ATen's arguments" in why["softmax"]
    assert "'nothing' of __all__ is not there" in why["nothing"]
    assert "'relu' of __all__ is no function" in why["relu"]
    said = capsys.readouterr().out
    assert "functions of vendors that are not available" in said and "'softmx'" in said


def test_a_star_lists_all_public_functions(write: Write, chips: Dialect) -> None:
    use(
        write(
            **{
                "__init__.py": DESCRIBED.format(name="acme", more="") + "from .ops import *",
                "ops/__init__.py": "from .relu import *\n__all__ = ['*']\n",
                "ops/relu.py": "import torch\nfrom math import prod\n"
                + textwrap.dedent(RELU.format(value=6.0)).replace("__all__", "_all"),
            }
        )
    )
    assert value() == 6.0
    with config.override(META_VENDOR="acme"):
        (files,) = vendors.files_on(CPU)
    assert files.functions == ("relu",) and not files.unavailable


def test_a_vendor_of_an_unknown_dialect(write: Write) -> None:
    use(write(**{"ops/__init__.py": relu(1.0)}))
    with pytest.raises(UnknownName, match="no dialect named 'chips'"):
        value()


def test_one_operator_by_two_functions_that_each_take_some_calls(
    write: Write, chips: Dialect
) -> None:
    text = """
        def sum(self, *, dtype=None):
            return self.sum() * 0 + 1.0
        def sum_dim(self, dim=None, keepdim=False, *, dtype=None):
            return self.sum(dim, keepdim) * 0 + 2.0
        __all__ = ["sum", "sum_dim"]
        """
    use(write(**{"ops/__init__.py": text}))
    with config.override(META_VENDOR="acme"):
        assert meta.sum(X).item() == 1.0
        assert meta.sum(X, axis=1).numpy().tolist() == [2.0]


def test_threads_wait_until_a_folder_is_read(write: Write, chips: Dialect) -> None:
    use(write(**{"ops/__init__.py": "import time\ntime.sleep(0.2)\n" + textwrap.dedent(relu(4.0))}))
    found = []
    threads = [threading.Thread(target=lambda: found.append(value())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [4.0] * 4


def test_a_folder_may_call_meta_while_it_is_read(write: Write, chips: Dialect) -> None:
    text = "import meta\nassert meta.relu(meta.ones(3)).shape == (3,)\n"
    use(write(**{"ops/__init__.py": text + textwrap.dedent(relu(4.0))}))
    assert value() == 4.0


def test_two_functions_for_one_operator_and_scope(write: Write, chips: Dialect) -> None:
    text = """
        import meta
        from meta.dialect.core import DIALECTS

        @DIALECTS["chips"].kernel(meta.op.relu)
        def mine(x):
            return x

        def relu(self):
            return self
        __all__ = ["relu"]
        """
    use(write(**{"ops/__init__.py": text}))
    with pytest.raises(RegistrationError, match=r"implements 'chips\.relu' twice") as caught:
        value()
    assert re.search(r"ops/__init__.py:9 and .*:5", str(caught.value))


@pytest.mark.parametrize("text", ["import nothing_of_this_name", "exit(3)", "3 +", "1 / 0"])
def test_an_init_that_raises_or_exits(text: str, write: Write, chips: Dialect) -> None:
    folder = write(**{"__init__.py": f"\n{text}\n"})
    what = "does not describe a vendor: needs" if "import" in text else "cannot be imported"
    with pytest.raises(FormatError, match=what) as caught:
        vendors.add(folder)
    assert f"{folder / '__init__.py'}:2\n" in f"{caught.value}\n"
    with config.override(META_VENDOR=str(folder)), pytest.raises(FormatError, match=what):
        meta.relu(X)
    assert meta.relu(X).numpy()[0, 0] == 0.0 and "acme" not in sys.modules


@pytest.mark.parametrize("text", ["exit(3)", "raise ImportError('libacme.so')", "__all__ = 3"])
def test_a_vendor_that_answers_and_is_wrong_stops_nobody(
    text: str, write: Write, chips: Dialect, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its files are wrong, and nobody named it: calls go on without it."""
    use(write(more='query_command="true"', **{"ops/__init__.py": f"{text}\n"}))
    with pytest.warns(MetaWarning, match="the vendor 'acme' is left out") as said:
        assert meta.relu(X).numpy()[0, 0] == 0.0
    assert len(said) == 1 and "ops/__init__.py:1" in str(said[0].message)
    assert meta.exp(X).shape == X.shape  # and says so once
    assert main(["env"]) == 0 and "its files cannot be used" in capsys.readouterr().out
    with config.override(META_VENDOR="acme"), pytest.raises(FormatError):
        meta.relu(X)


TUNED = """
    import torch
    import triton
    import triton.language as tl
    from flag_gems import runtime

    @triton.autotune(configs=runtime.get_tuned_config("relu"), key=["n"])
    @triton.jit
    def kernel(x, out, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, mask=at < n) + BLOCK, mask=at < n)

    def relu(self):
        out = torch.empty_like(self)
        grid = lambda meta: (triton.cdiv(self.numel(), meta["BLOCK"]),)
        kernel[grid](self, out, self.numel())
        return out

    __all__ = ["relu"]
    """


def test_a_folder_that_is_read_before_its_kernels_are_interpreted(
    write: Write, chips: Dialect
) -> None:
    triton = pytest.importorskip("meta.dialect.triton")
    yaml = "relu:\n  - META: {BLOCK: 64}\n  - META: {BLOCK: 128}\n"
    use(write(**{"ops/__init__.py": TUNED, "tune_configs.yaml": yaml}))
    with config.override(META_VENDOR="acme"):
        assert "META_TRITON_INTERPRET" in str(meta.explain(meta.relu, X)), "read, and declined"
    for _ in range(2):
        with triton.interpreted():
            assert value() == 63.0  # in the first configuration: nothing is timed
