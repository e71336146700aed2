"""``python -m meta env``: what is there on this machine and how meta is set up; and ``cache``: what
is kept on disk between processes, how much, and how to be rid of it.
"""

from __future__ import annotations

import argparse
import os
import platform
from dataclasses import asdict
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

import meta
from meta.base import caches, config
from meta.base.device import Device, available
from meta.base.errors import MetaError
from meta.base.source import short_site
from meta.cli.table import section, show
from meta.dialect import vendors
from meta.dialect.core import dialects

OF_CUDA = (
    "nvidia-cublas",
    "nvidia-cudnn-cu13",
    "nvidia-cudnn-frontend",
    "nvidia-cuda-nvrtc",
    "nvidia-cutlass-dsl",
    "quack-kernels",
)
"""Packages whose kernels and compilers run on an NVIDIA GPU."""


def installed(package: str) -> str | None:
    """Return the version of a package, None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def run_cache(options: argparse.Namespace) -> int:
    """Remove what is to be removed, and print what is left."""
    if options.clear is not None:
        caches.clear(options.clear)
    show(options, on_disk(), lambda record: "\n".join(cache_lines(record)[1:]))
    return 0


def on_disk() -> dict[str, Any]:
    """Return what each cache takes, all of them together, and the bound, in MiB; None for none.

    Kernels of a program are shared with the cache of kernels, so that the sum may be larger than
    all together.
    """
    return {
        "kept": bool(config.get("META_CACHE")),
        "bound_mib": mebibytes(caches.limit_bytes()) or None,
        "mib": mebibytes(caches.total_bytes()),
        "caches": [
            {
                "name": found.cache.name,
                "what": found.cache.what,
                "folder": str(found.folder),
                "entries": found.entries,
                "mib": mebibytes(found.size),
            }
            for found in caches.usage()
        ],
    }


def mebibytes(size: int) -> float:
    """Return bytes as MiB, to a tenth."""
    return round(size / 2**20, 1)


def cache_lines(record: dict[str, Any]) -> list[str]:
    """Return the record as lines for a terminal."""
    limit = record["bound_mib"]
    most = "without a bound" if limit is None else f"of at most {limit:g} MiB (META_CACHE_SIZE)"
    rows = [
        [c["name"], c["what"], f"{c['entries']} files or folders", f"{c['mib']} MiB", c["folder"]]
        for c in record["caches"]
    ]
    state = "" if record["kept"] else "; switched off by META_CACHE"
    rows.append(["together", "", "", f"{record['mib']} MiB", most + state])
    return section("caches on disk", rows)


PACKAGES = (
    "torch", "apache-tvm", "apache-tvm-ffi", "numpy", "ml_dtypes", "safetensors", "tqdm",
    "scikit-learn", "matplotlib", "triton", "onnx", *OF_CUDA,
)  # fmt: skip


def run_env(options: argparse.Namespace) -> int:
    """Print the record."""
    show(options, environment(), text)
    return 0


def environment() -> dict[str, Any]:
    """Return versions, devices, dialects, knobs and the state of the caches."""
    return {
        "meta": meta.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: installed(name) for name in PACKAGES},
        "cuda": torch.version.cuda,
        "devices": [_device(device) for device in available()],
        "dialects": [
            {"name": d.name, "devices": list(d.devices), "unavailable": d.unavailable,
             "plevel": int(d.plevel), "site": str(d.site)}
            for d in dialects()
        ],
        "vendors": _vendors(),
        "knobs": config.table(),
        "kernel_cache": kernel_cache(),
        "caches": on_disk(),
    }  # fmt: skip


def _device(device: Device) -> dict[str, Any]:
    if device.kind == "cpu":
        return {
            "name": str(device),
            "model": _processor(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
        }
    properties = torch.cuda.get_device_properties(device.ordinal)
    return {
        "name": str(device),
        "model": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_gib": round(properties.total_memory / 2**30, 1),
    }


def _vendors() -> list[dict[str, Any]]:
    """Return what detection says of each vendor. A META_VENDOR that names none is part of that."""
    try:
        found = vendors.verdicts()
        for verdict in found:
            if verdict.active and verdict.known.package is not None:
                _read(verdict.known)
    except MetaError as error:
        return [
            {"name": config.get("META_VENDOR"), "device": None, "in_force": False, "here": False,
             "why": f"{error.what}; {error.expected}", "site": None, "unavailable": {}}
        ]  # fmt: skip
    return [
        {"name": v.known.name, "device": v.known.vendor and v.known.vendor.device,
         "in_force": v.active, "here": v.here,
         "why": "; ".join(dict.fromkeys(filter(None, (v.why, v.known.unavailable)))),
         "site": v.known.folder and str(v.known.folder), "unavailable": _unavailable(v)}
        for v in found
    ]  # fmt: skip


def _unavailable(verdict: Any) -> dict[str, list[str]]:
    """Return which functions of a vendor in force are not available, by the reason."""
    found: dict[str, list[str]] = {}
    if verdict.active and verdict.known.package and not verdict.known.unavailable:
        for files in vendors.files_on(Device(verdict.known.vendor.device)):
            for name, error in files.unavailable.items():
                found.setdefault(f"{error.what} ({error.span})", []).append(name)
    return found


def _read(known: Any) -> None:
    """Read the files of a vendor in force: what is wrong with them is part of the answer."""
    try:
        vendors.files_on(Device(known.vendor.device))
    except MetaError as error:
        known.unavailable = f"its files cannot be used: {error.what} ({error.span})"


def _processor() -> str:
    """Return the processor's model; Linux knows it best."""
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def kernel_cache() -> dict[str, Any]:
    """Return the folder of the kernel cache, and whether it is usable.

    TVM is imported for this, if it is there; that it cannot be is part of the answer.
    """
    try:
        cache = import_module("meta.dialect.tvm.cache")
    except (ImportError, OSError) as error:
        return {"folder": None, "readable": False, "writable": False, "reason": str(error)}
    status = asdict(cache.status())
    return {**status, "folder": str(status["folder"])}


