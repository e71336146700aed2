"""Programs that are written for meta as people write them for torch or NumPy, beside those.

Where names alone differ, the other program is ours with the names of `TORCH` or `NUMPY`; where more
does, it is a file of its own. Both run with the same data and initial values. Their numbers agree,
and ours is not longer.
"""

from __future__ import annotations

import ast
import copy
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import meta

FOLDER = Path(__file__).parent
FUNCTIONAL = (
    "binary_cross_entropy_with_logits|cross_entropy|log_softmax|mse_loss|one_hot|"
    "scaled_dot_product_attention"
)
TORCH = {
    r"import meta\n": "import torch\nimport torch.nn.functional as F\n",
    r"import meta\.model as nn": "from torch import nn",
    r"meta\.Model": "nn.Module",
    rf"meta\.({FUNCTIONAL})\b": r"F.\1",
    r"meta\.array": "torch.tensor",
    r"meta\.concat": "torch.cat",
    r"meta\.take_along_axis": "torch.take_along_dim",
    r"meta\.random\.normal": "torch.randn",
    r"meta\.random\.permutation": "torch.randperm",
    r"meta\.random\.multinomial": "torch.multinomial",
    r"meta\.random\.seed": "torch.manual_seed",
    r'meta\.amp\.autocast_scope\("bfloat16"\)': 'torch.autocast("cpu", torch.bfloat16)',
    r"meta\.optim\.schedule\.step_decay\(": "torch.optim.lr_scheduler.StepLR(optimizer, ",
    r"optimizer\.lr = .*": "scheduler.step()",
    r"optimizer\.lr\b": "scheduler.get_last_lr()[0]",
    r"optimizer\.step\(clip_norm=1\.0\)": (
        "nn.utils.clip_grad_norm_(model.parameters(), 1.0); optimizer.step()"
    ),
    r"\.astype\(meta\.": ".to(torch.",
    r"\.size\b": ".numel()",
    r"\baxis=": "dim=",
    r"\bkeepdims=": "keepdim=",
    r"\bmeta\.": "torch.",
}
NUMPY = {r"import meta\n": "", r"correction=": "ddof=", r"\bmeta\.": "np."}
RENAMED: dict[str, dict[str, str]] = {
    **dict.fromkeys(("char_model", "gan", "policy_gradient", "series_lstm", "vae"), TORCH),
    "kmeans": NUMPY,
}
"""By program: patterns of what another library calls otherwise, and how."""
WRITTEN = ("digits_cnn", "script")
"""Those whose counterparts are files."""


def text_of(name: str) -> str:
    return (FOLDER / f"{name}.py").read_text("utf-8")


def renamed(name: str) -> str:
    """Return the text of a program's counterpart that has other names."""
    text = text_of(name)
    for pattern, other in RENAMED[name].items():
        text = re.sub(pattern, other, text)
    return text


def code_lines(text: str) -> int:
    """Return how many lines have code: no blank ones, no comments and no docstrings."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docstrings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(1 for i, s in lines if s.strip() and s.lstrip()[0] != "#" and i not in docstrings)


@pytest.mark.parametrize("name", WRITTEN)
def test_the_length(name: str) -> None:
    assert code_lines(text_of(name)) <= 1.2 * code_lines(text_of(f"{name}_torch"))


@pytest.mark.parametrize("name", RENAMED)
def test_names_are_all_that_differs(name: str) -> None:
    assert "meta" not in renamed(name)


def both(name: str) -> tuple[Any, Any]:
    """Return a program's module and that of its counterpart."""
    ours = import_module(f"tests.habit.{name}")
    if name in WRITTEN:
        return ours, import_module(f"tests.habit.{name}_torch")
    theirs = ModuleType(f"{name}_of_another_library")
    exec(compile(renamed(name), theirs.__name__, "exec"), vars(theirs))
    return ours, theirs


def same_start(ours: meta.Model, theirs: torch.nn.Module) -> None:
    ours.load_state_dict(copy.deepcopy(theirs.state_dict()))


def check_compiled(model: meta.Model, *inputs: Any) -> None:
    """The compiled program of a model gives what its calls give, operator by operator."""

    class Traced(type(model)):  # type: ignore[misc]
        forward = meta.model.trace(type(model).forward)

    traced = copy.deepcopy(model)
    traced.__class__ = Traced
    run = meta.vm.compile(traced, *inputs)
    with meta.no_grad():
        np.testing.assert_allclose(run(*inputs), model(*inputs), rtol=1e-4, atol=1e-5)


def test_char_model() -> None:
    ours, theirs = both("char_model")
    torch.manual_seed(0)
    gpt = theirs.GPT(len(theirs.alphabet))
    model = ours.GPT(len(ours.alphabet))
    same_start(model, gpt)
    assert model.head.weight is model.tokens.weight
    assert sum(p.size for p in model.parameters()) == sum(p.numel() for p in gpt.parameters())
    assert ours.generate(model, "the ", 12) == theirs.generate(gpt, "the ", 12)
    check_compiled(model, ours.codes[None, : ours.LENGTH])
    losses, expected = ours.train(model), theirs.train(gpt)
    assert losses[:5] == pytest.approx(expected[:5], rel=0.01)  # bfloat16 has 8 bits
    assert losses == pytest.approx(expected, rel=0.1)
    assert losses[-1] < losses[0] / 4


