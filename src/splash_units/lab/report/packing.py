"""Vega, Vega-Lite and Vega-Embed as one script, from the wheel that draws our pictures, too.

Packing takes two seconds and gives the same every time, so it is kept in the user's cache folder,
under the wheel's version and a digest of the content: what was damaged there is packed anew. The
file is run by itself, writing to standard output, since packing holds the interpreter all the
while; its process needs nothing of this package, least of all torch.
"""

import hashlib
import os
import sys
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import vl_convert


def vega(folder: Path) -> bytes:
    """The script, kept in `folder` or packed now."""
    name = f"vega-{version('vl-convert-python')}"
    for file in sorted(folder.glob(f"{name}-*.js")):
        content = file.read_bytes()
        if file.name == _file_name(name, content):
            return content
    content = vl_convert.javascript_bundle().encode()  # type: ignore[call-arg]  # has a default
    with suppress(OSError):  # Where nothing can be kept, the next page takes as long.
        _keep(folder / _file_name(name, content), content)
    return content


def _file_name(name: str, content: bytes) -> str:
    return f"{name}-{hashlib.sha256(content).hexdigest()[:16]}.js"


def _keep(file: Path, content: bytes) -> None:
    """Whole or not at all, whoever else packs at the same time."""
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_suffix(f".{os.getpid()}")
    aside.write_bytes(content)
    aside.replace(file)


if __name__ == "__main__":
    import pooch

    sys.stdout.buffer.write(vega(Path(pooch.os_cache("splash-units")) / "report"))
