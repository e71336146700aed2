"""A server of a saved program: arrays in, arrays out, over HTTP.

    python examples/serve.py FOLDER [--port 8000] [--workers 2] [--rows 32] [--wait-ms 2]

FOLDER is what `executable.save` wrote. The first axis of all inputs and results is the batch: its
rows must not depend on one another. Requests that wait are run together. docs/howto/serve.md says
how to ask, and what the options are for.
"""

import argparse
import asyncio
import io
import json
import logging
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import numpy as np
import safetensors.numpy
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

import meta
from meta.base.metrics import TEXT_FORM, Metrics

JSON, NPY, SAFETENSORS = "application/json", "application/x-npy", "application/x-safetensors"
HELPS = {
    "requests_total": "Requests, by status.",
    "rows_total": "Rows that were run for requests.",
    "batches_total": "Runs of the program.",
    "waiting_requests": "Requests that wait to be run.",
    "wait_seconds": "How long requests waited.",
    "run_seconds": "How long runs took.",
}


class Refused(Exception):
    """A request that gets an error: its status, and why."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


class Program:
    """A saved program that is called with the rows of a batch."""

    def __init__(self, folder):
        self.executable = meta.vm.load(folder, mmap=True)
        code = self.executable.code
        count = len(code.params) - len(self.executable.arrays) - code.prepared
        self.types = [type_ for _, type_ in code.params[:count]]
        self.names = list(self.executable.convention.signature.parameters)
        if len(self.names) != count or not all(type_.ndim for type_ in self.types):
            raise SystemExit(f"{folder}: the inputs are not arrays whose first axis is a batch")
        rows = self.types[0].shape[0]
        self.fixed = rows if isinstance(rows, int) else None
        limits = {name: most for name, _, most in code.dims}
        self.most = self.fixed or limits.get(str(rows)) or sys.maxsize

    def inputs(self, given):
        """Return arrays, which are given by name or in order, as the program takes them."""
        named = given if isinstance(given, dict) else dict(zip(self.names, given, strict=False))
        if set(named) != set(self.names) or len(given) != len(self.names):
            raise Refused(400, f"the inputs are {', '.join(self.names)}")
        found = []
        for name, type_ in zip(self.names, self.types, strict=True):
            try:
                array = np.asarray(named[name]).astype(type_.dtype, casting="same_kind", copy=False)
            except (TypeError, ValueError) as error:
                raise Refused(400, f"{name} is {type_}: {error}") from None
            pairs = zip(type_.shape[1:], array.shape[1:], strict=False)
            right = all(not isinstance(want, int) or want == extent for want, extent in pairs)
            if array.ndim != type_.ndim or not right:
                raise Refused(400, f"{name} is {type_}, not of shape {array.shape}")
            if not 1 <= len(array) <= self.most or len(array) != len((found or [array])[0]):
                raise Refused(400, f"1 to {self.most} rows, the same number in all inputs")
            found.append(array)
        return found

    def run(self, inputs):
        """Return the results of a batch. That of one size alone is filled with zeros."""
        rows = len(inputs[0])
        if self.fixed is not None and rows < self.fixed:
            inputs = [np.concatenate([x, np.zeros_like(x, shape=(self.fixed - rows, *x.shape[1:]))])
                      for x in inputs]  # fmt: skip
        found = self.executable(*map(meta.asarray, inputs))
        return [y.numpy()[:rows] for y in leaves(found)]


def leaves(found):
    """Return the arrays of a result in order."""
    if not isinstance(found, tuple | list | dict):
        return [found]
    parts = found.values() if isinstance(found, dict) else found
    return [y for part in parts for y in leaves(part)]


class Waiting:
    """A request that waits: its arrays, the future of its answer, and since when."""

    def __init__(self, arrays, answer):
        self.arrays, self.answer, self.since = arrays, answer, time.perf_counter()
        self.rows = len(arrays[0])
        self.kind = [array.shape[1:] for array in arrays]  # what is run together has the same


class Batches:
    """Runs what waits: as soon as it is `rows`, or the first has waited for `wait` seconds."""

    def __init__(self, program, options, metrics):
        self.program, self.metrics, self.waiting = program, metrics, deque()
        self.rows, self.wait = min(options.rows, program.most), options.wait_ms / 1e3
        self.queue, self.seconds = options.queue, options.seconds
        self.threads = ThreadPoolExecutor(options.runs)
        self.free, self.news = asyncio.Semaphore(options.runs), asyncio.Event()
        self.running, self.loop = set(), asyncio.get_running_loop()
        self.collector = asyncio.create_task(self.collect())

    async def answer(self, arrays):
        """Return the results for the rows of one request."""
        if len(self.waiting) >= self.queue:
            raise Refused(503, f"{self.queue} requests wait")
        request = Waiting(arrays, self.loop.create_future())
        self.waiting.append(request)
        if len(self.waiting) == 1 or sum(r.rows for r in self.waiting) >= self.rows:
            self.news.set()
        late = self.loop.call_later(self.seconds, self.give_up, request)
        try:
            return await request.answer
        finally:
            late.cancel()

    def give_up(self, request):
        """Answer a request that has waited for too long, or whose run takes too long."""
        if request in self.waiting:
            self.waiting.remove(request)
        if not request.answer.done():
            request.answer.set_exception(Refused(504, "there was no time for it"))

    async def collect(self):
        """Start runs, as many at a time as there are threads."""
        while True:
            await self.free.acquire()
            batch = await self.next_batch()
            run = asyncio.create_task(self.run(batch))
            self.running.add(run)
            run.add_done_callback(self.running.discard)

    async def next_batch(self):
        while True:
            self.news.clear()
            if self.waiting:
                batch, full = self.together()
                left = self.waiting[0].since + self.wait - time.perf_counter()
                if full or left <= 0:
                    taken = set(map(id, batch))
                    self.waiting = deque(r for r in self.waiting if id(r) not in taken)
                    return batch
                self.loop.call_later(left, self.news.set)
            await self.news.wait()

    def together(self):
        """Return what is run with the first one, and whether no more fits in."""
        batch, rows = [], 0
        for request in self.waiting:
            if request.kind == self.waiting[0].kind:
                if rows + request.rows > self.rows and batch:
                    return batch, True
                batch.append(request)
                rows += request.rows
        return batch, rows >= self.rows

    async def run(self, batch):
        begin = time.perf_counter()
        for request in batch:
            self.metrics.observe("wait_seconds", begin - request.since)
        found = await self.loop.run_in_executor(self.threads, self.compute, batch)
        self.free.release()
        self.metrics.observe("run_seconds", time.perf_counter() - begin)
        self.metrics.count("batches_total")
        self.metrics.count("rows_total", sum(request.rows for request in batch))
        for request, result in zip(batch, found, strict=True):
            if not request.answer.done():
                is_error = isinstance(result, Exception)
                (request.answer.set_exception if is_error else request.answer.set_result)(result)

    def compute(self, batch):
        """Return the results, or the error, of each request."""
        try:
            inputs = [np.concatenate(same) for same in zip(*(r.arrays for r in batch), strict=True)]
            found = self.program.run(inputs)
        except Exception as error:  # its answer says so
            # One of several may be at fault, such as by an index out of range.
            return [error] if len(batch) == 1 else [self.compute([r])[0] for r in batch]
        ends = np.cumsum([request.rows for request in batch])[:-1]
        return list(zip(*(np.split(y, ends) for y in found), strict=True))

    async def close(self):
        """Run what waits, and end."""
        self.wait = 0.0
        self.news.set()
        while self.waiting or self.running:
            await asyncio.sleep(0.01)
        self.collector.cancel()
        self.threads.shutdown()


class Server:
    """The routes: `app` is the application, of ASGI."""

    def __init__(self, options):
        self.options, self.program, self.metrics = options, Program(options.folder), Metrics(HELPS)
        rows = min(options.rows, self.program.most)
        if not options.cold:  # what a first call prepares and allocates
            shapes = [[rows, *t.shape[1:]] for t in self.program.types]
            known = [[d if isinstance(d, int) else 1 for d in shape] for shape in shapes]
            types = [t.dtype for t in self.program.types]
            self.program.run(list(map(np.zeros, known, types)))
        routes = [
            Route("/run", self.run, methods=["POST"]),
            Route("/health", self.health),
            Route("/metrics", self.shown),
        ]
        self.app = Starlette(routes=routes, lifespan=self.lifespan)

    @asynccontextmanager
    async def lifespan(self, app):
        self.batches = Batches(self.program, self.options, self.metrics)
        self.metrics.gauge("waiting_requests", lambda: len(self.batches.waiting))
        try:
            yield
        finally:
            await self.batches.close()

    async def health(self, request):
        return JSONResponse({"status": "ok"})

    async def shown(self, request):
        return PlainTextResponse(self.metrics.text(), media_type=TEXT_FORM)

    async def run(self, request):
        try:
            response = await self.answered(request)
        except Refused as error:
            headers = {"Retry-After": "1"} if error.status == 503 else None
            response = JSONResponse({"error": str(error)}, error.status, headers)
        except meta.MetaError as error:  # what the program says of its inputs
            response = JSONResponse({"error": str(error)}, 400)
        except ClientDisconnect:
            response = Response(status_code=499)
        except Exception as error:
            logging.getLogger("uvicorn.error").exception("a run failed")
            response = JSONResponse({"error": type(error).__name__}, 500)
        self.metrics.count("requests_total", status=str(response.status_code))
        return response

    async def answered(self, request):
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in (JSON, NPY, SAFETENSORS):
            raise Refused(415, f"the body is {JSON}, {NPY} or {SAFETENSORS}")
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > self.options.body:
                raise Refused(413, f"the body has more than {self.options.body} bytes")
        found = await self.batches.answer(self.program.inputs(read(bytes(body), kind)))
        return Response(written(found, kind), media_type=kind)


def read(body, kind):
    """Return the arrays of a body, by name or in order."""
    try:
        if kind == NPY:
            return [np.load(io.BytesIO(body), allow_pickle=False)]
        if kind == SAFETENSORS:
            return safetensors.numpy.load(body)
        found = json.loads(body)["inputs"]
    except (ValueError, KeyError, TypeError, EOFError, safetensors.SafetensorError) as error:
        raise Refused(400, f"the body cannot be read: {error!r:.200}") from None
    if not isinstance(found, dict | list):
        raise Refused(400, '"inputs" is an object of arrays by name, or a list of arrays')
    return found


def written(found, kind):
    """Return results as the body of an answer: of .npy the first one."""
    if kind == NPY:
        file = io.BytesIO()
        np.save(file, found[0], allow_pickle=False)
        return file.getvalue()
    if kind == SAFETENSORS:
        compact = map(np.ascontiguousarray, found)  # others it would write in another order
        return safetensors.numpy.save({str(i): y for i, y in enumerate(compact)})
    try:
        return json.dumps({"outputs": [y.tolist() for y in found]}, allow_nan=False).encode()
    except (ValueError, TypeError):
        raise Refused(500, f"JSON has no such numbers as a result: ask by {SAFETENSORS}") from None


def serve(options, shared):
    """Serve until a signal says stop; of several workers, each at a port of its own, too."""
    meta.set_num_threads(options.threads)
    sockets = [shared]
    if options.number:
        sockets.append(listening(options.host, shared.getsockname()[1] + options.number))
    server = Server(options)  # before anybody is told that it is there
    patience = int(options.seconds) + 1
    config = uvicorn.Config(
        server.app, access_log=False, ws="none", timeout_graceful_shutdown=patience
    )
    print("serving at", *(":".join(map(str, s.getsockname()[:2])) for s in sockets), flush=True)
    uvicorn.Server(config).run(sockets=sockets)


def listening(host, port):
    made = socket.create_server((host, port), backlog=2048)
    made.set_inheritable(True)
    return made


def supervise(options, shared):
    """Run workers that share a socket, and the pages of their weights; start ended ones anew."""
    stopping, running = [], {}

    def stop(number, frame):
        stopping.append(number)
        for process in running.values():
            process.terminate()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    own = ["--socket", str(shared.fileno())]
    while not stopping or running:
        for i in range(1, options.workers + 1):
            if i not in running and not stopping:
                command = [sys.executable, __file__, *sys.argv[1:], *own, "--number", str(i)]
                running[i] = subprocess.Popen(command, pass_fds=[shared.fileno()])
                if stopping:  # since the loop asked
                    running[i].terminate()
        time.sleep(0.1)
        ended = [i for i, process in running.items() if process.poll() is not None]
        for i in ended:
            status = running.pop(i).returncode
            if not stopping:
                print(f"worker {i} ended with {status}", file=sys.stderr, flush=True)
                time.sleep(1.0)  # lest one that cannot start is started all the time


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="of the saved program")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0: any; default 8000")
    parser.add_argument("--workers", type=int, default=1, help="processes; default 1")
    parser.add_argument("--threads", type=int, default=1, help="of an operator; default 1")
    parser.add_argument("--runs", type=int, default=1, help="at a time in a worker; default 1")
    parser.add_argument("--rows", type=int, default=32, help="of a run; default 32")
    parser.add_argument("--wait-ms", type=float, default=2.0, help="for more rows; default 2")
    parser.add_argument("--queue", type=int, default=256, help="requests that wait; default 256")
    parser.add_argument("--seconds", type=float, default=10.0, help="for a request; default 10")
    parser.add_argument("--body", type=int, default=64 << 20, help="bytes; default 64 MiB")
    parser.add_argument("--cold", action="store_true", help="run nothing before the first request")
    parser.add_argument("--socket", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.socket is not None:
        serve(options, socket.socket(fileno=options.socket))
        return
    shared = listening(options.host, options.port)
    if options.workers > 1:
        print("serving at", ":".join(map(str, shared.getsockname()[:2])), flush=True)
        supervise(options, shared)
    else:
        serve(options, shared)


if __name__ == "__main__":
    main()
