"""Source text that runs, on the CPU by emulation: results, extents, programs, configurations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import meta
from meta.base.errors import DispatchError
from meta.cost import store
from meta.dialect import only
from meta.dialect.core import Artifact, dispatch
from meta.dialect.template import launcher, template
from meta.grad import grad
from meta.grad.core import gradient
from meta.ir import parse_type
from meta.op.core import Tensor
from tests.dialect.template.conftest import (
    ADD_ONE,
    AXPY,
    CLIPPED,
    SCALE,
    SIN_AND_COS,
    SUM_OF_ALL,
    add_one,
    axpy,
    clipped,
    scale_,
    sin_and_cos,
    sum_of_all,
)

NewOp = Callable[..., Any]
DTYPES = {"float32": 1e-6, "bfloat16": 1e-2, "float16": 2e-3, "float64": 1e-12}
SHAPES = ((3, 129), (0, 4), (1, 7))
pytestmark = pytest.mark.usefixtures("on_cpu")


def drawn(shape: tuple[int, ...], dtype: str, seed: int = 0) -> meta.ndarray:
    generator = torch.Generator().manual_seed(seed)
    return meta.array(torch.randn(shape, generator=generator, dtype=torch.float64)).astype(dtype)


def near(found: meta.ndarray, expected: torch.Tensor) -> None:
    tolerance = DTYPES[str(found.dtype)]
    torch.testing.assert_close(found.torch().double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_results(dtype: str, shape: tuple[int, ...], new_op: NewOp) -> None:
    x, y = drawn(shape, dtype), drawn(shape, dtype, 1)
    wide, other = x.torch().double(), y.torch().double()
    made = new_op(axpy, AXPY)
    near(made(x, y), wide + other)
    near(made(x, y, 0.5), wide * 0.5 + other)
    near(made(x, y, -2), other - 2 * wide)
    found = new_op(sin_and_cos, SIN_AND_COS)(x)
    near(found[0], wide.sin()), near(found[1], wide.cos())
    made = new_op(clipped, CLIPPED)
    near(made(x, -0.5), wide.clamp_min(-0.5))
    near(made(x, 0.5, False, y), torch.where(wide + other > 0.5, wide + other, 0.0))
    made = new_op(sum_of_all, SUM_OF_ALL)
    near(made([x, y, x]), 2 * wide + other)
    near(made([y]), other)


@pytest.mark.parametrize("shape", [(3, 129), ()])
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype: str, shape: tuple[int, ...], new_op: NewOp) -> None:
    x = drawn(shape, dtype)
    near(new_op(add_one, ADD_ONE)(x), x.torch().double() + 1)


def test_one_source_serves_all_extents(new_op: NewOp, monkeypatch: Any) -> None:
    from meta.runtime import nvrtc

    made, seen = new_op(add_one, ADD_ONE), []
    monkeypatch.setattr(nvrtc, "compile_source", lambda text, arch: seen.append(1) or text.encode())
    for shape in (*SHAPES, (64, 64)):
        near(made(drawn(shape, "float32")), drawn(shape, "float32").torch().double() + 1)
    assert len(seen) == 1  # for shapes that have elements


def test_zero_and_minus_zero_are_two_numbers(new_op: NewOp) -> None:
    made, x = new_op(axpy, AXPY), meta.ones((4,))
    y = meta.full((4,), -0.0)
    signs = [made(x * 1.0, y, alpha).torch().signbit().any().item() for alpha in (0.0, -0.0, 0.0)]
    assert signs == [False, True, False]


def test_numbers_beyond_the_dtype_are_infinite(new_op: NewOp) -> None:
    made, x = new_op(axpy, AXPY), meta.ones((4,))
    assert (made(x, x, 1e200) == float("inf")).all()


def test_written_arguments(new_op: NewOp) -> None:
    made, x = new_op(scale_, SCALE), meta.array([1.0, 2.0, 3.0])
    before, after = made(x, 3.0)
    assert after is x and before.numpy().tolist() == [1, 2, 3] and x.numpy().tolist() == [3, 6, 9]


def test_arguments_that_are_not_compact(new_op: NewOp) -> None:
    made, x = new_op(add_one, ADD_ONE), drawn((6, 5), "float32")
    near(made(x.T), x.torch().double().T + 1)
    near(made(x[::2, 1:]), x.torch().double()[::2, 1:] + 1)


def test_programs_with_extents_that_are_known_when_they_run(new_op: NewOp) -> None:
    made = new_op(add_one, ADD_ONE)
    program = meta.model.trace(lambda x: made(made(x).exp()))
    run = meta.vm.compile(program, parse_type("float32[n, 5]"), dims={"n": (1, 50)})
    for n in (1, 3, 50):
        x = drawn((n, 5), "float32")
        near(run(x), (x.torch().double() + 1).exp() + 1)
    assert run.kernels()["template.add_one"] == 2


def test_a_reduction_over_shared_memory(new_op: NewOp) -> None:
    """A block for each row, dynamic shared memory, a grid of other extents than the argument's."""

    def row_sum(x: Tensor) -> Tensor:
        """The sum of each row"""
        return x.with_shape(x.shape[:1])

    text = """
__global__ void row_sum({{ out.type }}* out, const {{ x.type }}* x, int64_t columns) {
  extern __shared__ float part[];
  float sum = 0;
  for (int64_t i = threadIdx.x; i < columns; i += blockDim.x) {
    sum += {{ x.up }}(x[blockIdx.x * columns + i]);
  }
  part[threadIdx.x] = sum;
  __syncthreads();
  for (int half_of = blockDim.x / 2; half_of > 0; half_of /= 2) {
    if (threadIdx.x < half_of) part[threadIdx.x] = part[threadIdx.x] + part[threadIdx.x + half_of];
    __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = {{ out.down }}(part[0]);
}"""
    launch = """
const unsigned int threads = {{ x.dims[1] }} > 64 ? 64 : 32;
row_sum<<<{{ x.dims[0] }}, threads, threads * sizeof(float)>>>(out, x, {{ x.dims[1] }});"""
    made = new_op(row_sum, text, launch=launch)
    for shape in ((5, 100), (1, 3), (3, 0)):
        x = drawn(shape, "float32")
        near(made(x), x.torch().double().sum(1))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_vectors_and_several_launches(dtype: str, new_op: NewOp) -> None:
    """Pairs of elements, what is left over in another launch, and a loop of launches after it."""
    text = """
__global__ void pairs({{ out.type }}* out, const {{ x.type }}* x, {{ index }} n) {
  {{ index }} i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  {{ x.vector(2) }} v = reinterpret_cast<const {{ x.vector(2) }}*>(x)[i];
  out[2 * i] = {{ out.down }}({{ x.up }}(v.x) + 1);
  out[2 * i + 1] = {{ out.down }}({{ x.up }}(v.y) + 1);
}
__global__ void last({{ out.type }}* out, const {{ x.type }}* x, {{ index }} i) {
  out[i] = {{ out.down }}({{ x.up }}(x[i]) + 1);
}
__global__ void twice({{ out.type }}* out) { out[blockIdx.x] = out[blockIdx.x] + out[blockIdx.x]; }
"""
    launch = """
const int64_t n = {{ x.size }}, half_of = n / 2;
if (half_of) pairs<<<ceil_div(half_of, 64), 64>>>(out, x, half_of);
if (n % 2 == 1) last<<<1, 1>>>(out, x, n - 1);
for (int i = 0; i < 3; ++i) twice<<<n, 1>>>(out);"""
    made = new_op(add_one, text, launch=launch)
    for n in (1, 2, 201):
        x = drawn((n,), dtype)
        near(made(x), 8 * (x.torch() + 1).double())


