"""The stopwatch, with a clock that the work itself moves."""

import gc

import numpy as np
import pytest

from splash_units.lab.timing import Effort, Samples, Stopwatch, joined, ratio, reason, spread

QUICK = Effort(
    seconds=1.0, fewest_rounds=3, most_rounds=10, warm_up_seconds=0.0, sample_seconds=0.001
)


class FakeClock:
    """Time passes only when work is done."""

    def __init__(self):
        self.now = 0.0
        self.log = []

    def __call__(self):
        return self.now

    def work(self, name, cost):
        """Work whose cost, in seconds, is a number or a function of the number of the call."""
        calls = 0

        def run():
            nonlocal calls
            self.log.append(name)
            self.now += cost(calls) if callable(cost) else cost
            calls += 1

        return lambda: run


@pytest.fixture
def clock():
    return FakeClock()


def compare(clock, contenders, effort=QUICK, **options):
    return Stopwatch(clock=clock, **options).compare(contenders, effort)


def test_each_is_charged_what_it_costs(clock):
    found = compare(clock, {"a": clock.work("a", 0.01), "b": clock.work("b", 0.03)})
    assert found["a"].seconds == pytest.approx([0.01] * 10)
    assert found["b"].seconds == pytest.approx([0.03] * 10)
    assert ratio(found["b"].seconds, found["a"].seconds).median == pytest.approx(3)


def test_short_work_is_repeated_until_it_fills_a_sample(clock):
    found = compare(clock, {"short": clock.work("s", 0.0001), "long": clock.work("l", 0.01)})
    assert found["short"].calls_a_sample == pytest.approx(10, abs=1)  # 0.1 ms into 1 ms
    assert found["long"].calls_a_sample == 1
    assert found["short"].seconds == pytest.approx([0.0001] * len(found["short"].seconds))


def test_everyone_has_one_turn_a_round_in_changing_order(clock):
    names = ("a", "b", "c")
    compare(clock, {name: clock.work(name, 0.01) for name in names})
    turns = clock.log[len(names) * QUICK.fewest_warm_ups :]
    rounds = [tuple(turns[i : i + 3]) for i in range(0, len(turns), 3)]
    assert len(rounds) == 10
    assert all(sorted(order) == list(names) for order in rounds)
    assert len(set(rounds)) > 2


def test_the_seed_decides_the_order():
    def order(seed):
        clock = FakeClock()
        names = {name: clock.work(name, 0.01) for name in "abcd"}
        compare(clock, names, seed=seed)
        return clock.log

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_a_machine_that_slows_down_slows_all(clock):
    """Timed one after the other, the second would seem twice as slow; the ratio must not."""
    began_slow = 0.05

    def drifting(base):
        return lambda call: base * (1 if clock.now < began_slow else 2)

    contenders = {
        "first": clock.work("first", drifting(0.002)),
        "second": clock.work("second", drifting(0.003)),
    }
    found = compare(clock, contenders, Effort(10, 5, 40, 0.0))
    measured = ratio(found["second"].seconds, found["first"].seconds)
    assert measured.median == pytest.approx(1.5, rel=0.01)
    assert measured.lower <= measured.median <= measured.upper


@pytest.mark.parametrize(
    ("cost", "rounds"),
    [
        (10.0, 3),  # past the time at once, but never fewer than three
        (0.25, 4),  # the fourth round ends at one second
        (0.002, 10),  # never more than ten
    ],
)
def test_rounds_keep_to_the_time(clock, cost, rounds):
    assert len(compare(clock, {"a": clock.work("a", cost)})["a"].seconds) == rounds


def test_warm_up_is_not_counted(clock):
    cold_then_warm = clock.work("a", lambda call: 5.0 if call < 2 else 0.01)
    found = compare(clock, {"a": cold_then_warm})
    assert found["a"].seconds == pytest.approx([0.01] * 10)


def failing(at_call):
    def prepare():
        calls = 0

        def run():
            nonlocal calls
            calls += 1
            if calls > at_call:
                raise RuntimeError("no luck\nand a long story")

        return run

    return prepare


