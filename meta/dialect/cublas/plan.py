"""Plans: a matrix product prepared once, so that a call is one function of cuBLASLt.

A problem gets the plan of the heuristic's first algorithm, or of the one that a configuration
names. Plans are kept.

Scratch memory of algorithms is one piece per device and stream, of torch's allocator: calls on one
stream follow one another, so they share it. While a CUDA graph is captured a call gets a piece of
its own, which belongs to the graph: it may be replayed on another stream.

The algorithms of a product: those of cuBLASLt's heuristic, and one that a configuration names.

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
import threading
import zlib
from collections.abc import Callable
from ctypes import c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from functools import lru_cache, partial

import torch

from meta.dialect.core import Config, Unsupported
from meta.dialect.cublas import library as lt
from meta.dialect.cublas.library import Algorithm, Descriptor
from meta.dialect.cublas.problem import Problem

PLANS = 1024
"""How many plans are kept; the one that was not asked for longest goes first."""
STREAMS = 16
"""For how many streams a piece is kept. One that goes, the oldest or one that is too small, may be
reused by its stream alone."""
_pieces: dict[tuple[int, int], torch.Tensor] = {}


class ProductPlan:
    """A product on one device: layouts, algorithm, and the arguments of the call.

    ``workspace``: bytes of scratch memory that it takes.
    """

    def __init__(self, problem: Problem, device: int, config: Config = ()) -> None:
        self.problem, self.device = problem, device
        self.operation = _operation(problem)
        self.layouts = _layouts(problem)
        self.algorithm = named(self, config) if config else heuristic(self, 1)[0]
        self.workspace = int(self.algorithm.workspace)
        number = ctypes.c_double if problem.dtype == "float64" else ctypes.c_float
        self._numbers = number(1.0), number(1.0 if problem.addend else 0.0)
        self._lock = threading.RLock()
        self._bias = self._aux = 0
        self._scales = 0, 0
        self._a, self._b, self._c, self._d = c_void_p(), c_void_p(), c_void_p(), c_void_p()
        self._scratch, self._stream = c_void_p(), c_void_p()
        self._run: Callable[..., int] = partial(lt.cublaslt().cublasLtMatmul, *self._arguments())
        self._stream_of = torch._C._cuda_getCurrentRawStream
        self._prepares = self.workspace > 0 or torch.cuda.device_count() > 1

    def _arguments(self) -> tuple[object, ...]:
        alpha, beta = (c_void_p(ctypes.addressof(n)) for n in self._numbers)
        x1, x2, out = (one.pointer for one in self.layouts)
        return (
            lt.handle(self.device), self.operation.pointer, alpha, self._b, x2, self._a, x1,
            beta, self._c, out, self._d, out, ctypes.byref(self.algorithm),
            self._scratch, c_size_t(self.workspace), self._stream,
        )  # fmt: skip

    def __call__(self, x1: int, x2: int, out: int, addend: int = 0) -> None:
        """Compute a product without vectors of an epilogue; all are addresses."""
        # The arguments belong to the plan, so one thread at a time fills them.
        with self._lock:
            self._a.value, self._b.value, self._d.value = x1, x2, out
            self._c.value = addend or out
            self._stream.value = stream = self._stream_of(self.device)
            code = self._with_scratch(stream) if self._prepares else self._run()
        if code:
            lt.check(code, "cublasLtMatmul")

    def with_vectors(
        self, x1: int, x2: int, out: int, bias: int, aux: int = 0, addend: int = 0
    ) -> None:
        """Compute a product whose epilogue reads or writes a bias, and perhaps a matrix."""
        with self._lock:
            if bias != self._bias:
                self.operation.set(lt.DESC_BIAS_POINTER, c_void_p(bias))
                self._bias = bias
            if aux != self._aux:
                self.operation.set(lt.DESC_AUX_POINTER, c_void_p(aux))
                self._aux = aux
            self(x1, x2, out, addend)

    def with_scales(self, x1: int, x2: int, out: int, scale1: int, scale2: int) -> None:
        """Compute a product of scaled factors."""
        with self._lock:
            if (scale1, scale2) != self._scales:
                self.operation.set(lt.DESC_B_SCALE_POINTER, c_void_p(scale1))
                self.operation.set(lt.DESC_A_SCALE_POINTER, c_void_p(scale2))
                self._scales = scale1, scale2
            self(x1, x2, out)

    def _with_scratch(self, stream: int) -> int:
        """Launch it with scratch memory, if it takes some, and on its device, if there are more."""
        if self.workspace:
            # The name keeps it until the call is in the stream.
            piece = scratch(self.device, stream, self.workspace)
            self._scratch.value = piece.data_ptr()
        if torch.cuda.current_device() == self.device:
            return self._run()
        with torch.cuda.device(self.device):
            return self._run()


def plan(problem: Problem, device: int, config: Config = ()) -> ProductPlan:
    """Return the plan of a problem; Unsupported with cuBLASLt's status if it has no algorithm, or
    not the one of a configuration.
    """
    found = _cached_plan(problem, device, config)
    if isinstance(found, str):
        raise Unsupported(found)
    return found


@lru_cache(maxsize=PLANS)
def _cached_plan(problem: Problem, device: int, config: Config) -> ProductPlan | str:
    """Return a plan, or why there is none."""
    try:
        return ProductPlan(problem, device, config)
    except Unsupported as refusal:
        return str(refusal)


def other_algorithms(problem: Problem, device: int) -> list[Config]:
    """Return the configurations of a problem's other plans, the most promising first."""
    return listed(plan(problem, device))


