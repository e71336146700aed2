"""A failing case as a Python script that stands alone."""

from __future__ import annotations

import torch

from tools.fuzz_models.face import Failure
from tools.fuzz_models.minimise import pattern
from tools.fuzz_models.precision import is_float
from tools.fuzz_models.program import Input, Program, source
from tools.fuzz_models.run import AUTOCAST, Way, gradient_of, symbolic_types

MOST = 4000
"""Elements that are written out."""


def script(program: Program, way: Way, failure: Failure) -> str:
    """Return a script that runs a program; what it should print is in a comment."""
    lines = [
        "from math import inf, nan",
        "",
        "import torch",
        "",
        "import meta",
        "from meta import op",
        "",
        "",
    ]
    lines += [source(program, way.device), "", "", "def inputs():", "    return ["]
    lines += [f"        meta.ndarray({_tensor(x, way.device)})," for x in program.inputs.values()]
    lines += ["    ]", "", ""]
    run = _running(program, way)
    if way.dialect != "default":
        run = [f'with meta.dialect.prefer("{way.dialect}"):', *(f"    {line}" for line in run)]
    lines += run
    lines += [f"# {way}: {failure.kind}", *(f"# {line}" for line in failure.text.splitlines()[:30])]
    return "\n".join(lines) + "\n"


def _tensor(given: Input, device: str) -> str:
    count = given.values.numel()
    if is_float(given.dtype) and count > 8 and torch.equal(given.values, pattern(count)):
        text = f"(torch.arange({count}.) * 7 % 33 - 16).div(8).to(torch.{given.dtype})"
    elif count > 8 and bool((given.values == given.values[0]).all()):
        text = f"torch.full(({count},), {given.values[0].item()!r}, dtype=torch.{given.dtype})"
    elif count > MOST:
        text = f"torch.empty({count}, dtype=torch.{given.dtype})"
    else:
        text = f"torch.tensor({given.values.tolist()}, dtype=torch.{given.dtype})"
    text += f".reshape({given.shape})"
    if device != "cpu":
        text += f'.to("{device}")'
    backwards = tuple(reversed(range(len(given.shape))))
    if given.layout == "transposed":
        return f"{text}.permute({backwards}).contiguous().permute({backwards})"
    if given.layout == "sliced":
        cut = "[" + ", ".join(["::2"] * len(given.shape)) + "]" if given.shape else ""
        for axis in range(len(given.shape)):
            text += f".repeat_interleave(2, {axis})"
        return text + cut
    if given.layout == "expanded" and count:
        first = "[" + ", ".join(["0:1"] * len(given.shape)) + "]" if given.shape else ""
        return f"{text}{first}.expand({given.shape})"
    return text


def _running(program: Program, way: Way) -> list[str]:
    show = "print(result, [x.torch() for x in given], sep='\\n')"
    if way.executor == "eager":
        return ["given = inputs()", "result = model(*given)", show]
    if way.executor == "interpreter":
        return ["given = inputs()", "result = meta.model.trace(model)(*given)", show]
    if way.executor == "autocast":
        return [
            "given = inputs()",
            f'with meta.amp.autocast_scope("{AUTOCAST}"):',
            "    result = model(*given)",
            show,
        ]
    if way.gradient:
        dy = gradient_of(program)
        return [
            f"dy = torch.tensor({dy.reshape(-1).tolist()}).reshape({tuple(dy.shape)})",
            "given = inputs()",
            "for x in given:",
            "    x.requires_grad = 'float' in x.dtype",
            f"(y,) = model(*given)  # {way.executor}",
            "y.backward(meta.array(dy, y.dtype))",
            "print([x.grad for x in given], sep='\\n')",
        ]
    if way.executor == "dynamic":
        types = [f"meta.ir.parse_type({t!r})" for t in symbolic_types(program)]
        return [
            "traced = meta.model.trace(model)",
            f"types = [{', '.join(types)}]",
            'dims = {"n": (1, 100_000)}',
            f"run = meta.vm.compile(traced, *types, dims=dims, device={way.device!r})",
            "given = inputs()",
            "result = run(*given)",
            show,
        ]
    level = way.executor[-1]
    return [
        "traced = meta.model.trace(model)",
        f"run = meta.vm.compile(traced, *inputs(), opt_level={level}, device={way.device!r})",
        "given = inputs()",
        "result = run(*given)",
        show,
    ]
