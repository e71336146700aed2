"""A compiled module runs on tensors by name, fills its caller's buffers, and says what does not
fit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import meta
from meta.base import config
from meta.base.device import CPU
from meta.base.errors import ArgumentError, DeviceError, UnknownName
from meta.ir import TensorType, parse, parse_type
from meta.model import trace
from meta.vm.compiler import output_buffers
from meta.vm.compiler.calling_convention import DimRange
from meta.vm.run.signature import Signature
from tests.vm.modules.networks import CASES, MOST, compiled, expected, made


def close(found: Any, wanted: Any) -> None:
    assert found.keys() == wanted.keys()
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_the_model(name: str, dynamic: bool) -> None:
    case = CASES[name]
    model = made(case)
    module = compiled(case, model, dynamic)
    for n in (1, 4, MOST) if dynamic else (3,):
        inputs = case.inputs(n)
        wanted = expected(model, inputs)
        close(module.run_with_tensors(inputs), wanted)
        close(module.run_with_tensors(dict(zip(module.input_names, inputs, strict=True))), wanted)
        exact = {k: torch.full(v.shape, torch.nan) for k, v in wanted.items()}
        found = module.run_with_tensors(inputs, exact)
        close(exact, wanted)
        assert all(found[k].data_ptr() == exact[k].data_ptr() for k in exact)
        largest = [torch.full(module.get_output_maximum_shape(k), 7.0) for k in wanted]
        found = module.run_with_tensors(inputs, largest)
        close(found, wanted)
        for buffer, result in zip(largest, found.values(), strict=True):
            assert result.data_ptr() == buffer.data_ptr()
            assert (buffer.view(-1)[result.numel() :] == 7.0).all()  # nothing else is written


@trace
def of_views(x: Any, y: Any) -> Any:
    total = meta.exp(x) + y
    return total.reshape((6,)), [total.sum(axis=0)], {"x": x, "late": meta.tanh(total)}


def arguments() -> list[torch.Tensor]:
    return [torch.linspace(-1, 1, 6).reshape(2, 3), torch.ones(2, 3)]


def wanted_of_views() -> dict[str, torch.Tensor]:
    x, y = arguments()
    total = x.exp() + y
    return {
        "output_0": total.reshape(6), "output_1.0": total.sum(0),
        "output_2.x": x, "output_2.late": total.tanh(),
    }  # fmt: skip


KINDS: dict[str, Callable[[torch.Tensor], Any]] = {
    "torch": lambda t: t,
    "meta": meta.asarray,
    "numpy": lambda t: t.numpy(),
    "dlpack": lambda t: Exporter(t),
}


class Exporter:
    """What shares its memory by DLPack, and no more."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __dlpack__(self, **options: Any) -> Any:
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()


@pytest.mark.parametrize("dialect", ["torch", "tvm"])
@pytest.mark.parametrize("kind", KINDS)
def test_tensors_of_every_library(kind: str, dialect: str) -> None:
    with meta.dialect.only(dialect):
        module = meta.compile_model(of_views, *arguments())
    assert module.input_names == ["x", "y"]
    close(module.run_with_tensors(list(map(KINDS[kind], arguments()))), wanted_of_views())
    memory = {k: torch.full_like(v, torch.nan) for k, v in wanted_of_views().items()}
    given = {k: KINDS[kind](v) for k, v in memory.items()}
    module.run_with_tensors(list(map(KINDS[kind], arguments())), given)
    close(memory, wanted_of_views())


