"""`init` and `end`: this process as one of many that a launcher started, and alone again."""

from __future__ import annotations

import atexit
import faulthandler
from datetime import timedelta
from numbers import Real

import torch
from torch import distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from meta.base import config
from meta.base.errors import ArgumentError, DistributedError
from meta.base.signature_check import check_signature
from meta.distributed.watchdog import MESSAGE, STORE_LOST, Watchdog
from meta.runtime.mesh import NO_MESH, set_process_mesh
from meta.vm.graphs import rank_agreement

TIMEOUT = 300.0
"""Seconds after which a rank that waits for others is an error."""
_watch: list[Watchdog] = []
_inits = [0]
_has_gpu: list[int] = []
"""The number on the host of the GPU that this process has, if it has one."""


@check_signature
def init(device: str | None = None, timeout: float = TIMEOUT) -> None:
    """Make this process one of those that ``torchrun`` started.

    device: "cuda" (NCCL) or "cpu" (Gloo); None: "cuda" if there is one. Process i of a host takes
    GPU i, and sees no other one: it is "cuda:0", as in the programs of all ranks. timeout: seconds
    after which a rank that waits in vain raises an error. Then make a `Mesh`.

    Raises DistributedError if no launcher started the process, its GPU is not there, CUDA was used
    before, or a rank does not come; ArgumentError for another device, or a timeout that is no
    number.

    >>> try:
    ...     meta.distributed.init("cpu")
    ... except meta.errors.DistributedError as error:
    ...     print(error.what)
    no launcher started this process
    """
    if dist.is_initialized():
        raise DistributedError("this process is one of many already", hint="meta.distributed.end()")
    if device not in (None, "cpu", "cuda"):
        expected = '"cuda" or "cpu": each process takes its own device of this kind'
        raise ArgumentError("ranks are on no such device", expected=expected, found=repr(device))
    if isinstance(timeout, bool) or not isinstance(timeout, Real):
        raise ArgumentError("timeout is in seconds", expected="a number", found=repr(timeout))
    if not timeout > 0:
        raise DistributedError("there is no time to wait", expected="timeout > 0", found=timeout)
    said = config.launch()
    missing = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} - said.keys()
    if missing:
        raise DistributedError(
            "no launcher started this process",
            expected=f"{', '.join(sorted(missing))} in the environment",
            hint="torchrun --nproc-per-node 2 program.py; or meta.distributed.simulate",
        )
    # That there is CUDA is not asked: the answer would start it.
    kind = device or ("cuda" if torch.cuda.device_count() else "cpu")
    if kind == "cuda":
        take_gpu(dist.get_node_local_rank(fallback_rank=0))
    rank, size = int(said["RANK"]), int(said["WORLD_SIZE"])
    keeps_store = rank == 0 and said.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    # Keys of its own for each start: a launcher may start a failed program again.
    _inits[0] += 1
    prefix = f"meta/{said.get('TORCHELASTIC_RESTART_COUNT', '0')}/{_inits[0]}"
    place = said["MASTER_ADDR"], int(said["MASTER_PORT"])
    store = _store(*place, keeps_store, timeout)
    client = PrefixStore(f"{prefix}/watch", _store(*place, False, timeout))
    gpu = 0 if kind == "cuda" else None
    try:
        watch = Watchdog(client, rank, size, timeout, keeps_store, gpu)
    except RuntimeError as error:
        raise DistributedError(MESSAGE, found=STORE_LOST) from error
    try:
        watch.meet("init")
        with watch.joining("init"):
            dist.init_process_group(
                # Texts go from host to host, beside what the devices exchange.
                "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo",
                store=PrefixStore(f"{prefix}/groups", store),
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=timeout - watch.margin),
            )
    except BaseException:
        watch.end("init failed")
        raise
    watch.install()
    _watch[:] = [watch]
    atexit.register(_leave, "its program has come to its end")


def take_gpu(ordinal: int) -> None:
    """Let this process see only one GPU of the host, by its number there."""
    if _has_gpu:
        return
    count = torch.cuda.device_count()
    if ordinal >= count:
        raise DistributedError(
            f"process {ordinal} of this host has no GPU",
            found=f"{count} GPUs",
            hint="start one process for each GPU: --nproc-per-node",
        )
    if count > 1:
        config.show_single_gpu(ordinal)
        if torch._C._cuda_getDeviceCount() > 1:  # it was read before
            raise DistributedError(
                "CUDA was used before the process got its GPU",
                found=f"all {count} GPUs of the host are in sight",
                hint="meta.distributed.init() before all that asks for CUDA, "
                "torch.cuda.is_available() included",
            )
    torch.cuda.init()  # type: ignore[no-untyped-call]
    torch.cuda.set_device(0)
    _has_gpu.append(ordinal)


def _store(host: str, port: int, keeps: bool, timeout: float) -> TCPStore:
    """Return a connection to the store of all ranks, which is begun if it is kept here."""
    # PyTorch may take twice as long to find that nobody answers.
    limit = timedelta(seconds=timeout / 2)
    try:
        store = TCPStore(host, port, None, keeps, limit, wait_for_workers=False, multi_tenant=keeps)
        store.set_timeout(timedelta(seconds=timeout))
        return store
    except RuntimeError as error:
        who = "the store cannot be begun" if keeps else "rank 0, or the launcher, does not answer"
        raise DistributedError(
            who,
            expected=f"a store at {host}:{port} within {timeout:g} s",
            found=str(error).splitlines()[0],
        ) from error


def watch() -> Watchdog:
    """Return what watches the processes; DistributedError without `init`."""
    if not _watch:
        raise DistributedError("there are no processes yet", hint="meta.distributed.init()")
    return _watch[0]


@check_signature
def end() -> None:
    """Leave the others: the mesh is gone, and the process is alone again.

    CUDA graphs that hold collectives are forgotten before, without which NCCL would wait for ever.

    It does nothing in a process that is alone.

    >>> meta.distributed.end()
    >>> try:
    ...     meta.distributed.size("dp")
    ... except meta.errors.DistributedError as error:
    ...     print(error.what)
    the mesh has no axis 'dp'
    """
    set_process_mesh(NO_MESH)
    atexit.unregister(_leave)
    _leave("meta.distributed.end()")


def _leave(why: str) -> None:
    """Tell the others, and give up the groups of processes; the process ends if that takes longer
    than a rank waits for others. At the interpreter's exit threads of Gloo would outlive what they
    use.
    """
    if not _watch:
        return
    own = _watch[0]
    if own.device is not None and not own.is_broken():
        torch.cuda.synchronize()  # while it is watched whether what was launched comes to its end
    _watch.clear()
    own.end(why)
    faulthandler.dump_traceback_later(own.limit, exit=True)
    try:
        if own.device is not None and own.is_broken():
            # Kernels of NCCL wait for ever for a rank that is gone.
            dist.distributed_c10d._abort_process_group()
        elif dist.is_initialized():
            rank_agreement.release()
            dist.destroy_process_group()
    finally:
        faulthandler.cancel_dump_traceback_later()
