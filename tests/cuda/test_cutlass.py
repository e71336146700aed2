"""Products of CUTLASS on a device: every epilogue and its gradients, groups, all sizes and layouts,
configurations, graphs, saved programs. The oracle is torch in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import meta
from meta import op
from meta.base.device import Device
from meta.base.dtype import TO_TORCH
from meta.dialect import only, prefer
from meta.dialect.cutlass import cutlass, probe
from meta.dialect.cutlass.kernel import arch_of
from meta.ir import TensorType

CUDA = Device("cuda")
DTYPES = ("float16", "bfloat16")
# Of the largest element of the result: a rounding of it, and of sums of some thousand terms.
ERROR = {"float16": 2e-3, "bfloat16": 1.6e-2}


def refusal() -> str | None:
    """Return why there are no kernels here."""
    found = probe()
    if found is None and torch.cuda.get_device_capability() not in ((9, 0), (10, 0), (10, 3)):
        return "no GPU of compute capability 9.0, 10.0 or 10.3"
    return found


pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(refusal() is not None, reason=str(refusal())),
]
SIZES = [(4096, 768, 3072), (129, 64, 40), (1, 512, 8), (768, 8, 256), (300, 2048, 1000)]
"""m, k and n: large and small ones, and such that no tile is full."""


def normal(*shape: int, dtype: str, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed + sum(shape))
    made = torch.randn(shape, generator=generator, device="cuda", dtype=torch.float32)
    return made.to(TO_TORCH[dtype])


def near(found: Any, expected: torch.Tensor, dtype: str) -> None:
    tensor = found.torch() if isinstance(found, meta.ndarray) else found
    assert tensor.shape == expected.shape and tensor.dtype == TO_TORCH[dtype]
    error = (tensor.double() - expected).abs().max() / expected.abs().max().clamp(min=1e-30)
    assert error <= ERROR[dtype], f"{dtype}: {float(error):.2e}"


def check(
    model: Callable[..., Any], known: Callable[..., Any], kernel: str, *given: torch.Tensor
) -> None:
    """Check a program of one kernel against a function of torch in float64."""
    dtype = str(given[0].dtype).removeprefix("torch.")
    arrays = [meta.array(t) for t in given]
    with prefer("cutlass"):
        run = meta.vm.compile(meta.model.trace(model), *arrays)
    assert run.kernels() == {f"cutlass.{kernel}": 1}
    expected = known(*[t.double() for t in given])
    expected = expected if isinstance(expected, tuple) else (expected,)
    for _ in range(3):
        found = run(*arrays)
        found = found if isinstance(found, tuple) else (found,)
        for one, value in zip(found, expected, strict=True):
            near(one, value, dtype)


def backward(act: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of an activation's argument and of the gradient of its result."""

    def gradient(x: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
        leaf = x.detach().clone().requires_grad_()
        [found] = torch.autograd.grad(act(leaf), leaf, dy)
        return found

    return gradient


ACTIVATIONS: dict[str, tuple[Any, Any, Any]] = {
    "silu": (op.silu, F.silu, op.silu_dx),
    "gelu": (op.gelu, F.gelu, lambda x, dy: op.gelu_dx(x, None, dy)),
    "gelu_tanh": (
        lambda y: op.gelu(y, "tanh"),
        lambda y: F.gelu(y, approximate="tanh"),
        lambda x, dy: op.gelu_dx(x, None, dy, "tanh"),
    ),
    "relu": (op.relu, F.relu, lambda y, dy: op.relu_dx(None, y, dy)),
    "sigmoid": (op.sigmoid, torch.sigmoid, None),
}
PRODUCTS = {"dense": (op.dense, F.linear), "matmul": (op.matmul, torch.matmul)}


def factors(name: str, size: tuple[int, int, int], dtype: str) -> tuple[torch.Tensor, ...]:
    m, k, n = size
    w = normal(n, k, dtype=dtype, seed=1) / k**0.5
    return normal(m, k, dtype=dtype), w if name == "dense" else w.t().contiguous()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", PRODUCTS)
def test_epilogues(name: str, size: tuple[int, int, int], dtype: str) -> None:
    product, known = PRODUCTS[name]
    m, _, n = size
    x, w = factors(name, size, dtype)
    c, b = normal(m, n, dtype=dtype, seed=2), normal(n, dtype=dtype, seed=3)
    for activation in ("silu", "gelu"):
        act, of, _ = ACTIVATIONS[activation]

        def kept(x: Any, w: Any, act: Any = act) -> Any:
            y = product(x, w)
            return act(y), y

        def known_kept(x: Any, w: Any, of: Any = of) -> Any:
            y = known(x, w)
            return of(y), y

        check(
            lambda x, w, b, act=act: act(op.bias_add(product(x, w), b, 1)),
            lambda x, w, b, of=of: of(known(x, w) + b),
            f"{name}_bias_{activation}", x, w, b,
        )  # fmt: skip
        check(kept, known_kept, f"{name}_{activation}_kept", x, w)
    check(lambda x, w, c: op.add(product(x, w), c), lambda x, w, c: known(x, w) + c,
          f"{name}_add", x, w, c)  # fmt: skip
    check(lambda x, w, b, c: op.add(op.bias_add(product(x, w), b, 1), c),
          lambda x, w, b, c: known(x, w) + b + c, f"{name}_bias_add", x, w, b, c)  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gated_layers_and_gradients(
    activation: str, size: tuple[int, int, int], dtype: str
) -> None:
    act, of, dx = ACTIVATIONS[activation]
    m, _, n = size
    x, w = factors("dense", size, dtype)
    c, g = normal(m, n, dtype=dtype, seed=2), normal(m, n, dtype=dtype, seed=4)
    check(lambda x, w, c: op.multiply(act(c), op.dense(x, w)),
          lambda x, w, c: of(c) * F.linear(x, w), f"dense_times_{activation}", x, w, c)  # fmt: skip

    def joined(x: Any, w: Any) -> Any:
        gate, up = op.split(op.dense(x, w), 2, -1)
        return op.multiply(act(gate), up)

    def known_joined(x: Any, w: Any) -> Any:
        gate, up = F.linear(x, w).chunk(2, -1)
        return of(gate) * up

    both = torch.cat([w, w.flip(0)])
    check(joined, known_joined, f"dense_gated_{activation}", x, both)
    if dx is None:
        return
    wt = w.t().contiguous()
    s = of(g.double()).to(g.dtype)
    before = s if activation == "relu" else g
    check(lambda x, w, g: dx(g, op.matmul(x, w)), lambda x, w, g: backward(of)(g, x @ w),
          f"matmul_{activation}_dx", x, wt, before)  # fmt: skip

    def gradients(x: Any, w: Any, c: Any, s: Any, g: Any) -> Any:
        dy = op.matmul(x, w)
        return op.multiply(dy, s), dx(s if activation == "relu" else g, op.multiply(dy, c))

    def known_gradients(x: Any, w: Any, c: Any, s: Any, g: Any) -> Any:
        dy = x @ w
        return dy * s, backward(of)(g, dy * c)

    check(gradients, known_gradients, f"matmul_gated_{activation}_dx", x, wt, c, s, g)


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_for_rows_and_columns(dtype: str) -> None:
    for size in SIZES:
        m, _, n = size
        if m == 1:  # as many numbers as the result has
            continue
        x, w = factors("dense", size, dtype)
        u, v = normal(n, dtype=dtype, seed=3), normal(m, 1, dtype=dtype, seed=4)
        check(lambda x, w, u: op.multiply(op.dense(x, w), u), lambda x, w, u: F.linear(x, w) * u,
              "dense_scaled", x, w, u)  # fmt: skip
        if m % 2:  # numbers for rows are read two at a time
            continue
        check(lambda x, w, v, u: op.multiply(op.multiply(op.dense(x, w), v), u),
              lambda x, w, v, u: F.linear(x, w) * v * u, "dense_scaled_twice",
              x, w, v, u)  # fmt: skip


FORMS = {"matmul": (0, 0), "matmul_nt": (0, 1), "matmul_tn": (1, 0), "matmul_tt": (1, 1),
         "dense": (0, 1)}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FORMS)
