"""Fetch canonical files: what lies in the data folder is whole and right, or not there at all.

Everything is downloaded and unpacked in a scratch folder beside its destination, compared with the
known digest of its *contents*, and only then renamed into place. A partial download is thrown away,
never continued.
"""

from __future__ import annotations

import logging
import os
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from .canonical import CanonicalFile, CanonicalSet
from .dataset import DataError
from .formats import find, verified_contents

RETRIES = 2
TIMEOUT_SECONDS = 30
CHUNK_BYTES = 1 << 18


def fetch_set(
    source: CanonicalSet,
    root: Path,
    *,
    progress: bool | None = None,
    mirrors: Sequence[str] | None = None,
) -> Path:
    """Make sure every file of `source` lies under `root`, intact; returns the folder.

    Files that are there already are checked and kept. A tar archive that a user put into `root` is
    unpacked instead of downloaded. `progress` None means: on a terminal.
    """
    missing = [file for file in source.files if not _is_intact(source, root, file)]
    if not missing:
        return root / source.folder
    if progress is None:
        progress = sys.stderr.isatty()
    addresses = source.mirrors if mirrors is None else tuple(mirrors)
    with _scratch_folder(root) as scratch:
        fetch = _fetch_files if source.archive is None else _fetch_archive
        for destination, path in fetch(source, missing, root, scratch, addresses, progress):
            destination.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, destination)
    return root / source.folder


def _fetch_files(
    source: CanonicalSet,
    missing: Sequence[CanonicalFile],
    root: Path,
    scratch: Path,
    mirrors: Sequence[str],
    progress: bool,
) -> Iterator[tuple[Path, Path]]:
    """Yield (destination, checked download) of each missing file, one download each."""
    for file in missing:
        destination = root / f"{file.path}.gz"
        check = partial(verified_contents, file=file)
        yield destination, _download(destination, mirrors, scratch, check, progress)


def _fetch_archive(
    source: CanonicalSet,
    missing: Sequence[CanonicalFile],
    root: Path,
    scratch: Path,
    mirrors: Sequence[str],
    progress: bool,
) -> Iterator[tuple[Path, Path]]:
    """Yield (destination, checked file) of each missing file out of the set's one archive."""
    assert source.archive is not None
    archive = root / source.archive
    unpack = partial(_unpack, files=missing, scratch=scratch)
    if archive.is_file():
        unpack(archive)
    else:
        _download(archive, mirrors, scratch, unpack, progress)
    for file in missing:
        yield root / file.path, scratch / Path(file.path).name


def _is_intact(source: CanonicalSet, root: Path, file: CanonicalFile) -> bool:
    path = find(root, file)
    if path is None:
        return False
    try:
        verified_contents(path, file)
    except DataError as error:
        # It may be the user's only copy of something else, so it is for the user to delete.
        raise DataError(
            f"{error}; delete it and run `splash data get {source.name}` again"
        ) from error
    return True


@contextmanager
def _scratch_folder(root: Path) -> Iterator[Path]:
    try:
        root.mkdir(parents=True, exist_ok=True)
        # Inside root, so that the final rename stays within one file system.
        scratch = tempfile.TemporaryDirectory(prefix=".incoming-", dir=root)
    except OSError as error:
        raise DataError(
            f"{root}: cannot be written ({error.strerror or error}); "
            "set SPLASH_DATA to a folder that can, or that holds the files already"
        ) from error
    with scratch as path:
        yield Path(path)


def _download(
    destination: Path,
    mirrors: Sequence[str],
    scratch: Path,
    check: Callable[[Path], object],
    progress: bool,
) -> Path:
    """Download the file called like `destination` from the first mirror where it passes `check`."""
    import pooch
    import requests

    name, failures = destination.name, []
    for mirror in mirrors:
        manager = pooch.create(
            path=scratch,
            base_url=mirror if mirror.endswith("/") else f"{mirror}/",
            registry={name: None},  # the digest of the contents is compared by `check`
            retry_if_failed=RETRIES,
        )
        try:
            with _quiet(pooch.get_logger()):
                return Path(manager.fetch(name, downloader=_CheckedDownload(check, progress)))
        except (DataError, requests.exceptions.RequestException, OSError) as error:
            failures.append(f"{mirror}: {error}")
    raise DataError(
        f"{destination}: could not be downloaded ({'; '.join(failures) or 'no mirror given'}); "
        f"check the network, or fetch {name} elsewhere and put it into {destination.parent}"
    )


@dataclass(frozen=True)
class _CheckedDownload:
    """A downloader for pooch that looks at the contents, so that pooch's retries cover them too."""

    check: Callable[[Path], object]
    progress: bool

    def __call__(self, url: str, output_file: str, manager: Any) -> None:
        import pooch

        bar = _ProgressBar(url.rpartition("/")[2]) if self.progress else None
        http = pooch.HTTPDownloader(
            progressbar=bar or False, chunk_size=CHUNK_BYTES, timeout=TIMEOUT_SECONDS
        )
        try:
            http(url, output_file, manager)
        finally:
            if bar is not None:
                bar.close()
        # It raises DataError, which is a ValueError, which pooch answers by trying again.
        self.check(Path(output_file))


@contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    """Keep pooch from announcing scratch files that the user will never see."""
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def _unpack(archive: Path, files: Sequence[CanonicalFile], scratch: Path) -> None:
    """Unpack `files` from a tar archive into `scratch`, checked.

    Only members with exactly the wanted names, sizes and digests are read, and the paths written to
    are ours: an archive cannot place, link or overwrite anything.
    """
    wanted = {file.path: file for file in files}
    try:
        with tarfile.open(archive) as tar:
            for member in tar:  # in one pass: to seek backwards in a gzip stream is to start again
                file = wanted.get(member.name)
                if file is None:
                    continue
                stream = tar.extractfile(member) if member.isfile() else None
                if stream is None or member.size != file.size:
                    raise DataError(
                        f"{archive}: {file.path} in it is not a file of {file.size:,} bytes"
                    )
                path = scratch / Path(file.path).name
                path.write_bytes(stream.read())
                verified_contents(path, file)
                del wanted[file.path]
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise DataError(f"{archive}: damaged or truncated archive ({error})") from error
    if wanted:
        raise DataError(f"{archive}: does not hold {', '.join(wanted)}")


class _ProgressBar:
    """A rich progress bar with the four members pooch asks for."""

    def __init__(self, description: str) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TransferSpeedColumn,
        )

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            console=Console(stderr=True),
        )
        self._task = self._progress.add_task(description, total=None)
        self._progress.start()

    @property
    def total(self) -> float | None:
        return self._progress.tasks[0].total

    @total.setter
    def total(self, total: int) -> None:
        self._progress.update(self._task, total=total or None)

    def update(self, count: int) -> None:
        self._progress.update(self._task, advance=count)

    def reset(self) -> None:
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        self._progress.stop()
