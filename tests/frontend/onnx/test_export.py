"""`meta.to_onnx`: networks, control flow, sizes by name, what is compiled, files and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import meta
from meta import op
from meta.base.errors import ArgumentError, FileError
from meta.cli.main import main
from meta.frontend import from_onnx
from meta.frontend.onnx import OnnxError
from meta.ir import SymbolicDim, TensorType, parse
from meta.model import Model, trace
from meta.op.core import tree
from tests.amp.models import MODELS
from tests.frontend.onnx.exported import by_onnxruntime


@pytest.fixture(autouse=True)
def on_torch() -> Any:
    with meta.dialect.prefer("torch"):
        yield


def arrays(result: Any) -> list[Any]:
    """Return the arrays of a result, as NumPy's."""
    return [a.numpy() for a in tree.flatten(result)[0]]


def require_close(found: Any, expected: Any, tolerance: float = 2e-5) -> None:
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, tolerance, tolerance)
        assert a.dtype == b.dtype and a.shape == b.shape


@pytest.mark.parametrize("name", MODELS)
def test_networks(name: str, tmp_path: Path) -> None:
    """Results are ours, for any batch; weights have their names; the importer takes the file."""
    path = str(tmp_path / "net.onnx")
    case, (x, _) = MODELS[name].make()
    network = case.network.eval()
    batch = 1 if name in ("lstm", "recurrent") else 0
    shape = tuple(SymbolicDim("n") if i == batch else d for i, d in enumerate(x.shape))
    meta.to_onnx(network, path, TensorType(shape, str(x.dtype)))
    proto = onnx.load(path)
    assert {i.name for i in proto.graph.initializer} >= set(network.state())
    (given,) = proto.graph.input
    dims = [d.dim_param or d.dim_value for d in given.type.tensor_type.shape.dim]
    assert dims == ["n" if i == batch else d for i, d in enumerate(x.shape)]
    twice = np.concatenate([x.numpy()] * 2, batch)
    for values in (x.numpy(), twice):
        expected = arrays(network(meta.array(values)))
        require_close(by_onnxruntime(path, [values]), expected)
        require_close(arrays(from_onnx(path)(meta.array(values))), expected)


def written(function: Any, *args: Any, **options: Any) -> tuple[onnx.ModelProto, list[Any]]:
    """Return a function as a model that was written, and its own results."""
    path = Path(options.pop("path"))
    meta.to_onnx(function, path, *args, **options)
    return onnx.load(path), arrays(function(*args)) if callable(function) else []


