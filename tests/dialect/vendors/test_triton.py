"""Kernels of Triton and vendors: generic ones are launched as the vendor states, and those of a
vendor's ``ops/`` run; both by the interpreter on the CPU.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch

import meta
from meta.base import config
from meta.base.device import CPU
from meta.dialect import OpEnv, ask, only, tunable, vendors
from meta.dialect.triton import TritonDialect
from meta.op.core import CallValues
from tests.dialect.vendors.conftest import Write
from tests.registered import remove_dialects

pytest.importorskip("triton")

X = meta.array(torch.randn(3, 70, generator=torch.Generator().manual_seed(0)))


@pytest.fixture
def tested() -> Iterator[TritonDialect]:
    from tests.dialect.triton import kernels

    dialect = TritonDialect("tested")
    kernels.register(dialect)
    yield dialect
    remove_dialects(dialect)


def in_acme() -> object:
    return config.override(META_VENDOR="acme", META_TRITON_INTERPRET=True)


def launched(op: str) -> tuple[dict[str, object], list[object]]:
    """Return what explain says of the kernel of an operator, and its other configurations."""
    with in_acme(), only("tested"):
        explained = meta.explain(getattr(meta, op), X)
        candidate = next(c for c in explained if c.dialect_op.dialect.name == "tested")
        record = next(r for r in explained.records() if r["dialect"] == "tested")
        configs = candidate.env.configs if candidate.env is not None else None
        others = [] if configs is None else [dict(one) for one in configs.listed()]
        assert candidate.env is None or "configured by the" in str(explained)
        return record, others


FILES = {
    "tune_configs.yaml": """
        relu:
          - META: {BLOCK: 16}
            num_warps: 2
          - META: {BLOCK: 256}
            maxnreg: 64
        add:
          - META: {BLOKC: 16}
        """,
    "heuristics_config_utils.py": """
        asked = []

        def block(args):
            asked.append(args["x_size_1"])
            return 256

        HEURISTICS_CONFIGS = {
            "softmax": {"BLOCK": block, "num_warps": lambda args: 8 if args["BLOCK"] > 64 else 4},
            "relu": {},
        }
        """,
}


def test_generic_kernels_take_the_vendors_configurations(
    write: Write, tested: TritonDialect
) -> None:
    vendors.add(write(**described(FILES)))
    own = tested.ops["relu"].make(meta.op.relu.call_values((meta.ir.parse_type("float32[3]"),),
                                                           meta.base.device.CPU))  # fmt: skip
    assert [dict(c)["BLOCK"] for c in own.configs.listed()] == [128, 32]
    record, others = launched("relu")
    assert record["scope"] == "generic" and record["configured_by"] == "vendor acme"
    assert others == [{"BLOCK": 256, "num_warps": 4, "num_stages": 2, "num_ctas": 1, "maxnreg": 64}]
    with in_acme(), only("tested"):
        assert torch.equal(meta.relu(X).torch(), X.torch().relu())


def test_and_its_heuristics(write: Write, tested: TritonDialect) -> None:
    vendors.add(write(**described(FILES)))
    with in_acme(), only("tested"):
        found = meta.softmax(X).torch()
    torch.testing.assert_close(found, torch.softmax(X.torch(), -1))
    assert set(sys.modules["acme.heuristics_config_utils"].asked) == {70}
    record, _ = launched("softmax")
    assert record["configured_by"] == "vendor acme"


def test_what_does_not_fit_is_a_refusal_that_says_where(
    write: Write, tested: TritonDialect
) -> None:
    folder = write(**described(FILES))
    vendors.add(folder)
    with in_acme():
        found = meta.explain(meta.add, X, X)
    reason = next(c.reason for c in found if c.dialect_op.dialect is tested)
    assert f"the vendor acme states at {folder}/tune_configs.yaml:7 how it is launched" in reason
    assert "names what is no parameter: ['BLOKC']" in reason and "'BLOCK'" in reason


def test_makers_that_ask_are_answered_by_the_vendor(write: Write, tested: TritonDialect) -> None:
    seen: list[int] = []

    @tunable
    def maker(call: CallValues) -> OpEnv:
        seen.append(ask("ROWS", 64, (16, 256)))
        return OpEnv(torch.tanh, allocates=True, strided=True)

    tested.op(meta.op.tanh)(maker)
    tested.op(meta.op.sinh)(maker)

    text = "tanh:\n  - META: {ROWS: 16}\nsinh:\n  - META: {ROWS: 17}\n"
    vendors.add(write(**described({"tune_configs.yaml": text})))
    call = meta.op.tanh.call_values((meta.ir.parse_type("float32[3]"),), CPU)
    own = tested.ops["tanh"].make(call)
    assert own.configs is not None and seen == [64]
    assert [dict(c) for c in own.configs.listed()] == [{"ROWS": 16}, {"ROWS": 256}]
    record, others = launched("tanh")
    assert record["configured_by"] == "vendor acme" and seen[-1] == 16
    assert others == [{"ROWS": 64}, {"ROWS": 256}]
    with in_acme():
        made = tested.ops["tanh"].make(call)
        assert made.configs is not None
        other = made.configs.made((("ROWS", 256),))
    assert seen[-1] == 256 and str(other.launch_scope) == "vendor acme"
    with in_acme():
        found = meta.explain(meta.sinh, X)
    reason = next(c.reason for c in found if c.dialect_op.dialect is tested)
    assert "no ROWS=17, only [16, 64, 256]" in reason


OPS = {
    "ops/__init__.py": """
        from .softmax import softmax
        from .silu import silu
        __all__ = ["silu", "softmax"]
        """,
    "ops/silu.py": """
        import triton
        import triton.language as tl
        import torch

        @triton.jit
        def inner(v):
            return v / (1.0 + tl.exp(-v))

        @triton.jit
        def silu_kernel(x, out, n, BLOCK: tl.constexpr):
            at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            value = tl.load(x + at, mask=at < n)
            tl.store(out + at, inner(value), mask=at < n)

        def silu(self):
            x = self.contiguous()
            out = torch.empty_like(x)
            silu_kernel[(triton.cdiv(x.numel(), 32),)](x, out, x.numel(), BLOCK=32)
            return out
        """,
    "ops/softmax.py": """
        import torch
        import triton
        import triton.language as tl
        from flag_gems import runtime
        from flag_gems.runtime import torch_device_fn
        from flag_gems.utils import libentry, libtuner
        from flag_gems.utils import triton_lang_extension as ext

        @libentry()
        @libtuner(configs=runtime.get_tuned_config("softmax_inner"), key=["N"])
        @triton.heuristics(runtime.get_heuristic_config("softmax_inner"))
        @triton.jit
        def kernel(out, x, N, TILE: tl.constexpr, EXTRA: tl.constexpr):
            row = ext.program_id(0)
            at = tl.arange(0, TILE)
            value = tl.load(x + row * N + at, mask=at < N, other=-float("inf"))
            power = tl.exp(value - tl.max(value, axis=0))
            tl.store(out + row * N + at, power / tl.sum(power, axis=0), mask=at < N)

        def softmax(self, dim, half_to_float=False):
            assert dim in (-1, self.ndim - 1)
            x = self.contiguous()
            out = torch.empty_like(x)
            rows = x.numel() // x.shape[-1]
            with torch_device_fn.device(x.device):
                kernel[(rows,)](out, x, x.shape[-1])
            return out
        """,
    "tune_configs.yaml": """
        softmax_inner:
          - META: {EXTRA: 1}
          - META: {EXTRA: 2}
            num_warps: 8
        """,
    "heuristics_config_utils.py": """
        import triton
        HEURISTICS_CONFIGS = {
            "softmax_inner": {"TILE": lambda args: triton.next_power_of_2(args["N"])}
        }
        """,
}


def described(folder_files: dict[str, str]) -> dict[str, str]:
    vendor = 'Vendor("acme", "cpu", dialect="tested")'
    init = f"from meta.dialect.vendors import Vendor\nvendor = {vendor}\n"
    return {"__init__.py": init, **folder_files}


def test_a_vendors_kernels_run_by_the_interpreter(write: Write, tested: TritonDialect) -> None:
    vendors.add(write(**described(OPS)))
    with in_acme(), only("tested"):
        assert meta.explain(meta.softmax, X)[0].dialect_op.scope.vendor == "acme"
        torch.testing.assert_close(meta.softmax(X).torch(), torch.softmax(X.torch(), -1))
        found = meta.silu(X).torch()
    torch.testing.assert_close(found, torch.nn.functional.silu(X.torch()))


def test_without_the_interpreter_they_say_what_to_do(write: Write, tested: TritonDialect) -> None:
    vendors.add(write(**described(OPS)))
    with config.override(META_VENDOR="acme"):
        found = meta.explain(meta.silu, X)
        torch.testing.assert_close(meta.silu(X).torch(), torch.nn.functional.silu(X.torch()))
    assert "META_TRITON_INTERPRET=1" in found[0].reason and found[0].env is None
    with in_acme():
        assert meta.explain(meta.silu, X)[0].env is not None, "that may be decided later"


def test_registrations_on_a_triton_dialect(write: Write, tested: TritonDialect) -> None:
    text = """
        import triton
        import triton.language as tl
        from meta import op
        from meta.dialect.core import DIALECTS

        @DIALECTS["tested"].kernel(
            op.relu, grid=lambda meta: (triton.cdiv(meta["numel"], 64),)
        )
        @triton.jit
        def relu(x, out, numel, BLOCK: tl.constexpr = 64):
            at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            tl.store(out + at, tl.load(x + at, mask=at < numel) * 0 + 5.0, mask=at < numel)

        __all__ = ["relu"]
        """
    files = {"ops/__init__.py": "from .relu import relu\n__all__ = ['relu']\n", "ops/relu.py": text}
    vendors.add(write(**described(files), **{"tune_configs.yaml": FILES["tune_configs.yaml"]}))
    with in_acme(), only("tested"):
        assert (meta.relu(X).torch() == 5).all()
        chosen = meta.explain(meta.relu, X).chosen
        assert chosen.dialect_op.scope.vendor == "acme"
        assert str(chosen.env.launch_scope) == "generic", "it has its own configurations"