def test_digits_cnn() -> None:
    ours, theirs = both("digits_cnn")
    torch.manual_seed(0)
    network, model = theirs.CNN(), ours.CNN()
    same_start(model, network)
    losses, loss, accuracy = ours.main(model)
    expected, their_loss, their_accuracy = theirs.main(network)
    assert losses == pytest.approx(expected, rel=5e-3)
    assert loss == pytest.approx(their_loss, rel=5e-3)
    assert accuracy == pytest.approx(their_accuracy, abs=0.01) and accuracy > 0.8


def test_series_lstm() -> None:
    ours, theirs = both("series_lstm")
    torch.manual_seed(0)
    forecaster, model = theirs.Forecaster(), ours.Forecaster()
    same_start(model, forecaster)
    check_compiled(model, ours.windows(ours.make_series())[0][:3])
    losses, error, future = ours.main(model)
    expected, their_error, their_future = theirs.main(forecaster)
    assert losses == pytest.approx(expected, rel=1e-3)
    assert error == pytest.approx(their_error, rel=1e-3)
    np.testing.assert_allclose(future, their_future, rtol=1e-3)


def test_vae() -> None:
    ours, theirs = both("vae")
    losses, images = ours.main()
    expected, _ = theirs.main()
    assert losses == pytest.approx(expected, rel=0.05)  # other noise, other initial values
    assert images.shape == (8, 64) and 0 <= images.min() < images.max() <= 1
    model, x = ours.VAE(), ours.load()[:2]
    run = meta.vm.compile(meta.model.trace(lambda x: model(x)[0]), x)
    assert (run(x) != run(x)).any() and (model(x)[0] != model(x)[0]).any()
    meta.random.seed(3)
    once = run(x)
    meta.random.seed(3)
    assert (run(x) == once).all()


def test_gan() -> None:
    ours, theirs = both("gan")
    torch.manual_seed(0)
    networks = [theirs.network(4, 2), theirs.network(2, 1)]
    models = [ours.network(4, 2), ours.network(2, 1)]
    for model, network in zip(models, networks, strict=True):
        same_start(model, network)
    history, expected = ours.train(*models), theirs.train(*networks)
    np.testing.assert_allclose(history, expected, rtol=5e-3)
    assert ours.radius(models[0]) == pytest.approx(theirs.radius(networks[0]), rel=5e-3)


def test_policy_gradient() -> None:
    ours, theirs = both("policy_gradient")
    meta.random.seed(0)
    torch.manual_seed(0)
    for program in (ours, theirs):
        lengths = program.train(program.Policy())
        assert sum(lengths[-10:]) / 10 < 4 and max(lengths) > 2
    policy, agent = theirs.Policy(), ours.Policy()
    same_start(agent, policy)
    state = theirs.Corridor().reset()
    for found, expected in zip(agent(meta.array(state)), policy(state), strict=True):
        np.testing.assert_allclose(found.detach(), expected.detach(), rtol=1e-5, atol=1e-6)


def test_kmeans() -> None:
    ours, theirs = both("kmeans")
    found, expected = ours.main(), theirs.main()
    assert found["sizes"] == expected["sizes"] == [50] * 4
    np.testing.assert_allclose(found["centers"], expected["centers"], rtol=1e-4, atol=1e-6)
    for name in ("inertia", "silhouette"):
        assert found[name] == pytest.approx(expected[name], rel=1e-4)


def test_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = both("script")
    torch.manual_seed(1)
    network = theirs.Net()
    initial = copy.deepcopy(network.state_dict())
    model, history = ours.main(["--folder", str(tmp_path / "ours")], initial)
    _, expected = theirs.main(["--folder", str(tmp_path / "theirs")], initial)
    assert len(history) == 3
    for row, their_row in zip(history, expected, strict=True):
        assert row["train"] == pytest.approx(their_row["train"], rel=1e-2)
        assert row["loss"] == pytest.approx(their_row["loss"], rel=1e-2)
        assert row["accuracy"] == pytest.approx(their_row["accuracy"], abs=0.02)
    check_compiled(model.eval(), meta.ones((2, 1, 8, 8)))

    def stops(*args: Any) -> Any:
        raise KeyboardInterrupt

    arguments = ["--folder", str(tmp_path / "stopped")]
    evaluate = ours.evaluate
    with monkeypatch.context() as patch:
        calls = iter([evaluate, stops])
        patch.setattr(ours, "evaluate", lambda *args: next(calls)(*args))
        with pytest.raises(KeyboardInterrupt):
            ours.main(arguments, initial)
    _, rest = ours.main([*arguments, "--resume"])
    assert rest == history[1:]  # to the last bit