def _operation(problem: Problem) -> Descriptor:
    """Return the descriptor of a product: its precision, transpositions and epilogue."""
    if problem.dtype == "float64":
        compute, scale = lt.COMPUTE_64F, lt.DATA_TYPES["float64"]
    else:
        tf32 = problem.tf32 and problem.dtype == "float32"
        compute = lt.COMPUTE_32F_FAST_TF32 if tf32 else lt.COMPUTE_32F
        scale = lt.DATA_TYPES["float32"]
    made = Descriptor("MatmulDesc", compute, scale)
    # Seen columns first, memory that holds rows is the transposed matrix: A is x2, B is x1.
    made.set(lt.DESC_TRANSA, c_int32(lt.OP_T if problem.x2.transposed else lt.OP_N))
    made.set(lt.DESC_TRANSB, c_int32(lt.OP_T if problem.x1.transposed else lt.OP_N))
    made.set(lt.DESC_EPILOGUE, c_int32(lt.EPILOGUES[problem.epilogue]))
    # Real addresses come with each call; the heuristic looks at how these are aligned.
    if problem.has_vector:
        made.set(lt.DESC_BIAS_POINTER, c_void_p(problem.alignment))
    if problem.vector_step:
        made.set(lt.DESC_BIAS_BATCH_STRIDE, c_int64(problem.vector_step))
    if problem.scales != "none":
        made.set(lt.DESC_A_SCALE_POINTER, c_void_p(problem.alignment))
        made.set(lt.DESC_B_SCALE_POINTER, c_void_p(problem.alignment))
    if problem.scales == "rows":
        made.set(lt.DESC_A_SCALE_MODE, c_int32(lt.SCALE_PER_ROW))
        made.set(lt.DESC_B_SCALE_MODE, c_int32(lt.SCALE_PER_ROW))
    if problem.has_matrix:
        made.set(lt.DESC_AUX_POINTER, c_void_p(problem.alignment))
        made.set(lt.DESC_AUX_LD, c_int64(problem.n))
    return made


def _layouts(problem: Problem) -> tuple[Descriptor, Descriptor, Descriptor]:
    """Return the layouts of x1, x2 and the result."""
    sizes = (problem.m, problem.k), (problem.k, problem.n), (problem.m, problem.n)
    numbers = {**lt.DATA_TYPES, **lt.FLOAT8_TYPES}
    made = []
    places = problem.x1, problem.x2, problem.out
    for (rows, columns), one, kind in zip(sizes, places, problem.kinds, strict=True):
        long, short = (rows, columns) if one.transposed else (columns, rows)
        layout = Descriptor("MatrixLayout", numbers[kind], long, short, one.lead)
        if problem.batch > 1:
            layout.set(lt.LAYOUT_BATCH_COUNT, c_int32(problem.batch))
            layout.set(lt.LAYOUT_STRIDED_BATCH_OFFSET, c_int64(one.step))
        made.append(layout)
    x1, x2, result = made
    return x1, x2, result


def scratch(device: int, stream: int, size: int) -> torch.Tensor:
    """Return at least so many bytes of scratch memory for a call on the current stream."""
    if torch.cuda.is_current_stream_capturing():
        return _allocate(device, size)
    found = _pieces.get((device, stream))
    if found is None or found.numel() < size:
        while len(_pieces) >= STREAMS:
            _pieces.pop(next(iter(_pieces)), None)
        found = _pieces[device, stream] = _allocate(device, size)
    return found


def _allocate(device: int, size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device=torch.device("cuda", device))


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
