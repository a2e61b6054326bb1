"""Many specs in a good order: needs first, the longest before others, timings alone at the end.

Nothing runs here. A campaign says which spec to start next, hears how it ended, and knows what is
left; whoever has workers (`cluster`) does the rest.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from splash_units.lab.estimates import Estimate
from splash_units.lab.jobs import hopeless, is_done, missing
from splash_units.lab.spec import AnySpec, CostSpec, describe, digest, needs
from splash_units.lab.store import Store


@dataclass(frozen=True)
class Planned:
    """What is missing, and the seconds that each is thought to take on one core."""

    specs: tuple[AnySpec, ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class Began:
    """A worker has begun with a spec; `attempt` is 1, or more if workers died over it."""

    spec: AnySpec
    worker: str
    attempt: int


@dataclass(frozen=True)
class Moved:
    """This part of a spec is done."""

    spec: AnySpec
    part: float


@dataclass(frozen=True)
class Done:
    """The result of a spec is in the store."""

    spec: AnySpec


@dataclass(frozen=True)
class Failed:
    """A spec has failed, for a reason; the others go on."""

    spec: AnySpec
    why: str


@dataclass(frozen=True)
class Skipped:
    """A spec was not tried, since something that it needs failed or diverged."""

    spec: AnySpec
    why: str
    diverged: bool = False


@dataclass(frozen=True)
class Waiting:
    """There are no workers to give anything to, for now."""


Event = Planned | Began | Moved | Done | Failed | Skipped | Waiting


class Campaign:
    """The specs that are missing in a store, and how they stand."""

    def __init__(
        self, specs: Iterable[AnySpec], store: Store, estimate: Callable[[AnySpec], Estimate]
    ) -> None:
        self.store = store
        self.waiting = {digest(spec): spec for spec in missing(specs, store)}
        self.running: dict[str, AnySpec] = {}
        self.failures: dict[str, str] = {}
        self.estimates = {name: estimate(spec).seconds for name, spec in self.waiting.items()}
        self._way = ways_to_go(self.waiting, self.estimates)

    def planned(self) -> Planned:
        return Planned(tuple(self.waiting.values()), tuple(self.estimates.values()))

    @property
    def is_over(self) -> bool:
        return not self.waiting and not self.running

    def start_next(self) -> AnySpec | None:
        """The spec to start now, if there is one that can be: of those the one with most to come.

        Costs are timings: each runs when nothing else does.
        """
        ready = [name for name, spec in self.waiting.items() if self._is_ready(spec)]
        if not ready:
            return None
        name = max(ready, key=lambda name: self._way[name])
        spec = self.running[name] = self.waiting.pop(name)
        return spec

    def skip_impossible(self) -> list[Skipped]:
        """Give up what needs something that failed or diverged, and whatever needs that."""
        skipped = []
        # `waiting` has needs first, so one pass finds what follows from what.
        for name, spec in tuple(self.waiting.items()):
            failed = [needed for needed in needs(spec) if digest(needed) in self.failures]
            diverged = hopeless(spec, self.store)
            if failed or diverged:
                why = diverged or f"needs {describe(failed[0])}, which failed"
                self.failures[name] = why
                del self.waiting[name]
                skipped.append(Skipped(spec, why, diverged=bool(diverged)))
        return skipped

    def ended(self, spec: AnySpec, why: str | None = None) -> Done | Failed:
        """A running spec has ended: well, or for this reason not."""
        del self.running[digest(spec)]
        if why is None and not is_done(spec, self.store):
            why = "it ended without a result"
        if why is None:
            return Done(spec)
        self.failures[digest(spec)] = why
        return Failed(spec, why)

    def _is_ready(self, spec: AnySpec) -> bool:
        if isinstance(spec, CostSpec):
            others = any(not isinstance(other, CostSpec) for other in self.waiting.values())
            return not others and not self.running
        if any(isinstance(other, CostSpec) for other in self.running.values()):
            return False
        return all(is_done(needed, self.store) for needed in needs(spec))


def ways_to_go(specs: Mapping[str, AnySpec], seconds: Mapping[str, float]) -> dict[str, float]:
    """For each spec the seconds until the last of what needs it could be done."""
    ways = dict(seconds)
    for name, spec in reversed(list(specs.items())):  # what needs something comes after it
        for needed in needs(spec):
            before = digest(needed)
            if before in ways:
                ways[before] = max(ways[before], seconds[before] + ways[name])
    return ways
