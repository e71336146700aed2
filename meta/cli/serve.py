"""``python -m meta serve``: a language model in a folder, by the routes of OpenAI's API."""

from __future__ import annotations

import argparse
from pathlib import Path

from meta.base.device import available, require
from meta.base.optional import optional_module
from meta.language import Engine, load
from meta.language.chat import chat_template


def run(options: argparse.Namespace) -> int:
    """Load the model and serve it until a signal says stop."""
    extra = "'meta-operators[serve]'"
    uvicorn = optional_module("uvicorn", "serves connections", install=extra)
    server_module = optional_module(
        "meta.language.server", "answers requests", library="starlette", install=extra
    )
    device = require(options.device or available()[:2][-1])  # the first GPU, if there is one
    decoder = load(options.folder, device=device, dtype=options.dtype, quantize=options.quantize)
    engine = Engine(decoder, rows=options.rows, length=options.length, blocks=options.blocks)
    server = server_module.Server(
        engine,
        options.name or Path(options.folder).resolve().name,
        chat_template(options.folder),
        queue=options.queue,
        seconds=options.time_limit,
        most_bytes=options.body,
    )
    engine.compile()
    uvicorn.run(
        server.app,
        host=options.host,
        port=options.port,
        access_log=False,
        ws="none",
        timeout_graceful_shutdown=int(options.time_limit),
    )
    return 0
