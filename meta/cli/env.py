"""``python -m meta env``: what `meta` finds on this machine, for a bug report or a puzzled user."""

from __future__ import annotations

import argparse
import os
import platform
from dataclasses import asdict
from importlib import import_module
from typing import Any

import torch

import meta
from meta.base import config
from meta.base.device import Device, available
from meta.base.errors import MetaError
from meta.base.source import short_site
from meta.cli.cache import on_disk
from meta.cli.cache import text as cache_lines
from meta.cli.table import section, show
from meta.cli.versions import OF_CUDA, installed
from meta.dialect import vendors
from meta.dialect.core import dialects

PACKAGES = (
    "torch", "apache-tvm", "apache-tvm-ffi", "numpy", "ml_dtypes", "safetensors", "tqdm",
    "scikit-learn", "matplotlib", "triton", "onnx", *OF_CUDA,
)  # fmt: skip


def run(options: argparse.Namespace) -> int:
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
             "why": f"{error.what}; {error.expected}", "site": None}
        ]  # fmt: skip
    return [
        {"name": v.known.name, "device": v.known.vendor and v.known.vendor.device,
         "in_force": v.active, "here": v.here,
         "why": "; ".join(dict.fromkeys(filter(None, (v.why, v.known.unavailable)))),
         "site": v.known.folder and str(v.known.folder)}
        for v in found
    ]  # fmt: skip


def _read(known: Any) -> None:
    """Read the files of a vendor in force: what is wrong with them is part of the answer."""
    try:
        vendors.parts_on(Device(known.vendor.device))
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
