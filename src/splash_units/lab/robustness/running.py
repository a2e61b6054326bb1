"""attack(spec): draw the images, attack them chunk by chunk, check the answer, write it down.

Every finished chunk is on the disk before the next begins, so that Ctrl-C, a kill or a power cut
loses a minute's work. Chunks are as large as that minute allows, and never larger than `LARGEST`
images, which bounds the memory whatever the number of images; no image's result depends on them.
"""

import re
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from typing import Any, Protocol

from torch import Tensor

from splash_units.lab import plugins
from splash_units.lab.attacks import Attack, AutoAttack, Outcome, Pixels, fooled_when_rounded
from splash_units.lab.attacks.victim import WIDTH
from splash_units.lab.findings import Draft, Finding, claim, finding
from splash_units.lab.machine import describe_machine, now
from splash_units.lab.process import own_settings, pick_device, pick_threads
from splash_units.lab.robustness import checks
from splash_units.lab.robustness.accounting import account
from splash_units.lab.robustness.named import describe_attack, make_attack
from splash_units.lab.robustness.probes import Probes
from splash_units.lab.robustness.targets import Target, draw, target_of
from splash_units.lab.robustness.watching import Bars, Lines, Nobody, Watcher
from splash_units.lab.spec import AttackSpec
from splash_units.lab.store import Store

LARGEST = 512
SECONDS_A_CHUNK = 60
# An attack on single images needs no full block of them, and may take a minute for each.
FEWEST_AT_ONCE = 8
# What the numbers are made of: all but the images themselves.
COUNTED = tuple(
    name
    for name in (*(field.name for field in fields(Outcome)), "index", "fooled_rounded")
    if name != "images"
)
_CHUNK = re.compile(r"(\d+)-(\d+)")


class Asked(Protocol):
    """What every attack's spec says, whatever network it is about."""

    @property
    def attack(self) -> str: ...
    @property
    def options(self) -> dict[str, Any]: ...
    @property
    def images(self) -> int: ...
    @property
    def choose(self) -> Any: ...
    @property
    def seed(self) -> int: ...


def attack(
    spec: AttackSpec,
    store: Store,
    *,
    device: str = "auto",
    threads: int | None = None,
    again: bool = False,
    progress: bool | Watcher = False,
    check: bool = True,
    chunk_size: int | None = None,
) -> Finding:
    """Bring an attack's result into the store, beside the run that it attacks.

    A result that is there is not computed again, unless `again`; an unfinished one goes on after
    its last chunk; another process at work on it is waited for. `check` runs the sanity checks
    (also on a result that was found without them). `progress` shows a bar on a terminal and lines
    elsewhere. `chunk_size` fixes how many images lie between two saves and in memory.
    """
    make_attack(spec.attack, spec.options)
    place, threads = pick_device(device), pick_threads(threads)
    found = finding(store, spec)
    if not again and is_complete(found, check=check):
        return found
    run = store.run(spec.train)
    with claim(store, spec) as draft:
        if again:
            draft.discard()
        elif is_complete(found, check=check):
            return found
        identity = (run.result() or {}).get("model_sha256", run.id)
        with watched(progress) as watcher, own_settings(place, threads), noting_failure(draft):
            conduct(
                draft,
                spec,
                target_of(run, place),
                watcher=watcher,
                record={"threads": threads, "model_sha256": identity},
                identity=identity,
                scale=spec.train.scale,
                check=check,
                chunk_size=chunk_size,
            )
    return found


def is_complete(found: Finding, *, check: bool) -> bool:
    """Whether an attack's result is there, with its checks if they are wanted."""
    result = found.result()
    return result is not None and (result["checked"] or not check)


