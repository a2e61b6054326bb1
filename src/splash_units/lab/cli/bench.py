"""`splash bench`: what SPLASH costs beside ReLU, measured here and now."""

import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.progress import TimeElapsedColumn
from rich.table import Table

from splash_units.lab.cli.terminal import StoreOption, a_file, bars, out, user_errors

if TYPE_CHECKING:
    from splash_units.lab.benchmarks.cases import Case
    from splash_units.lab.benchmarks.presenting import Rows
    from splash_units.lab.benchmarks.record import Pass, Record
    from splash_units.lab.timing import Effort, Stopwatch

ATTACKS = "attacks"
SECTIONS = f"units, batchnorm, steps, hinges, sizes, memory, compile, all; {ATTACKS}"
# A step of the larger networks takes seconds; a unit's pass, milliseconds.
SECONDS, SECONDS_OF_STEPS, QUICK_SECONDS = 3.0, 15.0, 0.3
DISTURBING_CORES = 0.2
DISTURBING_SLOWNESS = 1.2


def bench(
    sections: Annotated[
        list[str] | None, typer.Argument(metavar="[SECTION]...", help=f"{SECTIONS}.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; else torch's.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A fraction of a second a case: a look, no result.")
    ] = False,
    seconds: Annotated[
        float | None, typer.Option(min=0.01, help="How long each case goes on taking turns.")
    ] = None,
    passes: Annotated[
        int, typer.Option(min=1, help="Go through all cases so often, and join what they took.")
    ] = 1,
    only: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only cases with this in their name.")
    ] = None,
    peers: Annotated[
        bool,
        typer.Option(
            "--peers",
            help="With other learnable units: pip install --no-deps -r benchmarks/peers.txt.",
        ),
    ] = False,
    images: Annotated[
        int | None, typer.Option(min=1, help="For attacks: images a turn, instead of its own.")
    ] = None,
    store: StoreOption = Path("runs"),
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help="Keep the results; replaces those of these cases.",
            callback=a_file,
        ),
    ] = None,
) -> None:
    """Measure what SPLASH costs: time against ReLU and others, memory, growth with hinges and size.

    Contenders take turns in one process, so what counts are the ratios; times alone are of this
    machine and moment. Without a section: units, batchnorm and memory.

    attacks, which is not among "all", compares our attacks with those of other libraries, on a
    network that is trained first unless the store has it. It takes minutes.

    Example: splash bench units --threads 2 --output results.json

    On a GPU: splash bench all --device cuda --output results.json
    """
    from splash_units.lab.benchmarks import cases as benchmark_cases
    from splash_units.lab.benchmarks import presenting, record

    with user_errors():
        device = _device(device)
        chosen = _sections(sections or ["units", "batchnorm", "memory"], benchmark_cases.SECTIONS)
        if output is not None and output.exists():
            record.load(output)  # refuse what can't be added to before minutes are spent
        _set_threads(threads)
        there = benchmark_cases.cases([name for name in chosen if name != ATTACKS], device, peers)
        attacked: Record = {}
        if ATTACKS in chosen:
            attack_cases, attacked = _attacks(store, images)
            there += attack_cases
        wanted = _chosen(there, only)
    run = record.describe_run(("splash", *sys.argv[1:]), device) | attacked
    _announce(run, len(wanted), peers)
    results: list[Record] = []
    taken: list[list[record.Pass]] = [[] for _ in wanted]
    for number, case in product(range(passes), range(len(wanted))):
        label = f"pass {number + 1} of {passes}: " if passes > 1 else ""
        effort = _effort(wanted[case], quick, seconds)
        taken[case].append(_follow(wanted[case], effort, _stopwatch(device), label))
        results[case : case + 1] = [record.result_of(wanted[case], taken[case])]
        if output is not None:  # after each, or an interruption would lose all
            record.save(output, run, results)
        if number + 1 == passes:
            _show(results[case])
    if any(result["targets"] for result in results):
        out.print(_table(presenting.targets_rows(results)))
    if output is not None:
        out.print(f"results: {output}")


def _device(name: str) -> str:
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda"):
        raise ValueError(f"unknown device {name!r}: choose cpu, cuda or auto")
    if name == "cuda" and not torch.cuda.is_available():
        blind = torch.version.cuda is None and torch.version.hip is None
        why = ", because it was built for the CPU alone" if blind else ""
        raise ValueError(f"device cuda: torch {torch.__version__} sees no GPU here{why}")
    return name


