"""Compiled modules on an NVIDIA GPU: buffers, CUDA graphs, weights, streams, saved modules."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import meta
from meta import amp
from meta.base.errors import ArgumentError, DeviceError
from meta.model import trace
from tests.vm.modules.networks import CASES, MOST, compiled, expected, made
from tests.vm.modules.test_constants import others

pytestmark = pytest.mark.cuda
DEVICE = "cuda"


def on_gpu(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [t.to(DEVICE) for t in tensors]


def module_of(name: str, dynamic: bool = False, **options: Any) -> tuple[Any, Any, Any]:
    """Return a network on the GPU, its module, and the same network on the CPU."""
    case = CASES[name]
    model, other = made(case), made(case)
    model.to(device=DEVICE)
    if dynamic:
        return model, compiled(case, model, True, target=DEVICE, **options), other
    module = meta.compile_model(model, *on_gpu(case.inputs(3)), target=DEVICE, **options)
    return model, module, other


def close(found: Any, wanted: Any, tolerance: float = 2e-3) -> None:
    assert found.keys() == wanted.keys()
    for name in wanted:
        assert found[name].is_cuda
        torch.testing.assert_close(
            found[name].cpu().float(), wanted[name].float(), rtol=tolerance, atol=tolerance
        )


@pytest.mark.parametrize("cuda_graph", [None, False], ids=["graphs", "no graphs"])
@pytest.mark.parametrize("name", CASES)
def test_buffers_are_filled_at_every_call(name: str, cuda_graph: bool | None) -> None:
    """The first call runs kernel by kernel, the second is recorded, others are replayed."""
    _, module, other = module_of(name, cuda_graph=cuda_graph)
    inputs = CASES[name].inputs(3)
    wanted = expected(other, inputs)
    sets = [
        {k: torch.full(v.shape, torch.nan, device=DEVICE) for k, v in wanted.items()}
        for _ in range(6)
    ]
    for buffers in sets:
        found = module.run_with_tensors(on_gpu(inputs), buffers)
        assert all(found[k].data_ptr() == buffers[k].data_ptr() for k in found)
    for buffers in sets:  # a graph that is replayed writes to none of them
        close(buffers, wanted)
    close(module.run_with_tensors(on_gpu(inputs)), wanted)


def test_a_graph_does_not_keep_a_buffer() -> None:
    """What was given while a graph was recorded is not written by a later replay."""
    _, module, _ = module_of("gpt2", cuda_graph=True)
    inputs = on_gpu(CASES["gpt2"].inputs(3))
    shape = module.get_output_maximum_shape(0)
    buffers = [torch.empty(shape, device=DEVICE) for _ in range(3)]
    for buffer in buffers:
        module.run_with_tensors(inputs, [buffer])
    for buffer in buffers:
        buffer.fill_(7.0)
    module.run_with_tensors(inputs)
    module.run_with_tensors(inputs, [torch.empty(shape, device=DEVICE)])
    torch.cuda.synchronize()
    assert all(bool((b == 7.0).all()) for b in buffers)


@pytest.mark.parametrize("name", CASES)
def test_dynamic_sizes(name: str) -> None:
    _, module, other = module_of(name, dynamic=True)
    buffers = {
        k: torch.empty(module.get_output_maximum_shape(k), device=DEVICE)
        for k in module.output_names
    }
    for n in (1, MOST, 4):
        inputs = CASES[name].inputs(n)
        close(module.run_with_tensors(on_gpu(inputs), buffers), expected(other, inputs))


@pytest.mark.parametrize("name", CASES)
def test_weights_are_set_between_replays(name: str) -> None:
    model, module, other = module_of(name)
    inputs = CASES[name].inputs(3)
    for _ in range(4):
        module.run_with_tensors(on_gpu(inputs))
    graphs = str(module.executable.cuda_graph)
    values = others(other)
    module.set_many_constants(values)  # from the CPU
    other.load_state_dict(values)
    for _ in range(3):
        close(module.run_with_tensors(on_gpu(inputs)), expected(other, inputs))
    assert str(module.executable.cuda_graph) == graphs  # nothing was recorded anew
    for one, value in values.items():
        module.set_constant_with_tensor(one, (value * 0.5).to(DEVICE))
    other.load_state_dict({k: v * 0.5 for k, v in values.items()})
    close(module.run_with_tensors(on_gpu(inputs)), expected(other, inputs))
    assert all(a.device == model.state()[n].device for n, a in model.state().items())


def test_half_precision() -> None:
    case = CASES["gpt2"]
    model, other = made(case), made(case)
    half = amp.autocast(model.to(device=DEVICE), "bfloat16")
    inputs = case.inputs(3)
    module = meta.compile_model(half, *on_gpu(inputs), target=DEVICE)
    values = others(other)
    for _ in range(3):
        module.run_with_tensors(on_gpu(inputs))
    module.set_many_constants(values)
    other.load_state_dict(values)
    close(module.run_with_tensors(on_gpu(inputs)), expected(other, inputs), 0.08)


def test_what_does_not_fit() -> None:
    _, module, _ = module_of("mlp")
    x, scale = CASES["mlp"].inputs(3)
    with pytest.raises(DeviceError, match="input 'x' is on another device"):
        module.run_with_tensors([x, scale.to(DEVICE)])
    with pytest.raises(DeviceError, match="output 'logits' is on another device"):
        module.run_with_tensors(on_gpu([x, scale]), {"logits": torch.empty(3, 3), "hidden": None})
    whole = torch.zeros(60, device=DEVICE)
    with pytest.raises(ArgumentError, match="shares memory with input 'x'"):
        module.run_with_tensors(
            [whole[:18].view(3, 6), scale.to(DEVICE)], [whole[17:26].view(3, 3), None]
        )


def test_a_buffer_that_is_not_aligned() -> None:
    _, module, other = module_of("mlp")
    inputs = CASES["mlp"].inputs(3)
    wanted = expected(other, inputs)
    for _ in range(4):
        buffers = {
            k: torch.empty(v.numel() + 1, device=DEVICE)[1:].view(v.shape)
            for k, v in wanted.items()
        }
        module.run_with_tensors(on_gpu(inputs), buffers)
        close(buffers, wanted)


def test_streams_and_threads() -> None:
    """Runs on streams of their own, while another thread sets weights, are each of one set."""

    @trace
    def forward(self: Any, x: Any) -> Any:
        y = x
        for _ in range(6):
            y = y @ self.a * 0.0 + self.a
        return y, x @ self.b * 0.0 + self.b

    class Pair(meta.Model):
        def build(self) -> None:
            self.a, self.b = meta.zeros((512, 512)), meta.zeros((512, 512))

    Pair.forward = forward  # type: ignore[method-assign]
    module = meta.compile_model(
        Pair().eval().to(device=DEVICE), torch.zeros(512, 512, device=DEVICE), target=DEVICE
    )
    torn: list[Any] = []

    def running() -> None:
        x = torch.ones(512, 512, device=DEVICE)
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(40):
                a, b = module.run_with_tensors([x]).values()
                if not torch.equal(a, b) or not bool((a == a[0, 0]).all()):
                    torn.append((a, b))

    threads = [threading.Thread(target=running) for _ in range(2)]
    for thread in threads:
        thread.start()
    with torch.cuda.stream(torch.cuda.Stream()):
        for i in range(40):
            value = torch.full((512, 512), float(i), device=DEVICE)
            module.set_many_constants({"a": value, "b": value})
    for thread in threads:
        thread.join()
    assert torn == []


def test_memory_is_freed() -> None:
    model, module, _ = module_of("gpt2")
    inputs = on_gpu(CASES["gpt2"].inputs(3))
    weights = sum(a.nbytes for a in model.state().values())
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(4):
        module.run_with_tensors(inputs)
    arena = module.executable.arena_bytes
    assert arena > 0
    module.close()
    torch.cuda.synchronize()
    # What is there besides the model's arrays and the inputs was the program's.
    assert weights <= torch.cuda.memory_allocated() <= before - arena


def test_a_benchmark_measures_memory() -> None:
    _, module, _ = module_of("resnet")
    inputs = on_gpu(CASES["resnet"].inputs(3))
    buffers = dict.fromkeys(module.output_names)
    found = module.benchmark_with_tensors(inputs, buffers, count=5, repeat=3)
    assert found.measured_bytes is not None and found.measured_bytes >= 0 and found.mean > 0


def test_a_module_that_was_loaded(tmp_path: Path) -> None:
    _, module, other = module_of("resnet", workdir=tmp_path)
    loaded = meta.load_module(tmp_path / "ResNet", cuda_graph=True)
    inputs = CASES["resnet"].inputs(3)
    values = others(other)
    loaded.set_many_constants(values)
    before = expected(other, inputs)
    other.load_state_dict(values)
    for _ in range(4):
        close(loaded.run_with_tensors(on_gpu(inputs)), expected(other, inputs))
        close(module.run_with_tensors(on_gpu(inputs)), before)
    sources = {p.suffix for p in (tmp_path / "ResNet" / "kernels").iterdir()}
    assert sources & {".cu", ".py", ".txt"}
