"""A failing program as a Python script that stands alone."""

from __future__ import annotations

from tools.fuzz_models.face import Failure
from tools.fuzz_models.torch_compile.program import (
    Program,
    given_source,
    source,
    values_source,
)

RUN = """
run = torch.compile(f, backend="meta", dynamic={dynamic})
for call in CALLS:
    for function in (f, run):
        given, leaves = inputs(**call)
        with torch.set_grad_enabled({train}):
            results = function(*given)
        print("eager" if function is f else "meta ", call, *results, sep="\\n  ")
        ends = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
        if ends and leaves:
            dys = [(torch.arange(y.numel()) % 5 + 1).div(4).to(y).view(y.shape) for y in ends]
            print(*torch.autograd.grad(ends, leaves, dys, allow_unused=True), sep="\\n  d ")
        print(*given, sep="\\n  argument ")
"""


def script(program: Program, device: str, failure: Failure) -> str:
    """Return a script that shows each call, eager and compiled; what differs is in a comment."""
    calls = "".join(f"\n    {c}," for c in program.calls)
    lines = [
        "import math",
        "",
        "import torch",
        "import torch.nn.functional as F",
        "",
        "import meta.frontend.dynamo",
        "",
        "",
        values_source().rstrip(),
        "",
        "",
        source(program),
        "",
        "",
        given_source(program, device),
        "",
        "",
        f"CALLS = [{calls}\n]",
        RUN.format(dynamic=program.dynamic, train=program.train).rstrip(),
        f"# {failure.kind}",
        *(f"# {text}" for text in failure.text.splitlines()[:40]),
    ]
    return "\n".join(lines) + "\n"
