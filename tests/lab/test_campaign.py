"""The order of many specs, what follows from failures, and the sums that are shown."""

import re
from io import StringIO

import pytest
from rich.console import Console

from splash_units.lab.campaign import (
    Began,
    Campaign,
    Done,
    Failed,
    Moved,
    Planned,
    Skipped,
    Waiting,
    ways_to_go,
)
from splash_units.lab.cli import progress
from splash_units.lab.cli.progress import Summary, duration
from splash_units.lab.estimates import Estimate
from splash_units.lab.findings import claim
from splash_units.lab.spec import AttackSpec, CostSpec, TrainSpec, UnitChoice, describe, digest
from splash_units.lab.store import Store

LONG, MIDDLE, BRIEF = (TrainSpec(model=m, scale="smoke") for m in ("nin", "resnet20", "mlp"))
FIXED = TrainSpec(model="mlp", seed=1, scale="smoke", source=BRIEF)
ATTACK = AttackSpec(train=BRIEF, attack="cw", images=8)
LATER = AttackSpec(train=FIXED, attack="noise", options={"eps": 0.1}, images=8)
RELU, SPLASH = UnitChoice(label="ReLU", unit="relu"), UnitChoice(label="SPLASH", unit="splash")
COST = CostSpec(units=(RELU, SPLASH))
OTHER_COST = CostSpec(units=(RELU, SPLASH), batch_size=64)
SECONDS = {LONG: 100, MIDDLE: 50, BRIEF: 1, FIXED: 1, ATTACK: 60, LATER: 1}


def estimate(spec):
    return Estimate(SECONDS.get(spec, 10), "rough")


def finish(store, spec, status="done"):
    held = store.claim(spec) if isinstance(spec, TrainSpec) else claim(store, spec)
    with held as work:
        if isinstance(spec, TrainSpec):
            work.begin({}, resumed=False)
        else:
            work.begin({})
        work.finish({"status": status}, {})


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


def test_most_to_come_first_and_needs_before_what_needs_them(store):
    campaign = Campaign([COST, ATTACK, MIDDLE, LONG, LATER], store, estimate)
    # The brief training leads to an attack of a minute, so it goes before the one of 50 seconds.
    assert [campaign.start_next() for _ in range(4)] == [LONG, BRIEF, MIDDLE, None]
    finish(store, BRIEF)
    assert campaign.ended(BRIEF) == Done(BRIEF)
    assert [campaign.start_next() for _ in range(3)] == [ATTACK, FIXED, None]


def test_timings_run_alone_and_last(store):
    campaign = Campaign([COST, OTHER_COST, BRIEF], store, estimate)
    assert campaign.start_next() == BRIEF
    assert campaign.start_next() is None
    finish(store, BRIEF)
    campaign.ended(BRIEF)
    first = campaign.start_next()
    assert first in (COST, OTHER_COST)
    assert campaign.start_next() is None
    finish(store, first)
    campaign.ended(first)
    last = campaign.start_next()
    assert {first, last} == {COST, OTHER_COST}
    finish(store, last)
    campaign.ended(last)
    assert campaign.is_over


def test_a_failure_takes_along_what_needs_it_and_nothing_else(store):
    campaign = Campaign([LATER, ATTACK, MIDDLE], store, estimate)
    while campaign.start_next():
        pass
    assert campaign.ended(BRIEF, "out of luck") == Failed(BRIEF, "out of luck")
    skipped = campaign.skip_impossible()
    assert [skip.spec for skip in skipped] == [FIXED, LATER, ATTACK]
    assert skipped[0].why == f"needs {describe(BRIEF)}, which failed"
    assert skipped[1].why == f"needs {describe(FIXED)}, which failed"
    assert not any(skip.diverged for skip in skipped)
    assert list(campaign.running.values()) == [MIDDLE]
    assert not campaign.waiting


def test_what_needs_a_divergence_is_skipped_for_good(store):
    finish(store, BRIEF, status="diverged")
    campaign = Campaign([LATER, MIDDLE], store, estimate)
    skipped = campaign.skip_impossible()
    assert [skip.spec for skip in skipped] == [FIXED, LATER]
    assert all(skip.diverged for skip in skipped)
    assert campaign.start_next() == MIDDLE


def test_an_end_without_a_result_is_a_failure(store):
    campaign = Campaign([BRIEF], store, estimate)
    campaign.start_next()
    assert campaign.ended(BRIEF) == Failed(BRIEF, "it ended without a result")


def test_the_way_to_go_is_the_longest_chain():
    specs = {digest(spec): spec for spec in (BRIEF, FIXED, LATER, ATTACK)}
    ways = ways_to_go(specs, {digest(spec): SECONDS[spec] for spec in specs.values()})
    assert ways[digest(BRIEF)] == 1 + 60
    assert ways[digest(FIXED)] == 1 + 1
    assert ways[digest(ATTACK)] == 60


def test_the_summary_counts_and_tells_the_time_left():
    now = 0.0
    summary = Summary(clock=lambda: now)
    summary.hear(Planned((LONG, MIDDLE, BRIEF, FIXED), (100.0, 50.0, 25.0, 25.0)))
    assert summary.words() == "0 done, 4 to come"
    summary.hear(Began(LONG, "tcp://worker", 1))
    summary.hear(Moved(LONG, 0.5))
    now = 10.0  # 50 of 200 estimated seconds took 10
    assert summary.seconds_left() == pytest.approx(30)
    assert summary.words() == "0 done, 1 running, 3 to come, about 30 s left"
    summary.hear(Done(LONG))
    summary.hear(Failed(MIDDLE, "out of luck"))
    now = 30.0  # 150 took 30
    assert summary.seconds_left() == pytest.approx(10)
    summary.hear(Skipped(BRIEF, "which failed"))
    summary.hear(Skipped(FIXED, "which diverged", diverged=True))
    assert summary.words() == "1 done, 2 failed or skipped, 1 impossible after a divergence"
    assert [ended.spec for ended in summary.failed] == [MIDDLE, BRIEF]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(3, "3 s"), (119, "119 s"), (150, "2.5 min"), (9000, "2.5 h"), (216_000, "2.5 days")],
)
def test_durations(seconds, words):
    assert duration(seconds) == words


def test_a_terminal_sees_bars_and_a_line_for_each_that_ended(monkeypatch):
    console = Console(force_terminal=True, width=200, file=StringIO(), highlight=False)
    monkeypatch.setattr(progress, "out", console)
    events = [
        Planned((LONG, BRIEF, FIXED), (1.0, 1.0, 1.0)),
        Waiting(),
        Waiting(),
        Began(LONG, "tcp://worker", 1),
        Began(LONG, "tcp://worker", 2),
        Moved(LONG, 0.5),
        Done(LONG),
        Failed(BRIEF, "[red]out of luck"),
        Skipped(FIXED, "which failed"),
    ]
    summary = Summary()
    progress.follow((event for event in events), summary)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())
    assert shown.count("waiting for workers") == 1
    assert f"its worker died, again: {describe(LONG)} (try 2)" in shown
    assert f"done {describe(LONG)}" in shown
    assert f"failed {describe(BRIEF)}: [red]out of luck" in shown
    assert f"skipped {describe(FIXED)}: which failed" in shown
    assert summary.words() == "1 done, 2 failed or skipped"
