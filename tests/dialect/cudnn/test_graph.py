"""Graphs are described without a device: operands, nodes, the order of tensors; plans are kept, and
refusals with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from meta.base import config
from meta.base.device import Device
from meta.base.registry import OPERATORS
from meta.dialect.core import IN_PLACE, Unsupported, only
from meta.dialect.core.openv import config_of, config_text
from meta.dialect.cudnn import conv, cudnn, graph, library, plans
from meta.dialect.cudnn.graph import Graph, Operand
from meta.ir import TensorType, parse
from meta.passes import fuse_dialect, inplace_update


class Refused(Exception):
    """What the frontend raises for a graph without a plan."""


PLANS = [
    ("eng7_k2=4", "compiles"), ("eng57_k24=3_k5=1", ""), ("eng57_k24=3_k5=1", ""),
    ("eng1", "refused"), ("INVALID_ENGINE_NAME_CFG", ""), ("eng12_k5=-1", ""), ("eng0", ""),
    ("eng8", "compiles"), ("eng9", "compiles"), ("eng10", "compiles"),
]  # fmt: skip
"""By their names, and whether their kernels are compiled or refused; the second is the default."""


class Tensor:
    """A tensor of a graph that was only described."""

    def __init__(self, **details: Any) -> None:
        self.details = details

    def __getattr__(self, name: str) -> Any:
        def change(value: Any) -> Tensor:
            self.details[name.removeprefix("set_")] = value
            return self

        return change


class Node:
    """A frontend's graph that notes what it is asked for."""

    refuses: str | None = None
    workspace = 0
    made: list[Node] = []  # noqa: RUF012
    plans: list[tuple[str, str]] = []  # noqa: RUF012

    def __init__(self, **options: Any) -> None:
        self.options, self.calls = options, []
        self.tensors: list[Tensor] = []
        Node.made.append(self)

    def tensor(self, **details: Any) -> Tensor:
        self.tensors.append(Tensor(**details))
        return self.tensors[-1]

    def check_support(self) -> None:
        if Node.refuses is not None:
            raise Refused(Node.refuses)

    def serialize(self, as_bytes: bool) -> bytes:
        return b"a plan" if as_bytes else b""

    def get_workspace_size(self) -> int:
        return Node.workspace

    def get_execution_plan_count(self) -> int:
        return len(Node.plans)

    def get_plan_name_at_index(self, index: int) -> str:
        return Node.plans[index][0]

    def get_behavior_notes_for_plan_at_index(self, index: int) -> list[str]:
        return ["RUNTIME_COMPILATION"] if Node.plans[index][1] == "compiles" else ["OTHER"]

    def build_plan_at_index(self, index: int) -> None:
        if Node.plans[index][1] == "refused":
            raise RuntimeError("deselected")
        self.calls.append(("build_plan_at_index", (index,), {}))

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **options: Any) -> Tensor:
            self.calls.append((name, args, options))
            self.tensors.append(Tensor())
            return self.tensors[-1]

        return call


class Names:
    """Enumerations, whose members are their names."""

    def __getattr__(self, name: str) -> str:
        return name


class Frontend:
    data_type = heur_mode = numerical_note = behavior_note = Names()
    build_plan_policy = norm_forward_phase = Names()
    cudnnGraphNotSupportedError = Refused
    backend_graph = Node