def cannot_be_prepared():
    raise ImportError("not installed")


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (cannot_be_prepared, "ImportError: not installed"),
        (failing(0), "RuntimeError: no luck"),
        (failing(4), "RuntimeError: no luck"),
    ],
    ids=["prepare", "warm-up", "third round"],
)
def test_who_fails_is_reported_and_the_others_go_on(clock, broken, why):
    contenders = {"broken": broken, "a": clock.work("a", 0.01), "b": clock.work("b", 0.02)}
    # One call a sample, since a free call would otherwise be repeated a thousand times.
    found = compare(clock, contenders, Effort(1.0, 3, 10, 0.0, sample_seconds=1e-9))
    assert found["broken"] == Samples(failure=why)
    assert [len(found[name].seconds) for name in "ab"] == [10, 10]


def test_the_device_is_waited_for_before_the_clock_is_read():
    events = []

    class Clock:
        def __call__(self):
            events.append("clock")
            return float(len(events))

    Stopwatch(clock=Clock(), synchronize=lambda: events.append("wait")).compare(
        {"a": lambda: lambda: events.append("work")}, Effort(1.0, 1, 1, 0.0)
    )
    text = " ".join(events)
    assert "work wait clock" in text
    assert "work clock" not in text
    assert "wait clock work" in text


def test_no_garbage_is_collected_meanwhile(clock):
    seen = []

    def run():
        seen.append(gc.isenabled())
        clock.now += 0.5

    compare(clock, {"a": lambda: run})
    assert gc.isenabled()
    assert not any(seen[QUICK.fewest_warm_ups :])


def test_on_round_hears_of_every_round(clock):
    heard = []
    Stopwatch(clock=clock).compare({"a": clock.work("a", 0.01)}, QUICK, heard.append)
    assert heard == list(range(1, 11))


def test_spread_is_of_quantiles():
    found = spread(list(range(101)))
    assert (found.lower, found.median, found.upper) == (10, 50, 90)


def test_a_ratio_draws_rounds_not_values():
    """Whatever slowed a round slowed both in it: the ratio is as sharp as if nothing had."""
    noise = np.random.default_rng(0).lognormal(sigma=1.0, size=101)
    paired = ratio(list(1.2 * noise), list(noise))
    assert paired.median == pytest.approx(1.2)
    assert (paired.lower, paired.upper) == pytest.approx((1.2, 1.2))
    unpaired = ratio(list(1.2 * noise), list(noise[::-1]))
    assert unpaired.upper - unpaired.lower > 0.05


def test_a_ratio_of_passes_that_differ_is_as_wide_as_they_lie_apart():
    """However many rounds: another pass would have given another ratio."""
    values = [1.0] * 100 + [1.4] * 100 + [1.5] * 100
    as_one = ratio(values, [1.0] * 300)
    apart = ratio(values, [1.0] * 300, passes=(100, 100, 100))
    assert (as_one.median, apart.median) == (1.4, 1.4)
    assert (as_one.lower, as_one.upper) == (1.4, 1.4)
    assert (apart.lower, apart.upper) == (1.0, 1.5)


def test_passes_are_joined_unless_one_failed():
    first, second = Samples((1.0, 2.0), 3, passes=(2,)), Samples((4.0,), 3, passes=(1,))
    assert joined([first, second]) == Samples((1.0, 2.0, 4.0), 3, passes=(2, 1))
    assert joined([first, Samples(failure="no")]) == Samples(failure="no")


def test_a_ratio_needs_the_same_rounds():
    with pytest.raises(ValueError, match="3 and 2"):
        ratio([1.0, 1.0, 1.0], [1.0, 1.0])
    with pytest.raises(ValueError, match="0 and 0"):
        ratio([], [])


@pytest.mark.parametrize(
    "wrong",
    [{"seconds": 0.0}, {"seconds": float("inf")}, {"fewest_rounds": 0}, {"fewest_rounds": 300}],
)
def test_an_impossible_effort_is_refused(wrong):
    with pytest.raises(ValueError, match=r"seconds|rounds"):
        Effort(**wrong)


def test_a_reason_is_one_short_line():
    assert reason(ValueError("")) == "ValueError: "
    assert len(reason(ValueError("x" * 1000))) == 300
