"""Chat templates beside transformers'."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from meta.base.errors import FormatError
from meta.language.api import RequestError
from meta.language.chat import ChatTemplate, chat_template
from tests.language.tokenizers_of_bytes import byte_tokenizer

ROLES = """{{ bos_token }}{% for m in messages %}
    {%- if m.role not in ['user', 'assistant', 'system'] %}
        {{ raise_exception('no role ' + m.role) }}
    {% endif %}
<|{{ m.role }}|>{{ m['content'] | trim }}{{ eos_token }}
{% endfor %}
{% if add_generation_prompt %}<|assistant|>{% endif %}"""
FIRST = """{% set seen = namespace(any=false) %}
{% for m in messages %}
  {% if m.role == 'user' %}{% set seen.any = true %}{% continue %}{% endif %}
  {% if loop.index0 > 3 %}{% break %}{% endif %}
  {{ m | tojson }} {{ m.content.split(' ')[0] }}
{% endfor %}{{ seen.any }}{{ tools is none }}{{ messages[-1]['content'] | tojson(indent=2) }}"""
MARKED = """{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}
{% endfor %}"""
CHATS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "Hi <b>there</b> \N{SNOWMAN} "}],
    [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Who\n are you?"},
        {"role": "assistant", "content": "I & you"},
        {"role": "user", "content": "{{ 7 * 7 }}"},
    ],
]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("source", [ROLES, FIRST, MARKED])
def test_templates_beside_transformers(source: str, chat: list[dict[str, str]]) -> None:
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer(), **TOKENS)
    wanted = theirs.apply_chat_template(
        chat, chat_template=source, add_generation_prompt=True, tokenize=False
    )
    assert ChatTemplate(source, TOKENS)(chat) == wanted


@pytest.mark.parametrize(
    "config",
    [
        {"chat_template": "{{ bos_token }}{{ messages[0].content }}", "bos_token": "<s>"},
        {
            "chat_template": [
                {"name": "tool_use", "template": "no"},
                {"name": "default", "template": "{{ bos_token }}{{ messages[0].content }}"},
            ],
            "bos_token": {"content": "<s>", "lstrip": False},
        },
    ],
)
def test_a_folder(tmp_path: Path, config: dict[str, Any]) -> None:
    assert chat_template(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    template = chat_template(tmp_path)
    assert template is not None and template([{"role": "user", "content": "a"}]) == "<s>a"
    (tmp_path / "chat_template.jinja").write_text("{{ messages | length }}{{ bos_token }}")
    template = chat_template(tmp_path)
    assert template is not None and template([{"role": "user", "content": "a"}]) == "1<s>"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('alternate!') }}",
        "{{ messages[5].content }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ (1).__class__.__base__.__subclasses__() }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 / 0 }}",
        "{% for i in range(10 ** 9) %}a{% endfor %}",
        "{{ messages[0].content * 1000000 }}",
    ],
)
def test_what_a_template_refuses_or_may_not(source: str) -> None:
    with pytest.raises(RequestError) as caught:
        ChatTemplate(source)(CHATS[0])
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"chat_template": "{% if %}"}, "is no template"),
        ({"chat_template": 7}, "is a text"),
    ],
)
def test_folders_that_do_not_fit(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(FormatError, match=message):
        chat_template(tmp_path)
