"""Files that are whole or not there: written aside, flushed to the disk, then renamed.

JSON and safetensors only, so that reading a file never runs what is in it.
"""

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic_core import from_json  # as json.loads, and several times as fast

if TYPE_CHECKING:
    from torch import Tensor

    Arrays = Mapping[str, np.ndarray[Any, Any]]


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file in one step; if that fails, the old one stays and nothing lies beside it."""
    write_stream(path, [content])


def write_stream(path: Path, contents: Iterable[bytes]) -> None:
    """The same for a content that comes in pieces, of which only one need be in memory."""
    aside = path.with_name(f"{path.name}.{os.getpid()}.aside")
    try:
        with open(aside, "wb") as file:
            for content in contents:
                file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut, where the system can (not on Windows)."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush(path: Path) -> int:
    """Bring a growing file (made if need be) to the disk and return its length."""
    with open(path, "ab") as file:
        os.fsync(file.fileno())
        return file.tell()


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_bytes(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None if the file is not there or is no such thing."""
    try:
        value = from_json(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file with one a line, without the lines that a crash spoilt."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        return []
    try:  # All at once, several times as fast, if a crash has spoilt none.
        values = from_json(b"[" + b",".join(line for line in lines if line) + b"]")
    except ValueError:
        values = [value for line in lines if (value := _value_of(line)) is not None]
    return [value for value in values if isinstance(value, dict)]


def _value_of(line: bytes) -> Any:
    try:
        return from_json(line)
    except ValueError:
        return None


def save_tensors(path: Path, tensors: "Mapping[str, Tensor]", state: Mapping[str, Any]) -> None:
    """Tensors with a JSON state in the file's header: one file, so one rename makes both new."""
    from safetensors.torch import save

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_bytes(path, save(plain, metadata={"state": json.dumps(state, allow_nan=False)}))


def load_tensors(
    path: Path, names: Iterable[str] | None = None
) -> "tuple[dict[str, Any], dict[str, Tensor]]":
    """What `save_tensors` wrote, or only the tensors named; ValueError if the file is damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            state = json.loads(file.metadata()["state"])
            wanted = file.keys() if names is None else names
            return state, {name: file.get_tensor(name) for name in wanted}
    except (SafetensorError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def load_rows(path: Path, names: Iterable[str], rows: Sequence[int]) -> "dict[str, Tensor]":
    """Some rows of some tensors that `save_tensors` wrote; nothing else is read."""
    import torch
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in names}
            return {
                name: torch.cat([piece[row : row + 1] for row in rows])
                for name, piece in slices.items()
            }
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def join_tensors(path: Path, parts: Sequence[Path], state: Mapping[str, Any]) -> None:
    """One file of several that hold the same names: each tensor is theirs, one after another.

    Whatever the parts' number, one tensor of one part is in memory at a time; the format (a length,
    a JSON header, the numbers) is simple enough to write piece by piece.
    """
    from safetensors import safe_open

    def shape_in(part: Path, name: str) -> tuple[str, list[int]]:
        with safe_open(part, framework="np") as file:
            piece = file.get_slice(name)
            return piece.get_dtype(), piece.get_shape()

    def content_of(part: Path, name: str) -> bytes:
        # Opened anew each time: what an open file has read counts as this process's memory.
        with safe_open(part, framework="np") as file:
            content: bytes = file.get_tensor(name).tobytes()
            return content

    with safe_open(parts[0], framework="np") as file:
        names = sorted(file.keys())
    header: dict[str, Any] = {"__metadata__": {"state": json.dumps(state, allow_nan=False)}}
    begin = 0
    for name in names:
        pieces = [shape_in(part, name) for part in parts]
        dtype, first = pieces[0]
        shape = [sum(shape[0] for _, shape in pieces), *first[1:]]
        bits = 8 if dtype == "BOOL" else int(dtype.lstrip("FIU"))
        end = begin + math.prod(shape) * bits // 8
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the numbers begin at a multiple of eight

    def contents() -> Iterator[bytes]:
        yield len(text).to_bytes(8, "little") + text
        yield from (content_of(part, name) for name in names for part in parts)

    write_stream(path, contents())


def save_arrays(path: Path, arrays: "Arrays") -> None:
    from safetensors.numpy import save

    write_bytes(path, save({name: np.ascontiguousarray(a) for name, a in arrays.items()}))


def load_arrays(path: Path) -> "dict[str, np.ndarray[Any, Any]]":
    """What `save_arrays` wrote; ValueError if the file is damaged."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return dict(load_file(path))
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
