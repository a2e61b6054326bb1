"""Statistics against scipy's, and the cases scipy leaves to its caller."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from splash_units.lab.statistics import (
    MOST_SEEDS,
    NO_SPREAD,
    TOO_FEW,
    Summary,
    compare,
    compare_summaries,
    holm,
    paired_test,
    seeds_needed,
    summarise,
    wilson,
)

ERRORS = st.lists(st.floats(0.01, 100).map(lambda x: round(x, 3)), min_size=2, max_size=8)


def by_seed(values):
    return dict(enumerate(values))


def spread(values):
    return max(values) - min(values) > 0.01


@given(ERRORS.filter(spread))
def test_a_summary_is_scipys(values):
    summary = summarise(values)
    described = stats.describe(values)
    assert summary.mean == pytest.approx(described.mean)
    assert summary.std == pytest.approx(math.sqrt(described.variance))
    low, high = stats.t.interval(0.95, len(values) - 1, described.mean, stats.sem(values))
    assert summary.interval == pytest.approx((low, high))


def test_one_value_has_no_deviation_and_none_no_mean():
    assert summarise([3.5]) == Summary(3.5, None, 1)
    assert summarise([3.5]).interval is None
    assert summarise([]) is None


@given(ERRORS.filter(spread), ERRORS.filter(spread))
def test_comparisons_are_scipys(a, b):
    found = compare(by_seed(a), by_seed(b))
    assert found.welch_p == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue)
    assert found.student_p == pytest.approx(stats.ttest_ind(a, b).pvalue)
    between = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert found.interval == pytest.approx((between.low, between.high))
    assert found.difference == pytest.approx(sum(a) / len(a) - sum(b) / len(b), abs=1e-9)
    assert (found.n_a, found.n_b) == (len(a), len(b))


@given(st.lists(st.tuples(st.floats(1, 50), st.floats(1, 50)), min_size=2, max_size=8))
def test_the_paired_test_is_scipys(pairs):
    a, b = zip(*pairs, strict=True)
    differences = [x - y for x, y in pairs]
    if not spread(differences):
        return
    found = compare(by_seed(a), by_seed(b))
    assert found.why_not or found.paired_p == pytest.approx(stats.ttest_rel(a, b).pvalue)


def test_pairs_are_of_the_same_seed_whatever_the_order():
    a = {0: 1.0, 1: 2.0, 2: 4.0, 7: 9.0}
    b = {2: 3.5, 1: 1.0, 0: 0.9, 8: 5.0}
    assert compare(a, b).paired_p == pytest.approx(
        stats.ttest_rel([1.0, 2.0, 4.0], [0.9, 1.0, 3.5]).pvalue
    )
    assert compare({0: 1.0, 1: 2.0}, {2: 1.5, 3: 2.2}).paired_p is None


def test_fewer_than_two_seeds_are_not_tested():
    found = compare({0: 1.0}, {0: 2.0, 1: 3.0})
    assert found.why_not == TOO_FEW
    assert found.difference == -1.5
    assert found.welch_p is found.student_p is found.paired_p is found.seeds_needed is None
    assert compare({}, {0: 1.0}) is None


def test_equal_values_are_not_tested():
    assert summarise([0.8, 0.8, 0.8]) == Summary(0.8, 0.0, 3)  # their sum is not three times 0.8
    assert compare({0: 1.0, 1: 1.0}, {0: 2.0, 1: 2.0}).why_not == NO_SPREAD
    assert paired_test([1.0, 1.0]) is None
    assert paired_test([]) is None


def test_hedges_g_by_hand():
    """Means 2 and 4, both of variance 1, three each: d = -2, corrected by about 1 - 3/(4·4 - 1)."""
    g = compare(by_seed([1.0, 2.0, 3.0]), by_seed([3.0, 4.0, 5.0])).effect_size
    assert g == pytest.approx(-2 * math.gamma(2) / (math.sqrt(2) * math.gamma(1.5)))
    assert g == pytest.approx(-2 * (1 - 3 / 15), rel=0.01)


@pytest.mark.parametrize(("effect", "seeds"), [(0.2, 394), (0.5, 64), (0.8, 26), (1.2, 12)])
def test_seeds_needed_are_those_of_the_textbook(effect, seeds):
    """Cohen 1988, two-sided t-test at 0.05 and power 0.8."""
    assert seeds_needed(effect) == seeds_needed(-effect) == seeds


@given(st.floats(0.05, 6))
def test_seeds_needed_are_the_fewest(effect):
    def power(n):
        critical = stats.t.ppf(0.975, 2 * n - 2)
        shifted = stats.nct(2 * n - 2, effect * math.sqrt(n / 2))
        return shifted.sf(critical) + shifted.cdf(-critical)

    n = seeds_needed(effect)
    assert power(n) >= 0.8 - 1e-9
    assert n == 2 or power(n - 1) < 0.8 + 1e-9


def test_no_number_of_seeds_shows_no_difference():
    assert seeds_needed(0.0) is None
    assert seeds_needed(1e-6) is None
    assert seeds_needed(math.nan) is None
    assert 30_000 < seeds_needed(0.02) < MOST_SEEDS
    with pytest.raises(ValueError, match="between 0 and 1"):
        seeds_needed(1.0, power=1.0)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, None]) == pytest.approx([0.03, 0.06, 0.06, None])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([None]) == [None]
    assert holm([]) == []
    with pytest.raises(ValueError, match=r"1\.2"):
        holm([1.2])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_keeps_the_order_and_never_lowers(p_values):
    adjusted = holm(p_values)
    assert all(p <= a <= 1 for p, a in zip(p_values, adjusted, strict=True))
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    assert [adjusted[i] for i in order] == sorted(adjusted)


@given(st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_is_scipys(counts):
    k, n = counts
    known = stats.binomtest(k, n).proportion_ci(method="wilson")
    assert wilson(k, n) == pytest.approx((known.low, known.high), abs=1e-12)


def test_wilson_at_the_ends_and_of_nothing():
    assert wilson(0, 10)[0] == 0
    assert wilson(10, 10)[1] == 1
    assert wilson(0, 0) == (0, 1)
    with pytest.raises(ValueError, match="3 trials"):
        wilson(4, 3)


def test_summaries_of_a_paper_compare_like_their_values():
    a, b = [1.0, 2.0, 4.0], [3.0, 3.5, 7.0, 9.0]
    from_values = compare(by_seed(a), {seed + 10: value for seed, value in enumerate(b)})
    assert compare_summaries(summarise(a), summarise(b)) == from_values
