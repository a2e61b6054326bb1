"""The page put together: one HTML file that holds everything and asks the network for nothing."""

import base64
import hashlib
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from splash_units.lab import names
from splash_units.lab.collector import without_collector
from splash_units.lab.figures import style
from splash_units.lab.frames import Snapshot
from splash_units.lab.report import embedding
from splash_units.lab.report.attacked import attack_curves
from splash_units.lab.report.content import Content, payload, sort_content
from splash_units.lab.report.drawing import axes_of, difference, forest, number_cell, p_value
from splash_units.lab.report.gallery import pictures
from splash_units.lab.report.listing import finding_details, run_rows, troubles
from splash_units.lab.report.shapes import players
from splash_units.lab.report.verdicts import Outcome, Verdict, verdicts
from splash_units.lab.store import Store

SCRIPTS = (
    "elements.js", "charts.js", "panels.js", "player.js", "tables.js", "dialogs.js", "figures.js",
    "page.js",
)  # fmt: skip
STATES = ("done", "running", "interrupted", "diverged", "failed")
QUESTIONS = {
    "help": "Does it help?",
    "cost": "What does it cost?",
    "robust": "Is it robust?",
    "theory": "Does the theorem hold?",
}
OUTCOMES: Mapping[Outcome, str] = {
    "confirmed": "confirmed",
    "partly": "partly confirmed",
    "undecided": "undecided",
    "contradicted": "contradicted",
    "missing": "not measured",
}
# Okabe and Ito's colours were made for white paper; on a dark page they need more light.
ON_DARK = {
    "#0072B2": "#4aa3df",
    "#D55E00": "#ff8f45",
    "#009E73": "#2fc79d",
    "#CC79A7": "#e4a0c6",
    "#E69F00": "#f0b840",
    "#56B4E9": "#86cdf5",
    "#444444": "#c9ced6",
    "#7B5EA7": "#ad95d6",
    "#8C6D46": "#c2a37c",
    "#5C8A3A": "#93c46c",
    "#9A9A9A": "#8d939b",
}


@without_collector()  # all that is read is needed to the end
def render(store: Store, *, live: str = "") -> str:
    """The report on a store; `live` is a version to compare with, for a page that is served."""
    bundle = embedding.vega_bundle()
    snapshot = Snapshot(store.root)
    content = sort_content(snapshot.frames)
    judged = verdicts(content, snapshot)
    figures, missing_figures = embedding.figures(snapshot)
    tables, missing_tables = embedding.tables(snapshot, content)
    data = {
        **payload(content),
        "findings": finding_details(snapshot),
        "shapes": players(content, snapshot),
        "attacks": attack_curves(content),
        "pictures": pictures(content, snapshot),
        "figures": [figure["chart"] for figure in figures],
        "dark": {**ON_DARK, **embedding.FIGURES_ON_DARK},
        "store": _option(store),
    }
    script = Markup(_joined_scripts())
    vega = Markup(bundle.result()) if figures else Markup("")
    return _environment().get_template("page.html.j2").render(
        policy=_policy([script, vega], live=bool(live)),
        css=Markup(_file("page.css") + _file("results.css")),
        unit_css=unit_css(content.labels),
        script=script,
        vega=vega,
        live=live,
        payload=data,
        sections=_sections(content, data),
        counts=_counts(content),
        lead=_lead(content),
        scales=_listed(setting.scale for setting in content.settings),
        filters=_filters(data),
        questions=_questions(judged),
        axes=axes_of(judged),
        has_shapes=bool(data["shapes"]),
        hidden_shapes=_with_shapes(content) - len(data["shapes"]),
        has_attacks=bool(data["attacks"]),
        pictures=data["pictures"],
        tables=tables,
        missing_tables=missing_tables,
        figures=figures,
        missing_figures=missing_figures,
        runs=run_rows(content),
        **troubles(content),
        store=store.root,
        store_quoted=shlex.quote(str(store.root)),
        store_option=_option(store),
        made=datetime.now(UTC).astimezone().strftime("%d %B %Y, %H:%M"),
        version=version("splash-units"),
    )  # fmt: skip


def _option(store: Store) -> str:
    """What a command needs to mean this store; nothing if it is the usual one."""
    return "" if store.root == Path("runs") else f" --store {shlex.quote(str(store.root))}"


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("splash_units.lab.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        difference=difference, forest=forest, number=number_cell, p_value=p_value, outcomes=OUTCOMES
    )
    return environment


@cache
def _file(name: str) -> str:
    return (resources.files("splash_units.lab.report") / "page" / name).read_text(encoding="utf-8")


