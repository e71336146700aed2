"""What `mkdocs build` calls: the navigation, the files that pages link to, and their links.

Pages are written for readers of the repository, where a link is a path to a file. On the site,
files outside of docs/ are pages under tree/, as far as a page links to them, and a folder is the
list of its files: so a link leads to the same text in both.
"""

from __future__ import annotations

import json
import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # the tree, whatever is installed

from tools.site import docstrings, pictures, reference  # noqa: E402

LINK = re.compile(
    r"(^```.*?^```$|^#.*?$|\[`[^`\n]*`\]|`([^`\n]*)`)|\]\((?!https?:|#)([^)#\s]+)",
    re.DOTALL | re.MULTILINE,
)
"""Code, headings and the texts of links stay as they are, but for the names in code; the others are
links.
"""
FENCE = re.compile(r"^```(\w+) (?:file=(\S+))?.*$", re.MULTILINE)
STYLE = "td:first-child code { white-space: nowrap }"
PICTURE = re.compile(r"^<!-- picture: (\S+) (.+) -->$", re.MULTILINE)
tree: dict[str, str] = {}
"""By page of the site, the file of the repository that it shows."""
INDEX = re.compile(r"^## (.+)$|^([A-Z][^\n,:]*)[,:].*$|\]\(([^)#\s]+)\)", re.MULTILINE)


def site_path(path: str) -> str:
    """Return which page of the site has a file or a folder of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if (ROOT / path).is_dir():
        return f"tree/{path}/README.md"
    return f"tree/{path}" + ("" if path.endswith(".md") else ".md")


def linked(text: str, path: str) -> Iterator[str]:
    """Yield the paths in the repository that a page at ``path`` links to."""
    for match in LINK.finditer(text):
        if match[3]:
            yield posixpath.normpath(posixpath.join(posixpath.dirname(path), match[3]))


def page_text(path: str) -> str:
    """Return a file or a folder of the repository as a page."""
    file = ROOT / path
    if file.is_dir():
        shown = sorted(p.name for p in file.iterdir() if p.suffix in (".py", ".ipynb", ".md"))
        return f"# {path}/\n\n" + "\n".join(f"- [{name}]({file.name}/{name})" for name in shown)
    text = file.read_text("utf-8")
    if file.suffix == ".md":
        return text
    if file.suffix == ".ipynb":
        return "\n\n".join(cell_text(cell) for cell in json.loads(text)["cells"])
    return f"# {path}\n\n````{file.suffix[1:] or 'text'}\n{text}\n````"


def cell_text(cell: dict[str, Any]) -> str:
    """Return a cell of a notebook, with what it printed."""
    text = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return text
    outputs = [o.get("text") or o.get("data", {}).get("text/plain", "") for o in cell["outputs"]]
    printed = "".join("".join(lines) for lines in outputs)
    return f"```python\n{text}\n```" + (f"\n\n```text\n{printed}\n```" if printed else "")


def on_config(config: MkDocsConfig) -> None:
    """The navigation is the index: a tab for each heading, a section for each list that has one."""
    nav: list[Any] = [{"Home": ["README.md"]}]
    pages: list[Any] = []
    for heading, section, link in INDEX.findall(
        Path(config.docs_dir, "README.md").read_text("utf-8")
    ):
        if heading:
            nav.append({heading: (tab := [])})
            pages = tab
        elif section:
            tab.append({section.replace("`", ""): (pages := [])})
        else:
            pages.append(site_path(posixpath.normpath(f"docs/{link}")))
    for title, section in reference.pages().items():
        next(tab for tab in nav if "Reference" in tab)["Reference"].append({title: list(section)})
    config.nav = nav


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add what is linked to, the reference, and the pictures."""
    waiting = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    known = set(waiting)
    while waiting:
        path = waiting.pop()
        text = page_text(path)
        if not path.startswith("docs/"):
            tree[site_path(path)] = path
            files.append(File.generated(config, site_path(path), content=text))
        new = {p for p in linked(text, path) if (ROOT / p).exists()} - known
        known |= new
        waiting += new
    for pages in reference.pages().values():
        for uri, text in pages.items():
            files.append(File.generated(config, uri, content=text))
    files.append(File.generated(config, "site.css", content=STYLE))
    for name, content in pictures.draw().items():
        files.append(File.generated(config, f"pictures/{name}", content=content))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to pages of the site, names to the reference, and show pictures."""
    uri = page.file.src_uri
    if uri.startswith("reference/"):
        return markdown
    path, folder = tree.get(uri, f"docs/{uri}"), posixpath.dirname(uri)

    def link(match: re.Match[str]) -> str:
        if match[1]:
            return docstrings.link(match) if match[2] else FENCE.sub(fence, match[1], count=1)
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), match[3]))
        return f"]({posixpath.relpath(site_path(target), folder)}"

    def picture(match: re.Match[str]) -> str:
        found = [f"pictures/{match[1]}", f"pictures/{match[1].replace('.png', '.html')}"]
        shown, target = (posixpath.relpath(name, folder) for name in found)
        if files.get_file_from_path(found[0]) is None:
            return f"[{match[2]}]({target})"
        return f"[![{match[2]}]({shown})]({target})"

    return PICTURE.sub(picture, LINK.sub(link, markdown))


def fence(match: re.Match[str]) -> str:
    """Return the first line of a fence of code in a form that has a title."""
    return f"```{match[1]}" + (f' title="{match[2]}"' if match[2] else "")