def test_gradients_are_the_operators_own(new_op: NewOp) -> None:
    made = new_op(add_one, ADD_ONE)
    gradient(made)(lambda dy: dy * 1.0)
    x = drawn((3, 4), "float32")
    x.requires_grad = True
    near(grad((made(x) * x).sum(), x), 2 * x.torch().double() + 1)


def test_another_dialect_serves_what_it_declines(new_op: NewOp) -> None:
    def small(call: Any) -> str | None:
        return "small only" if call.args.x.size > 10 else None

    made = new_op(add_one, ADD_ONE, when=small)
    assert (made(meta.ones((10,))) == 2).all()
    with pytest.raises(DispatchError, match="refuses: small only"):
        made(meta.ones((11,)))


# Configurations.

THREADS = [{"threads": 64}, {"threads": 128}, {"threads": 1024}]
TUNED = """
int64_t n = {{ x.size }};
add_one<<<ceil_div(n, {{ threads }}), {{ threads }}>>>({{ arguments }}, n);"""


@pytest.fixture
def tuned(new_op: NewOp) -> Any:
    return new_op(
        add_one, ADD_ONE, launch=TUNED, configs=THREADS,
        filter=lambda config, call: config["threads"] <= 2 * call.args.x.size,
    )  # fmt: skip


