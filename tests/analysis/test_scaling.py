"""Predicted steps on meshes that are not there: sums by hand, bounds, and memory beside what a
simulated mesh plans.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import meta
from meta import distributed as dist
from meta.analysis import memory, scaling
from meta.base.device import CPU, Device
from meta.base.errors import ArgumentError, DeviceError, DistributedError
from meta.cost.interconnect import Link, Links, links_of
from meta.ir import Module, parse
from meta.model import zoo
from meta.passes import bucket_collectives, dispatch, infer_type, schedule_collectives
from meta.train.objective import Objective
from tests.cost import fake_costs
from tests.cost.fake_costs import keep_peaks

LINKS = Links(
    Link("inside", 100.0, {"ring": 1.0}, startup=5.0),
    Link("between", 50.0, {"ring": 3.0}, startup=5.0),
    ranks_per_host=2,
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[None]:
    with fake_costs.store(tmp_path):
        keep_peaks(copy=100.0, launch=1.0)
        yield


def program(*lines: str, head: str = "%x: float32[100, 8]") -> Module:
    body = "\n".join((*lines, f"return {lines[-1].split(' ')[0]}"))
    return infer_type(parse(f"func @main({head}) {{\n{body}\n}}"))


SUM = program(
    "%a = exp(%x)",
    '%b = all_reduce(%a, over="dp", size=2, reduction="sum")',
    "%c = tanh(%b)",
)
KERNELS = 2 * (2 * 3200 / 100 + 1)
BESIDE = program(
    "%g = exp(%x)",
    '%a = all_reduce(%g, over="dp", size=2, reduction="sum")',
    "%h = tanh(%x)",
    "%k = exp(%h)",
    "%z = add(%a, %k)",
)
"""Two kernels can run beside its sum."""


def test_a_sum_takes_its_place_among_kernels() -> None:
    for module in (SUM, dispatch(SUM, device=CPU)):
        report = scaling(module, 2, LINKS)
        exchange = 5 + 2 * 1 + 2 * 1 / 2 * 3200 / 100
        assert report.kernels.total == pytest.approx(KERNELS)
        assert report.communication == report.exposed == pytest.approx(exchange)
        assert report.total == pytest.approx(KERNELS + exchange)
        assert report.at_best == pytest.approx(KERNELS)
        assert report.efficiency == pytest.approx(KERNELS / (KERNELS + exchange))
        (row,) = report.records()
        assert (row["operator"], row["over"], row["bytes"]) == ("all_reduce", "dp", 3200)
        assert (row["ranks"], row["hosts"], row["algorithm"]) == (2, 1, "ring")
        assert report.memory == memory(module)
        assert report.memory_bytes == report.memory.arguments + report.memory.peak
        json.dumps(report.records())


def test_a_sum_is_for_any_number_of_ranks() -> None:
    totals = [scaling(SUM, n, LINKS).total for n in (1, 2, 4, 8, 64, 1024)]
    assert totals[0] == pytest.approx(KERNELS)
    assert all(a < b for a, b in pairwise(totals)), totals
    four = scaling(SUM, {"dp": 4}, LINKS)
    assert (four.ranks, four.hosts) == (4, 2)
    assert four.communication == pytest.approx(5 + 2 * (2 * 1 + 1 * 3) + 2 * 3 / 4 * 3200 / 100)
    quick = Links(Link("inside", 1e9, {"ring": 0.0}, startup=0.0), LINKS.between, 8)
    assert scaling(SUM, 8, quick).exposed == pytest.approx(0.0, abs=1e-3)


def test_kernels_that_were_measured_as_a_whole() -> None:
    report = scaling(SUM, 2, LINKS, kernels=1000.0)
    assert (report.kernels.measured, report.kernels.estimated) == (1000.0, 0.0)
    assert report.total == pytest.approx(1000 + 39)
    assert "1,000.0 us (measured as a whole)" in str(report)
    assert "(0% measured, on cpu)" in str(scaling(SUM, 2, LINKS))
    with pytest.raises(ArgumentError, match="kernels take some time"):
        scaling(SUM, 2, kernels=0.0)


def test_what_goes_on_beside_kernels_is_hidden() -> None:
    with meta.dialect.only("torch", "gloo"):
        whole = dispatch(bucket_collectives(BESIDE), device=CPU)
        module = schedule_collectives(whole, device=CPU)
    assert "_start" in str(module) and "collective_wait" in str(module)
    one, three = KERNELS / 2, (3 * 3200) / 100 + 1
    for bandwidth, exposed in ((100.0, 0.0), (20.0, 7 + 3200 / 20 - KERNELS)):
        links = Links(Link("inside", bandwidth, {"ring": 1.0}, startup=5.0), LINKS.between, 2)
        exchange = 5 + 2 * 1 + 3200 / bandwidth
        report = scaling(module, 2, links)
        assert report.communication == pytest.approx(exchange)
        assert report.exposed == pytest.approx(exposed)
        assert report.rows[0].exposed == pytest.approx(exposed)
        assert report.total == pytest.approx(3 * one + three + exposed)
        before = scaling(whole, 2, links)
        assert before.exposed == before.rows[0].exposed == pytest.approx(exchange)
        assert report.at_best <= report.total <= before.total
    assert scaling(module, 1024, LINKS).total > scaling(module, 2, LINKS).total


def test_kernels_beside_an_exchange_are_slower() -> None:
    with meta.dialect.only("torch", "gloo"):
        module = schedule_collectives(dispatch(bucket_collectives(BESIDE), device=CPU), device=CPU)
    quick, slow = (
        Links(Link("inside", bandwidth, {"ring": 1.0}, startup=5.0), LINKS.between, 2)
        for bandwidth in (100.0, 20.0)
    )
    alone = scaling(module, 2, quick)
    slower = scaling(module, 2, replace(quick, beside=0.5))
    assert slower.total == pytest.approx(alone.total + 0.5 * alone.communication)
    # All of the kernels are beside it: they hold it up as long as it holds them up.
    assert slower.communication == alone.communication
    both = scaling(module, 2, slow), scaling(module, 2, replace(slow, beside=0.5))
    assert both[1].total == pytest.approx(both[0].total + 0.5 * KERNELS)
    assert links_of(Device("cuda")).beside > 0 == links_of(CPU).beside


def test_a_gather_depends_on_the_ranks() -> None:
    module = program('%y = all_gather(%x, over="tp", size=2, axis=0)')
    report = scaling(module, {"dp": 3, "tp": 2}, LINKS)
    assert report.communication == pytest.approx(5 + 1 + 1 / 2 * 6400 / 100)
    assert report.hosts == 3 and report.rows[0].bytes == 6400
    with pytest.raises(DistributedError, match=r"is for 2 ranks along 'tp': its all_gather"):
        scaling(module, {"tp": 4})
    with pytest.raises(DistributedError, match="the program exchanges along 'tp'"):
        scaling(module, {"dp": 2})


def test_what_it_refuses() -> None:
    with pytest.raises(ArgumentError, match="no axes of a mesh"):
        scaling(SUM, {"dp": 0})
    with pytest.raises(DeviceError):
        scaling(SUM, 2, device="cuda:9")


def test_a_branch_takes_as_long_as_the_longer_one() -> None:
    @meta.model.trace
    def branch(flag: Any, x: Any) -> Any:
        return meta.model.cond(flag, lambda: meta.op.all_reduce(x, "dp", 2), lambda: meta.op.exp(x))

    types = (meta.ir.parse_type("bool[]"), meta.ir.parse_type("float32[100, 8]"))
    module = meta.vm.compile(branch, *types).module
    assert scaling(module, 2, LINKS).total == pytest.approx(KERNELS / 2)  # that of exp
    keep_peaks(copy=1e5, launch=0.1)
    report = scaling(module, 2, LINKS)
    assert report.total == report.communication == pytest.approx(39)


class Net(meta.Model):
    def build(self) -> None:
        self.first, self.last = meta.model.Linear(16, 32), meta.model.Linear(32, 4)

    @meta.model.trace
    def forward(self, x: Any) -> Any:
        return self.last(meta.tanh(self.first(x)))


def compiled(**options: Any) -> Any:
    step = meta.optim.with_adamw(1e-3, over="dp", **options)(Net())
    return meta.vm.compile(step, meta.ones((8, 4)), meta.ones((8, 16)))


@pytest.mark.heavy
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_memory_is_that_of_a_simulated_mesh(zero: int) -> None:
    def rank() -> tuple[str, Any]:
        run = compiled(zero=zero)
        return str(run.module), run.memory()

    with dist.planned(4):
        planned = compiled(zero=zero)
    report = scaling(planned.module, 4)
    for text, simulated in dist.simulate(4).run(rank):
        assert text == str(planned.module)
        assert report.memory_bytes == simulated.arguments + simulated.constants + simulated.peak
    assert report.communication > 0 and "memory of a rank" in str(report)
    assert "<table" in report._repr_html_()
    if zero:
        with dist.planned(8):
            more = scaling(compiled(zero=zero).module, 8)
        assert more.memory.arguments < report.memory.arguments


@pytest.mark.slow
@pytest.mark.parametrize("zero", [0, 1, 3])
def test_memory_of_a_divided_transformer(zero: int) -> None:
    sizes = {"dp": 2, "tp": 2}
    off = dict.fromkeys(("embd_pdrop", "attn_pdrop", "resid_pdrop"), 0.0)
    config = zoo.GPT2Config(vocab_size=512, n_embd=64, n_layer=2, n_head=4, n_positions=32, **off)
    ids = meta.ones((2, 32), "int64")

    def made() -> Any:
        net = dist.tensor_parallel(zoo.GPT2LMHeadModel(config), over="tp")
        objective = Objective(net, zoo.causal_lm_loss)
        step = meta.optim.with_adamw(1e-3, over="dp", zero=zero)(objective)
        with meta.dialect.only("torch", "gloo"):
            return meta.vm.compile(step, meta.array(1.0), (ids,), (ids,))

    with dist.planned(sizes):
        report = scaling(made().module, sizes)
    assert {row.over for row in report.rows} == {"dp", "tp"}
    for found in dist.simulate(sizes).run(lambda: made().memory()):
        assert report.memory_bytes == found.arguments + found.constants + found.peak


def test_a_planned_mesh_exchanges_nothing() -> None:
    with dist.planned({"dp": 64, "tp": 2}):
        assert (dist.size("dp"), dist.rank("dp"), dist.size("tp")) == (64, 0, 2)
        x = meta.ones(3)
        assert dist.broadcast(x, "dp").numpy().tolist() == [1, 1, 1]
        for call in (
            lambda: dist.all_reduce(x, "dp"),
            lambda: dist.all_gather(x, "tp"),
            lambda: dist.broadcast(x, "dp", 1),
            lambda: dist.reduce_scatter(meta.ones(64), "dp"),
            lambda: dist.all_to_all(meta.ones(64), "dp"),
            lambda: dist.send_recv(x, "tp", 0, 1),
        ):
            with pytest.raises(DistributedError, match="nothing is exchanged along"):
                call()
        run = compiled()
        with pytest.raises(DistributedError, match="nothing is exchanged along 'dp'"):
            run(meta.ones((8, 4)), meta.ones((8, 16)))
    with pytest.raises(DistributedError):
        dist.size("dp")


def test_simulated_ranks_have_no_links() -> None:
    with pytest.raises(DistributedError, match="simulated ranks have no links"):
        dist.simulate(2).run(lambda: dist.measure_links("dp"))
