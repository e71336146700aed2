"""The algorithms of a product: those of cuBLASLt's heuristic, and one that a configuration names.

A configuration has the 64 bytes of a ``cublasLtMatmulAlgo_t`` as a number and the version of
cuBLASLt. The header says of these bytes that they can be written down and restored for use with the
same version of the library. The alternative, to make an algorithm anew by its number and
attributes (tile, stages, parts of the sum), is complete only as long as no version adds an
attribute, and nothing would say so. A checksum tells bytes that were cut or changed. The library
checks what was restored before it is used (``cublasLtMatmulAlgoCheck``), which refuses algorithms
of another GPU and of another product, and says what memory it takes.
"""

from __future__ import annotations

import ctypes
import zlib
from ctypes import c_int, c_uint32, c_uint64
from typing import TYPE_CHECKING

from meta.dialect.core import Config, Unsupported
from meta.dialect.cublas import library as lt
from meta.dialect.cublas.library import Algorithm, Descriptor

if TYPE_CHECKING:
    from meta.dialect.cublas.plan import ProductPlan

WORKSPACE = 32 << 20
"""Bytes of scratch memory that an algorithm may take; NVIDIA's advice from Hopper on."""
LISTED = 16
"""Algorithms besides the first that are worth measuring."""
ALGORITHM, VERSION = "algorithm", "version"
_HEAD = "x"  # before the number: a word in digits alone would be read as a decimal number


def heuristic(plan: ProductPlan, count: int) -> list[Algorithm]:
    """Return up to ``count`` algorithms for a plan's product, the most promising first.

    Raises Unsupported with cuBLASLt's status if there is none.
    """
    problem = plan.problem
    preference = Descriptor("MatmulPreference")
    preference.set(lt.PREF_MAX_WORKSPACE_BYTES, c_uint64(WORKSPACE))
    for attribute in lt.PREF_MIN_ALIGNMENT:
        preference.set(attribute, c_uint32(problem.alignment))
    # Parts of a sum in half precision would be rounded before they are added.
    half = problem.kinds[2] in ("float16", "bfloat16")
    schemes = lt.REDUCTION_COMPUTE_TYPE if half else lt.REDUCTION_ANY
    preference.set(lt.PREF_REDUCTION_SCHEME_MASK, c_uint32(schemes))
    found, number = (Algorithm * count)(), c_int()
    x1, x2, out = (one.pointer for one in plan.layouts)
    code = lt.cublaslt().cublasLtMatmulAlgoGetHeuristic(
        lt.handle(plan.device), plan.operation.pointer, x2, x1, out, out, preference.pointer,
        count, found, ctypes.byref(number),
    )  # fmt: skip
    usable = [one for one in found[: number.value] if one.state == 0]
    if code == lt.NOT_SUPPORTED or (code == 0 and not usable):
        raise Unsupported(f"cuBLASLt has no algorithm ({lt.status_text(code)})")
    lt.check(code, "cublasLtMatmulAlgoGetHeuristic")
    return usable


def listed(plan: ProductPlan) -> list[Config]:
    """Return the configurations of the algorithms that a plan's product has besides the plan's."""
    found = [config_of(one) for one in heuristic(plan, LISTED + 1)]
    own = config_of(plan.algorithm)
    return [config for config in dict.fromkeys(found) if config != own][:LISTED]


def config_of(algorithm: Algorithm) -> Config:
    """Return the configuration that names an algorithm."""
    content = bytes(algorithm.algo).rstrip(b"\0")
    text = (content + _checksum(content)).hex()
    return (ALGORITHM, _HEAD + text), (VERSION, lt.cublaslt().cublasLtGetVersion())


def named(plan: ProductPlan, config: Config) -> Algorithm:
    """Return the algorithm that a configuration names, for a plan's product.

    Raises Unsupported if it is none of this version, or not one for this product and device.
    """
    stated, version = dict(config), lt.cublaslt().cublasLtGetVersion()
    if set(stated) != {ALGORITHM, VERSION}:
        raise Unsupported(f"{config} does not name an algorithm of cuBLASLt")
    if stated[VERSION] != version:
        raise Unsupported(f"an algorithm of cuBLASLt {stated[VERSION]}; this is {version}")
    algorithm, checked = _restored(str(stated[ALGORITHM])), Algorithm()
    x1, x2, out = (one.pointer for one in plan.layouts)
    code = lt.cublaslt().cublasLtMatmulAlgoCheck(
        lt.handle(plan.device), plan.operation.pointer, x2, x1, out, out,
        ctypes.byref(algorithm), ctypes.byref(checked),
    )  # fmt: skip
    if code or checked.state or checked.workspace > WORKSPACE:
        reason = lt.status_text(code or checked.state)
        raise Unsupported(f"cuBLASLt does not take the algorithm for this product ({reason})")
    # The check leaves the bytes of its result alone.
    algorithm.workspace = checked.workspace
    return algorithm


def _restored(text: str) -> Algorithm:
    """Return the algorithm of `config_of`; Unsupported if it is not as it was written."""
    found = Algorithm()
    try:
        content = bytes.fromhex(text.removeprefix(_HEAD))
    except ValueError:
        content = b""
    content, checksum = content[:-4], content[-4:]
    if not content or len(content) > ctypes.sizeof(found.algo) or checksum != _checksum(content):
        raise Unsupported(f"{text} is no algorithm of cuBLASLt in good order")
    ctypes.memmove(found.algo, content, len(content))
    return found


def _checksum(content: bytes) -> bytes:
    return zlib.crc32(content).to_bytes(4, "little")
