"""Updates of all parameters taken apart: a smaller budget can be met, and weights stay the same."""

from __future__ import annotations

import pytest

import meta
from meta import op
from meta.base.errors import ArgumentError
from meta.ir import parse
from meta.model import Model, layers, trace
from meta.optim import with_adamw, with_lamb, with_sgd
from meta.passes import infer_type, split_updates
from meta.passes.split_updates import join_small_updates


class Net(Model):
    """Large layers on few rows: gradients of parameters are most of the memory."""

    def build(self) -> None:
        """Make the layers."""
        self.layers = layers.Sequential(*(layers.Linear(64, 64, bias=False) for _ in range(4)))

    @trace
    def forward(self, x):
        """Return the mean square."""
        y = self.layers(x)
        return op.mean(y * y)


@pytest.mark.parametrize("with_", [with_sgd(0.1, momentum=0.9), with_adamw(0.1), with_lamb(0.1)])
def test_a_smaller_budget_is_met(with_) -> None:
    x, rate, found = meta.random.normal((2, 64)), meta.array(1.0), []
    for budget in (None, 48_000):
        meta.random.seed(0)
        step = with_(Net())
        executable = meta.vm.compile(step, rate, x, memory_budget=budget)
        for _ in range(3):
            executable(rate, x)
        found.append({n: a.numpy() for n, a in step.state().items()})
        updates = sum(n for name, n in executable.kernels().items() if "multi_tensor" in name)
        assert updates >= (4 if budget else 1)
        assert executable.memory().peak <= (budget or 1 << 20)
    assert all((found[0][n] == found[1][n]).all() for n in found[0])
    with pytest.raises(ArgumentError, match="does not fit the memory budget"):
        meta.vm.compile(with_(Net()), rate, x, memory_budget=1000)


def test_an_update_of_a_list_that_is_a_value_stays_whole() -> None:
    module = infer_type(
        parse("""func @main(%x: float32[2], %y: float32[3], %g: (float32[2], float32[3])) {
          %u = multi_tensor_sgd((%x, %y), %g, (), 0.1)
          return ()
        }""")
    )
    assert str(split_updates(module)) == str(module)


def test_updates_of_small_parameters_are_joined_in_the_end() -> None:
    text = """func @main(%x: float32[999], %y: float32[2], %z: float32[], %g: float32[999],
                         %h: float32[2], %i: float32[], %r: float32[]) {{
          %u: () = multi_tensor_sgd((%x,), (%g,), (), %r)
          %v: () = multi_tensor_sgd((%y,), (%h,), (), %r)
          {between}
          %w: () = multi_tensor_sgd((%z,), (%i,), (), {rate})
          return ()
        }}"""
    one = str(join_small_updates(parse(text.format(between="", rate="%r"))))
    assert one.count("multi_tensor_sgd") == 2 and "((%y, %z), (%h, %i)" in one
    # What reads a parameter between two updates, and another rate, keep them apart.
    for between, rate in (("%a: float32[] = sum(%y)", "%r"), ("", "0.5")):
        apart = parse(text.format(between=between, rate=rate))
        assert str(join_small_updates(apart)) == str(apart)