def _sections(asked: Sequence[str], known: Sequence[str]) -> list[str]:
    unknown = [name for name in asked if name not in (*known, "all", ATTACKS)]
    if unknown:
        raise ValueError(f"unknown section {unknown[0]!r}: choose from {SECTIONS}")
    attacks = [ATTACKS] if ATTACKS in asked else []
    return [*known, *attacks] if "all" in asked else list(asked)


def _attacks(store: Path, images: int | None) -> "tuple[list[Case], Record]":
    """The cases of the attacks, and the network they are on, trained if it is not there."""
    from splash_units.lab.benchmarks import attackers, attacks

    if missing := attackers.missing_peers():
        out.print(f"not installed, left out: {', '.join(missing)}; {attackers.HOW_TO_INSTALL}")
    out.print(f"attacked is a network in {store}; without one there, it is trained first")
    problem = attacks.problem(store)
    return attacks.cases(problem, images), {"attacked": dict(problem.source)}


def _chosen(there: "Sequence[Case]", only: str | None) -> "list[Case]":
    """Cases with this in their name; a whole name means that case, not those that go on longer."""
    if only is None:
        return list(there)
    named = [case for case in there if case.name == only]
    found = named or [case for case in there if only.lower() in case.name.lower()]
    if not found:
        raise ValueError(f"no case has {only!r} in its name; there is {there[0].name!r}, ...")
    return found


def _set_threads(threads: int | None) -> None:
    import torch

    if threads is not None:
        torch.set_num_threads(threads)


def _stopwatch(device: str) -> "Stopwatch":
    import torch

    from splash_units.lab.timing import Stopwatch

    return Stopwatch(synchronize=torch.cuda.synchronize) if device == "cuda" else Stopwatch()


def _effort(case: "Case", quick: bool, seconds: float | None) -> "Effort":
    from splash_units.lab.timing import Effort

    takes_steps = case.section in ("steps", "compile") or case.name.endswith("step")
    usual = SECONDS_OF_STEPS if takes_steps else SECONDS
    if case.rounds is not None:
        rounds = 1 if quick else case.rounds
        return Effort(seconds or usual, rounds, rounds, warm_up_seconds=0.0, fewest_warm_ups=0)
    if quick:
        return Effort(seconds or QUICK_SECONDS, fewest_rounds=2, warm_up_seconds=0.0)
    return Effort(seconds or usual)


def _announce(run: "Record", count: int, peers: bool) -> None:
    out.print(
        f"{run['processor']}, {run['threads']} threads, {run['device']}, "
        f"kernel {run['kernel']}, torch {run['versions']['torch']}; {count} cases"
    )
    if peers:
        from splash_units.lab.benchmarks.contenders import missing_peers

        if missing := missing_peers():
            out.print(f"not installed, left out: {', '.join(missing)}")


def _follow(case: "Case", effort: "Effort", stopwatch: "Stopwatch", label: str) -> "Pass":
    from splash_units.lab.benchmarks.record import take

    name = f"{label}{case.section}: {case.name}"
    if not out.is_terminal:
        out.print(escape(f"measuring {name}"))
        sys.stdout.flush()
    with bars(TimeElapsedColumn()) as bar:
        task = bar.add_task(escape(f"{name}: warming up"), total=None)

        def on_round(done: int) -> None:
            bar.update(task, description=escape(f"{name}: round {done}"))

        return take(case, effort, stopwatch, on_round)


def _show(result: "Record") -> None:
    from splash_units.lab.benchmarks.presenting import case_rows

    out.print(_table(case_rows(result)))
    if result["measures"] == "seconds":
        _warn_of_company(result)
    out.print()


def _warn_of_company(result: "Record") -> None:
    cores, slowed = result["cores_taken_by_others"], result["arithmetic_slowed"]
    if cores is not None and cores > DISTURBING_CORES:
        out.print(f"[yellow]others kept {cores:.1f} cores busy meanwhile; measure again[/yellow]")
    elif slowed is not None and slowed > DISTURBING_SLOWNESS:
        out.print(
            f"[yellow]arithmetic took {slowed:.1f} times its best meanwhile, as if others shared "
            "the cores; it slows what computes more than what copies[/yellow]"
        )


def _table(rows: "Rows") -> Table:
    table = Table(
        *map(escape, rows.columns),
        title=escape(rows.title),
        title_justify="left",
        box=None,
        pad_edge=False,
    )
    for row in rows.rows:
        table.add_row(*map(escape, row))
    return table
