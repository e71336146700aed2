"""Functions of several operators as one kernel."""

import tvm

from meta.base.device import CPU
from meta.dialect.core import Deferred
from meta.dialect.tvm import fused, schedule_cuda
from meta.dialect.tvm.target import cuda
from meta.ir import Var, parse


def test_names_of_variables_do_not_reach_the_source(monkeypatch) -> None:
    """They come from files: "0.weight" is no name in CUDA, and worse ones are thinkable."""
    function = parse(
        "func @main(%a: float32[4], %b: float32[4]) -> float32[4] {\n"
        "  %c: float32[4] = tvm.add(%a, %b)\n"
        "  %d: float32[4] = tvm.relu(%c)\n  return %d\n}"
    ).main
    for var in (*function.params, *(b.var for b in function.body.bindings)):
        assert isinstance(var, Var)
        var.name = f"0 {var.name}; #"
    target = cuda("sm_90")
    made: list[tvm.tirx.PrimFunc] = []

    def keep(kernel, target) -> Deferred:
        made.append(kernel)
        return Deferred(kernel, lambda sources: [])

    monkeypatch.setattr(fused, "deferred", keep)
    fused.fuse(function, CPU)
    scheduled = schedule_cuda.schedule(made[0], target)
    with target:
        module = tvm.compile(tvm.IRModule({"main": scheduled}), target).mod
    source = "".join(part.inspect_source() for part in module.imports)
    assert "x0" in source and "x1" in source
    assert "; #" not in source and "0_a" not in source
