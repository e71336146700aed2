"""The Array API's test suite on `meta.array_api`: ``python -m tools.array_api_tests PATH``.

PATH is a clone of data-apis/array-api-tests with its submodule; docs/array_api.md names the
revision, how to get it, and the reasons for what does not pass: the rows of its table, each a
reason and the beginnings of the names of tests. Examples are the same in each run.

Exit status: 0 what fails has a reason, 1 something fails without one, 2 bad usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree

from tools.processes import add_jobs, exit_with

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "array_api.md"
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


@dataclass(frozen=True)
class Outcome:
    """What became of a test.

    Attributes
    ----------
    name: file and test, as in ``test_fft.py::test_fft``. result: `PASSED`, `FAILED` or `SKIPPED`.
    error: the first line of what was raised. reason: of the page, why it does not pass.
    """

    name: str
    result: str
    error: str = ""
    reason: str = ""


def reasons(page: str) -> dict[str, str]:
    """Return the reasons of a page's table, by the beginning of the names that they are for."""
    found: dict[str, str] = {}
    for row in re.findall(r"^\| (.+?) \| (`test_.+`) \|$", page, re.MULTILINE):
        found |= dict.fromkeys(re.findall(r"`(.+?)`", row[1]), row[0])
    return found


def outcomes(report: str, why: dict[str, str]) -> list[Outcome]:
    """Return what a report of pytest in JUnit's XML says, in its order."""
    found = []
    for case in ElementTree.fromstring(report).iter("testcase"):
        module = case.get("classname", "").split(".")
        inside = [part for part in module if part != "array_api_tests"]
        name = "::".join([f"{inside[0]}.py", *inside[1:], case.get("name", "")])
        kinds = {child.tag: child.get("message") or "" for child in case}
        error = kinds.get("failure", kinds.get("error"))
        if error is None:
            found.append(Outcome(name, SKIPPED if "skipped" in kinds else PASSED))
            continue
        # The nearest beginning is meant: a test may have a reason of its own in a group.
        begun = max((b for b in why if name.startswith(b)), key=len, default=None)
        reason = "" if begun is None else why[begun]
        found.append(Outcome(name, FAILED, error.strip().partition("\n")[0], reason))
    return found


def report(results: list[Outcome], names: bool) -> str:
    """Return the counts, and what fails by reason; without one, by the file and the error."""
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for r in results:
        if r.result == FAILED:
            groups[r.reason or f"NO REASON, {r.name.partition('::')[0]}: {r.error[:80]}"].append(r)
    failed = sum(map(len, groups.values()))
    unexplained = sum(r.result == FAILED and not r.reason for r in results)
    skipped = sum(r.result == SKIPPED for r in results)
    lines = [
        f"{len(results) - failed - skipped} of {len(results)} tests pass, {skipped} are skipped, "
        f"{failed} fail, {unexplained} of these without a reason",
        "",
    ]
    for reason, group in sorted(groups.items(), key=lambda item: -len(item[1])):
        lines.append(f"{len(group):5}  {reason}")
        lines += [f"         {r.name}" for r in group] if names else []
    return "\n".join(lines)


def run(path: Path, options: argparse.Namespace) -> str:
    """Run the suite; return its report. FileNotFoundError if it ended without one."""
    places = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "ARRAY_API_TESTS_MODULE": "meta.array_api",
        "PYTHONPATH": os.pathsep.join(places),
    }
    with tempfile.TemporaryDirectory() as folder:
        xml = Path(folder) / "report.xml"
        command = [
            *(sys.executable, "-m", "pytest", "array_api_tests", f"--junitxml={xml}"),
            *("-p", "no:cacheprovider", "--quiet", "--tb=short", "-W", "ignore"),
            *("--disable-deadline", "--hypothesis-derandomize"),
            *("--max-examples", str(options.examples), "-k", options.filter),
            *(("-n", str(options.jobs)) if options.jobs > 1 else ()),
        ]
        log = subprocess.run(
            command, cwd=path, env=environment, capture_output=True, text=True, check=False
        )
        if not xml.exists():
            raise FileNotFoundError(log.stdout[-2000:] + log.stderr[-2000:])
        return xml.read_text("utf-8")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(prog="python -m tools.array_api_tests", description=__doc__)
    top.formatter_class = argparse.RawDescriptionHelpFormatter
    top.add_argument("path", type=Path, help="a clone of data-apis/array-api-tests")
    top.add_argument("--filter", default="", metavar="EXPRESSION", help="tests, as of pytest's -k")
    top.add_argument("--examples", type=int, default=100, metavar="N", help="of a test at most")
    add_jobs(top)
    top.add_argument("--names", action="store_true", help="name the tests that do not pass")
    top.add_argument("--json", action="store_true", help="print everything as JSON")
    return top


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options = parser().parse_args(arguments)
    if not (options.path / "array-api" / "spec").is_dir():
        print(f"{options.path} is no clone of array-api-tests with its submodule", file=sys.stderr)
        return 2
    try:
        results = outcomes(run(options.path, options), reasons(PAGE.read_text("utf-8")))
    except FileNotFoundError as error:
        print(f"the suite did not run:\n{error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps([asdict(r) for r in results], indent=1))
    else:
        print(report(results, options.names))
    return int(any(r.result == FAILED and not r.reason for r in results))


if __name__ == "__main__":
    exit_with(main)