@pytest.fixture
def frontend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Node]]:
    """Let graphs be described to `Node`s; the list has those that were made."""
    monkeypatch.setenv("META_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(library, "version", lambda: 90000)
    monkeypatch.setattr(plans, "version", lambda package: "1.32")
    monkeypatch.setattr(plans.torch.cuda, "get_device_name", lambda device: "a chip")
    for module in (graph, plans):
        monkeypatch.setattr(module, "frontend", Frontend)
    monkeypatch.setattr(library, "current", lambda device: 7)
    monkeypatch.setattr(plans.torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(plans.torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(plans, "_plans", type(plans._plans)())
    monkeypatch.setattr(Node, "made", [])
    monkeypatch.setattr(Node, "refuses", None)
    monkeypatch.setattr(Node, "plans", PLANS)
    plans._others.cache_clear()
    yield Node.made
    plans._others.cache_clear()


def geometry(dtype: str = "float16", layout: str = "NHWC", kernel: str = "OHWI") -> Any:
    shapes = {"NHWC": (2, 5, 6, 8), "NCHW": (2, 8, 5, 6)}
    w = {"OHWI": (4, 3, 3, 8), "OIHW": (4, 8, 3, 3)}
    y = {"NHWC": (2, 6, 6, 4), "NCHW": (2, 4, 6, 6)}
    types = tuple(TensorType(s, dtype) for s in (shapes[layout], w[kernel], y[layout]))
    return conv.geometry(types, 1, (1, 1, 2, 1), 1, (layout, kernel, layout))


def test_a_compact_tensor_of_any_layout() -> None:
    x = Operand.compact((2, 5, 6, 8), "float16", "NHWC", "NCHW")
    assert x == Operand((2, 8, 5, 6), (240, 1, 48, 8), "float16")
    assert Operand.compact((3, 0, 2), "float32").strides == (2, 2, 1)


def test_a_convolution_over_one_axis_gets_a_second_one() -> None:
    types = tuple(TensorType(s, "float32") for s in ((2, 10, 8), (4, 8, 3), (2, 4, 4)))
    one = conv.geometry(types, 2, (0, 1), 1, ("NWC", "OIW", "NCW"))
    assert one.x == Operand((2, 8, 1, 10), (80, 1, 80, 8), "float32")
    assert one.w.dims == (4, 8, 1, 3) and one.y.strides == (16, 4, 4, 1)
    assert one.window == {
        "pre_padding": [0, 0],
        "post_padding": [0, 1],
        "stride": [1, 2],
        "dilation": [1, 1],
    }


def test_layouts_differ_in_strides_only() -> None:
    last, first = geometry(), geometry(layout="NCHW", kernel="OIHW")
    assert [o.dims for o in (last.x, last.w, last.y)] == [
        o.dims for o in (first.x, first.w, first.y)
    ]
    assert last.w.strides == (72, 1, 24, 8) and first.w.strides == (72, 9, 3, 1)
    assert last.window == first.window and last.after == (2, 1)


def test_tensors_are_numbered_as_they_are_named(frontend: list[Node]) -> None:
    described = Graph("float16", 7)
    conv._dgrad(described, geometry())
    (node,) = frontend
    assert node.options == {
        "io_data_type": "HALF",
        "intermediate_data_type": "FLOAT",
        "compute_data_type": "FLOAT",
        "handle": 7,
    }
    w, dy, dx = node.tensors
    assert [t.details["uid"] for t in node.tensors] == [1, 2, 3] and described.count == 3
    assert w.details["dim"] == [4, 8, 3, 3] and dx.details["output"] is True
    assert dx.details["stride"] == [240, 1, 48, 8]
    assert node.calls == [("conv_dgrad", (dy, w), geometry().window)]


def test_float64_is_computed_in_float64(frontend: list[Node]) -> None:
    Graph("float64", 7)
    assert frontend[0].options["compute_data_type"] == "DOUBLE"


def test_a_plan_is_built_once(frontend: list[Node]) -> None:
    one = plans.plan(conv._fprop, geometry(), dtype="float16", device=0)
    assert plans.plan(conv._fprop, geometry(), dtype="float16", device=0) is one
    assert plans.plan(conv._fprop, geometry(), dtype="float16", device=1) is not one
    assert len(frontend) == 2


def test_a_refusal_is_kept_with_its_message(frontend: list[Node]) -> None:
    Node.refuses = "no engine\n  takes it"
    for _ in range(2):
        with pytest.raises(Unsupported, match=r"^cuDNN has no plan: no engine takes it$"):
            plans.plan(conv._fprop, geometry(), dtype="float16", device=0)
    assert len(frontend) == 2  # without kernels to be compiled, and with


def test_the_oldest_plan_makes_room(frontend: list[Node], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "LIMIT", 2)
    kept = plans.plan(conv._fprop, geometry(), dtype="float16", device=0)
    plans.plan(conv._dgrad, geometry(), dtype="float16", device=0)
    plans.plan(conv._fprop, geometry(), dtype="float16", device=0)
    plans.plan(conv._wgrad, geometry(), dtype="float16", device=0)
    assert plans.plan(conv._fprop, geometry(), dtype="float16", device=0) is kept
    assert len(plans._plans) == 2 and len(frontend) == 3


@pytest.mark.parametrize("allowed", [False, True])
def test_float32_keeps_its_precision_unless_tf32_is_allowed(
    frontend: list[Node], allowed: bool
) -> None:
    with config.override(META_TF32=allowed):
        run = plans.plan(conv._fprop, geometry("float32"), dtype="float32", device=0)
    asked = [args for name, args, _ in frontend[0].calls if name == "deselect_numeric_notes"]
    assert asked == ([] if allowed else [(["TENSOR_CORE", "DOWN_CONVERT_INPUTS"],)])
    order = [name for name, _, _ in frontend[0].calls]
    assert order.index("create_execution_plans") < order.index("build_plans")
    with config.override(META_TF32=not allowed):
        run()
    assert len(frontend) == 2 and "_execute_with_raw_ptrs" in [c[0] for c in frontend[1].calls]


def test_a_kernel_that_is_there_goes_before_one_to_be_compiled(
    frontend: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    def check_support(self: Node) -> None:
        if "deselect_behavior_notes" in [name for name, _, _ in self.calls]:
            raise Refused("nothing is precompiled")

    plans.plan(conv._fprop, geometry(), dtype="float16", device=0)
    assert len(frontend) == 1
    monkeypatch.setattr(Node, "check_support", check_support)
    plans.plan(conv._dgrad, geometry(), dtype="float16", device=0)
    assert len(frontend) == 3
    # What was compiled is on disk for the next process.
    monkeypatch.setattr(plans, "_plans", type(plans._plans)())
    plans.plan(conv._dgrad, geometry(), dtype="float16", device=0)
    assert len(frontend) == 4 and frontend[3].calls == [("deserialize", (7, b"a plan"), {})]


def test_what_follows_a_convolution_is_one_graph(frontend: list[Node]) -> None:
    conv._describe(Graph("float16", 7), geometry(), True, True)
    (node,) = frontend
    assert [name for name, _, _ in node.calls] == ["conv_fprop", "add", "bias", "relu"]
    x, w, b, _, z, *_, y = node.tensors
    assert [t.details["uid"] for t in (x, w, b, z, y)] == [1, 2, 3, 4, 5]
    assert b.details["dim"] == [1, 4, 1, 1] and z.details["stride"] == y.details["stride"]


BLOCK = """
func @main(%x: float16[2, 5, 6, 8], %w: float16[4, 3, 3, 8], %b: float16[4], %z: {z}) -> {y} {{
  %0: {y} = conv2d(%x, %w, padding=1, layout="NHWC", kernel_layout="OHWI", out_layout="NHWC")
  %1: {y} = bias_add(%0, %b, axis={axis})
  %2: {y} = add(%1, %z)
  %3: {y} = relu(%2)
  return %3
}}"""


@pytest.mark.parametrize(
    ("z", "axis", "fused"),
    [
        ("float16[2, 5, 6, 4]", 3, "conv2d_bias_add_relu"),
        ("float16[2, 5, 6, 4]", -1, "conv2d_bias_add_relu"),
        ("float16[4]", 3, "conv2d_bias"),
    ],
)
def test_which_calls_are_fused(
    frontend: list[Node], monkeypatch: pytest.MonkeyPatch, z: str, axis: int, fused: str
) -> None:
    monkeypatch.setitem(cudnn.__dict__, "unavailable", None)
    y = "float16[2, 5, 6, 4]"
    with only("cudnn"):
        found = fuse_dialect(parse(BLOCK.format(y=y, z=z, axis=axis)), device=Device("cuda:0"))
    assert [f.attrs["kernel"] for f in found.functions.values() if f.attrs] == [fused]


@pytest.mark.parametrize(
    ("dtype", "ends", "read", "expected"),
    [
        ("float16", "relu(%2)", "%0", [3]),
        ("bfloat16", "relu(%2)", "%0", [3]),
        ("float16", "relu(%2)", "%y", []),  # is read later
        ("float16", "%2", "%0", []),  # cuDNN rounds twice
        ("float32", "relu(%2)", "%0", []),
    ],
)
def test_a_sum_is_written_over_what_is_added(
    frontend: list[Node],
    monkeypatch: pytest.MonkeyPatch,
    dtype: str,
    ends: str,
    read: str,
    expected: list[int],
) -> None:
    monkeypatch.setitem(cudnn.__dict__, "unavailable", None)
    y, window = f"{dtype}[2, 5, 6, 4]", 'layout="NHWC", kernel_layout="OHWI", out_layout="NHWC"'
    program = f"""
    func @main(%x: {y}, %w: {dtype}[4, 1, 1, 4], %b: {dtype}[4]) -> {y} {{
      %y: {y} = conv2d(%x, %w, {window})
      %x2: {y} = conv2d(%y, %w, {window})
      %0: {y} = conv2d(%x2, %w, {window})
      %1: {y} = bias_add(%0, %b, axis=3)
      %2: {y} = add(%1, %y)
      %3: {y} = {ends}
      %4: {y} = conv2d(%3, %w, {window})
      %5: {y} = conv2d({read.replace("%0", "%4")}, %w, {window})
      %6: {y} = add(%4, %5)
      return %6
    }}"""
    device = Device("cuda:0")
    with only("cudnn"):
        fused = fuse_dialect(parse(program), device=device)
    found = inplace_update(fused, device=device, least_mib=0.0)
    assert [f.attrs[IN_PLACE] for f in found.functions.values() if IN_PLACE in f.attrs] == expected
    assert not any(
        IN_PLACE in f.attrs for f in inplace_update(fused, device=device).functions.values()
    )


def test_channels_first_are_fused_too(
    frontend: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cudnn.__dict__, "unavailable", None)
    y = "float32[2, 4, 6, 6]"
    program = f"""
    func @main(%x: float32[2, 8, 6, 6], %w: float32[4, 8, 3, 3], %b: float32[4]) -> {y} {{
      %0: {y} = conv2d(%x, %w, padding=1)
      %1: {y} = bias_add(%0, %b)
      %2: {y} = relu(%1)
      return %2
    }}"""
    with only("cudnn"):
        found = fuse_dialect(parse(program), device=Device("cuda:0"))
    assert [f.attrs["kernel"] for f in found.functions.values() if f.attrs] == ["conv2d_bias_relu"]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_kernels_say_what_their_plans_take(
    frontend: list[Node], monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    monkeypatch.setattr(Node, "workspace", 4096)
    image, kernel = TensorType((2, 8, 5, 6), dtype), TensorType((4, 8, 3, 3), dtype)
    y = TensorType((2, 4, 3, 4), dtype)
    found = {
        "conv2d": (image, kernel),
        "conv2d_dw": (image, y, y, (4, 8, 3, 3), 1, 0, 1, 1),
    }
    device = Device("cuda:0")
    for name, args in found.items():
        call = OPERATORS[name].call_values(
            OPERATORS[name].schema.bind(args, {}, lambda t: t), device
        )
        assert cudnn.ops[name].make(call).workspace_bytes == 4096


def configs(*pairs: tuple[str, int]) -> Any:
    return tuple(sorted(pairs))


def test_the_other_plans_of_a_graph_are_configurations(
    frontend: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    env = plans.planned(conv._fprop, geometry(), dtype="float16", device=0)
    assert env.configs is not None
    listed = env.configs.listed()
    assert listed == [(("engine", n),) if n != 7 else configs(("engine", 7), ("k2", 4))
                      for n in (0, 7, 8, 9)]  # fmt: skip
    assert [config_of(config_text(one)) for one in listed] == listed
    before = len(frontend)
    assert env.configs.listed() == listed and len(frontend) == before
    # One that cuDNN has, then one that it compiles, which the next process finds on disk.
    for one, index in ((listed[0], 6), (listed[1], 0)):
        made = env.configured(one)
        calls = [name for name, _, _ in frontend[-1].calls]
        assert ("build_plan_at_index", (index,), {}) in frontend[-1].calls
        assert "build_plans" not in calls and made.config == one
        assert env.configured(one).run is made.run
    monkeypatch.setattr(plans, "_plans", type(plans._plans)())
    env.configured(listed[1])
    assert frontend[-1].calls == [("deserialize", (7, b"a plan"), {})]
    env.configured(listed[0])
    assert ("build_plan_at_index", (6,), {}) in frontend[-1].calls


def test_where_cudnn_has_no_kernel_the_first_that_is_compiled_is_the_default(
    frontend: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Node, "plans", [(f"eng{n}", "compiles") for n in range(9)])
    env = plans.planned(conv._dgrad, geometry(), dtype="float16", device=0)
    assert env.configs is not None
    assert env.configs.listed() == [(("engine", n),) for n in (1, 2, 3)]
    monkeypatch.setattr(Node, "plans", [(f"eng{n}", "") for n in range(20)])
    env = plans.planned(conv._wgrad, geometry(), dtype="float16", device=0)
    assert env.configs is not None and len(env.configs.listed()) == plans.LISTED


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ((("engine", 77),), "no plan engine=77 for this graph"),
        ((("engine", 57),), "no plan engine=57 for this graph"),
        ((("engine", 1),), "cuDNN has no plan: deselected"),
        ((("tile", 3),), "no plan tile=3 for this graph"),
    ],
)
def test_plans_that_are_not_there_are_refused(frontend: list[Node], config: Any, says: str) -> None:
    env = plans.planned(conv._fprop, geometry(), dtype="float16", device=0)
    with pytest.raises(Unsupported, match=says):
        env.configured(config)


def test_a_plan_belongs_to_the_precision_in_which_it_was_found(frontend: list[Node]) -> None:
    env = plans.planned(conv._fprop, geometry("float32"), dtype="float32", device=0)
    made = env.configured((("engine", 0),))
    assert ("build_plan_at_index", (6,), {}) in frontend[-1].calls
    with config.override(META_TF32=True):
        made.run()
    assert "build_plans" in [name for name, _, _ in frontend[-1].calls]


def test_what_wraps_a_kernel_wraps_all_its_configurations(frontend: list[Node]) -> None:
    def wrapper(run: Any) -> Any:
        return lambda *values: run(*values[1:])

    env = plans.planned(conv._fprop, geometry(), dtype="float16", device=0).wrap(wrapper)
    made = env.configured((("engine", 0),))
    made.run("left out")
    _, (_, count, *_), _ = frontend[-1].calls[-1]
    assert count == 0 and frontend[-1].calls[-1][0] == "_execute_with_raw_ptrs"
