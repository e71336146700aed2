"""Without a CUDA device everything imports, backends say why they are unavailable, and nothing else
is different. A process that sees no device stands for such a machine.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

PROGRAM = """
import importlib, pkgutil
from importlib.util import find_spec
import meta
from meta.base.errors import DeviceError
from meta.cli.main import main
from meta.dialect.core import dialects

# What is imported only where a package of an extra is there.
needs = {"meta.dialect.cutlass.source": "cutlass", "meta.dialect.triton": "triton"}
absent = tuple(name for name, package in needs.items() if find_spec(package) is None)
for module in pkgutil.walk_packages(meta.__path__, "meta."):
    if not module.name.endswith("__main__") and not module.name.startswith(absent):
        importlib.import_module(module.name)

of_cuda = {"cublas", "cuda", "cudnn", "template"}
absent = {d.name: d.unavailable for d in dialects() if d.unavailable is not None}
assert {name: absent[name] for name in of_cuda} == dict.fromkeys(of_cuda, "no CUDA device"), absent
x = meta.array([[1.0, 2.0, 3.0]])
shown = str(meta.explain(meta.softmax, x))
for name in of_cuda:
    assert f"{name}  unavailable: no CUDA device" in shown, shown

model = meta.model.trace(lambda x: meta.softmax(x * 2.0))
expected = meta.vm.compile(model, x)(x).torch()
for name in of_cuda:
    with meta.dialect.prefer(name):
        run = meta.vm.compile(model, x)
        assert (run(x).torch() == expected).all() and "device is cpu" in str(run.cuda_graph)

for wrong in (
    lambda: meta.array([1.0], device="cuda"),
    lambda: meta.model.Linear(2, 2).to(device="cuda"),
    lambda: meta.vm.compile(model, x, device="cuda"),
):
    try:
        wrong()
    except DeviceError as error:
        assert "cuda:0 is not present" in str(error) and "try:" in str(error), error
    else:
        raise AssertionError("there is a device")
assert main(["selftest", "--device", "cuda"]) == 2
assert main(["env"]) == 0
"""


@pytest.mark.long
def test_no_device() -> None:
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert found.returncode == 0, found.stderr
    assert "cuda:0 is not present" in found.stderr
    for name in ("cublas", "cuda", "cudnn", "template"):
        assert re.search(rf"{name} +on cuda .*unavailable: no CUDA device", found.stdout), (
            found.stdout
        )
