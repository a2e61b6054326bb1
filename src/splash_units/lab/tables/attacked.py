"""The four robustness tables: how many attacks succeed, and how sure the networks are of mistakes.

Counts are given per 1000 attempts, so that those of fewer images can be read beside the paper's.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from splash_units.lab.frames import label
from splash_units.lab.names import network_name, unit_name
from splash_units.lab.spec import AttackSpec, TransferSpec
from splash_units.lab.statistics import Summary
from splash_units.lab.studies import published
from splash_units.lab.tables.accuracy import without_empty
from splash_units.lab.tables.cells import marked, measured, notes_of, printed, setting_name, winners
from splash_units.lab.tables.results import Found, Group, Numbers, Value, View, seed_of, seedless
from splash_units.lab.tables.table import Cell, Table, words

HEADLINE_L2 = "0.5"
OTHER_L2 = ("0.25", "1.0", "none")


class Variant(NamedTuple):
    """One column of counts: which attacks belong to it, how it is headed, the paper's setting."""

    heading: str
    options: Mapping[str, float]
    setting: str | None = None


def fooled(numbers: Numbers) -> float | None:
    """Successes per 1000 attempts; images that were wrong before are no attempts."""
    attempts = numbers.get("attempts")
    return 1000 * numbers["fooled"] / attempts if attempts else None


def fooled_within(limit: str) -> Value:
    """The same within an L2 distance, for attacks that minimise it."""

    def value(numbers: Numbers) -> float | None:
        share = (numbers.get("success_at_l2") or {}).get(limit)
        return None if share is None else 1000 * share

    return value


def pixels(view: View) -> Table:
    variants = [
        Variant(f"{k} pixels" if k > 1 else "1 pixel", {"k": k}, f"pixels={k}") for k in (1, 3, 5)
    ]
    return _counts(view, "pixels", "one_pixel", "Attacks on pixels", variants, gap_at=variants[0])


def fgsm(view: View) -> Table:
    variants = [Variant(f"eps {eps}", {"eps": eps}, f"eps={eps}") for eps in (0.02, 0.04, 0.06)]
    return _counts(view, "fgsm", "fgsm", "FGSM from a random start", variants, gap_at=variants[1])


def boundary(view: View) -> Table:
    return _distances(view, "boundary", "boundary", "The boundary attack")


def cw(view: View) -> Table:
    return _distances(view, "cw", "cw_l2", "The attack of Carlini and Wagner in L2")


def _counts(
    view: View,
    name: str,
    published_as: str,
    title: str,
    variants: Sequence[Variant],
    gap_at: Variant,
) -> Table:
    """Attacks with a fixed budget: a column of counts for each of its sizes."""
    blocks = _blocks(view)
    heads = ["network", "data", "unit"]
    for variant in variants:
        heads += [f"{variant.heading}: per 1000", f"{variant.heading}, paper"]
    heads += [f"gap at {gap_at.heading}", "gap, paper"]
    columns = {
        (block, variant.heading): [view.group(_pick(unit, variant), fooled) for unit in units]
        for block, units in blocks.items()
        for variant in variants
    }
    won = dict(zip(columns, winners(list(columns.values())), strict=True))
    rows: list[list[Cell]] = []
    starts = []
    for block, units in blocks.items():
        starts.append(len(rows))
        part = _first_cells(units)
        for variant in variants:
            groups = columns[block, variant.heading]
            cells = marked([measured(group, 1) for group in groups], won[block, variant.heading])
            _extend(part, cells, _published_counts(published_as, units, variant.setting))
        gaps = _gaps(view, [_pick(unit, gap_at) for unit in units])
        _extend(part, gaps, _published_gaps(published_as, units, gap_at.setting))
        rows += part
    heads, rows = without_empty(heads, rows)
    return Table(
        name=name,
        title=f"{title}: successes per 1000 attempts, mean ± standard deviation (seeds)",
        scale=view.scale,
        columns=tuple(heads),
        rows=tuple(tuple(row) for row in rows),
        notes=notes_of(view, *_NOTES, *attempts_note(view), *warnings_of(view)),
        groups=tuple(starts),
    )


def _distances(view: View, name: str, published_as: str, title: str) -> Table:
    """Attacks that minimise the distance: successes within several, and the median distance."""
    blocks = _blocks(view)
    heads = ["network", "data", "unit", f"L2 ≤ {HEADLINE_L2}: per 1000", "paper (limit unknown)"]
    heads += [f"L2 ≤ {limit}" if limit != "none" else "no limit" for limit in OTHER_L2]
    heads += ["median L2", "gap", "gap, paper"]
    only = Variant("", {})
    columns = [
        [view.group(_pick(unit, only), fooled_within(HEADLINE_L2)) for unit in units]
        for units in blocks.values()
    ]
    won = winners(columns)
    rows: list[list[Cell]] = []
    starts = []
    for units, groups, winner in zip(blocks.values(), columns, won, strict=True):
        starts.append(len(rows))
        part = _first_cells(units)
        specs = [_pick(unit, only) for unit in units]
        cells = marked([measured(group, 1) for group in groups], winner)
        _extend(part, cells, _published_counts(published_as, units, None))
        for limit in OTHER_L2:
            _extend(part, [measured(view.group(spec, fooled_within(limit)), 1) for spec in specs])
        _extend(part, [measured(view.group(spec, _median_l2), 3) for spec in specs])
        _extend(part, _gaps(view, specs), _published_gaps(published_as, units, None))
        rows += part
    heads, rows = without_empty(heads, rows)
    return Table(
        name=name,
        title=f"{title}: successes per 1000 attempts, mean ± standard deviation (seeds)",
        scale=view.scale,
        columns=tuple(heads),
        rows=tuple(tuple(row) for row in rows),
        notes=notes_of(
            view,
            "This attack minimises the distance and nearly always succeeds in the end; the paper's "
            "counts need a limit that it does not state, so they cannot be matched.",
            *_NOTES,
            *attempts_note(view),
            *warnings_of(view),
        ),
        groups=tuple(starts),
    )


