"""What was done with trained networks, on disk: attacks, transfers, separations, costs.

A finding is a folder named by its spec's hash, as a run is: an attack's lies in the folder of the
training it belongs to (`RUN/attacks/HASH`), any other in `analyses/HASH`. It holds `spec.json`,
`record.json` (where it came from), `result.json` (the numbers) and `tensors.safetensors` (the raw
rows). While it is being made it lies in `HASH.part` and keeps its finished parts, so that whoever
goes on computes only what is missing.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from splash_units.lab.durable import (
    join_tensors,
    load_rows,
    load_tensors,
    read_json,
    save_tensors,
    sync_folder,
    write_bytes,
    write_json,
)
from splash_units.lab.spec import AnySpec, AttackSpec, Spec, TrainSpec, digest, read_spec
from splash_units.lab.store import ID_LENGTH, Run, Store

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Finding:
    """One finding as it lies on disk, for reading."""

    folder: Path

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def part(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.part")

    def spec(self) -> AnySpec:
        """The spec as it was then: names are not looked up, so a plugin need not be there."""
        return read_spec(read_json(self.folder / "spec.json") or {})

    def result(self) -> dict[str, Any] | None:
        """The numbers, if there are any that can be read."""
        return read_json(self.folder / "result.json")

    def record(self) -> dict[str, Any]:
        return read_json(self.folder / "record.json") or {}

    def tensors(self, *names: str) -> "dict[str, Tensor]":
        """The raw rows behind the numbers, all or only those named."""
        return load_tensors(self.folder / "tensors.safetensors", names or None)[1]

    def rows(self, rows: Sequence[int], *names: str) -> "dict[str, Tensor]":
        """Some rows of the tensors named, without reading the others."""
        return load_rows(self.folder / "tensors.safetensors", names, rows)

    def failure(self) -> str | None:
        """Why the last try failed, if it did and none has succeeded since."""
        if self.folder.is_dir():
            return None
        return (read_json(self.part / "failure.json") or {}).get("why")


@dataclass(frozen=True, eq=False)
class KnownFinding(Finding):
    """A finding whose spec and numbers have been read, for whoever asks for them many times."""

    known_spec: AnySpec
    known_result: dict[str, Any]

    def spec(self) -> AnySpec:
        return self.known_spec

    def result(self) -> dict[str, Any]:
        return self.known_result


class Draft:
    """A finding that this process holds, for writing."""

    def __init__(self, finding: Finding, spec: Spec) -> None:
        self.finding = finding
        self.spec = spec
        self.folder = finding.part
        if (self.folder / "result.json").is_file():
            self._publish()  # Killed between the last file and the rename: it is whole.

    def begin(self, record: Mapping[str, Any]) -> None:
        """Say what is about to be done; the parts of an earlier try stay."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "failure.json").unlink(missing_ok=True)
        write_json(self.folder / "spec.json", self.spec.model_dump(mode="json"))
        write_json(self.folder / "record.json", record)

    def keep(
        self, part: str, tensors: "Mapping[str, Tensor]", state: Mapping[str, Any] | None = None
    ) -> None:
        """Write a finished part down, for good."""
        save_tensors(self._file(part), tensors, state or {})

    def kept(self, part: str) -> "dict[str, Tensor] | None":
        """A part that an earlier try finished; None if there is none that can be read."""
        try:
            return load_tensors(self._file(part))[1]
        except (OSError, ValueError):
            return None

    def kept_state(self, part: str) -> dict[str, Any] | None:
        """What was noted with a part, without its tensors; None if it can't be read."""
        try:
            return load_tensors(self._file(part), ())[0]
        except (OSError, ValueError):
            return None

    def parts(self) -> list[str]:
        """The parts that are there, by name."""
        files = self.folder.glob("part-*.safetensors")
        return sorted(file.stem.removeprefix("part-") for file in files)

    def drop(self, part: str) -> None:
        """Forget a part."""
        self._file(part).unlink(missing_ok=True)

    def rows(self, parts: Sequence[str], names: Sequence[str]) -> "dict[str, Tensor]":
        """Some tensors of several parts, row upon row."""
        import torch

        tables = [load_tensors(self._file(part), names)[1] for part in parts]
        return {name: torch.cat([table[name] for table in tables]) for name in names}

    def discard(self) -> None:
        """Forget what was found and what was begun, to do it anew."""
        shutil.rmtree(self.finding.folder, ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def fail(self, why: str, traceback: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / "failure.json", {"why": why, "traceback": traceback})

    def finish(
        self, result: Mapping[str, Any], tensors: "Mapping[str, Tensor] | Sequence[str]"
    ) -> None:
        """Write the result, the numbers last, and give the folder its final name.

        The tensors are given, or the names of parts with equal names, to be joined row upon row.
        """
        path, state = self.folder / "tensors.safetensors", {"spec": digest(self.spec)}
        if isinstance(tensors, Mapping):
            save_tensors(path, tensors, state)
        else:
            join_tensors(path, [self._file(part) for part in tensors], state)
        write_json(self.folder / "result.json", {"spec": digest(self.spec), **result})
        self._publish()

    def adopt(self, files: Mapping[str, bytes]) -> None:
        """Take the files of a finding that was made elsewhere, the numbers last."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        for name in sorted(files, key=lambda name: name == "result.json"):
            write_bytes(self.folder / name, files[name])
        self._publish()

    def amend(self, result: Mapping[str, Any]) -> None:
        """Replace the numbers of a finding that is whole, its rows staying as they are."""
        write_json(self.finding.folder / "result.json", {"spec": digest(self.spec), **result})

    def _file(self, part: str) -> Path:
        return self.folder / f"part-{part}.safetensors"

    def _publish(self) -> None:
        for part in self.folder.glob("part-*.safetensors"):
            part.unlink()
        shutil.rmtree(self.finding.folder, ignore_errors=True)
        self.folder.rename(self.finding.folder)
        sync_folder(self.finding.folder.parent)


def finding(store: Store, spec: AnySpec) -> Finding:
    """The finding of a spec, there or not."""
    name = digest(spec)[:ID_LENGTH]
    if isinstance(spec, TrainSpec):
        raise TypeError("a training is a run of the store, not a finding")
    if isinstance(spec, AttackSpec):
        return Finding(store.run(spec.train).whole / "attacks" / name)
    return Finding(store.root / "analyses" / name)


def findings(store: Store) -> list[Finding]:
    """All finished findings of a store, by name: attacks of every run, then the others."""
    known: list[Finding] | None = getattr(store, "known_findings", None)
    if known is not None:
        return known
    attacks = [found for run in store.runs() for found in attacks_on(run)]
    return [*attacks, *_finished(store.root / "analyses")]


def read_findings(store: Store) -> list[Finding]:
    """The same, read: only those whose spec can't be read stay as they lie on disk."""
    folders = [*(run.whole / "attacks" for run in store.runs()), store.root / "analyses"]
    read: list[Finding] = []
    for found in (found for folder in folders for found in _published(folder)):
        result = found.result()
        if result is None:
            continue
        try:
            read.append(KnownFinding(found.folder, found.spec(), result))
        except ValueError:
            read.append(found)
    return read


def attacks_on(run: Run) -> list[Finding]:
    """The finished attacks on a run's network, by name."""
    return _finished(run.whole / "attacks")


@contextmanager
def claim(store: Store, spec: AnySpec) -> Iterator[Draft]:
    """Hold a finding alone among all processes, waiting for another that holds it."""
    found = finding(store, spec)
    if isinstance(spec, AttackSpec) and not store.run(spec.train).whole.is_dir():
        raise ValueError(f"there is no trained network to attack in {store.run(spec.train).whole}")
    with hold(found, spec) as draft:
        yield draft


@contextmanager
def hold(found: Finding, spec: Spec) -> Iterator[Draft]:
    """The same for a finding in any folder, of whatever it is a finding."""
    locks = found.folder.parent / ".locks"
    locks.mkdir(parents=True, exist_ok=True)
    with FileLock(locks / f"{found.id}.lock", thread_local=False):
        yield Draft(found, spec)


def _finished(folder: Path) -> list[Finding]:
    return [found for found in _published(folder) if found.result() is not None]


def _published(folder: Path) -> list[Finding]:
    """Findings under their final names: finished, unless their numbers can't be read."""
    if not folder.is_dir():
        return []
    names = sorted(p.name for p in folder.iterdir() if not p.name.startswith("."))
    return [Finding(folder / name) for name in names if not name.endswith(".part")]
