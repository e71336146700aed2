"""Dialects as packages: those of strangers, and when the modules of ours are imported."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.conftest import run_python

PACKAGE = """
    import meta
    from meta.dialect import Dialect, HANDWRITTEN

    stranger = Dialect("stranger", devices=("cpu",), plevel=HANDWRITTEN{package})

    @stranger.kernel(meta.op.relu)
    def relu(x):
        return x * 0 + 42
    """
RECORD = {
    "METADATA": "Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n",
    "entry_points.txt": "[meta.dialects]\nstranger = stranger_pkg:stranger\n",
}


@pytest.fixture
def stranger(tmp_path: Path) -> Path:
    info = tmp_path / "stranger-1.0.dist-info"
    info.mkdir()
    for name, text in RECORD.items():
        (info / name).write_text(text, "utf-8")
    return tmp_path


def run(code: str, site: Path, tvm: bool = False) -> str:
    prelude = f"import sys; sys.path.insert(0, {str(site)!r})\n"
    return run_python("-c", prelude + textwrap.dedent(code), tvm=tvm)


def test_an_installed_package_is_found_when_it_is_needed(stranger: Path) -> None:
    (stranger / "stranger_pkg.py").write_text(textwrap.dedent(PACKAGE.format(package="")), "utf-8")
    out = run(
        """
        import meta
        print("stranger_pkg" in sys.modules)
        x = meta.array([1.0])
        print(meta.relu(x).item())
        with meta.dialect.exclude("stranger", "tvm"):
            print(meta.relu(x).item())
        print(meta.op.stranger.relu(x).item())
        """,
        stranger,
    )
    assert out.split() == ["False", "42.0", "1.0", "42.0"]


def test_an_installed_namespace_works_before_the_first_dispatch(stranger: Path) -> None:
    (stranger / "stranger_pkg.py").write_text(textwrap.dedent(PACKAGE.format(package="")), "utf-8")
    out = run(
        """
        import meta
        print(meta.op.stranger.relu(meta.array([1.0])).item())
        with meta.dialect.prefer("stranger"):
            print(meta.relu(meta.array([1.0])).item())
        """,
        stranger,
    )
    assert out.split() == ["42.0", "42.0"]


BROKEN_PACKAGE = "raise ImportError('libstranger.so')"


@pytest.mark.parametrize("before", ["", PACKAGE.format(package="")], ids=["at once", "later"])
def test_a_package_that_cannot_be_imported_is_unavailable(before: str, stranger: Path) -> None:
    text = f"{textwrap.dedent(before)}\n{BROKEN_PACKAGE}\n"
    (stranger / "stranger_pkg.py").write_text(text, "utf-8")
    out = run(
        """
        import meta
        from meta.cli.main import main
        x = meta.array([-1.0])
        for name in ("stranger", "torch"):
            with meta.dialect.prefer(name):
                print(meta.relu(x).item())
        print(meta.explain(meta.relu, x))
        main(["env"])
        try:
            with meta.dialect.only("stranger"):
                meta.relu(x)
        except meta.errors.DispatchError:
            print("nobody else")
        try:
            meta.op.stranger.tanh
        except meta.errors.UnknownName as error:
            print(error)
        """,
        stranger,
        tvm=True,
    )
    line = text.splitlines().index(BROKEN_PACKAGE) + 1
    why = (
        "its package stranger_pkg:stranger cannot be imported: ImportError: libstranger.so "
        f"({stranger / 'stranger_pkg.py'}:{line})"
    )
    assert out.startswith("0.0\n0.0\n") and "nobody else" in out
    assert f"stranger  unavailable: {why}" in out and f"unavailable: {why}" in out
    assert f"dialect 'stranger' has no operator 'tanh' ({why})" in out


def test_a_package_may_not_take_the_name_of_another_dialect(stranger: Path) -> None:
    text = textwrap.dedent(PACKAGE.format(package="")).replace('"stranger"', '"torch"')
    (stranger / "stranger_pkg.py").write_text(text, "utf-8")
    (stranger / "stranger-1.0.dist-info" / "entry_points.txt").write_text(
        "[meta.dialects]\ntorch = stranger_pkg:stranger\n", "utf-8"
    )
    out = run(
        "import meta; print(meta.explain(meta.relu, meta.array([-1.0]))); "
        "print(meta.relu(meta.array([-1.0])).item())",
        stranger,
        tvm=True,
    )
    assert "the dialect 'torch' is defined twice" in out and out.endswith("0.0\n")


FAMILY = """
    import threading, time
    import meta
    from lazy_pkg import dialect
    @dialect.kernel(meta.op.tanh)
    def tanh(x): return x * 0 + 7
    {then}
    @dialect.kernel(meta.op.relu)
    def relu(x): return x * 0 + 42
    """
LAZY = """
    from meta.dialect import Dialect, HANDWRITTEN
    dialect = Dialect("lazy", devices=("cpu",), plevel=HANDWRITTEN, package=__name__)
    """


def lazy_package(folder: Path, then: str) -> None:
    package = folder / "lazy_pkg"
    package.mkdir()
    (package / "__init__.py").write_text(textwrap.dedent(LAZY), "utf-8")
    (package / "family.py").write_text(textwrap.dedent(FAMILY.format(then=then)), "utf-8")


def test_threads_wait_until_a_dialect_is_loaded(tmp_path: Path) -> None:
    lazy_package(tmp_path, "time.sleep(0.3)")
    out = run(
        """
        import threading, meta, lazy_pkg
        with meta.dialect.only("torch"):
            meta.relu(meta.array([1.0]))
        found = []
        def work():
            with meta.dialect.only("lazy"):
                found.append(meta.relu(meta.array([1.0])).item())
        threads = [threading.Thread(target=work) for _ in range(4)]
        for t in threads: t.start()
        for t in threads: t.join()
        print(*found)
        """,
        tmp_path,
    )
    assert out.split() == ["42.0"] * 4


@pytest.mark.parametrize("then", ["raise OSError('libcuda.so is broken')", "exit(3)"])
def test_a_dialect_that_fails_to_load_stops_nobody_else(then: str, tmp_path: Path) -> None:
    lazy_package(tmp_path, then)
    out = run(
        """
        import meta, lazy_pkg, warnings
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for _ in range(2):
                with meta.dialect.exclude("tvm"):
                    print(meta.tanh(meta.array([0.0])).item())
        print(len(said), said[0].category.__name__, said[0].message)
        with meta.dialect.only("lazy"):
            try:
                meta.tanh(meta.array([0.0]))
            except meta.errors.DispatchError as error:
                print(error)
        """,
        tmp_path,
    )
    what = "OSError: libcuda.so is broken" if "OSError" in then else "SystemExit: 3"
    assert out.startswith("0.0\n0.0\n1 MetaWarning dialect 'lazy': its package lazy_pkg cannot be")
    assert out.count(what) == 2 and "family.py" in out


OWN = '''
    import meta
    from meta.dialect import Dialect, HANDWRITTEN
    from meta.op.core import Tensor, op

    stranger = Dialect("stranger", devices=("cpu",), plevel=HANDWRITTEN)

    @op
    def stranger_scaled(x: Tensor) -> Tensor:
        """3 x"""
        return x

    @stranger.kernel(stranger_scaled)
    def scaled(x):
        return x * 3
    '''


@pytest.mark.long
def test_operators_of_a_package_are_known_before_anything_is_dispatched(stranger: Path) -> None:
    """They are defined in its ``__init__.py``, which is no family of ours."""
    (stranger / "stranger_pkg").mkdir()
    (stranger / "stranger_pkg" / "__init__.py").write_text(textwrap.dedent(OWN), "utf-8")
    out = run(
        """
        import meta
        print(meta.stranger_scaled(meta.array([2.0])).item(), meta.stranger_scaled.family)
        print(meta.vm.compile(meta.model.trace(lambda x: meta.stranger_scaled(x)), meta.ones(2)))
        """,
        stranger,
    )
    assert out.startswith("6.0 stranger_pkg\n")
    out = run(
        """
        from meta.cli.main import main
        print(main(["op", "stranger_scaled"]))
        """,
        stranger,
    )
    assert "stranger_pkg/__init__.py" in out and out.endswith("0\n")
    out = run(
        """
        from meta.cli.main import main
        print(main(["ops", "--dialect", "stranger"]))
        """,
        stranger,
    )
    assert "stranger_scaled" in out


@pytest.mark.parametrize("text", ["raise ImportError('libstranger.so')", "exit(2)", "3 +", "x = 1"])
def test_what_is_asked_of_a_broken_package_names_it(text: str, stranger: Path) -> None:
    (stranger / "stranger_pkg.py").write_text(f"stranger = None\n{text}\n", "utf-8")
    out = run(
        """
        import meta
        print(meta.relu(meta.array([-1.0])).item())
        try:
            meta.stranger_scaled
        except AttributeError as error:
            print(error)
        print(hasattr(meta, "stranger_scaled"))
        """,
        stranger,
    )
    assert out.startswith("0.0\nthere is no operator named 'stranger_scaled'\n")
    assert "stranger: its package stranger_pkg:stranger cannot be imported" in out
    assert out.endswith("False\n")


@pytest.mark.parametrize("backwards", [False, True])
def test_a_family_is_enough_for_its_operators(backwards: bool, tmp_path: Path) -> None:
    out = run(
        f"""
        from pathlib import Path
        import meta
        from meta.base.registry import OPERATORS
        from meta.dialect.core import DIALECTS
        torch = DIALECTS["torch"]
        family = {{op.name: Path(op.site.file).stem for op in OPERATORS.values()}}
        met = {{}}
        for name in sorted(set(family.values()), reverse={backwards}):
            torch.load_family(name)
            met[name] = set(torch.ops)
        torch.load()
        print(sorted(name for name in torch.ops if name not in met[family[name]]))
        """,
        tmp_path,
    )
    assert out.strip() == "[]"


def test_an_eager_call_loads_its_family_only(tmp_path: Path) -> None:
    out = run(
        """
        import meta
        meta.add(meta.array([1.0]), 1.0)
        for name in ("arithmetic", "vision"):
            print(f"meta.dialect.torch.{name}" in sys.modules)
        """,
        tmp_path,
    )
    assert out.split() == ["True", "False"]


def test_eager_calls_and_traces_do_not_import_tvm(tmp_path: Path) -> None:
    out = run(
        """
        import meta
        x = meta.array([[1.0, 2.0]])
        x.requires_grad = True
        traced = meta.model.trace(lambda x: meta.sum(meta.softmax(x * 2.0)))
        traced(x).backward()
        x[0], x + 1, meta.matmul(x, meta.permute_dims(x))
        print("tvm" in sys.modules)
        with meta.dialect.prefer("tvm"):
            meta.tanh(x)
        print("tvm" in sys.modules)
        """,
        tmp_path,
    )
    assert out.split() == ["False", "True"]