def conduct(
    draft: Draft,
    spec: Asked,
    target: Target,
    *,
    watcher: Watcher,
    record: Mapping[str, Any],
    identity: str,
    scale: str | None,
    check: bool,
    chunk_size: int | None,
) -> None:
    """Do what a spec asks and finish the draft, or only the checks if the rest is done.

    `identity` tells the network and its images from any other.
    """
    made = make_attack(spec.attack, spec.options)

    def checked(rows: Mapping[str, Tensor]) -> dict[str, Any]:
        if not check:
            return {"checked": False, "checks": [], "warnings": []}
        folder = draft.finding.folder.parent / ".probes"
        probes = Probes(target, identity, folder, spec.seed, watcher)
        found = checks.run(spec.attack, spec.options, rows, probes)
        return {
            "checked": True,
            "checks": [asdict(one) for one in found],
            "warnings": [f"{one.name}: {one.detail}" for one in found if one.passed is False],
        }

    result = draft.finding.result()
    if result is not None:
        draft.amend({**result, **checked(draft.finding.tensors(*COUNTED))})
        return
    index = _drawn(draft, spec, target)
    width = min(WIDTH, len(index))
    session = {**describe_machine(), "plugins": list(plugins.loaded()), "started": now()}
    draft.begin({**record, "device": str(target.place), "width": width, **session})
    draft.keep("drawn", {"index": index})
    parts = list(_chunks(draft, made, spec, target, index, width, watcher, chunk_size))
    rows = draft.rows(parts, COUNTED)
    result = {
        "status": "done",
        "scale": scale,
        "attack": spec.attack,
        "options": spec.options,
        "choose": spec.choose,
        "asked": spec.images,
        "available": len(target),
        **account(rows, minimises=made.budget is None),
        "seconds": sum((draft.kept_state(part) or {})["seconds"] for part in parts),
        "ended": now(),
    }
    draft.finish({**result, **checked(rows)}, parts)


def _drawn(draft: Draft, spec: Asked, target: Target) -> Tensor:
    """The images an earlier try drew, for it may have seen other last bits; else drawn now."""
    earlier = draft.kept("drawn")
    return earlier["index"] if earlier else draw(target, spec.images, spec.choose, spec.seed)


def _chunks(
    draft: Draft,
    made: Attack,
    spec: Asked,
    target: Target,
    index: Tensor,
    width: int,
    watcher: Watcher,
    chunk_size: int | None,
) -> Iterator[str]:
    """Attack what earlier tries left over; yield the name of every part, theirs first."""
    finished = _finished(draft)
    done = finished[-1][1] if finished else 0
    watcher.begin(describe_attack(spec.attack, spec.options), len(index), done)
    yield from (name for name, _ in finished)
    fooled = sum(int(draft.rows([name], ["fooled"])["fooled"].sum()) for name, _ in finished)
    seconds_an_image = None
    while done < len(index):
        size = chunk_size or _size(made, width, seconds_an_image)
        chosen = index[done : done + size]
        began = time.perf_counter()
        clean, labels = target.shown(chosen)
        outcome = made(
            target.network,
            clean,
            labels,
            seed=spec.seed,
            chunk_size=len(chosen),
            width=width,
            progress=watcher,
        )
        rounded = fooled_when_rounded(target.network, outcome, width=width)
        seconds = time.perf_counter() - began
        seconds_an_image = seconds / len(chosen)
        name = f"{done:07d}-{done + len(chosen):07d}"
        extra = {"index": chosen, "clean": clean, "fooled_rounded": rounded}
        draft.keep(name, {**outcome.tensors(), **extra}, {"seconds": seconds})
        done += len(chosen)
        fooled += int(outcome.fooled.sum())
        watcher.saved(done, fooled)
        yield name


def _finished(draft: Draft) -> list[tuple[str, int]]:
    """The parts that earlier tries left, without a gap from the first image on, and their ends."""
    found: list[tuple[str, int]] = []
    done = 0
    for name in draft.parts():
        match = _CHUNK.fullmatch(name)
        if match is None:
            continue
        start, stop = map(int, match.groups())
        if start == done and draft.kept_state(name) is not None:
            found.append((name, stop))
            done = stop
        else:
            draft.drop(name)
    return found


def _size(made: Attack, width: int, seconds_an_image: float | None) -> int:
    """How many images the next chunk has."""
    if isinstance(made, AutoAttack):
        return LARGEST  # its results depend on the company of an image: always the same
    smallest = FEWEST_AT_ONCE if isinstance(made, Pixels) else width
    if seconds_an_image is None:
        return smallest
    return min(max(int(SECONDS_A_CHUNK / seconds_an_image), smallest), LARGEST)


@contextmanager
def watched(progress: bool | Watcher) -> Iterator[Watcher]:
    """Whoever is to watch: a bar on a terminal, lines elsewhere, the caller's own, or nobody."""
    if progress is True and sys.stderr.isatty():
        with Bars() as bars:
            yield bars
    elif isinstance(progress, bool):
        yield Lines() if progress else Nobody()
    else:
        yield progress


@contextmanager
def noting_failure(draft: Draft) -> Iterator[None]:
    """Leave a word in the draft about what went wrong."""
    try:
        yield
    except Exception as error:
        draft.fail(f"{type(error).__name__}: {error}", traceback.format_exc())
        raise