def test_products_alone(name: str, dtype: str) -> None:
    t1, t2 = FORMS[name]
    for m, k, n in ((4096, 768, 64), (128, 768, 768), (136, 72, 40), (8, 3072, 768)):
        x = normal(*((k, m) if t1 else (m, k)), dtype=dtype)
        w = normal(*((n, k) if t2 else (k, n)), dtype=dtype, seed=1)
        with only("cutlass"):
            y = getattr(op, name)(meta.array(x), meta.array(w))
        near(y, (x.t() if t1 else x).double() @ (w.t() if t2 else w).double(), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ends", [[0, 5, 5, 300], [128, 256, 384, 512], [1, 2, 3, 4]])
def test_groups(ends: list[int], dtype: str) -> None:
    """Empty ones, full tiles, and many rows that belong to no group."""
    x, w = normal(512, 256, dtype=dtype), normal(4, 256, 384, dtype=dtype, seed=1)
    expected = torch.zeros(512, 384, dtype=torch.float64, device="cuda")
    for i, end in enumerate(ends):
        rows = slice(ends[i - 1] if i else 0, end)
        expected[rows] = x[rows].double() @ w[i].double()
    for index in (torch.int32, torch.int64):
        offs = torch.tensor(ends, device="cuda", dtype=index)
        for name, weights in (("grouped_matmul", w), ("grouped_matmul_nt", w.mT.contiguous())):
            with only("cutlass"):
                y = getattr(op, name)(*map(meta.array, (x, weights, offs)))
            near(y, expected, dtype)


@pytest.mark.parametrize("form", ["dense", "dense_gated_silu"])
def test_every_configuration(form: str) -> None:
    x, w = factors("dense", (520, 264, 528), "float16")
    given, expected = [x, w], F.linear(x.double(), w.double())
    types = [TensorType(tuple(t.shape), "float16") for t in given]
    cutlass.load()
    if form == "dense":
        env = cutlass.ops["dense"].make(op.dense.call_values(tuple(types), CUDA))
    else:
        gate, up = expected.chunk(2, -1)
        expected = F.silu(gate) * up
        result = TensorType(tuple(expected.shape), "float16")
        captures = {"x": types[0], "w": types[1], "parts": 2, "axis": -1, "shape": None}
        env = cutlass.patterns[form].prepare(captures, result, CUDA)
    for config in [(), *env.configs.listed()]:
        out = torch.full(expected.shape, torch.nan, dtype=torch.float16, device="cuda")
        env.configured(config).run(*given, out)
        near(out, expected, "float16")


def test_tensors_at_odd_addresses() -> None:
    def apart(t: torch.Tensor) -> torch.Tensor:
        return torch.cat([t.new_zeros(1), t.flatten()])[1:].view(t.shape)

    x, w = (apart(t) for t in factors("dense", (40, 64, 24), "bfloat16"))
    with only("cutlass"):
        y = op.dense(meta.from_dlpack(x), meta.from_dlpack(w))
    near(y, F.linear(x.double(), w.double()), "bfloat16")


def test_layers_in_graphs_on_streams_and_saved(tmp_path: Path) -> None:
    """A gated network of several kernels, forward and backward."""

    class Gated(meta.Model):
        def build(self) -> None:
            self.gate = meta.model.Linear(256, 512, bias=False)
            self.up = meta.model.Linear(256, 512, bias=False)
            self.down = meta.model.Linear(512, 256, bias=False)

        @meta.model.trace
        def forward(self, x: Any) -> Any:
            return op.add(x, self.down(op.multiply(op.silu(self.gate(x)), self.up(x))))

    model = Gated().to(device="cuda", dtype="bfloat16").eval()
    x = meta.array(normal(2, 64, 256, dtype="bfloat16"))
    weights = [layer.weight.torch().double() for layer in (model.gate, model.up, model.down)]
    gate, up, down = weights
    wide = x.torch().double()
    expected = wide + F.linear(F.silu(F.linear(wide, gate)) * F.linear(wide, up), down)
    with prefer("cutlass"):
        run = meta.vm.compile(model, x)
    assert any(name.startswith("cutlass.") for name in run.kernels())
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(3):
            near(run(x), expected, "bfloat16")
        torch.cuda.current_stream().synchronize()
    run.save(tmp_path / "saved")
    near(meta.vm.load(tmp_path / "saved")(x), expected, "bfloat16")


def test_what_this_device_compiles_for() -> None:
    assert arch_of(torch.cuda.get_device_capability()).startswith("sm_")
