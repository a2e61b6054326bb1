"""Results of the small benchmarks: one JSON file, a key for each command, with where it ran."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import torch

from splash_units.lab.machine import describe_machine, now


def keep(results: Path, numbers: dict[str, Any]) -> None:
    """Put `numbers` into the file, in the place of what the same command measured before."""
    kept = json.loads(results.read_text()) if results.exists() else {}
    arguments = [word for word in sys.argv[1:] if word not in ("--results", str(results))]
    command = shlex.join([f"benchmarks/{Path(sys.argv[0]).name}", *arguments])
    kept[command] = {**numbers, **origin()}
    results.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


def origin() -> dict[str, Any]:
    """When and on what a result was computed."""
    machine = {key: value for key, value in describe_machine().items() if key != "host"}
    return {"when": now(), "threads": torch.get_num_threads(), **machine}
