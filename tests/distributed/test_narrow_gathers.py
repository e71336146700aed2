"""The pass `narrow_gathers`: what is cast before it is gathered, and that it changes no number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meta
from meta import distributed as dist
from meta import optim
from meta.ir import parse, verify
from meta.passes import infer_type, narrow_gathers

GATHER = '%a = all_gather(%w, over="dp", size=2)'


def gathered(body: str, result: str = "%y", head: str = "%w: float32[6]") -> list[str]:
    """Return the dtype of each gather of a program, behind the pass."""
    module = infer_type(parse(f"func @main({head}) {{\n{body}\nreturn {result}\n}}"))
    found = narrow_gathers(module)
    verify(found, typed=True)
    assert found.main.result_type == infer_type(found).main.result_type
    exchanges = [b for b in found.main.body.bindings if "all_gather" in str(b.value)]
    return [str(b.var.type).partition("[")[0] for b in exchanges]


def cast(name: str, of: str, dtype: str = "bfloat16") -> str:
    return f'%{name} = astype(%{of}, dtype="{dtype}")'


@pytest.mark.parametrize(
    "body",
    [
        f"{GATHER}\n{cast('y', 'a')}",
        f"{GATHER}\n{cast('b', 'a')}\n{cast('c', 'a')}\n%y = add(%b, %c)",
        f"""{GATHER}
        %b = strided_slice(%a, begin=(0,), end=(10,))
        %c = reshape(%b, shape=(2, 5))
        %d = permute_dims(%c, axes=(1, 0))
        {cast("e", "d")}
        {cast("f", "b")}
        %g = reshape(%f, shape=(5, 2))
        %y = multiply(%e, %g)""",
    ],
)
def test_what_is_narrow(body: str) -> None:
    assert gathered(body) == ["bfloat16"]


@pytest.mark.parametrize(
    ("body", "result"),
    [
        (f"{GATHER}\n{cast('b', 'a')}\n%y = exp(%a)", "(%b, %y)"),
        (f"{GATHER}\n{cast('y', 'a')}", "(%a, %y)"),
        (f"{GATHER}\n{cast('y', 'a')}\n{cast('z', 'a', 'float16')}", "(%y, %z)"),
        (f"{GATHER}\n{cast('y', 'a', 'int32')}", "%y"),
        (f"{GATHER}\n{cast('y', 'a', 'float64')}", "%y"),
        (f"{GATHER.replace('2', '1')}\n{cast('y', 'a')}", "%y"),
        (GATHER, "%w"),
        (f"{GATHER}\n%b = reshape(%a, shape=(3, 4))\n{cast('y', 'b')}", "(%b, %y)"),
    ],
)  # fmt: skip
def test_what_stays(body: str, result: str) -> None:
    assert gathered(body, result) == ["float32"]


def test_a_use_in_a_block_stays() -> None:
    body = f"""{GATHER}
    %y = if %p {{
      {cast("b", "a")}
      yield %b
    }} else {{
      {cast("c", "a")}
      yield %c
    }}"""
    assert gathered(body, head="%w: float32[6], %p: bool[]") == ["float32"]


class Net(meta.Model):
    """Layers of which a rank has parts that fit and parts that are padded."""

    def build(self) -> None:
        self.embed = meta.model.Embedding(33, 128)
        self.layers = [meta.model.Linear(128, 128) for _ in range(4)]
        self.head = meta.model.Linear(128, 33)

    @meta.model.trace
    def forward(self, x: Any) -> Any:
        """Return a number."""
        y = self.embed(x)
        for layer in self.layers:
            y = y + meta.tanh(layer(y))
        return meta.cross_entropy(self.head(y), x)


def trained(zero: int, *disabled: str) -> tuple[dict[str, Any], str]:
    """Return the state behind some steps, and the program."""
    meta.random.seed(0)
    net = Net()
    drawn = np.random.default_rng(0)
    for array in net.state().values():
        array.update(meta.array(0.1 * drawn.standard_normal(array.shape).astype("float32")))
    step = optim.with_sgd(0.1, momentum=0.9, over="dp", zero=zero)(net)
    arguments = meta.array(1.0), meta.array(drawn.integers(0, 33, 8) + dist.rank("dp") - 1)
    with meta.PassContext(disabled=disabled):
        run = meta.vm.compile(meta.amp.autocast(step, "bfloat16"), *arguments)
    for _ in range(3):
        run(*arguments)
    return {n: dist.unshard(a).numpy() for n, a in step.state().items()}, str(run.module)


def test_a_step_under_autocast_gives_the_same_bits() -> None:
    (found, text), _ = dist.simulate(2).run(trained, 3)
    (wide, wide_text), _ = dist.simulate(2).run(trained, 3, "narrow_gathers")
    assert "bfloat16" in text and "bfloat16[16384] = gloo.all_gather" in text
    assert "bfloat16[16384] = gloo.all_gather" not in wide_text
    assert found.keys() == wide.keys()
    for name, value in found.items():
        assert (value == wide[name]).all(), name
