"""The paper's experiments as declarations: which runs, which tables, which figures.

A study says what is to be run and shown and runs nothing. `load` knows those of the paper by name
and reads others from TOML files.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from splash_units.lab.spec import AnySpec, Scale, unknown
from splash_units.lab.studies import (
    ablation,
    accuracy,
    attacked,
    cost,
    evolution,
    family,
    finetune,
    hinges,
    initialisation,
    quickstart,
    separation,
    verdict,
)
from splash_units.lab.studies.study import SCALES as SCALES
from splash_units.lab.studies.study import Study as Study
from splash_units.lab.studies.study import data_of as data_of
from splash_units.lab.studies.study import stand_in as stand_in

_OF_THE_PAPER = (
    accuracy.STUDY,
    cost.STUDY,
    hinges.STUDY,
    initialisation.STUDY,
    evolution.STUDY,
    ablation.STUDY,
    attacked.PIXELS_STUDY,
    attacked.BOUNDARY_STUDY,
    attacked.FGSM_STUDY,
    attacked.CW_STUDY,
    separation.STUDY,
    family.STUDY,
    verdict.STUDY,
    finetune.STUDY,
)


def _declare_all(scale: Scale, seed: int) -> Iterator[AnySpec]:
    for study in _OF_THE_PAPER:
        yield from study.declare(scale, seed)


PAPER = Study(
    name="paper",
    title="Every experiment of the paper, and two beyond it",
    text="\n".join(
        (
            "Every study there is, each run once however many need it:\n",
            *(f"- `{study.name}`: {study.title}." for study in _OF_THE_PAPER),
            "\nCore time from an empty store, roughly:"
            " 1 h (smoke), 6 days (short), 7 years (paper).",
            "Take a part with --only, and ask first what it costs:\n",
            "    splash run paper --scale short --only model=lenet5 --dry-run",
        )
    ),
    declare=_declare_all,
    tables=tuple(dict.fromkeys(name for study in _OF_THE_PAPER for name in study.tables)),
    figures=tuple(dict.fromkeys(name for study in _OF_THE_PAPER for name in study.figures)),
)
STUDIES: Mapping[str, Study] = {
    study.name: study for study in (*_OF_THE_PAPER, PAPER, quickstart.STUDY)
}
NAMES = tuple(STUDIES)


def load(name_or_path: str | Path) -> Study:
    """A study by its name, or from a TOML file (a name that ends so, or a Path)."""
    if isinstance(name_or_path, Path) or name_or_path.endswith(".toml"):
        from splash_units.lab.studies.files import read_study

        return read_study(Path(name_or_path))
    if name_or_path not in STUDIES:
        raise ValueError(f"{unknown('study', name_or_path, NAMES)} (or a file that ends in .toml)")
    return STUDIES[name_or_path]
