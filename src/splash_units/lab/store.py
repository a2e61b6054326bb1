"""Runs on disk: one folder a spec, named by its hash, and never half a result.

A run in the works lies in `HASH.part` and is renamed to `HASH` when whole, so a folder without that
suffix is a result. In the works, `history.jsonl` and `slopes.f32` only grow, and each checkpoint
says how long they were when it was made: whoever goes on cuts them there. Every other file is
written aside, flushed to disk and renamed. What a kill, a full disk or a power cut can lose is
therefore the steps since the last checkpoint, and nothing else.

Files: `spec.json`, `record.json` (where it came from), `history.jsonl` (a line an epoch),
`result.json`, `model.safetensors`, `shapes.safetensors` (slopes over time), `inputs.safetensors`
(histograms of what reaches the units).
"""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from filelock import FileLock, Timeout
from pydantic import BaseModel, ValidationError

from splash_units.lab.durable import (
    flush,
    load_arrays,
    load_tensors,
    read_json,
    read_lines,
    save_arrays,
    save_tensors,
    sync_folder,
    write_bytes,
    write_json,
)
from splash_units.lab.spec import TrainSpec, digest, unknown

if TYPE_CHECKING:
    from torch import Tensor

ID_LENGTH = 16
GROWING = ("history.jsonl", "slopes.f32")

Array = np.ndarray[Any, Any]
State = Literal["done", "diverged", "running", "interrupted", "failed", "missing"]


@dataclass(frozen=True)
class Status:
    """How a run stands: epochs done of how many, and why it failed or what it came to."""

    state: State
    epochs_done: float = 0
    epochs: int | None = None
    why: str = ""


class Store:
    """A folder of runs."""

    def __init__(self, root: str | Path = "runs") -> None:
        self.root = Path(root)

    def run(self, spec: BaseModel) -> "Run":
        """The run of a spec, there or not."""
        return Run(self.root, digest(spec)[:ID_LENGTH])

    def runs(self) -> list["Run"]:
        """All runs there are, whole or in the works, by name."""
        if not self.root.is_dir():
            return []
        names = {path.name.removesuffix(".part") for path in self.root.iterdir() if path.is_dir()}
        found = (Run(self.root, name) for name in sorted(names) if not name.startswith("."))
        return [run for run in found if (run.folder / "spec.json").is_file()]

    def find(self, beginning: str) -> "Run":
        """The one run whose name begins so."""
        runs = self.runs()
        matches = [run for run in runs if run.id.startswith(beginning)]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise ValueError(f"several runs begin with {beginning!r}: {_names(matches)}")
        if not runs:
            raise ValueError(f"there are no runs in {self.root}")
        raise ValueError(f"{unknown('run', beginning, [run.id for run in runs])} (in {self.root})")

    @contextmanager
    def claim(self, spec: BaseModel, *, timeout: float = -1) -> Iterator["Work"]:
        """Hold a spec alone among all processes; waits for another that holds it (`Timeout`).

        The lock is the kernel's, so it ends with its process, however that ends.
        """
        run = self.run(spec)
        run.lock_file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(run.lock_file, timeout=timeout, thread_local=False):
            yield Work(run, spec)