def test_kernels_fill_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kernel fills is in the buffer at once; the rest is copied, as what is not aligned."""
    taken: list[int] = []
    original = output_buffers.OutputBuffers.use

    def noted(self: Any, into: Any) -> None:
        original(self, into)
        taken.append(len(self.filled.intersection(self.tensors)))

    monkeypatch.setattr(output_buffers.OutputBuffers, "use", noted)
    with meta.dialect.only("tvm"):
        module = meta.compile_model(of_views, *arguments())
    wanted = wanted_of_views()
    buffers = {k: torch.empty_like(v) for k, v in wanted.items()}
    module.run_with_tensors(arguments(), buffers)
    close(buffers, wanted)
    odd = {k: torch.empty(v.numel() + 1)[1:].view(v.shape) for k, v in wanted.items()}
    module.run_with_tensors(arguments(), odd)
    close(odd, wanted)
    some: dict[str, Any] = {**buffers, "output_0": None}
    close(module.run_with_tensors(arguments(), some), wanted)
    assert taken == [3, 0, 2]  # "output_2.x" is an argument


def test_counters_tell_of_what_kernels_write() -> None:
    module = meta.compile_model(of_views, *arguments())
    buffers = [torch.empty_like(v) for v in wanted_of_views().values()]
    before = [b._version for b in buffers]
    module.run_with_tensors(arguments(), buffers)
    assert all(b._version > v for b, v in zip(buffers, before, strict=True))


def test_results_are_apart_from_inputs_and_constants() -> None:
    class Net(meta.Model):
        def build(self) -> None:
            self.w = meta.model.parameter(meta.ones((2, 3)))

        @trace
        def forward(self, x: Any) -> Any:
            return x, self.w, self.w.reshape((6,))

    x = torch.zeros(2, 3)
    module = meta.compile_model(Net().eval(), x)
    found = module.run_with_tensors([x])
    module.set_constant_with_tensor("w", torch.full((2, 3), 5.0))
    x += 1
    assert [float(v.sum()) for v in found.values()] == [0.0, 6.0, 6.0]
    assert [float(v.sum()) for v in module.run_with_tensors([x]).values()] == [6.0, 30.0, 30.0]


@pytest.mark.parametrize("knob", [{"META_DEBUG_NANS": "inf"}, {"META_VERIFY": True}])
def test_it_is_checked_as_any_program(knob: dict[str, Any]) -> None:
    with config.override(**knob):
        module = meta.compile_model(of_views, *arguments())
        buffers = {k: torch.empty_like(v) for k, v in wanted_of_views().items()}
        module.run_with_tensors(arguments(), buffers)
    close(buffers, wanted_of_views())


@trace
def picked(x: Any) -> Any:
    return meta.argwhere(x > 0.0), x.sum()


def test_a_shape_that_depends_on_values() -> None:
    module = meta.compile_model(picked, torch.zeros(4))
    x = torch.tensor([1.0, -1.0, 2.0, 3.0])
    assert module.run_with_tensors([x])["output_0"].tolist() == [[0], [2], [3]]
    buffer = torch.full((4, 1), -1)
    found = module.run_with_tensors([x], [buffer, None])
    assert found["output_0"].shape == (3, 1) and buffer.tolist() == [[0], [2], [3], [-1]]
    with pytest.raises(ArgumentError, match=r"output 'output_0' does not fit along axis 0"):
        module.run_with_tensors([x], [torch.empty(2, 1, dtype=torch.int64), None])
    with pytest.raises(ArgumentError, match="may have any size"):
        module.get_output_maximum_shape("output_0")
    assert module.get_output_maximum_shape(1) == ()


@trace
def shaped(x: Any, y: Any) -> Any:
    both = meta.concat((x, y), axis=0)
    return {"both": both, "pairs": both.reshape((-1, 1)), "square": x @ x.T}


def test_maximum_shapes() -> None:
    types = parse_type("float32[n, 4]"), parse_type("float32[m, 4]")
    module = meta.compile_model(shaped, *types, dims={"n": (2, 5), "m": (1, 3)})
    shapes = {k: module.get_output_maximum_shape(k) for k in module.output_names}
    assert shapes == {"both": (8, 4), "pairs": (32, 1), "square": (5, 5)}
    assert module.get_output_maximum_shape(-1) == (5, 5)
    x, y = torch.randn(3, 4), torch.randn(2, 4)
    buffers = {k: torch.empty(s) for k, s in shapes.items()}
    found = module.run_with_tensors([x, y], buffers)
    both = torch.cat((x, y))
    close(found, {"both": both, "pairs": both.reshape(-1, 1), "square": x @ x.T})
    with pytest.raises(UnknownName, match="no output 'bth'"):
        module.get_output_maximum_shape("bth")
    with pytest.raises(UnknownName, match="no such output"):
        module.get_output_maximum_shape(4)
    with pytest.raises(ArgumentError, match="dimension 'n' has no largest extent"):
        meta.compile_model(shaped, *types, dims={"m": (1, 3)}).get_output_maximum_shape("both")


@pytest.mark.parametrize(
    ("dim", "largest"),
    [
        ("((n + 1) // 2)", 4),
        ("3*n - m + 1", 21),
        ("n*m + 2*n", 35),
        ("m - n", 1),
        ("-2*n + 20", 16),
    ],
)
def test_the_largest_extent_of_a_computed_dimension(dim: str, largest: int) -> None:
    type_ = parse_type(f"float32[{dim}]")
    assert isinstance(type_, TensorType)
    ranges = {"n": DimRange(2, 7), "m": DimRange(1, 3)}
    assert Signature({}, {"y": type_}, ranges, CPU).maximum_shape("y") == (largest,)
    open_ = {"n": DimRange(2, None), "m": DimRange(1, 3)}
    found = Signature({}, {"y": type_}, open_, CPU)
    if dim in ("m - n", "-2*n + 20"):
        assert found.maximum_shape(0) == (largest,)
    else:
        with pytest.raises(ArgumentError, match="'n' has no largest extent"):
            found.maximum_shape("y")


def test_a_module_of_program_text() -> None:
    program = parse(
        "func @main(%a: float32[2], %b: float32[2]) -> ((float32[2],), float32[2]) {\n"
        "  %s: float32[2] = add(%a, %b)\n  %m: float32[2] = multiply(%a, %b)\n"
        "  %t: (float32[2],) = (%s,)\n  return (%t, %m)\n}"
    )
    module = meta.compile_model(program)
    assert module.name == "Module" and module.input_names == ["a", "b"]
    found = module.run_with_tensors({"b": torch.ones(2), "a": torch.full((2,), 3.0)})
    assert {k: v.tolist() for k, v in found.items()} == {
        "output_0_0": [4.0, 4.0], "output_1": [3.0, 3.0],
    }  # fmt: skip


def test_structures_of_inputs() -> None:
    @trace
    def function(batch: Any, pair: Any, factor: float = 2.0) -> Any:
        return (batch["ids"] + batch["mask"]) * factor, pair[0] - pair[1]

    x = torch.ones(2)
    module = meta.compile_model(function, {"ids": x, "mask": x}, (x, x), factor=3.0)
    assert module.input_names == ["batch.ids", "batch.mask", "pair.0", "pair.1"]
    found = module.run_with_tensors([x, 2 * x, 5 * x, x])
    assert [v.tolist() for v in found.values()] == [[9.0, 9.0], [4.0, 4.0]]


def test_control_flow() -> None:
    @trace
    def function(x: Any) -> Any:
        return meta.cond(x.sum() > 0.0, lambda: meta.exp(x), lambda: x * 2.0), x + 1.0

    module = meta.compile_model(function, torch.zeros(3))
    buffers = [torch.empty(3), torch.empty(3)]
    for x in (torch.ones(3), -torch.ones(3)):
        module.run_with_tensors([x], buffers)
        torch.testing.assert_close(buffers[0], x.exp() if x.sum() > 0 else x * 2)
        torch.testing.assert_close(buffers[1], x + 1)


def test_values_of_a_trace_are_refused() -> None:
    seen: list[str] = []

    @trace
    def function(x: Any) -> Any:
        for given in (x, [x]):
            with pytest.raises(ArgumentError, match="values of a trace are not compiled") as caught:
                meta.compile_model(given)
            seen.append(str(caught.value))
        return x

    function(meta.ones(2))
    assert all("compile the function" in message for message in seen) and len(seen) == 2


def test_closing() -> None:
    case = CASES["mlp"]
    with compiled(case, made(case), dynamic=False) as module:
        module.run_with_tensors(case.inputs(3))
        freed = threading.Event()
        meta_executable = module.executable
        import weakref

        weakref.finalize(meta_executable, freed.set)
        del meta_executable
    assert module.closed and freed.is_set() and "closed" in repr(module)
    module.close()
    uses: list[Callable[[], Any]] = [
        lambda: module.run_with_tensors(case.inputs(3)), lambda: module.executable,
        lambda: module.benchmark_with_tensors(case.inputs(3)), lambda: module.profile([]),
        lambda: module.set_many_constants({}), lambda: module.get_output_maximum_shape(0),
        lambda: module.save("nowhere"), lambda: module.constant_names, module.__enter__,
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(ArgumentError, match="module 'MLP' is closed"):
            use()


def test_two_threads() -> None:
    case = CASES["mlp"]
    model = made(case)
    module = compiled(case, model, dynamic=True)
    failures: list[str] = []

    def work(n: int) -> None:
        inputs = case.inputs(n)
        wanted = expected(model, inputs)
        buffers = {k: torch.empty(module.get_output_maximum_shape(k)) for k in wanted}
        for i in range(60):
            found = module.run_with_tensors(inputs, buffers if i % 2 else None)
            if not all(torch.allclose(found[k], wanted[k], atol=1e-5) for k in wanted):
                failures.append(f"{n} at {i}")

    threads = [threading.Thread(target=work, args=(n,)) for n in (2, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_benchmark_leaves_no_trace() -> None:
    class Counts(meta.Model):
        def build(self) -> None:
            self.count = meta.zeros(())

        @trace
        def forward(self, x: Any) -> Any:
            self.count = self.count + 1.0
            return x + self.count

    model = Counts()
    module = meta.compile_model(model, torch.zeros(2))
    buffer = torch.empty(2)
    found = module.benchmark_with_tensors([torch.zeros(2)], [buffer], count=3, repeat=2, warmup=1)
    assert float(model.count) == 0.0 and buffer.tolist() == [7.0, 7.0]
    assert found.count == 3 and len(found.times) == 2 and 0 < found.mean and found.spread >= 0
    assert found.record()["peak_bytes"] == module.executable.memory().peak
    assert found.measured_bytes is None and "a call on cpu" in str(found)
    with pytest.raises(ArgumentError, match=r"a benchmark needs a call"):
        module.benchmark_with_tensors([torch.zeros(2)], count=0)
    module.run_with_tensors([torch.zeros(2)])
    assert float(model.count) == 1.0


def test_a_device_that_is_not_there() -> None:
    with pytest.raises((DeviceError, ArgumentError)):
        meta.compile_model(made(CASES["mlp"]), *CASES["mlp"].inputs(3), target="cuda:63")
