"""Claims that are counted, timed or computed rather than tested over seeds."""

from itertools import pairwise

from splash_units.lab import names
from splash_units.lab.findings import findings
from splash_units.lab.report.content import Content, Group
from splash_units.lab.report.verdicts.judging import Claim, Evidence, Outcome, Verdict
from splash_units.lab.spec import CostSpec
from splash_units.lab.store import Run, Store
from splash_units.lab.theorem import EXAMPLES, largest_error

# Of its own table, SPLASH against ReLU: LeNet5 with S = 3 and the MLP with S = 11.
PAPER_COST = (1.24, 3.17)
PAPER_COST_AT_7 = {"mlp": 16 / 6, "lenet5": 29 / 17}
SHOWN_HINGES = (7, 31)


PARAMETERS = Claim(
    "parameters",
    "cost",
    "A unit adds S + 1 parameters a layer.",
    "splash train --unit splash",
)
COST = Claim(
    "cost",
    "cost",
    "Training takes 1.2 to 3.2 times as long as with ReLU; at S = 7, 1.7 times for LeNet5 and 2.7 "
    "times for the MLP.",
    "splash run cost --scale short",
)
THEOREM = Claim(
    "theorem",
    "theory",
    "With enough hinges a unit comes as near as one likes to any continuous function on an "
    "interval.",
    "splash figure approximation",
)


def parameters(content: Content, store: Store) -> Verdict:
    """Counted in the networks themselves: every layer with a shape must have S + 1 slopes."""
    found = {
        group.setting.model: row
        for group in reversed(content.groups)
        if group.label == "splash" and group.done and (row := _slopes_row(group, store))
    }
    rows = tuple(reversed(found.values()))
    if not rows:
        return Verdict(PARAMETERS)
    return Verdict(
        claim=PARAMETERS,
        outcome="confirmed" if all(row.says == "for" for row in rows) else "contradicted",
        words="Counted in the trained networks.",
        evidence=rows,
        n=f"{len(rows)} network{'s' * (len(rows) > 1)}",
    )


def _slopes_row(group: Group, store: Store) -> Evidence | None:
    run = group.done[0]
    record = Run(store.root, run["id"]).record()
    hinges = [len(values) for name, values in record.get("constants", {}).items()]
    if not hinges or not run["parameters"]:
        return None
    expected = sum(2 * count for count in hinges)  # (S + 1)/2 hinges on each side of zero
    return Evidence(
        where=names.network_name(group.setting.model),
        scale=group.setting.scale,
        what="slopes",
        ours=f"{run['slopes']:,} of {run['parameters']:,} parameters",
        other=f"{len(hinges)} layers × {2 * hinges[0]} = {expected:,}",
        says="for" if run["slopes"] == expected else "against",
        runs=(run["id"],),
    )


def cost(store: Store) -> Verdict:
    """Training steps in turns with ReLU's; seconds of separate runs would compare moments."""
    rows = [row for found in findings(store) for row in _cost_rows(found.spec(), found.result())]
    ratios = [row.difference for row in rows if row.difference is not None]
    if not ratios:
        return Verdict(COST)
    low, high = min(ratios), max(ratios)
    outcome: Outcome = "confirmed" if low >= PAPER_COST[0] else "partly"
    cheaper = high < PAPER_COST[0]
    how_much = f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}"
    measurements = len({row.where for row in rows})
    return Verdict(
        claim=COST,
        outcome="contradicted" if cheaper else outcome,
        words=f"Here a training step takes {how_much} times as long as with ReLU.",
        evidence=tuple(rows),
        n=f"{measurements} measurement{'s' * (measurements > 1)}",
        headline="cheaper here" if cheaper else "",
    )


def _cost_rows(spec: object, result: dict[str, object] | None) -> list[Evidence]:
    if not isinstance(spec, CostSpec) or not result:
        return []
    labels, ratios = result.get("labels"), result.get("ratio")
    if not isinstance(labels, list) or not isinstance(ratios, list):
        return []
    network = names.network_name(spec.model)
    published = PAPER_COST_AT_7.get(spec.model)
    return [
        Evidence(
            where=f"{network} · {names.data_name(spec.data)}, "
            f"{spec.batch_size} images a step, {spec.rounds} rounds",
            scale="",
            what=f"{names.unit_name(label)} / ReLU",
            ours=f"{ratio:.2f}×",
            other=f"{published:.2f}× in the paper" if published and label == "splash" else "",
            says="open",
            difference=ratio,
        )
        for label, ratio in zip(labels, ratios, strict=True)
        if label.split()[0] == "splash"
    ]


def theorem() -> Verdict:
    """Not a matter of runs: the interpolating unit's largest error, computed now."""
    evidence = []
    for name in EXAMPLES:
        errors = [largest_error(name, count) for count in SHOWN_HINGES]
        falls = all(later < earlier for earlier, later in pairwise(errors))
        evidence.append(
            Evidence(
                where=f"{name} on [−3, 3]",
                scale="",
                what="largest error",
                ours=", ".join(
                    f"{error:.1e} (S = {count})"
                    for error, count in zip(errors, SHOWN_HINGES, strict=True)
                ),
                other="",
                says="for" if falls else "against",
            )
        )
    holds = all(row.says == "for" for row in evidence)
    return Verdict(
        claim=THEOREM,
        outcome="confirmed" if holds else "contradicted",
        words="It holds for functions with f(0) = 0, which the statement leaves out; the error of "
        "the interpolating unit falls as it should.",
        evidence=tuple(evidence),
        n=f"{len(evidence)} functions",
    )