@dataclass(frozen=True)
class Run:
    """One run as it lies on disk, for reading."""

    root: Path
    id: str

    @property
    def whole(self) -> Path:
        return self.root / self.id

    @property
    def part(self) -> Path:
        return self.root / f"{self.id}.part"

    @property
    def folder(self) -> Path:
        return self.whole if self.whole.is_dir() else self.part

    @property
    def lock_file(self) -> Path:
        return self.root / ".locks" / f"{self.id}.lock"

    def result(self) -> dict[str, Any] | None:
        """The result, if there is one that can be read."""
        return read_json(self.whole / "result.json")

    def record(self) -> dict[str, Any]:
        return read_json(self.folder / "record.json") or {}

    def spec(self) -> TrainSpec:
        """The spec, as it was then: names are not looked up, so a plugin need not be there."""
        try:
            return TrainSpec.model_validate(read_json(self.folder / "spec.json"))
        except ValidationError as error:
            raise ValueError(f"{self.folder / 'spec.json'} is not a spec: {error}") from None

    def history(self) -> list[dict[str, Any]]:
        """The epochs' numbers; a line that a crash cut short is left out."""
        return read_lines(self.folder / "history.jsonl")

    def model(self) -> "dict[str, Tensor]":
        """The trained network's tensors."""
        return load_tensors(self.folder / "model.safetensors")[1]

    def shapes(self) -> dict[str, Array]:
        """`time` in epochs, every slope over that time by name, and the units' constants."""
        if self.whole.is_dir():
            return load_arrays(self.whole / "shapes.safetensors")
        return decode_slopes(self.part / "slopes.f32", self.record())

    def inputs(self) -> dict[str, Array]:
        """Histograms of what reached each SPLASH unit at the end; empty if there are none."""
        try:
            return load_arrays(self.whole / "inputs.safetensors")
        except OSError:
            return {}

    def is_held(self) -> bool:
        """Whether a process works on it now."""
        try:
            FileLock(self.lock_file, timeout=0).acquire().lock.release()
        except Timeout:
            return True
        except OSError:
            return False
        return False

    def status(self) -> Status:
        """How it stands."""
        if not self.folder.is_dir():
            return Status("missing")
        epochs = self.record().get("plan", {}).get("epochs")
        done = max((line.get("epoch", 0) for line in self.history()), default=0)
        if self.whole.is_dir():
            result = self.result()
            if result is None:
                return Status("failed", done, epochs, "result.json is missing or damaged")
            return Status(result["status"], done, epochs, result.get("why", ""))
        if self.is_held():
            progress = read_json(self.part / "progress.json") or {}
            return Status("running", max(done, progress.get("epochs_done", 0)), epochs)
        failure = read_json(self.part / "failure.json")
        if failure:
            return Status("failed", done, epochs, failure.get("why", ""))
        return Status("interrupted", done, epochs)

    def known(self) -> "KnownRun":
        """The same, read now."""
        return KnownRun(
            self.root, self.id, self.folder, self.record(), self.result(), self.history()
        )


@dataclass(frozen=True, eq=False)
class KnownRun(Run):
    """A run whose small files have been read, for whoever asks for them many times."""

    known_folder: Path
    known_record: dict[str, Any]
    known_result: dict[str, Any] | None
    known_history: list[dict[str, Any]]

    @property
    def folder(self) -> Path:
        return self.known_folder

    def record(self) -> dict[str, Any]:
        return self.known_record

    def result(self) -> dict[str, Any] | None:
        return self.known_result

    def history(self) -> list[dict[str, Any]]:
        return self.known_history

    def status(self) -> Status:
        return self._status

    @cached_property
    def _status(self) -> Status:
        return super().status()