_NOTES = (
    "An attempt is an image that the network classified right before; fewer successes are better.",
    "Gap: mean |Z_true - Z_adv| over the images that fool all units of a network, per seed.",
)

Units = Sequence[Sequence[AttackSpec]]


def _blocks(view: View) -> dict[tuple[str, str, str], list[list[AttackSpec]]]:
    """The attacks by network and setting; in each, those of one unit together."""
    found: dict[tuple[str, str, str], dict[str, list[AttackSpec]]] = {}
    for spec in view.specs():
        if isinstance(spec, AttackSpec):
            train = spec.train
            units = found.setdefault((train.model, train.data, train.augment), {})
            units.setdefault(label(train), []).append(spec)
    return {block: list(units.values()) for block, units in found.items()}


def _pick(specs: Sequence[AttackSpec], variant: Variant) -> AttackSpec:
    wanted = variant.options.items()
    return next(spec for spec in specs if wanted <= spec.options.items())


def _first_cells(units: Units) -> list[list[Cell]]:
    trains = [specs[0].train for specs in units]
    return [
        [
            words(network_name(train.model)),
            words(setting_name(train.data, train.augment)),
            words(unit_name(label(train))),
        ]
        for train in trains
    ]


def _extend(rows: list[list[Cell]], *columns: Sequence[Cell]) -> None:
    for row, *cells in zip(rows, *columns, strict=True):
        row += cells


def _published_counts(table: str, units: Units, setting: str | None) -> list[Cell]:
    return [printed(_published(table, "n_success_of_1000", u, setting), 1) for u in units]


def _published_gaps(table: str, units: Units, setting: str | None) -> list[Cell]:
    return [printed(_published(table, "avg_abs_Ztrue_minus_Zadv", u, setting), 3) for u in units]


def _published(
    table: str, metric: str, specs: Sequence[AttackSpec], setting: str | None
) -> Summary | None:
    train = specs[0].train
    if train.augment == "none":
        return None  # the paper has each network once; it stands beside the augmented one
    return published.value(
        table, metric, model=train.model, data=train.data, unit=train.unit, setting=setting
    )


def _median_l2(numbers: Numbers) -> float | None:
    return numbers.get("median_l2")


def _gaps(view: View, specs: Sequence[AttackSpec]) -> list[Cell]:
    """The gap of each unit, over the images that fool all of them, averaged over seeds."""
    by_seed: dict[int, list[Found]] = {}
    for spec in specs:
        for one in view.found(spec):
            by_seed.setdefault(seed_of(one.spec), []).append(one)
    values: list[dict[int, float]] = [{} for _ in specs]
    for seed, found in by_seed.items():
        if len(found) == len(specs):
            for place, gap in enumerate(common_gaps(found)):
                if gap is not None:
                    values[place][seed] = gap
    planned = len(view.planned[seedless(specs[0])])
    return [
        measured(Group(gaps, (), {"missing": max(0, planned - len(gaps))}, planned), 3)
        for gaps in values
    ]


def common_gaps(found: Sequence[Found]) -> list[float | None]:
    """Mean |Z_true - Z_adv| of each attack over the images that fooled the networks of all."""
    names = ("index", "fooled", "probability_true", "probability_predicted")
    tables = [
        {name: tensor.numpy() for name, tensor in one.finding.tensors(*names).items()}
        for one in found
    ]
    common = set(tables[0]["index"][tables[0]["fooled"]].tolist())
    for rows in tables[1:]:
        common &= set(rows["index"][rows["fooled"]].tolist())
    if not common:
        return [None] * len(found)
    gaps: list[float | None] = []
    for rows in tables:
        chosen = np.isin(rows["index"], list(common))
        gap = np.abs(rows["probability_predicted"] - rows["probability_true"])[chosen]
        gaps.append(float(gap.mean(dtype=np.float64)))
    return gaps


def attempts_note(view: View) -> list[str]:
    """How many images were attacked, if any were."""
    attempts = [
        one.result.get("attempts", 0)
        for spec in view.specs()
        if isinstance(spec, AttackSpec)
        for one in view.found(spec)
    ]
    if not attempts:
        return []
    fewest, most = min(attempts), max(attempts)
    return [f"Attempts each: {fewest if fewest == most else f'{fewest} to {most}'}."]


def warnings_of(view: View) -> list[str]:
    """What the sanity checks of attacks and transfers found wrong, each once."""
    said: dict[str, int] = {}
    for spec in view.specs():
        if not isinstance(spec, AttackSpec | TransferSpec):
            continue
        train = spec.train if isinstance(spec, AttackSpec) else spec.trains[0]
        unit = unit_name(label(train)) if isinstance(spec, AttackSpec) else "transfer"
        where = f"{network_name(train.model)}, {unit}, {spec.attack}"
        for one in view.found(view.at_hand(spec)):
            for warning in one.result.get("warnings", []):
                said[f"{where}: {warning}"] = said.get(f"{where}: {warning}", 0) + 1
    return [f"Warning: {text}{f' ({n} times)' if n > 1 else ''}" for text, n in said.items()]
