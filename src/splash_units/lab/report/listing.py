"""All runs as rows, those that did not end well, and what was found with trained networks."""

from typing import Any

from splash_units.lab import names
from splash_units.lab.findings import findings
from splash_units.lab.frames import run_id
from splash_units.lab.report.commands import attack_command, train_command
from splash_units.lab.report.content import Content, rounded
from splash_units.lab.spec import AnySpec, AttackSpec, SeparationSpec, describe, needs
from splash_units.lab.store import Store

MOST_TROUBLES = 20


def run_rows(content: Content) -> list[dict[str, Any]]:
    return [
        {
            "id": run["id"],
            "network": names.network_name(group.setting.model),
            "data": names.data_name(group.setting.data),
            "unit": names.unit_name(group.label),
            "scale": run["scale"],
            "seed": run["seed"],
            "state": run["state"],
            "epochs_done": run["epochs_done"],
            "epochs": f"{run['epochs_done']:g}/{run['epochs'] or '?'}",
            "test_error": run["test_error"],
            "test_error_text": _percent(run["test_error"]),
            "best": run["best_test_error"],
            "best_text": _percent(run["best_test_error"]),
            "train_loss": run["train_loss"],
            "train_loss_text": _written(run["train_loss"], ".4f"),
            "parameters": run["parameters"],
            "parameters_text": _written(run["parameters"], ",d"),
            "minutes": run["seconds"],
            "minutes_text": _written(run["seconds"] / 60, ".1f"),
        }
        for group in content.groups
        for run in group.runs
    ]


def troubles(content: Content) -> dict[str, Any]:
    """Runs that failed, diverged, were interrupted or can't be read, and how to go on."""
    specs = content.frames.specs
    found = [
        {
            "id": run["id"],
            "state": run["state"],
            "what": describe(specs[run["id"]]),
            "why": run["why"],
            "command": train_command(specs[run["id"]]),
        }
        for state in ("failed", "diverged", "interrupted")
        for group in content.groups
        for run in group.runs
        if run["state"] == state
    ]
    found += [
        {"id": name, "state": "unreadable", "what": name, "why": why, "command": "splash status"}
        for name, why in content.frames.unreadable.items()
    ]
    return {
        "troubles": found[:MOST_TROUBLES],
        "more_troubles": max(0, len(found) - MOST_TROUBLES),
    }


def finding_details(store: Store) -> dict[str, dict[str, Any]]:
    """What stands behind a number that no training gave: an attack, a separation, a cost."""
    details = {}
    for found in findings(store):
        try:
            spec = found.spec()
        except ValueError:
            continue  # `splash status` names what can't be read
        result = found.result() or {}
        shown = {key: value for key, value in result.items() if _is_short(value)}
        own = spec.model_dump(mode="json", exclude_defaults=True, exclude={"train", "trains"})
        details[found.id] = {
            "title": _title(spec),
            "runs": [run_id(train) for train in needs(spec)],
            "spec": own,
            **({"command": attack_command(spec)} if isinstance(spec, AttackSpec) else {}),
            "result": {key: _short(value) for key, value in shown.items()},
        }
    return details


def _title(spec: AnySpec) -> str:
    match spec:
        case AttackSpec():
            options = ", ".join(f"{key} {value}" for key, value in spec.options.items())
            name = names.attack_name(spec.attack)
            return f"{name} ({options}) on {describe(spec.train)}"
        case SeparationSpec():
            return f"separation of two classes in {describe(spec.train)}"
        case _:
            return spec.kind


def _is_short(value: Any) -> bool:
    return isinstance(value, str | int | float) and value not in ("", "done")


def _short(value: Any) -> Any:
    return rounded(value) if isinstance(value, float) else value


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f} %"


def _written(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