def text(record: dict[str, Any]) -> str:
    """Return the record for a terminal."""
    versions = [
        ["meta", record["meta"]],
        ["python", f"{record['python']} on {record['platform']}"],
        *([name, found or "not installed"] for name, found in record["packages"].items()),
        ["CUDA", record["cuda"] or "torch is built without it"],
    ]
    lines = section("versions", versions)[1:]
    lines += section(
        "devices",
        [
            [
                d["name"],
                d["model"],
                *(f"{k} {v}" for k, v in d.items() if k not in ("name", "model")),
            ]
            for d in record["devices"]
        ],
    )
    lines += section(
        "backends",
        [
            [d["name"], "on " + ", ".join(d["devices"]), f"plevel {d['plevel']}",
             f"unavailable: {d['unavailable']}" if d["unavailable"] else "available",
             short_site(d["site"])]
            for d in record["dialects"]
        ],
    )  # fmt: skip
    lines += section(
        "vendors",
        [
            [v["name"], f"on {v['device']}" if v["device"] else "",
             "in force" if v["in_force"] else "here" if v["here"] else "not in force", v["why"],
             short_site(v["site"] or "")]
            for v in record["vendors"]
        ],
    )  # fmt: skip
    lines += section(
        "functions of vendors that are not available",
        [
            [v["name"], ", ".join(names), why]
            for v in record["vendors"]
            for why, names in v["unavailable"].items()
        ],
    )
    lines += section(
        "environment variables",
        [
            [k["name"], repr(k["value"]), "" if k["value"] == k["default"] else "(set)", k["help"]]
            for k in record["knobs"]
        ],
    )
    cache = record["kernel_cache"]
    state = [name for name in ("readable", "writable") if cache[name]]
    lines += section(
        "kernel cache",
        [
            ["folder", cache["folder"]],
            ["state", ", ".join(state) or "not in use"],
            *([["why", cache["reason"]]] if cache["reason"] else []),
        ],
    )
    lines += cache_lines(record["caches"])
    return "\n".join(lines)
