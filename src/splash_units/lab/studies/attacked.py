"""The four robustness tables: one-pixel, boundary, FGSM and Carlini-Wagner attacks on CIFAR-10.

Each attacks four networks with ReLU, Swish, APL and SPLASH units, five times, on 1000 test images,
and prints how many attacks succeed and avg |Z_true - Z_adv|. What the paper got is in the text of
each study below. What it leaves open, and what is done here:

- Images are drawn among those that the network classifies right, so that every success is one. Five
  trained seeds are attacked once each, on a draw of their own.
- Boundary and CW minimise the distance and always succeed sooner or later; the paper's counts need
  a limit that it does not state. We count successes within an L2 distance of 0.5, show 0.25, 1.0,
  no limit and the median beside it, and claim no match.
- The gap is taken over images that fool all four units of a network (the paper: "both networks").
- Networks trained with augmentation; LeNet5 also without.
"""

from collections.abc import Iterator
from typing import Any

from splash_units.lab.budgets import EPS, PIXELS, budget
from splash_units.lab.spec import AttackSpec, Scale
from splash_units.lab.studies.grid import ATTACKED, ATTACKED_UNITS, trainings
from splash_units.lab.studies.study import Declare, Study

_COST = """
Cost: {attacks} attacks a seed on 20 trained networks, all of them those of `accuracy`: {paper}
attacks and 100 trainings at `paper`, {short} and 60 at `short`, {attacks} and 20 at `smoke`. Core
time from an empty store, roughly: {time}.

    splash run {name} --scale short --only model=lenet5
    splash table {name}
"""


def attacks_by(name: str, variants: tuple[dict[str, Any], ...] = ({},)) -> Declare:
    """Declare an attack on every network and unit; `variants` are options that the table varies."""

    def declare(scale: Scale, seed: int) -> Iterator[AttackSpec]:
        options, images = budget(name, scale)
        for train in trainings(ATTACKED, ATTACKED_UNITS, scale, seed):
            for variant in variants:
                yield AttackSpec(
                    train=train,
                    attack=name,
                    options={**options, **variant},
                    images=images,
                    seed=seed,
                )

    return declare


def _study(
    name: str,
    title: str,
    what: str,
    declare: Declare,
    *,
    attacks: int,
    time: str,
    figures: tuple[str, ...] = (),
) -> Study:
    cost = _COST.format(name=name, attacks=attacks, short=3 * attacks, paper=5 * attacks, time=time)
    return Study(
        name=name,
        title=title,
        text=f"{what}\n{cost}",
        declare=declare,
        tables=(name,),
        figures=figures,
    )


PIXELS_STUDY = _study(
    "pixels",
    "Attacks that change one, three or five pixels",
    """Reproduces Table `tab:blackbox`. In the paper one pixel fools 736 ± 12 of 1000 with ReLU in
LeNet5 and 514 ± 17 with SPLASH: 30.2 % fewer, its "31 %". Differential evolution with a population
of 400 and 40 generations at `paper`.""",
    attacks_by("pixels", tuple({"k": k} for k in PIXELS)),
    attacks=60,
    time="6 min (smoke), 22 h (short), 350 days (paper)",
)
BOUNDARY_STUDY = _study(
    "boundary",
    "The boundary attack",
    """Reproduces Table `boundary`. In the paper 744 to 801 of 1000 succeed with ReLU, 598 to 621
with SPLASH, after 6000 steps.""",
    attacks_by("boundary"),
    attacks=20,
    time="6 min (smoke), 20 h (short), 260 days (paper)",
    figures=("success-l2",),
)
FGSM_STUDY = _study(
    "fgsm",
    "The fast gradient sign method",
    """Reproduces Table `tab:dif-ep`: eps 0.02, 0.04 and 0.06 from a random start. In the paper
SPLASH is fooled least everywhere, by up to 28.6 % (LeNet5 at 0.02: 493 instead of 690).""",
    attacks_by("fgsm", tuple({"eps": eps} for eps in EPS)),
    attacks=60,
    time="5 min (smoke), 11 h (short), 220 days (paper)",
    figures=("success-eps", "adversarial"),
)
CW_STUDY = _study(
    "cw",
    "The attack of Carlini and Wagner in L2",
    """Reproduces Table `tab:cwl2`: 7 binary search steps of 1000 steps. In the paper 894 to 932 of
1000 succeed with ReLU and 863 to 898 with SPLASH, 2.6 to 3.7 % fewer.""",
    attacks_by("cw"),
    attacks=20,
    time="12 min (smoke), 22 h (short), 330 days (paper)",
    figures=("success-l2",),
)
