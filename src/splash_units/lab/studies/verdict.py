"""Beyond the paper: does SPLASH add robustness under attacks that are strong?

The paper's attacks are cut short, one-step, or without a stated limit, and nothing rules out that
they fail because gradients are useless rather than because the network is robust. Here every image
meets several strong attacks (gradient-based ones and one that needs no gradients) and counts as
robust only if all of them fail, at five sizes of the perturbation; noise of the same size alone
stands beside them, the attacks' own sanity checks are printed, and images made on one unit's
network are shown to the others'. There is no number of the paper's to compare with; its claim is
"up to 31 % more robust".

Cost: 200 attacks and 5 transfers a seed on the 20 networks of the robustness tables: 1000 and 25 at
`paper`, 600 and 15 at `short`, 200 and 5 at `smoke`. Core time from an empty store, roughly: 11 min
(smoke), 25 h (short), 300 days (paper).

    splash run verdict --scale short --only model=lenet5
    splash table verdict
    splash table transfer
    splash figure worst-case
"""

from collections.abc import Iterator

from splash_units.lab.budgets import budget, transfer_budget
from splash_units.lab.spec import AnySpec, AttackSpec, Scale, TransferSpec
from splash_units.lab.studies.grid import ATTACKED, ATTACKED_UNITS, trainings
from splash_units.lab.studies.study import Study

#: From hardly anything to what leaves nothing of an undefended network.
EPS = (0.0025, 0.005, 0.01, 0.02, 0.04)
ATTACKS = ("worst_case", "noise")


def declare(scale: Scale, seed: int) -> Iterator[AnySpec]:
    for setting in ATTACKED:
        trains = tuple(trainings([setting], ATTACKED_UNITS, scale, seed))
        for train in trains:
            for attack in ATTACKS:
                options, images = budget(attack, scale)
                for eps in EPS:
                    yield AttackSpec(
                        train=train,
                        attack=attack,
                        options={**options, "eps": eps},
                        images=images,
                        seed=seed,
                    )
        options, images = transfer_budget(scale)
        yield TransferSpec(trains=trains, options=options, images=images, seed=seed)


STUDY = Study(
    name="verdict",
    title="Robust accuracy in the worst case of several strong attacks",
    text=__doc__,
    declare=declare,
    tables=("verdict", "transfer"),
    figures=("worst-case", "transfer"),
)
