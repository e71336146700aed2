"""The pass `unslice_scores`: losses of a part of the rows are computed of all of them."""

from __future__ import annotations

import pytest
import torch

import meta
from meta.ir import Module, parse, verify
from meta.op.core import tree
from meta.passes import autodiff, infer_type, unslice_scores
from meta.vm.compiler.calling_convention import module_program
from meta.vm.run.interpreter import interpret

EXTENTS = (3, 8, 5)
# What is sliced, the rows of the part, and what is computed on the way.
PARTS: dict[str, tuple[str, tuple[int, ...], str]] = {
    "last": ("begin=(0, 0), end=(3, 7)", (3, 7), ""),
    "first": ("begin=(0, 1), end=(3, 8)", (3, 7), ""),
    "both ends": ("begin=(0, 1), end=(3, -1)", (3, 6), ""),
    "sizes": ('begin=(0, 1), end=(3, 7), slice_mode="size"', (3, 7), ""),
    "a batch": ("begin=(0,), end=(3,)", (3, 8), ""),
    "copied": ("begin=(0, 0), end=(3, 7)", (3, 7), "copy(%s)"),
    "widened": ("begin=(0, 0), end=(3, 7)", (3, 7), 'astype(%s, dtype="float64")'),
}
LEFT: dict[str, tuple[str, tuple[int, ...], str]] = {
    "few rows": ("begin=(0, 0), end=(3, 5)", (3, 5), ""),
    "classes": ("begin=(0, 0, 0), end=(3, 8, 4)", (3, 8), ""),
    "every other row": ("begin=(0, 0), end=(3, 8), strides=(1, 2)", (3, 4), ""),
    "narrowed": ("begin=(0, 0), end=(3, 7)", (3, 7), 'astype(%s, dtype="bfloat16")'),
}


def program(part: tuple[str, tuple[int, ...], str], labels: str) -> Module:
    options, rows, between = part
    classes = 4 if "8, 4)" in options else EXTENTS[-1]
    count = rows[0] * rows[1]
    made = f"%c = {between}\n" if between else ""
    text = f"""func @main(%x: float32{list(EXTENTS)}, %t: {labels}[{count}]) {{
      %s = strided_slice(%x, {options})
      {made}%r = reshape({"%c" if between else "%s"}, shape=({count}, {classes}))
      %y = cross_entropy(%r, %t)
      return %y}}"""
    return infer_type(parse(text))


@pytest.mark.parametrize("labels", ["int64", "uint8"])
@pytest.mark.parametrize("name", PARTS)
def test_results_and_gradients_stay(name: str, labels: str) -> None:
    before = program(PARTS[name], labels)
    after = infer_type(unslice_scores(before))
    verify(after)
    assert "strided_slice(" not in str(after)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(EXTENTS, generator=generator)
    count = before.main.params[1].type.static_shape[0]
    target = torch.randint(5, (count,), generator=generator)
    if labels == "int64":
        target[::4] = -100
    given = [meta.array(x), meta.array(target.to(getattr(torch, labels)))]
    dtype = before.main.result_type.dtype
    dy = meta.array(0.7, dtype)
    pairs = []
    for module in (before, after):
        found = interpret(module_program(module), *given)
        gradient = interpret(module_program(autodiff(module, wrt=[0])), dy, *given)
        pairs.append([a.torch() for a in tree.flatten((found, gradient))[0]])
    torch.testing.assert_close(*pairs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left(name: str) -> None:
    before = program(LEFT[name], "int64")
    assert str(unslice_scores(before)) == str(before)


def test_a_language_model_has_no_gradient_of_a_slice() -> None:
    class Net(meta.Model):
        def build(self) -> None:
            self.layer = meta.model.Linear(4, 6)

        @meta.model.trace
        def forward(self, x: meta.ndarray, ids: meta.ndarray) -> meta.ndarray:
            scores = self.layer(x)[:, :-1]
            return meta.cross_entropy(
                meta.reshape(scores, (-1, 6)), meta.reshape(ids[:, 1:], (-1,))
            )

    x, ids = meta.array(torch.randn(2, 9, 4)), meta.array(torch.randint(6, (2, 9)))
    text = str(meta.model.value_and_grad(Net()).program(meta.array(1.0), x, ids).module)
    assert "strided_slice_dx(" not in text and "pad(" in text
