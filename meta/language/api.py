"""What bodies of OpenAI's completions and chat routes mean: JSON in, options of an engine out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from meta.base.errors import MetaError
from meta.base.registry import nearest
from meta.language.engine import MOST_ALTERNATIVES

MOST_CHOICES, MOST_STOPS, MOST_BIASES = 128, 16, 1024
SEEDS = 1 << 63


class RequestError(MetaError, ValueError):
    """A request that is refused, or that ended too early.

    status: of HTTP. kind: its ``type`` in OpenAI's form. param: the key that is at fault. code: of
    the fault.
    """

    def __init__(
        self,
        what: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        **details: Any,
    ) -> None:
        super().__init__(what, **details)
        self.status, self.kind, self.param, self.code = status, kind, param, code
        self.span = None  # a client knows no lines of ours

    @classmethod
    def of(cls, error: MetaError, param: str | None = None) -> RequestError:
        """Return what an error of the engine says of a request."""
        return cls(
            error.what, param=param, found=error.found, expected=error.expected, hint=error.hint
        )

    def body(self) -> dict[str, Any]:
        """Return OpenAI's form of it."""
        message = "; ".join(" ".join(line.split()) for line in str(self).splitlines())
        return {
            "error": {
                "message": message, "type": self.kind, "param": self.param, "code": self.code
            }
        }  # fmt: skip


@dataclass
class Order:
    """What a body asks for.

    prompts: texts or tokens; messages: of a chat, instead. choices: of each prompt. alternatives:
    how many of the most probable tokens are told beside each token, None for no probabilities at
    all. usage: whether a stream ends with the counts of tokens. limit: how many tokens are
    written, None for as many as there is room for. options: of `Engine.add`.
    """

    model: str
    prompts: list[str | list[int]] = field(default_factory=list)
    messages: list[dict[str, str]] = field(default_factory=list)
    choices: int = 1
    stream: bool = False
    usage: bool = False
    alternatives: int | None = None
    limit: int | None = None
    options: dict[str, Any] = field(default_factory=dict)


def _refused(param: str, expected: str, found: object) -> RequestError:
    shown = repr(found)
    shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
    return RequestError(f"{param} does not fit", param=param, expected=expected, found=shown)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(low: float, high: float, whole: bool = False) -> Callable[[str, Any], Any]:
    """Return what checks a number."""

    def check(param: str, value: Any) -> Any:
        right = _is_int(value) or (not whole and isinstance(value, float))
        if not right or not low <= value <= high:
            kind = "a whole number" if whole else "a number"
            raise _refused(param, f"{kind} from {low} to {high}", value)
        return value

    return check


