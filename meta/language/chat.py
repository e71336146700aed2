"""Chats as texts: the template of a model's folder, by the conventions of transformers."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2.ext import Extension
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from meta.base.errors import FormatError
from meta.base.files import read_file
from meta.language.api import RequestError
from meta.language.folder import MAX_JSON_BYTES, settings

MOST_CHARACTERS = 1 << 24


class _Generated(Extension):
    """``{% generation %}`` marks what an assistant wrote, for training; it is its content here."""

    tags = {"generation"}  # noqa: RUF012  as the base class has it

    def parse(self, parser: Parser) -> Node | list[Node]:
        """Return what is between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise(message: object) -> None:
    raise jinja2.TemplateError(str(message))


def _as_json(value: object, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)


class ChatTemplate:
    """Makes the text of a chat by a template in Jinja, in a sandbox.

    tokens: special ones by the names that templates have for them, such as ``bos_token``. A
    template may call ``raise_exception`` and ``strftime_now``, and has ``messages``,
    ``add_generation_prompt``, ``tools`` and ``documents``.

    >>> from meta.language.chat import ChatTemplate
    >>> template = ChatTemplate("{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}")
    >>> template([{"role": "user", "content": "Who?"}])
    'user: Who? '
    """

    def __init__(self, source: str, tokens: Mapping[str, str] | None = None) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generated],
        )
        environment.filters["tojson"] = _as_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise FormatError("the chat template is no template", found=error) from error
        self._tokens = dict(tokens or {})

    def __call__(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Return the text of a chat, up to where the assistant begins to answer.

        RequestError for messages that the template refuses.
        """
        try:
            found = self._template.render(
                messages=messages,
                add_generation_prompt=True,
                tools=None,
                documents=None,
                **self._tokens,
            )
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise RequestError(
                "the model's chat template refuses the messages",
                param="messages",
                found=f"{type(error).__name__}: {error}"[:500],
            ) from error
        if len(found) > MOST_CHARACTERS:
            raise RequestError(
                "the text of the chat is too long", param="messages", found=len(found)
            )
        return found


def chat_template(folder: str | os.PathLike[str]) -> ChatTemplate | None:
    """Return the template of a folder: of chat_template.jinja or tokenizer_config.json; None if it
    has none. FormatError for one that cannot be read.
    """
    path = Path(folder)
    file, alone = path / "tokenizer_config.json", path / "chat_template.jinja"
    values = settings(file) if file.is_file() else {}
    source = values.get("chat_template")
    if isinstance(source, list):  # several, with names
        named = {t.get("name"): t.get("template") for t in source if isinstance(t, dict)}
        source = named.get("default")
    if alone.is_file():
        try:
            source = read_file(alone, MAX_JSON_BYTES).decode()
        except UnicodeDecodeError as error:
            raise FormatError("a template is text in UTF-8", found=alone) from error
    if source is None:
        return None
    if not isinstance(source, str):
        raise FormatError("chat_template is a text", found=type(source).__name__, expected=file)
    tokens = {}
    for name, value in values.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            tokens[name] = text
    return ChatTemplate(source, tokens)