class Work:
    """A run that this process holds, for writing."""

    def __init__(self, run: Run, spec: BaseModel) -> None:
        self.run = run
        self.spec = spec
        self.folder = run.part
        if (self.folder / "result.json").is_file():
            self._publish()  # Killed between the last file and the rename: it is whole.

    def begin(self, record: Mapping[str, Any], *, resumed: bool) -> None:
        """Say what is about to run; drop what an earlier try left, unless it goes on from there."""
        if not resumed:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "failure.json").unlink(missing_ok=True)
        write_json(self.folder / "spec.json", self.spec.model_dump(mode="json"))
        write_json(self.folder / "record.json", record)

    def load_checkpoint(self) -> "tuple[dict[str, Any], dict[str, Tensor]] | None":
        """State and tensors of the last checkpoint, with the growing files cut to match it.

        None if there is no checkpoint, or none that can be trusted: then the run begins anew.
        """
        path = self.folder / "checkpoint.safetensors"
        try:
            state, tensors = load_tensors(path)
            lengths = state.pop("lengths")
            sizes = {name: (self.folder / name).stat().st_size for name in GROWING}
        except (OSError, ValueError, KeyError):
            return None
        if any(sizes[name] < lengths[name] for name in GROWING):
            return None
        for name in GROWING:
            os.truncate(self.folder / name, lengths[name])
        return state, tensors

    def save_checkpoint(self, state: Mapping[str, Any], tensors: "Mapping[str, Tensor]") -> None:
        lengths = {name: flush(self.folder / name) for name in GROWING}
        save_tensors(self.folder / "checkpoint.safetensors", tensors, {**state, "lengths": lengths})

    def append_epoch(self, numbers: Mapping[str, Any]) -> None:
        with open(self.folder / "history.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(numbers, allow_nan=False) + "\n")

    def append_slopes(self, time: float, slopes: "Mapping[str, Tensor]") -> None:
        row = [np.array([time]), *(slope.numpy().ravel() for slope in slopes.values())]
        with open(self.folder / "slopes.f32", "ab") as file:
            file.write(np.concatenate(row).astype("<f4").tobytes())

    def progress(self, epochs_done: float) -> None:
        """How far it is, for whoever asks meanwhile; losing this in a crash costs nothing."""
        aside = self.folder / "progress.json.aside"
        aside.write_text(json.dumps({"epochs_done": epochs_done, "pid": os.getpid()}))
        aside.replace(self.folder / "progress.json")

    def fail(self, why: str, traceback: str) -> None:
        """Leave a word about what went wrong; if not even that can be written, so be it."""
        with suppress(OSError):
            write_json(self.folder / "failure.json", {"why": why, "traceback": traceback})

    def finish(
        self,
        result: Mapping[str, Any],
        model: "Mapping[str, Tensor]",
        inputs: "Mapping[str, Tensor] | None" = None,
    ) -> None:
        """Write the result's files, the result itself last, and give the folder its final name."""
        record = read_json(self.folder / "record.json") or {}
        shapes = decode_slopes(self.folder / "slopes.f32", record)
        save_tensors(self.folder / "inputs.safetensors", inputs or {}, {})
        save_arrays(self.folder / "shapes.safetensors", shapes)
        save_tensors(self.folder / "model.safetensors", model, {"spec": digest(self.spec)})
        model_sha256 = hashlib.sha256((self.folder / "model.safetensors").read_bytes()).hexdigest()
        flush(self.folder / "history.jsonl")
        write_json(self.folder / "result.json", {**result, "model_sha256": model_sha256})
        self._publish()

    def adopt(self, files: Mapping[str, bytes]) -> None:
        """Take the files of a result that was computed elsewhere, the result itself last."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        for name in sorted(files, key=lambda name: name == "result.json"):
            write_bytes(self.folder / name, files[name])
        self._publish()

    def discard(self) -> None:
        """Forget an earlier result, to run the spec anew."""
        shutil.rmtree(self.run.whole, ignore_errors=True)

    def _publish(self) -> None:
        for name in ("checkpoint.safetensors", "slopes.f32", "progress.json", "failure.json"):
            (self.folder / name).unlink(missing_ok=True)
        if self.run.whole.is_dir():
            self.discard()
        self.folder.rename(self.run.whole)
        sync_folder(self.run.root)


def decode_slopes(path: Path, record: Mapping[str, Any]) -> dict[str, Array]:
    """The rows of `slopes.f32` (a time, then every slope) as one array a name."""
    layout: dict[str, list[int]] = record.get("layout", {})
    sizes = [1, *(math.prod(shape) for shape in layout.values())]
    content = np.frombuffer(path.read_bytes() if path.is_file() else b"", dtype="<f4")
    rows = content[: len(content) // sum(sizes) * sum(sizes)].reshape(-1, sum(sizes))
    columns = np.split(rows, np.cumsum(sizes)[:-1], axis=1)
    constants: dict[str, list[float]] = record.get("constants", {})
    return {
        "time": columns[0].ravel(),
        **{
            name: column.reshape(-1, *shape)
            for (name, shape), column in zip(layout.items(), columns[1:], strict=True)
        },
        **{name: np.array(values, dtype=np.float32) for name, values in constants.items()},
    }


def _names(runs: list[Run]) -> str:
    return ", ".join(run.id for run in runs)
