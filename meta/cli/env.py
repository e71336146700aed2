"""``python -m meta env``: what `meta` finds on this machine, for a bug report or a puzzled user."""

from __future__ import annotations

import argparse
import json
import os
import platform
from dataclasses import asdict
from importlib import import_module
from typing import Any

import torch

import meta
from meta.base import config, kept_file
from meta.base.device import Device, available
from meta.cli.table import section, short_site
from meta.cli.versions import OF_CUDA, installed
from meta.dialect.core import dialects
from meta.vm.program_cache import size as programs_on_disk

PACKAGES = (
    "torch", "apache-tvm", "apache-tvm-ffi", "numpy", "ml_dtypes", "safetensors", "tqdm",
    "scikit-learn", "triton", "onnx", *OF_CUDA,
)  # fmt: skip

FILE_CACHES = {
    "cubin": "machine code of the cuda dialect",
    "cudnn": "plans that cuDNN compiled",
}
"""What is kept of `meta.base.kept_file`, by the name of the cache."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the arguments."""
    parser = commands.add_parser(
        "env",
        help="versions, devices, backends, every META_* variable, the caches on disk",
        description="Show what is there on this machine and how meta is set up.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the record."""
    record = environment()
    print(json.dumps(record, indent=2) if options.json else text(record))
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
        "knobs": config.table(),
        "kernel_cache": kernel_cache(),
        "program_cache": program_cache(),
        "file_caches": [_file_cache(name, what) for name, what in FILE_CACHES.items()],
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


def _processor() -> str:
    """Return the processor's model; Linux knows it best."""
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def kernel_cache() -> dict[str, Any]:
    """Return the folder of the kernel cache, whether it is usable and how many kernels it holds.

    TVM is imported for this, if it is there; that it cannot be is part of the answer.
    """
    try:
        cache = import_module("meta.dialect.tvm.cache")
    except (ImportError, OSError) as error:
        return {"folder": None, "readable": False, "writable": False, "reason": str(error)}
    status = asdict(cache.status())
    kernels = sum(1 for _ in status["folder"].glob("keys/*/*.json"))
    return {**status, "folder": str(status["folder"]), "kernels": kernels}


def program_cache() -> dict[str, Any]:
    """Return the folder of the cache of compiled programs, how many it holds, and their size."""
    folder, programs, size = programs_on_disk()
    used = bool(config.get("META_CACHE") and config.get("META_PROGRAM_CACHE"))
    return {
        "folder": str(folder), "used": used, "programs": programs, "mib": round(size / 2**20, 1),
    }  # fmt: skip


def _file_cache(name: str, what: str) -> dict[str, Any]:
    folder, files, size = kept_file.size(name)
    return {"what": what, "folder": str(folder), "files": files, "mib": round(size / 2**20, 1)}


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
            *([["kernels", cache["kernels"]]] if "kernels" in cache else []),
        ],
    )
    programs = record["program_cache"]
    lines += section(
        "program cache",
        [
            ["folder", programs["folder"]],
            ["state", "in use" if programs["used"] else "not in use"],
            ["programs", f"{programs['programs']} of {programs['mib']} MiB"],
        ],
    )
    lines += section(
        "other caches",
        [
            [c["what"], c["folder"], f"{c['files']} files of {c['mib']} MiB"]
            for c in record["file_caches"]
        ],
    )
    return "\n".join(lines)