def _is_flag(param: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _refused(param, "true or false", value)
    return value


def _is_text(param: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _refused(param, "a text", value)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _refused(param, "a text of Unicode, without halves of characters", value) from None
    return value


def _stops(param: str, value: Any) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or len(texts) > MOST_STOPS:
        raise _refused(param, f"a text, or at most {MOST_STOPS} of them", value)
    found = [_is_text(param, text) for text in texts]
    if "" in found:
        raise _refused(param, "texts that are not empty", value)
    return found


def _bias(param: str, value: Any) -> dict[int, float]:
    if not isinstance(value, dict) or len(value) > MOST_BIASES:
        raise _refused(param, f"an object of at most {MOST_BIASES} tokens and numbers", value)
    found = {}
    for token, number in value.items():
        if not (token.isascii() and token.isdecimal() and len(token) < 10):
            raise _refused(param, "tokens as decimal numbers", token)
        found[int(token)] = float(_number(-100, 100)(param, number))
    return found


def _tokens(param: str, value: list[Any]) -> list[int]:
    if not all(_is_int(token) and 0 <= token < SEEDS for token in value):
        raise _refused(param, "tokens, which are whole numbers", value)
    return list(value)


def _prompts(param: str, value: Any) -> list[str | list[int]]:
    several: Any = value
    if isinstance(value, str) or (isinstance(value, list) and value and _is_int(value[0])):
        several = [value]
    if not isinstance(several, list) or not several:
        raise _refused(param, "a text, tokens, or a list of these", value)
    return [
        _tokens(param, prompt) if isinstance(prompt, list) else _is_text(param, prompt)
        for prompt in several
    ]


def _messages(param: str, value: Any) -> list[dict[str, str]]:
    if not isinstance(value, list) or not value:
        raise _refused(param, "a list of messages", value)
    found = []
    for i, message in enumerate(value):
        at = f"{param}[{i}]"
        if not isinstance(message, dict):
            raise _refused(at, "an object with role and content", message)
        for key in message:
            if key not in ("role", "content", "name"):
                raise RequestError(f"{at}.{key} is not known", param=at, expected="role, content")
        content = message.get("content")
        if isinstance(content, list):
            content = "".join(_text_of_item(at, part) for part in content)
        one = {"role": _is_text(f"{at}.role", message.get("role"))}
        one["content"] = _is_text(f"{at}.content", content)
        if message.get("name") is not None:
            one["name"] = _is_text(f"{at}.name", message["name"])
        found.append(one)
    return found


def _text_of_item(at: str, part: Any) -> str:
    if not isinstance(part, dict) or part.get("type") != "text" or set(part) != {"type", "text"}:
        raise _refused(f"{at}.content", "a text, or parts of type text", part)
    return _is_text(f"{at}.content", part["text"])


def _only(*allowed: Any) -> Callable[[str, Any], Any]:
    """Return what checks a key of which one value is served."""

    def check(param: str, value: Any) -> Any:
        if not any(value == a and type(value) is type(a) for a in allowed):
            shown = " or ".join(json.dumps(a) for a in allowed)
            raise _refused(param, f"{shown}; nothing else is served", value)
        return value

    return check


def _stream_options(param: str, value: Any) -> bool:
    if not isinstance(value, dict) or set(value) - {"include_usage"}:
        raise _refused(param, "an object with include_usage", value)
    return _is_flag(f"{param}.include_usage", value.get("include_usage", False))


_POSITIVE = _number(1, 1 << 31, whole=True)
_BOTH: Mapping[str, Callable[[str, Any], Any]] = {
    "model": _is_text,
    "n": _number(1, MOST_CHOICES, whole=True),
    "stream": _is_flag,
    "stream_options": _stream_options,
    "max_tokens": _POSITIVE,
    "temperature": _number(0, 2),
    "top_p": _number(0, 1),
    "top_k": _number(0, 1 << 30, whole=True),
    "min_p": _number(0, 1),
    "repetition_penalty": _number(0.01, 100),
    "presence_penalty": _number(-2, 2),
    "frequency_penalty": _number(-2, 2),
    "logit_bias": _bias,
    "stop": _stops,
    "seed": _number(-SEEDS, SEEDS - 1, whole=True),
    "user": _is_text,
}
OF_TEXTS: Mapping[str, Callable[[str, Any], Any]] = {
    **_BOTH,
    "prompt": _prompts,
    "logprobs": _number(0, MOST_ALTERNATIVES, whole=True),
    "best_of": _only(1),
    "echo": _only(False),
    "suffix": _only(""),
}
OF_CHATS: Mapping[str, Callable[[str, Any], Any]] = {
    **_BOTH,
    "messages": _messages,
    "max_completion_tokens": _POSITIVE,
    "logprobs": _is_flag,
    "top_logprobs": _number(0, MOST_ALTERNATIVES, whole=True),
    "tools": _only([]),
    "tool_choice": _only("none", "auto"),
    "response_format": _only({"type": "text"}),
}
_OPTIONS = (
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "logit_bias", "stop", "seed",
)  # fmt: skip
"""What the engine calls by the same names."""


def parsed(body: bytes) -> dict[str, Any]:
    """Return the object in a body of JSON; RequestError for another body."""

    def constant(name: str) -> float:
        raise ValueError(f"{name} is no number of JSON")

    try:
        found = json.loads(body, parse_constant=constant)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise RequestError("the body is no JSON", found=str(error)[:200]) from None
    if not isinstance(found, dict):
        raise RequestError("the body is a JSON object", found=type(found).__name__)
    return found


def order_of(body: Mapping[str, Any], chat: bool) -> Order:
    """Return what a body asks for; RequestError, which names the key, for what does not fit."""
    checks = OF_CHATS if chat else OF_TEXTS
    values = {}
    for key, value in body.items():
        if key not in checks:
            raise RequestError(
                "this key is not known",
                param=key[:80],
                found=repr(key[:80]),
                expected=nearest(key, checks),
                code="unknown_parameter",
            )
        if value is not None:
            values[key] = checks[key](key, value)
    for key in ("model", "messages" if chat else "prompt"):
        if key not in values:
            raise RequestError(f"{key} is missing", param=key, code="missing_required_parameter")
    found = Order(values["model"], values.get("prompt", []), values.get("messages", []))
    found.choices, found.stream = values.get("n", 1), values.get("stream", False)
    if "stream_options" in values and not found.stream:
        raise RequestError("stream_options is of streams", param="stream_options")
    found.usage = values.get("stream_options", False)
    found.limit = values.get("max_completion_tokens", values.get("max_tokens"))
    if not chat:
        found.limit, found.alternatives = found.limit or 16, values.get("logprobs")
    elif values.get("logprobs"):
        found.alternatives = values.get("top_logprobs", 0)
    elif "top_logprobs" in values:
        raise RequestError("top_logprobs needs logprobs", param="top_logprobs")
    found.options = {"temperature": 1.0} | {k: values[k] for k in _OPTIONS if k in values}
    return found


def seeds(seed: int | None, count: int) -> list[int | None]:
    """Return a seed for each choice: the first has that of the request."""
    return [None if seed is None else (seed + i) % SEEDS for i in range(count)]


def finite(logprob: float) -> float:
    """Return a number that JSON has: -9999 for -inf, as OpenAI does."""
    return logprob if math.isfinite(logprob) else -9999.0
