"""A vendor as an installed package, which an entry point announces."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.conftest import first_on_path, run_python

ROOT = Path(__file__).parents[3]
INIT = """
    from backend_utils import VendorInfoBase
    vendor_info = VendorInfoBase("acme", "cpu", "true")
    """
OPS = """
    def relu(self):
        return self * 0 + 42.0
    __all__ = ["relu"]
    """
USE = """
    import sys
    import meta
    print("acme_kernels" in sys.modules)
    print(meta.relu(meta.array([1.0])).item())
    print("backend_utils" in sys.modules)
    print(meta.explain(meta.relu, meta.array([1.0])).chosen.dialect_op.scope)
    """


def lines(folder: Path, code: str) -> list[str]:
    """Run Python with a folder on its path; return what it prints."""
    return run_python("-c", textwrap.dedent(code), first=folder).splitlines()


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder as that of installed packages, with one that announces a vendor."""
    pytest.importorskip("triton")
    info = tmp_path / "acme_kernels-1.0.dist-info"
    files = {
        info / "METADATA": "Metadata-Version: 2.1\nName: acme-kernels\nVersion: 1.0\n",
        info / "entry_points.txt": "[meta.vendors]\nacme = acme_kernels\n",
        tmp_path / "acme_kernels" / "__init__.py": INIT,
        tmp_path / "acme_kernels" / "ops" / "__init__.py": OPS,
    }
    for file, text in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text), "utf-8")
    return tmp_path


def test_an_announced_vendor_is_found_when_it_is_needed(installed: Path) -> None:
    assert lines(installed, USE) == ["False", "42.0", "False", "vendor acme"]


def test_packages_that_cannot_be_used_say_why(installed: Path) -> None:
    (installed / "acme_kernels" / "__init__.py").write_text("import no_driver\n", "utf-8")
    other = installed / "bolt_kernels.py"
    other.write_text(textwrap.dedent(INIT).replace("acme", "blot"), "utf-8")
    with open(installed / "acme_kernels-1.0.dist-info" / "entry_points.txt", "a") as file:
        file.write("bolt = bolt_kernels\n")
    code = """
        import meta
        print(meta.relu(meta.array([1.0])).item())
        for verdict in meta.dialect.vendors.verdicts():
            print(verdict.known.name, verdict.active, verdict.why)
        """
    assert lines(installed, code) == [
        "1.0",
        "acme False acme_kernels cannot be used: acme_kernels does not describe a vendor: needs "
        f"no_driver, which is not here ({installed / 'acme_kernels' / '__init__.py'}:1)",
        "bolt False bolt_kernels cannot be used: it calls itself 'blot'",
    ]


OWN = '''
    import torch
    from meta.dialect.core.catalog import DIALECTS
    from meta.op.core import Tensor, op

    @op(elementwise=True)
    def half_of(x: Tensor) -> Tensor:
        """x / 2, elementwise."""
        return x

    @DIALECTS["torch"].kernel(half_of)
    def kernel(x):
        return x / 2
    '''


@pytest.mark.long
def test_operators_that_a_vendor_defines_are_known_before_anything_ran(installed: Path) -> None:
    with open(installed / "acme_kernels" / "ops" / "__init__.py", "a") as file:
        file.write(textwrap.dedent(OWN))
    code = """
        import meta
        print(meta.half_of(meta.array([3.0])).item())
        from meta.cli.main import main
        assert main(["op", "half_of"]) == 0
        """
    out = lines(installed, code)
    assert out[0] == "1.5" and out[1] == "half_of(x: tensor)"
    fresh = "from meta.cli.main import main; raise SystemExit(main(['op', 'half_of']))"
    assert lines(installed, fresh)[0] == "half_of(x: tensor)"


PROJECT = """
    [build-system]
    requires = ["setuptools"]
    build-backend = "setuptools.build_meta"

    [project]
    name = "acme-kernels"
    version = "1.0"

    [project.entry-points."meta.vendors"]
    acme = "acme_kernels"

    [tool.setuptools]
    packages = ["acme_kernels", "acme_kernels.ops"]
    """


@pytest.mark.slow
def test_a_package_in_a_fresh_environment(tmp_path: Path) -> None:
    """Built and installed by pip, beside the packages of this environment; nothing is edited."""
    pytest.importorskip("triton")
    pytest.importorskip("setuptools")
    project, place = tmp_path / "project", tmp_path / "environment"
    for name, text in {
        "pyproject.toml": PROJECT,
        "acme_kernels/__init__.py": INIT,
        "acme_kernels/ops/__init__.py": OPS,
    }.items():
        file = project / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text), "utf-8")
    venv = [sys.executable, "-m", "venv", "--system-site-packages", "--without-pip", str(place)]
    subprocess.run(venv, check=True)
    python = place / "bin" / "python"
    # The packages of the environment in which the tests run, which may be a virtual one, too: pip
    # and setuptools are from there.
    (site,) = (place / "lib").glob("python*/site-packages")
    outer = [p for p in sys.path if p.endswith("-packages")]
    (site / "outer.pth").write_text("\n".join(outer), "utf-8")
    put_in = subprocess.run(
        [str(python), "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation",
         "--no-index", str(project)],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert put_in.returncode == 0, put_in.stderr
    done = subprocess.run(
        [str(python), "-c", textwrap.dedent(USE)],
        capture_output=True, text=True, cwd=ROOT, timeout=300, env=first_on_path(ROOT),
    )  # fmt: skip
    assert done.stdout.split("\n")[:4] == ["False", "42.0", "False", "vendor acme"], done.stderr
    assert (site / "acme_kernels" / "__init__.py").is_file()