def collatz(n: Any) -> Any:
    """Return how many steps it takes to 1."""

    def step(state: Any) -> Any:
        n, count = state
        odd = meta.cond(n % 2 == 1, lambda: n * 3 + 1, lambda: n // 2)
        return odd, count + 1

    return meta.while_loop(lambda s: s[0] != 1, step, (n, meta.array(0)))[1]


def sums(x: Any) -> Any:
    """Scan rows in both directions, with a function that is called in the loop."""
    once, ys = meta.scan(lambda s, row: (s + row, s * row), meta.zeros(3), x)
    twice, zs = meta.scan(lambda s, row: (s - row, row.sum()), once, x, reverse=True)
    return {"ys": ys, "pair": (twice, zs)}


def choice(x: Any) -> Any:
    """Branches in a branch; one hands on what is there."""
    small = lambda: meta.cond(x.sum() > 0, lambda: (x, x * 2), lambda: (-x, x))  # noqa: E731
    return meta.cond(meta.max(x) < 3, small, lambda: (x.flip(0), x))


CONTROL: dict[str, tuple[Any, list[Any]]] = {
    "collatz": (collatz, [np.array(n) for n in (1, 6, 27)]),
    "sums": (sums, [np.arange(12, dtype=np.float32).reshape(4, 3)]),
    "choice": (choice, [np.array(v, np.float32) for v in ([1, 2], [-1, -2], [1, 5])]),
}


@pytest.mark.parametrize("name", CONTROL)
def test_control_flow(name: str, tmp_path: Path) -> None:
    function, inputs = CONTROL[name]
    path = str(tmp_path / "f.onnx")
    meta.to_onnx(trace(function), path, meta.array(inputs[0]))
    for values in inputs:
        expected = arrays(function(meta.array(values)))
        require_close(by_onnxruntime(path, [values]), expected)
        require_close(arrays(from_onnx(path)(meta.array(values))), expected)


def sized(x: Any, y: Any) -> Any:
    """Extents that are computed: products, sums and quotients of names, in a branch, too."""
    n, m = x.shape
    flat = op.reshape(x, (n * m,))
    wide = op.broadcast_to(op.expand_dims(y, 0), (n, y.shape[0]))
    inner = meta.cond(x.sum() > 0, lambda: op.zeros((2 * n + 1, m), "float32"),
                      lambda: op.ones((2 * n + 1, m), "float32"))  # fmt: skip
    pooled = op.avg_pool1d(op.reshape(x, (1, n, m)), 2, 2)
    return op.concat((flat, flat)), wide, inner, pooled, op.var(x, correction=1), op.softmax(x)


@pytest.mark.parametrize("extents", [(3, 4), (1, 7), (5, 2)])
def test_sizes_by_name(extents: tuple[int, int], tmp_path: Path) -> None:
    path = str(tmp_path / "f.onnx")
    types = [meta.ir.parse_type(f"float32[{dims}]") for dims in ("n, m", "k")]
    meta.to_onnx(trace(sized), path, *types)
    x, y = torch.randn(extents), torch.randn(3)
    expected = arrays(sized(meta.array(x), meta.array(y)))
    require_close(by_onnxruntime(path, [x.numpy(), y.numpy()]), expected)


class Net(Model):
    def build(self, tied: bool = False) -> None:
        self.first, self.norm = meta.model.Linear(3, 3), meta.model.BatchNorm(3)
        self.last = self.first if tied else meta.model.Linear(3, 2)
        self.drop = meta.model.Dropout(0.5)

    @trace
    def forward(self, x: Any) -> Any:
        return {"scores": self.last(self.drop(self.norm(self.first(x))).relu())}


PROGRAM = """
func @main(%x: float32[2, 3], %i: int64[2]) -> float32[2, 3] {
  %y: float32[2, 3] = take(%x, %i, axis=0)
  return %y
}
"""


def test_what_is_compiled(tmp_path: Path) -> None:
    """An executable, also of the cache, and a compiled module are their programs before passes."""
    net, x = Net().eval(), meta.array(torch.randn(4, 3))
    paths = [str(tmp_path / f"{i}.onnx") for i in range(4)]
    meta.to_onnx(net, paths[0], x)
    meta.to_onnx(meta.vm.compile(net, x), paths[1])
    meta.to_onnx(meta.vm.compile(net, x), paths[2])
    meta.to_onnx(meta.compile_model(net, x), paths[3])
    models = [onnx.load(p) for p in paths]
    assert models[0] == models[1] == models[2] == models[3]
    assert [o.name for o in models[0].graph.output] == ["output.scores"]
    require_close(by_onnxruntime(paths[1], [x.numpy()]), arrays(net(x)))


def test_a_module_and_names_of_outputs(tmp_path: Path) -> None:
    path = str(tmp_path / "m.onnx")
    meta.to_onnx(parse(PROGRAM), path, output_names=["x_taken"], opset=23)
    proto = onnx.load(path)
    assert proto.opset_import[0].version == 23
    assert [v.name for v in (*proto.graph.input, *proto.graph.output)] == ["x", "i", "x_taken"]
    x, i = np.ones((2, 3), np.float32), np.array([1, 0])
    require_close(by_onnxruntime(path, [x, i]), [x[i]])


def test_results_that_are_not_computed(tmp_path: Path) -> None:
    """An input, a constant, a weight, and one result twice; a name inside that an output has."""
    weight = meta.array([1.0, 2.0])

    @trace
    def function(x: Any) -> Any:
        y = x + 1.0
        return x, weight, y, y, y * 2.0

    path, x = str(tmp_path / "f.onnx"), np.float32([3, 4])
    meta.to_onnx(function, path, meta.array(x), output_names=["a", "b", "add", "constant", "c"])
    onnx.checker.check_model(path, full_check=True)
    require_close(by_onnxruntime(path, [x]), [x, np.float32([1, 2]), x + 1, x + 1, (x + 1) * 2])


def test_tied_weights_are_one(tmp_path: Path) -> None:
    net, x = Net(tied=True).eval(), meta.array(torch.randn(4, 3))
    proto, expected = written(net, x, path=tmp_path / "n.onnx")
    names = [i.name for i in proto.graph.initializer]
    assert len(names) == len(set(names)) and sum(n.endswith("weight") for n in names) == 2
    require_close(by_onnxruntime(proto, [x.numpy()]), expected)


def test_weights_in_a_file_of_their_own(tmp_path: Path) -> None:
    net = meta.model.Sequential(meta.model.Linear(64, 64), meta.model.Linear(64, 2)).eval()
    path, x = tmp_path / "n.onnx", meta.array(torch.randn(4, 64))
    for _ in range(2):  # the second time over the first
        meta.to_onnx(net, path, x, external_data=True)
        size = (tmp_path / "n.onnx.data").stat().st_size
        assert 64 * 64 * 4 <= size < 64 * 64 * 4 + 8192 and path.stat().st_size < 4096
    onnx.checker.check_model(str(path), full_check=True)
    require_close(by_onnxruntime(str(path), [x.numpy()]), arrays(net(x)))


def test_a_file_beside_it_where_there_is_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for most in (16, 15):  # bytes of the weights of one layer
        monkeypatch.setattr("meta.frontend.onnx.export.model.MOST_BYTES", most)
        meta.to_onnx(meta.model.Linear(3, 1), tmp_path / f"{most}.onnx", meta.ones((2, 3)))
    assert sorted(p.name for p in tmp_path.iterdir())[:2] == ["15.onnx", "16.onnx"]


def test_large_constants_are_initializers(tmp_path: Path) -> None:
    table, x = meta.array(torch.randn(64, 64)), meta.array(torch.randn(2, 64))
    function, path = trace(lambda x: x @ table), tmp_path / "f.onnx"
    meta.to_onnx(function, path, x, external_data=True)
    assert path.stat().st_size < 1024 < (tmp_path / "f.onnx.data").stat().st_size
    assert [i.name for i in onnx.load(path).graph.input] == ["x"]
    require_close(by_onnxruntime(str(path), [x.numpy()]), arrays(function(x)))


def test_half_precision_and_narrow_dtypes(tmp_path: Path) -> None:
    """Casts to float8 and small integers, and products of half precision."""

    @trace
    def function(x: Any, i: Any) -> Any:
        eighth = op.astype(x * 300.0, "float8_e4m3fn")
        return op.astype(eighth, "float32"), op.astype(x, "float16") @ op.astype(x, "float16"), -i

    x, i = torch.tensor([[1.5, -2.0], [0.1, 3.0]]), torch.tensor([3, 250], dtype=torch.uint8)
    path = str(tmp_path / "f.onnx")
    meta.to_onnx(function, path, meta.array(x), meta.array(i))
    expected = arrays(function(meta.array(x), meta.array(i)))
    require_close(by_onnxruntime(path, [x.numpy(), i.numpy()]), expected, 2e-3)


def refused(function: Any, *args: Any, error: Any = OnnxError, **options: Any) -> Any:
    with pytest.raises(error) as caught:
        meta.to_onnx(function, "never.onnx", *args, **options)
    assert not Path("never.onnx").exists()
    return caught.value


def test_all_calls_without_a_form_are_in_one_error() -> None:
    @trace
    def function(x: Any) -> Any:
        a = op.erfinv(op.lgamma(x))
        b = op.erfinv(a)
        looped = meta.while_loop(lambda s: s.sum() > 0, lambda s: op.digamma(s) + b, x)
        return meta.cond(x.sum() > 0, lambda: op.i0(looped), lambda: op.gelu(x)), op.complex(a, b)

    error = refused(function, meta.ones((2, 3)))
    operators = {f.operator: f for f in error.failures}
    assert operators.keys() == {"erfinv", "lgamma", "digamma", "i0", "complex"}
    assert len(error.failures) == 6
    line = function.function.__code__.co_firstlineno + 3
    assert f"erfinv, 2 times, first at {__file__}:{line - 1}: erfinv(x=float32[2, 3]): " in str(
        error
    )
    assert "keep real and imaginary parts in arrays of their own" in str(error)


def test_a_model_in_train_mode() -> None:
    text = str(refused(Net().train(), meta.ones((4, 3))))
    assert "batch_norm_train" in text and "dropout_train" in text and "model.eval()" in text


def test_a_function_that_calls_itself() -> None:
    module = parse("""
    func @f(%x: float32[]) -> float32[] {
      %0: float32[] = @f(%x)
      %1: float32[] = exp(%0)
      return %1
    }
    func @main(%x: float32[]) -> float32[] {
      %0: float32[] = @f(%x)
      return %0
    }""")
    assert "calls itself, and is no loop" in str(refused(module))


def test_sizes_that_have_other_names_in_a_function() -> None:
    module = parse("""
    func @f(%i: int64[], %x: float32[k]) -> float32[k] {
      %0: bool[] = less(%i, 3)
      %1: float32[k] = if %0 {
        %2: int64[] = add(%i, 1)
        %3: float32[k] = exp(%x)
        %4: float32[k] = @f(%2, %3)
        yield %4
      } else {
        yield %x
      }
      return %1
    }
    func @main(%i: int64[], %x: float32[n]) -> float32[n] {
      %0: float32[n] = @f(%i, %x)
      return %0
    }""")
    assert "the sizes of %x have other names in the function 'f'" in str(refused(module))


def test_what_cannot_be_asked_for(tmp_path: Path) -> None:
    net, x = Net().eval(), meta.ones((4, 3))
    known = onnx.defs.onnx_opset_version()
    text = str(refused(net, x, opset=20, error=ArgumentError))
    assert f"21 to {known}" in text
    assert "1 names" in str(refused(net, x, output_names=["a", "b"], error=ArgumentError))
    assert "other than those of inputs" in str(
        refused(net, x, output_names=["x"], error=ArgumentError)
    )
    executable = meta.vm.compile(net, x)
    assert "says itself what it takes" in str(refused(executable, x, error=ArgumentError))
    executable.save(tmp_path / "saved")
    loaded = meta.vm.load(tmp_path / "saved")
    assert "the model from which it was compiled" in str(refused(loaded, error=ArgumentError))
    with pytest.raises(FileError, match="nowhere"):
        meta.to_onnx(net, tmp_path / "nowhere" / "n.onnx", x)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "program.meta").write_text(PROGRAM, "utf-8")
    path = tmp_path / "p.onnx"
    assert main(["compile", str(tmp_path / "program.meta"), "--onnx", str(path)]) == 0
    assert "instructions" in capsys.readouterr().out
    x, i = np.ones((2, 3), np.float32), np.array([1, 0])
    require_close(by_onnxruntime(str(path), [x, i]), [x[i]])
