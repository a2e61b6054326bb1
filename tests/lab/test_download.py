"""Downloads from a server on this machine: whole, or not at all."""

import gzip
import io
import socket
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from canonical_files import SmallSet

from splash_units.lab import data
from splash_units.lab.data import DataError, sources
from splash_units.lab.data.canonical import CANONICAL

NAMES = tuple(CANONICAL)
IDX = "mnist/train-images-idx3-ubyte"
IDX_LABELS = "mnist/train-labels-idx1-ubyte"
CIFAR = "cifar-10-batches-bin/data_batch_2.bin"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], SmallSet]:
    """Put a small set in the place of a real one, with digests of its own."""

    def install(name: str) -> SmallSet:
        made = SmallSet(name)
        monkeypatch.setitem(CANONICAL, name, made.source)
        return made

    return install


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_registered", {})


# Downloading


class Server:
    """A server on this machine that serves bytes, and misbehaves on request."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.failures_left = 0
        self.cut_short = False
        serving = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                serving.requests.append(self.path)
                contents = serving.files.get(self.path)
                if contents is None:
                    self.send_error(404)
                    return
                if serving.failures_left:
                    serving.failures_left -= 1
                    self.send_error(503)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(contents)))
                self.end_headers()
                self.wfile.write(contents[: len(contents) // 2] if serving.cut_short else contents)

            def log_message(self, *arguments: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.http.server_address[1]}/"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: None)
    serving = Server()
    thread = threading.Thread(target=serving.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield serving
    serving.http.shutdown()
    thread.join()
    serving.http.server_close()


def serve(server: Server, made: SmallSet) -> None:
    if made.source.archive:
        server.files[f"/{made.source.archive}"] = made.archive()
    else:
        for path, contents in made.contents.items():
            server.files[f"/{Path(path).name}.gz"] = gzip.compress(contents)


def everything_under(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


@pytest.mark.parametrize("name", NAMES)
def test_what_was_got_can_be_loaded(name, small, server, tmp_path):
    made = small(name)
    serve(server, made)
    folder = data.get(name, root=tmp_path / "new", mirrors=[server.address])
    assert folder == tmp_path / "new" / made.source.folder
    assert np.array_equal(data.load(name, root=tmp_path / "new").train_images, made.images["train"])
    suffix = "" if made.source.archive else ".gz"
    expected = sorted([made.source.folder, *(path + suffix for path in made.contents)])
    assert everything_under(tmp_path / "new") == expected
    requests = len(server.requests)
    data.get(name, root=tmp_path / "new", mirrors=[server.address])
    assert len(server.requests) == requests, "what is there is not downloaded again"


def test_only_what_is_missing_is_downloaded(small, server, tmp_path):
    made = small("mnist")
    serve(server, made)
    made.write(tmp_path)
    (tmp_path / IDX).unlink()
    data.get("mnist", root=tmp_path, mirrors=[server.address])
    assert server.requests == ["/train-images-idx3-ubyte.gz"]


def test_an_archive_that_lies_there_is_unpacked(small, tmp_path):
    made = small("cifar-100")
    (tmp_path / "cifar-100-binary.tar.gz").write_bytes(made.archive())
    data.get("cifar-100", root=tmp_path, mirrors=[])
    assert np.array_equal(data.load("cifar-100", root=tmp_path).test_images, made.images["test"])


def test_failures_are_retried_and_other_mirrors_tried(small, server, tmp_path):
    made = small("cifar-10")
    serve(server, made)
    server.failures_left = 2
    data.get("cifar-10", root=tmp_path, mirrors=[f"{server.address}nowhere", server.address])
    assert (
        server.requests == ["/nowhere/cifar-10-binary.tar.gz"] * 3 + ["/cifar-10-binary.tar.gz"] * 3
    )


@pytest.mark.parametrize("name", ["mnist", "cifar-10"])
@pytest.mark.parametrize("fault", ["missing", "cut short", "truncated", "wrong"])
def test_a_failed_download_leaves_nothing_behind(name, fault, small, server, tmp_path):
    made = small(name)
    serve(server, made)
    served = next(iter(server.files))
    if fault == "missing":
        server.files.clear()
    elif fault == "cut short":
        server.cut_short = True
    elif fault == "truncated":
        server.files[served] = server.files[served][: len(server.files[served]) // 2]
    elif name == "mnist":
        server.files[served] = gzip.compress(b"something else")
    else:
        server.files[served] = made.archive(**{CIFAR: bytes(len(made.contents[CIFAR]))})
    with pytest.raises(
        DataError, match=r"could not be downloaded.*check the network.*put it into"
    ) as e:
        data.get(name, root=tmp_path, mirrors=[server.address])
    assert served.lstrip("/") in str(e.value)
    assert everything_under(tmp_path) == []


def test_without_a_network_the_error_says_what_to_do(small, server, tmp_path):
    small("mnist")
    with closing(socket.create_server(("127.0.0.1", 0))) as unused:
        closed_port = unused.getsockname()[1]
    with pytest.raises(DataError, match=r"train-images.*check the network, or fetch"):
        data.get("mnist", root=tmp_path, mirrors=[f"http://127.0.0.1:{closed_port}/"])
    assert everything_under(tmp_path) == []


def test_a_damaged_file_is_for_the_user_to_delete(small, server, tmp_path):
    made = small("mnist")
    made.write(tmp_path)
    (tmp_path / IDX).write_bytes(b"my only copy")
    with pytest.raises(DataError, match=r"truncated.*delete it"):
        data.get("mnist", root=tmp_path, mirrors=[server.address])
    assert (tmp_path / IDX).read_bytes() == b"my only copy"
    assert server.requests == []


def test_an_archive_cannot_write_elsewhere(small, tmp_path):
    small("cifar-100")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        outside = tarfile.TarInfo("../outside")
        tar.addfile(outside, io.BytesIO())
        link = tarfile.TarInfo("cifar-100-binary/train.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    root = tmp_path / "root"
    root.mkdir()
    (root / "cifar-100-binary.tar.gz").write_bytes(packed.getvalue())
    with pytest.raises(DataError, match=r"train\.bin in it is not a file"):
        data.get("cifar-100", root=root, mirrors=[])
    assert everything_under(tmp_path) == ["root", "root/cifar-100-binary.tar.gz"]


@pytest.mark.parametrize("archive", [b"", b"not a tar", "half"])
def test_a_broken_archive_is_named(archive, small, tmp_path):
    made = small("cifar-100")
    contents = made.archive()[:-3000] if archive == "half" else archive
    (tmp_path / "cifar-100-binary.tar.gz").write_bytes(contents)
    with pytest.raises(DataError, match=r"cifar-100-binary\.tar\.gz: .*(damaged|hold)"):
        data.get("cifar-100", root=tmp_path, mirrors=[])
    assert everything_under(tmp_path) == ["cifar-100-binary.tar.gz"]


def test_an_unwritable_root_is_named(small, tmp_path):
    small("mnist")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file: cannot be written.*SPLASH_DATA"):
        data.get("mnist", root=tmp_path / "file", mirrors=[])


def test_there_is_nothing_to_get_for_embedded_and_registered_sets():
    data.register("mine", data.load("digits"))
    for name in ("digits", "mine"):
        with pytest.raises(DataError, match=r"nothing to download"):
            data.get(name)


def test_progress_is_shown_on_request(small, server, tmp_path, capfd):
    serve(server, small("mnist"))
    data.get("mnist", root=tmp_path, mirrors=[server.address], progress=True)
    assert "train-images-idx3-ubyte.gz" in capfd.readouterr().err
    serve(server, small("cifar-10"))
    data.get("cifar-10", root=tmp_path, mirrors=[server.address], progress=False)
    captured = capfd.readouterr()
    assert captured.err == captured.out == ""