def test_a_program_names_a_configuration(tuned: Any) -> None:
    x = drawn((600,), "float32")
    for name, grid in (("", 10), ("@threads=128", 5), ("@threads=1024", 1)):
        module = meta.ir.parse(f"""
func @main(%x: float32[600]) -> float32[600] {{
  %y: float32[600] = template.add_one{name}(%x)
  return %y
}}""")
        run = meta.vm.compile(module)
        assert run.kernels() == {f"template.add_one{name}": 1}
        near(run(x), x.torch().double() + 1)
        env = dispatch(tuned.call_values((parse_type("float32[600]"),), x.device))
        config = (("threads", int(name[9:])),) if name else ()
        (launch,) = env.configured(config).run.plan((600,), (600,))
        assert launch.grid == (grid, 1, 1)


def test_what_the_filter_leaves(tuned: Any) -> None:
    env = dispatch(tuned.call_values((parse_type("float32[40]"),), meta.ones(1).device))
    assert env.configs is None
    x = meta.ones((2,))
    with only("template"), pytest.raises(DispatchError, match="leaves none of 3 configurations"):
        tuned(x)
    made = tuned.call_values((parse_type("float32[100]"),), meta.ones(1).device)
    assert dispatch(made).configs.listed() == [(("threads", 128),)]
    with pytest.raises(DispatchError, match=r"no configuration threads=1024, only threads=64, thr"):
        template.source(tuned, parse_type("float32[100]"), config={"threads": 1024})


def test_configurations_are_measured(tuned: Any, monkeypatch: Any) -> None:
    """With times that are made up: a launch takes as many milliseconds as the grid has blocks."""
    from meta.dialect.template import launcher
    from tests.vm.fakes import FakeClock

    clock, run = FakeClock(), launcher.Runner.__call__

    def timed(runner: Any, *values: Any) -> None:
        run(runner, *values)
        (launch,) = runner.plan(*(v.shape for v in values))
        clock.spend(runner.source.title, 1000.0 * launch.grid.x)

    monkeypatch.setattr(launcher.Runner, "__call__", timed)
    costs = meta.measure(tuned, drawn((600,), "float32"), clock=clock, iters=3)
    assert [(c.name, c.forward.median) for c in costs] == [
        ("template", pytest.approx(10_000)),
        ("template@threads=128", pytest.approx(5_000)),
        ("template@threads=1024", pytest.approx(1_000)),
    ]


def test_a_filter_of_extents_that_are_known_when_the_program_runs(tuned: Any) -> None:
    run = meta.vm.compile(
        meta.model.trace(lambda x: tuned(x)), parse_type("float32[n, 4]"), dims={"n": (9, 900)}
    )
    for n in (9, 100, 9):
        x = drawn((n, 4), "float32")
        near(run(x), x.torch().double() + 1)


def test_extents_in_the_text_that_are_known_when_the_program_runs(new_op: NewOp) -> None:
    made = new_op(add_one, ADD_ONE.replace("+ 1", "+ {{ x.shape[0] }}"))
    program = meta.model.trace(lambda x: made(x))
    run = meta.vm.compile(program, parse_type("float32[n, 4]"), dims={"n": (1, 900)})
    for n in (2, 3):
        near(run(meta.ones((n, 4))), torch.full((n, 4), 1.0 + n, dtype=torch.float64))


def test_a_filter_that_leaves_nothing_at_run_time(new_op: NewOp) -> None:
    made = new_op(
        add_one, ADD_ONE, launch=TUNED, configs=THREADS,
        filter=lambda config, call: call.args.x.size % 8 == 0,
    )  # fmt: skip
    program = meta.model.trace(lambda x: made(x))
    run = meta.vm.compile(program, parse_type("float32[n, 4]"), dims={"n": (1, 900)})
    near(run(meta.ones((2, 4))), torch.full((2, 4), 2.0, dtype=torch.float64))
    with pytest.raises(DispatchError, match="leaves none of 3 configurations"):
        run(meta.ones((3, 4)))


