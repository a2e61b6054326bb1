"""Results as plain records: one a case, with the run that measured it, in one JSON file.

A file may hold several runs: measuring a case again replaces its result and leaves the others as
they are, each with the command, commit and machine that it came from.
"""

import ctypes
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

import splash_units
from splash_units.lab.benchmarks.cases import Case, Target
from splash_units.lab.benchmarks.company import arithmetic, cores_taken_by_others, slowed, usage
from splash_units.lab.benchmarks.contenders import kernel_in_use
from splash_units.lab.durable import read_json, write_json
from splash_units.lab.machine import commit_of, describe_machine, now, version_of
from splash_units.lab.timing import Effort, Samples, Stopwatch, joined, ratio, reason, spread

SCHEMA = 1
_PACKAGES = (
    "splash-units", "torch", "numpy", "triton", "deepsplines", "torchpwl", "deepxube",
    "rational_activations", "torch_activation", "foolbox", "torchattacks",
    "adversarial-robustness-toolbox",
)  # fmt: skip

_BESIDE = "arithmetic that takes its turn with the contenders"
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # malloc.h

Record = dict[str, Any]


@dataclass(frozen=True)
class Pass:
    """What a case took at one time, and who else was there."""

    samples: Mapping[str, Samples] = field(default_factory=dict)
    beside: tuple[float, ...] = ()
    cores_taken_by_others: float | None = None


def measure(
    case: Case,
    effort: Effort,
    stopwatch: Stopwatch,
    on_round: Callable[[int], None] = lambda done: None,
) -> Record:
    """Measure a case: medians, quantiles and ratios, or why there are none."""
    return result_of(case, [take(case, effort, stopwatch, on_round)])


def take(
    case: Case,
    effort: Effort,
    stopwatch: Stopwatch,
    on_round: Callable[[int], None] = lambda done: None,
) -> Pass:
    """Let the contenders of a case take their turns."""
    if case.compiles:
        torch.compiler.reset()  # or earlier cases would count towards the limit of recompiling
    if case.measures == "bytes":
        return Pass()
    before = usage()
    keep_freed_memory()
    taking_part = {**case.contenders, _BESIDE: arithmetic}
    with torch.set_grad_enabled(case.records_gradients):
        samples = stopwatch.compare(taking_part, effort, on_round)
    beside = samples.pop(_BESIDE).seconds
    return Pass(samples, beside, cores_taken_by_others(before, usage()))


def result_of(case: Case, passes: Sequence[Pass]) -> Record:
    """What all passes of a case say together."""
    if case.measures == "bytes":
        results = _count(case)
    else:
        names = passes[0].samples
        results = _time(case, {name: joined([p.samples[name] for p in passes]) for name in names})
    cores = [p.cores_taken_by_others for p in passes if p.cores_taken_by_others is not None]
    return {
        "section": case.section,
        "name": case.name,
        "yardstick": case.yardstick,
        "measures": case.measures,
        **results,
        "passes": len(passes),
        "published_ratios": dict(case.published),
        "cores_taken_by_others": max(cores, default=None),
        "arithmetic_slowed": slowed([second for p in passes for second in p.beside]),
    }


def keep_freed_memory() -> None:
    """Have glibc keep the memory of freed tensors for the next ones; elsewhere nothing happens.

    By default it gives large blocks back to the system now and then. To get them anew, page by
    page, takes longer than a ReLU of their content, and in whose turn that falls is chance.
    """
    if hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(_M_TRIM_THRESHOLD, -1)  # never
        libc.mallopt(_M_MMAP_MAX, 0)  # a block of its own would be given back, however large


def _time(case: Case, samples: Mapping[str, Samples]) -> Record:
    found: dict[str, Record] = {}
    for name, taken in samples.items():
        if taken.failure is not None:
            found[name] = {"failure": taken.failure}
            continue
        found[name] = {
            **asdict(spread(taken.seconds)),
            "rounds": len(taken.seconds),
            "calls_a_sample": taken.calls_a_sample,
            "ratio": _ratio(samples, name, case.yardstick),
            **(case.findings[name]() if name in case.findings else {}),
        }
    targets = [
        {**asdict(target), "measured": _ratio(samples, target.contender, target.against)}
        for target in case.targets
    ]
    return {"contenders": found, "targets": targets}


def _ratio(samples: Mapping[str, Samples], name: str, to: str) -> Record | None:
    above, below = samples[name], samples[to]
    if above.failure is not None or below.failure is not None:
        return None
    return asdict(ratio(above.seconds, below.seconds, above.passes))


def _count(case: Case) -> Record:
    found: dict[str, Record] = {}
    for name, count in case.count.items():
        try:
            found[name] = {"bytes": count()}
        except Exception as error:
            found[name] = {"failure": reason(error)}
    targets = [{**asdict(t), "measured": _ratio_of_bytes(t, found)} for t in case.targets]
    return {"contenders": found, "targets": targets}


def _ratio_of_bytes(target: Target, found: Mapping[str, Record]) -> Record | None:
    above, below = (found[name].get("bytes") for name in (target.contender, target.against))
    if above is None or not below:
        return None
    return {"median": above / below, "lower": above / below, "upper": above / below}


def describe_run(command: Sequence[str], device: str) -> Record:
    """Where results come from."""
    machine = describe_machine()
    return {
        "command": shlex.join(command),
        "when": now(),
        "commit": commit_of(Path(splash_units.__file__).parent),
        "device": torch.cuda.get_device_name(device) if device == "cuda" else device,
        "threads": torch.get_num_threads(),
        "kernel": kernel_in_use(device),
        "forced_kernel": os.environ.get("SPLASH_KERNEL"),
        "processor": machine["processor"],
        "cores": machine["cores"],
        "memory_gb": _memory_gb(),
        "system": machine["system"],
        "python": machine["python"],
        "versions": {name: found for name in _PACKAGES if (found := version_of(name))},
    }


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (AttributeError, OSError, ValueError):
        return None


def save(path: Path, run: Record, results: Sequence[Record]) -> None:
    """Add a run to a file; it replaces what the file had of the same cases."""
    measured = {_key(result) for result in results}
    runs = [
        {**earlier, "cases": kept}
        for earlier in (load(path)["runs"] if path.exists() else [])
        if (kept := [case for case in earlier["cases"] if _key(case) not in measured])
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"schema": SCHEMA, "runs": [*runs, {**run, "cases": list(results)}]})


def load(path: Path) -> Record:
    """What `save` wrote; ValueError if the file is something else."""
    record = read_json(path)
    if record is None or record.get("schema") != SCHEMA or not isinstance(record.get("runs"), list):
        raise ValueError(f"{path} holds no benchmark results of schema {SCHEMA}")
    return record


def all_cases(record: Record) -> Iterator[tuple[Record, Record]]:
    """Every case of a file with the run it is of."""
    for run in record["runs"]:
        for case in run["cases"]:
            yield run, case


def _key(case: Record) -> tuple[str, str]:
    return case["section"], case["name"]