def _joined_scripts() -> str:
    """All scripts as one, in a scope of its own."""
    return "(() => {\n'use strict';\n" + "\n".join(map(_file, SCRIPTS)) + "\n})();"


def _policy(scripts: Sequence[str], *, live: bool) -> str:
    """Nothing may be loaded, and no script may run but ours, known by their hashes."""
    hashes = (
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        for script in scripts
        if script
    )
    allowed = " ".join(f"'sha256-{value}'" for value in hashes)
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src {allowed}",
            "style-src 'unsafe-inline'",  # style attributes: widths of bars, and Vega's
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            *(["connect-src 'self'"] if live else []),
        ]
    )


def unit_css(labels: Sequence[str]) -> Markup:
    """Each unit's colour as a variable, for light and for dark, the same as in the figures."""
    light = style.colours(labels)
    dark = [ON_DARK.get(colour, colour) for colour in light]

    def variables(colours: Sequence[str]) -> str:
        return "".join(f"--unit-{place}:{colour};" for place, colour in enumerate(colours))

    classes = "".join(f".u{place}{{--unit:var(--unit-{place})}}" for place in range(len(labels)))
    return Markup(
        f":root{{{variables(light)}}}"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{variables(dark)}}}}}"
        f":root[data-theme=dark]{{{variables(dark)}}}"
        f"@media print{{:root:root{{{variables(light)}}}}}"
        f"{classes}"
    )


def _counts(content: Content) -> dict[str, Any]:
    found = Counter(content.frames.runs["state"])
    states = [(state, found[state]) for state in STATES if found[state]]
    total = len(content.frames.runs)
    words = ", ".join(f"{count:,} {state}" for state, count in states)
    unreadable = len(content.frames.unreadable)
    words += f", {unreadable} unreadable" if unreadable else ""
    runs = f"{total:,} run{'s' * (total != 1)}"
    return {
        "total": total,
        "states": states,
        "words": f"{runs}: {words}",
        "outdated": len(content.frames.outdated),
    }


def _lead(content: Content) -> str:
    """What was compared, in a sentence."""
    if not content.settings:
        return "Learnable activation functions, put to the test: nothing has been run yet."
    networks = _listed([names.network_name(s.model) for s in content.settings])
    data_sets = _listed([names.data_name(s.data) for s in content.settings])
    units = _listed([names.unit_name(label.split()[0]) for label in content.labels])
    return f"{networks} on {data_sets}, with {units}: what these runs say of the paper’s claims."


def _listed(words: Iterable[str], most: int = 7) -> str:
    """Words as a list in a sentence, each once; beyond `most` only how many more there are."""
    every = list(dict.fromkeys(words))
    if len(every) > most:
        every = [*every[: most - 1], f"{len(every) - most + 1} others"]
    return " and ".join([", ".join(every[:-1]), every[-1]] if len(every) > 1 else every)


def _questions(found: Sequence[Verdict]) -> list[dict[str, Any]]:
    questions = []
    for name, title in QUESTIONS.items():
        here = [verdict for verdict in found if verdict.claim.question == name]
        tally = Counter(verdict.outcome for verdict in here)
        words = ", ".join(
            f"{tally[outcome]} {word}" for outcome, word in OUTCOMES.items() if tally[outcome]
        )
        questions.append({"title": title, "words": words, "verdicts": here})
    return questions


def _filters(data: Mapping[str, Any]) -> list[tuple[str, str, list[str]]]:
    def values(key: str) -> list[str]:
        return list(dict.fromkeys(setting[key] for setting in data["settings"]))

    every = [
        ("model", "Network", values("model")),
        ("data", "Data", values("data")),
        ("scale", "Scale", values("scale")),
        ("unit", "Unit", data["units"]),
    ]
    return [(key, title, found) for key, title, found in every if len(found) > 1 or key != "scale"]


def _sections(content: Content, data: Mapping[str, Any]) -> list[tuple[str, str]]:
    there = {
        "verdicts": "Verdicts",
        "errors": "Errors",
        "curves": "Curves",
        "shapes": "Shapes" if data["shapes"] else "",
        "attacks": "Attacks" if data["attacks"] else "",
        "pictures": "Images" if data["pictures"] else "",
        "tables": "Tables",
        "figures": "Figures",
        "runs": "Runs",
    }
    results = ("errors", "curves", "shapes", "attacks", "pictures")
    if not content.settings:
        there = {key: title for key, title in there.items() if key not in results}
    return [(key, title) for key, title in there.items() if title]


def _with_shapes(content: Content) -> int:
    return sum(bool(run["slopes"]) for group in content.groups for run in group.runs)
