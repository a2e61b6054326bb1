"""Beyond the paper: robust accuracy in the worst case, transfer, and how far classes lie apart."""

from operator import itemgetter

from splash_units.lab.frames import label
from splash_units.lab.names import network_name, unit_name
from splash_units.lab.spec import AttackSpec, SeparationSpec, TransferSpec
from splash_units.lab.statistics import compare, holm
from splash_units.lab.tables.attacked import attempts_note, warnings_of
from splash_units.lab.tables.cells import (
    comparison_cells,
    marked,
    measured,
    notes_of,
    p_value,
    percent,
    setting_name,
    winners,
)
from splash_units.lab.tables.results import Group, Numbers, Value, View
from splash_units.lab.tables.table import EMPTY, Cell, Row, Table, words

Block = tuple[str, str, str]


def robust(numbers: Numbers) -> float | None:
    return percent(numbers, "robust_accuracy")


def verdict(view: View) -> Table:
    """A row for each unit; a column for each eps, and one for noise of the largest."""
    attacks = [spec for spec in view.specs() if isinstance(spec, AttackSpec)]
    sizes = sorted({spec.options["eps"] for spec in attacks if spec.attack == "worst_case"})
    groups: dict[Block, dict[tuple[str, float], dict[str, Group]]] = {}
    for spec in attacks:
        train = spec.train
        of_block = groups.setdefault((train.model, train.data, train.augment), {})
        column = of_block.setdefault((spec.attack, spec.options["eps"]), {})
        column[label(train)] = view.group(spec, robust)
    heads = [("worst_case", eps) for eps in sizes]
    heads += [("noise", eps) for eps in sizes[-1:] if ("noise", eps) in next(iter(groups.values()))]
    columns = {
        (block, head): list(by_head[head].values())
        for block, by_head in groups.items()
        for head in heads
    }
    won = dict(zip(columns, winners(list(columns.values()), lower=False), strict=True))
    rows: list[list[Cell]] = []
    starts = []
    for block, by_head in groups.items():
        starts.append(len(rows))
        model, data, augment = block
        part = [
            [words(network_name(model)), words(setting_name(data, augment)), words(unit_name(unit))]
            for unit in next(iter(by_head.values()))
        ]
        for head in heads:
            cells = marked([measured(group, 1) for group in columns[block, head]], won[block, head])
            for row, cell in zip(part, cells, strict=True):
                row.append(cell)
        rows += part
    return Table(
        name="verdict",
        title="Accuracy left in % of the images that were right, in the worst case of all attacks",
        scale=view.scale,
        columns=(
            "network", "data", "unit",
            *(f"eps {eps}" if attack != "noise" else f"noise of {eps} alone"
              for attack, eps in heads),
        ),
        rows=tuple(tuple(row) for row in rows),
        notes=notes_of(
            view,
            "Worst case: FGSM, APGD on two losses and Square (which needs no gradients), Linf "
            "distance eps; an image counts only if all of them fail.",
            "If noise alone took much, or gradient-free attacks more than the others, the numbers "
            "would not be about robustness: such findings are listed as warnings.",
            *attempts_note(view),
            *warnings_of(view),
        ),
        groups=tuple(starts),
    )  # fmt: skip


def transfer(view: View) -> Table:
    """Rows: the network that images were made on; columns: the one they are shown to."""
    specs = [spec for spec in view.specs() if isinstance(spec, TransferSpec)]
    units = list(dict.fromkeys(label(train) for spec in specs for train in spec.trains))
    rows: list[Row] = []
    starts = []
    for whole in specs:
        starts.append(len(rows))
        spec = view.at_hand(whole)
        assert isinstance(spec, TransferSpec)
        first, labels = spec.trains[0], [label(train) for train in spec.trains]
        for place, made_on in enumerate(labels):
            cells = [
                measured(view.group(spec, _share(place, labels.index(unit))), 1)
                if unit in labels
                else EMPTY
                for unit in units
            ]
            heads = (network_name(first.model), setting_name(first.data, first.augment))
            rows.append((*map(words, heads), words(unit_name(made_on)), *cells))
    options = specs[0].options if specs else {}
    settings = ", ".join(f"{key} {value}" for key, value in sorted(options.items()))
    return Table(
        name="transfer",
        title="Images made on one unit's network (rows) that fool another's (columns), in %",
        scale=view.scale,
        columns=("network", "data", "made on", *(f"shown to {unit_name(unit)}" for unit in units)),
        rows=tuple(rows),
        notes=notes_of(
            view,
            f"PGD, {settings}. A unit whose images harm others more than theirs harm it, and whose "
            "own attack fails, would be hiding its gradients.",
            *warnings_of(view),
        ),
        groups=tuple(starts),
    )


def _share(row: int, column: int) -> Value:
    def value(numbers: Numbers) -> float | None:
        images = numbers["images"]
        return 100 * numbers["fooled"][row][column] / images if images else None

    return value


def separation(view: View) -> Table:
    """A row for each unit: how far apart the two classes lie, by two numbers."""
    specs = [spec for spec in view.specs() if isinstance(spec, SeparationSpec)]
    measures = {
        "silhouette": "silhouette_logits",
        "nearest-neighbour purity": "purity_logits",
        "silhouette of the map": "silhouette_map",
        "purity of the map": "purity_map",
    }
    groups = {
        head: [view.group(spec, itemgetter(key)) for spec in specs]
        for head, key in measures.items()
    }
    won = winners(list(groups.values()), lower=False)
    columns = [
        marked([measured(group, 3) for group in column], winner)
        for column, winner in zip(groups.values(), won, strict=True)
    ]
    pairs = [(column[-1], column[0]) for column in groups.values()]
    found = [compare(a.values, b.values) if a is not b else None for a, b in pairs]
    adjusted = holm([None if one is None else one.welch_p for one in found])
    tests = [
        comparison_cells(one, p)[1] if one is None or one.welch_p is None else p_value(p)
        for one, p in zip(found, adjusted, strict=True)
    ]
    train = specs[0].train
    last = [(words("Holm p of the difference"), *tests)] if len(specs) > 1 else []
    return Table(
        name="separation",
        title="Two classes in front of the softmax: "
        f"{network_name(train.model)} on {setting_name(train.data, train.augment)}",
        scale=view.scale,
        columns=("unit", *measures),
        rows=(
            *(
                (words(unit_name(label(spec.train))), *(column[place] for column in columns))
                for place, spec in enumerate(specs)
            ),
            *last,
        ),
        notes=notes_of(
            view,
            f"Classes {' and '.join(map(str, specs[0].classes))} (frogs and ships in CIFAR-10), "
            f"{specs[0].images_per_class} images each. Both numbers are 1 for classes far apart; "
            "those of the scores themselves count, the t-SNE map distorts distances.",
            "The paper shows a picture and no number.",
        ),
    )
