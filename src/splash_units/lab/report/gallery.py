"""Adversarial images as the page shows them: before, after, and the difference magnified."""

from collections.abc import Iterator, Mapping
from typing import Any

from splash_units.lab import names
from splash_units.lab.figures.images import Array, data_url, magnified
from splash_units.lab.findings import Finding
from splash_units.lab.report.content import Content
from splash_units.lab.report.verdicts.robustness import Attacked, attacked_groups
from splash_units.lab.store import Store

MOST_PICTURES = 24
OF_ONE_ATTACK = 2  # images shown of each attack on each unit


def pictures(content: Content, store: Store) -> list[dict[str, Any]]:
    """Some fooled images of every attack in turn, until the page has enough."""
    found: list[dict[str, Any]] = []
    for row in _in_turn(attacked_groups(content)):
        if len(found) >= MOST_PICTURES:
            break
        finding = Finding(store.run(content.frames.specs[row["run"]]).whole / "attacks" / row["id"])
        found += _pictures_of(finding, row)
    return found[:MOST_PICTURES]


def _in_turn(attacked: Attacked) -> Iterator[Mapping[str, Any]]:
    """The first seed of each unit, one attack after the other, larger budgets first."""
    queues = [
        [rows[min(rows)] for _, rows in sorted(units.items(), key=lambda u: names.unit_rank(u[0]))]
        for _, units in sorted(attacked.items(), key=lambda item: _budget(item[1]), reverse=True)
    ]
    by_attack: dict[str, list[Mapping[str, Any]]] = {}
    for queue in queues:
        by_attack.setdefault(queue[0]["attack"], []).extend(queue)
    while any(by_attack.values()):
        for waiting in by_attack.values():
            if waiting:
                yield waiting.pop(0)


def _budget(units: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> float:
    row = next(iter(next(iter(units.values())).values()))
    return float(row["eps"] or row["k"] or 0)


def _pictures_of(finding: Finding, row: Mapping[str, Any]) -> list[dict[str, Any]]:
    try:
        rows = finding.tensors("fooled", "labels", "prediction", "probability_predicted", "index")
        places = rows["fooled"].nonzero().flatten()[:OF_ONE_ATTACK].tolist()
        images = finding.tensors("images", "clean") if places else {}
    except (OSError, ValueError, KeyError):
        return []  # damaged: the page has other images
    return [
        {
            "run": row["run"],
            "unit": names.unit_name(row["label"]),
            "attack": names.attack_name(row["attack"], eps=row["eps"], k=row["k"]),
            "index": int(rows["index"][at]),
            "verdict": f"class {int(rows['labels'][at])}, taken for {int(rows['prediction'][at])} "
            f"({100 * float(rows['probability_predicted'][at]):.0f} % sure)",
            **_triple(images["clean"][at].numpy(), images["images"][at].numpy()),
        }
        for at in places
    ]


def _triple(clean: Array, adversarial: Array) -> dict[str, str]:
    """Both images, and the difference around grey, as large as fits."""
    difference, factor = magnified(adversarial - clean)
    return {
        "clean": data_url(clean),
        "adversarial": data_url(adversarial),
        "difference": data_url(difference),
        "magnified": f"difference, magnified {factor:.3g} times; grey is none",
    }