def test_configurations_may_follow_from_the_call(new_op: NewOp) -> None:
    def listed(call: Any) -> list[dict[str, int]]:
        return [{"threads": 32}, {"threads": 64}][: call.args.x.ndim]

    made = new_op(add_one, ADD_ONE, launch=TUNED, configs=listed)
    for shape, count in (((70,), 0), ((70, 2), 1)):
        near(made(drawn(shape, "float32")), drawn(shape, "float32").torch().double() + 1)
        env = dispatch(
            made.call_values((parse_type(f"float32{list(shape)}"),), meta.ones(1).device)
        )
        assert (0 if env.configs is None else len(env.configs.listed())) == count


def test_another_text_is_measured_anew(new_op: NewOp) -> None:
    made = new_op(add_one, ADD_ONE)
    before = store.source_of("template")
    template.pieces["cuda.add_one.func_decl"] = "{{ signature }} ;"
    changed = store.source_of("template")
    del template.pieces["cuda.add_one.func_decl"]
    assert before != changed and store.source_of("template") == before
    template.remove(made)
    template.add(made, ADD_ONE, "add_one<<<1, 1>>>({{ arguments }}, 1);")
    assert store.source_of("template") not in (before, changed)


# Saved programs.


def test_a_saved_program_has_the_machine_code(new_op: NewOp, tmp_path: Path) -> None:
    made = new_op(axpy, AXPY)
    run = meta.vm.compile(
        meta.model.trace(lambda x, y: made(x, y, 3.0)), *[parse_type("float32[n, 4]")] * 2
    )
    run.save(tmp_path / "saved")
    x, y = drawn((5, 4), "float32"), drawn((5, 4), "float32", 1)
    expected = run(x, y)
    template.remove(made)  # the text is needed no longer
    loaded = meta.vm.load(tmp_path / "saved")
    assert (loaded(x, y) == expected).all()
    near(expected, 3 * x.torch().double() + y.torch().double())


def test_a_saved_program_of_known_extents(new_op: NewOp, tmp_path: Path) -> None:
    made = new_op(add_one, ADD_ONE)
    run = meta.vm.compile(meta.model.trace(lambda x: made(x)), parse_type("float16[3, 5]"))
    run.save(tmp_path / "saved")
    template.remove(made)
    x = drawn((3, 5), "float16")
    near(meta.vm.load(tmp_path / "saved")(x), x.torch().double() + 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"call": 3}, "damaged"),
        ({"written": [0]}, None),
        ({"written": [7]}, "damaged"),
        ({"values": [["x"]]}, "damaged"),
        ({"more": 1}, "not the fields"),
        ({"fixed": None}, None),
        ({"fixed": [[3], [3, 4]]}, "damaged"),
        ({"fixed": [[3], [-3]]}, "damaged"),
        ({"call": "launch_add_one(out, x"}, "is damaged"),
        ({"function": "nothing"}, "no function of the host"),
    ],
)
def test_damaged_records(change: Any, message: str | None, new_op: NewOp, tmp_path: Path) -> None:
    made = new_op(add_one, ADD_ONE)
    env = dispatch(made.call_values((parse_type("float32[3]"),), meta.ones(1).device))
    assert env.run is not None and env.artifact is not None
    whole = Artifact(env.artifact.file, env.artifact.record | change)
    if message is None:
        launcher.restore(whole)
        return
    with pytest.raises(ValueError, match=message):
        launcher.restore(whole)


def test_a_damaged_file(new_op: NewOp) -> None:
    made = new_op(add_one, ADD_ONE)
    env = dispatch(made.call_values((parse_type("float32[3]"),), meta.ones(1).device))
    assert env.run is not None and env.artifact is not None
    env.artifact.file.write_bytes(b"short")
    with pytest.raises(ValueError, match="does not hold machine code"):
        launcher.restore(env.artifact)


def test_rocm_text_computes_the_same(new_op: NewOp) -> None:
    """The device code of ROCm, emulated: types of half precision have other names there."""
    from meta.dialect.template.launcher import Runner, program_of
    from meta.testing.emulator.templates import loaded_code

    source = template.source(new_op(add_one, ADD_ONE), parse_type("bfloat16[3, 50]"), target="rocm")
    text = program_of(source.function, source.call, source.title).device
    x, out = torch.randn(3, 50).bfloat16(), torch.empty(3, 50).bfloat16()
    Runner(source, partial(loaded_code, text.encode()))(x, out)
    near(meta.array(out), x.double() + 1)
