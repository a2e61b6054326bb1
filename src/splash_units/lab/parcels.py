"""Results as bytes, for workers that share no disk with whoever asks.

A parcel is a folder's files by name: JSON, JSON lines and safetensors, nothing that runs when it is
read. Whoever takes one in checks that it holds those files and no others, and that it is of the
spec that was asked for, before it gets a name in the store.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from splash_units.lab.findings import claim
from splash_units.lab.jobs import place
from splash_units.lab.spec import AnySpec, TrainSpec, digest, needs, read_spec
from splash_units.lab.store import Store

Files = Mapping[str, bytes]

OF_A_RUN = (
    "spec.json", "record.json", "history.jsonl", "result.json", "model.safetensors",
    "shapes.safetensors", "inputs.safetensors",
)  # fmt: skip
OF_A_FINDING = ("spec.json", "record.json", "result.json", "tensors.safetensors")
# What a worker must have of a training to go on from it.
OF_A_NEED = ("spec.json", "record.json", "result.json", "model.safetensors")


def pack(spec: AnySpec, store: Store, names: Iterable[str] | None = None) -> dict[str, bytes]:
    """The files of a finished spec, or those named."""
    folder = place(spec, store).folder
    wanted = names or (OF_A_RUN if isinstance(spec, TrainSpec) else OF_A_FINDING)
    return {name: (folder / name).read_bytes() for name in wanted if (folder / name).is_file()}


def pack_needs(spec: AnySpec, store: Store) -> list[dict[str, bytes]]:
    """What a worker must have before it can do a spec: the trained networks that it needs."""
    return [pack(needed, store, OF_A_NEED) for needed in needs(spec)]


def unpack_need(files: Files, store: Store) -> None:
    """Put a training that a spec needs into a worker's own store."""
    spec = _checked_spec(files, OF_A_RUN)
    folder = store.run(spec).whole
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def take_in(spec: AnySpec, files: Files, store: Store) -> None:
    """Publish a result that was computed elsewhere, unless one is there."""
    allowed = OF_A_RUN if isinstance(spec, TrainSpec) else OF_A_FINDING
    if digest(_checked_spec(files, allowed)) != digest(spec):
        raise ValueError("the result that came back is of another spec")
    if missing := [name for name in allowed if name not in files]:
        raise ValueError(f"the result that came back lacks {', '.join(missing)}")
    with store.claim(spec) if isinstance(spec, TrainSpec) else claim(store, spec) as held:
        if place(spec, store).result() is None:
            held.adopt(files)


def _checked_spec(files: Files, allowed: Iterable[str]) -> AnySpec:
    if odd := sorted(set(files) - set(allowed)):
        raise ValueError(f"a parcel holds {odd[0]!r}; allowed are {', '.join(allowed)}")
    try:
        values: dict[str, Any] = json.loads(files["spec.json"])
    except (KeyError, ValueError) as error:
        raise ValueError(f"a parcel has no readable spec.json: {error}") from None
    return read_spec(values)
