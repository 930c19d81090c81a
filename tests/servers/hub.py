"""A Hugging Face hub for tests: folders served as repositories, by the documented API, on two ports.

`Hub(root)` in a test, or `python hub.py --root DIR --port N --data-port M --host H` as a program of one file (a pod of the
end-to-end tests). The second port is the storage that the hub redirects to, by signed links that expire.

    ROOT/org/name/REVISION/...      a commit's files; a folder named by 40 hex digits is that commit, others get one by content
    ROOT/org/name/hub.json          {"refs": {"main": "REVISION"}, "gated": false, "private": false}; read for each request
    ROOT/hub.json                   settings, see `DEFAULTS`; read for each request
    GET  /-/counters                requests, bytes, misplaced tokens
    POST /-/settings                settings that go before those of the file (from loopback only)
    POST /-/refs/org/name           refs that go before those of the file (from loopback only)

Must not import anything but the standard library, nor be split: it goes into a pod as one file.
"""

from __future__ import annotations

import argparse
import fnmatch
import gzip
import hashlib
import hmac
import http.server
import json
import os
import socket
import socketserver
import threading
import time
from collections import Counter
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit

if TYPE_CHECKING:
    import ssl
    from types import TracebackType
    from typing import Self

DEFAULTS: dict[str, Any] = {
    # token: repositories that it may read although they are private or gated; "*" is all
    "tokens": {},
    # tokens that are known, but may read nothing of the repositories named (a fine-grained one)
    "forbidden": {},
    "pageSize": 1000,
    "linkSeconds": 3600,
    "lfsBytes": 10 << 20,
    # files outside of LFS come from another path of the hub, as at the real one
    "resolveCache": False,
    # a listing of this in the place of the true one
    "entries": None,
    # [{"where": "api|resolve|data", "path": "*", "kind": ..., "times": 1, ...}], see `Fault`
    "faults": [],
}
_CHUNK = 1 << 20
_SMALL = 1 << 15
_RESOLVE_CACHE = "/api/resolve-cache/models/"
# Larger ones are in LFS in any case.
_MAX_GIT_BYTES = 64 << 20


class Fault(NamedTuple):
    """What goes wrong.

    Kinds: status (an answer's), cut and stall (after so many bytes), whole (200 for a range), noRange and badRange (of
    Content-Range), gzip, corrupt (one bit), chunked, extra (chunked, with bytes that nobody asked for), long (the same
    with Content-Length), commit (another one than asked for).
    """

    where: str
    kind: str
    path: str = "*"
    times: int = 1 << 30
    status: int = 503
    headers: tuple[tuple[str, str], ...] = ()
    after: int = 0
    seconds: float = 60.0


class HubFile(NamedTuple):
    """One file of a commit."""

    path: str
    place: Path
    size: int
    git_blob: str
    sha256: str
    is_lfs: bool


class _Refusal(Exception):  # noqa: N818 - it is an answer
    """An answer that is no file."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


class Repository(NamedTuple):
    """A repository as it is now."""

    name: str
    folder: Path
    refs: dict[str, str]
    gated: bool
    private: bool


class Hub:
    """The server. Its settings, refs and faults may be changed at any time; its counters are kept."""

    def __init__(
        self,
        root: Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        data_port: int = 0,
        tls: ssl.SSLContext | None = None,
        name: str | None = None,
    ) -> None:
        self.root = root
        self.settings: dict[str, Any] = {}
        self.refs: dict[str, dict[str, str]] = {}
        self.faults: list[Fault] = []
        self.requests: Counter[str] = Counter()
        self.bytes_sent: Counter[str] = Counter()
        self.connections = 0
        self._hashes: dict[tuple[str, int, int], tuple[str, str]] = {}
        self._commits: dict[Path, str] = {}
        self._listed: dict[tuple[Path, int], list[HubFile]] = {}
        self._parsed: dict[Path, tuple[tuple[int, int, int], dict[str, Any]]] = {}
        self._secret = os.urandom(16)
        self._spent: Counter[int] = Counter()
        self._lock = threading.Lock()
        scheme = "http" if tls is None else "https"
        self._api = _Server((host, port), _ApiHandler, self, tls)
        self._data = _Server((host, data_port), _DataHandler, self, tls)
        shown = name or host
        self.url = f"{scheme}://{shown}:{self._api.server_address[1]}"
        self.data_url = f"{scheme}://{shown}:{self._data.server_address[1]}"
        self._threads = [threading.Thread(target=each.serve_forever, args=(0.05,)) for each in (self._api, self._data)]

    def start(self) -> Self:
        """Serve in the background."""
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        """End both servers and all connections."""
        for server in (self._api, self._data):
            server.shutdown()
            server.end_connections()
            server.server_close()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def setting(self, name: str) -> Any:
        """A setting as it is now: set here, else in the file, else the default."""
        if name in self.settings:
            return self.settings[name]
        return self._read_json(self.root / "hub.json").get(name, DEFAULTS[name])

    def count(self, what: str, sent: int = 0) -> None:
        """Count a request, or bytes."""
        with self._lock:
            if sent:
                self.bytes_sent[what] += sent
            else:
                self.requests[what] += 1

    def count_connection(self) -> None:
        """Count a connection."""
        with self._lock:
            self.connections += 1

    def take_fault(self, where: str, path: str) -> Fault | None:
        """The first fault that is for this request and not used up."""
        stated = [
            Fault(**{**each, "headers": tuple(each.get("headers", {}).items())}) for each in self.setting("faults")
        ]
        with self._lock:
            for number, fault in enumerate([*self.faults, *stated]):
                if fault.where == where and fnmatch.fnmatch(path, fault.path) and self._spent[number] < fault.times:
                    self._spent[number] += 1
                    return fault
        return None

    def set_faults(self, *faults: Fault) -> None:
        """Replace the faults."""
        with self._lock:
            self.faults, self._spent = list(faults), Counter()

    def find_repository(self, name: str) -> Repository | None:
        """The repository, if there is one."""
        folder = self.root / name
        if ".." in name or not (folder / "hub.json").is_file():
            return None
        stated = self._read_json(folder / "hub.json")
        refs = {**stated.get("refs", {}), **self.refs.get(name, {})}
        return Repository(name, folder, refs, bool(stated.get("gated")), bool(stated.get("private")))

    def find_revision(self, repository: Repository, revision: str) -> tuple[str, Path]:
        """Commit and folder of a branch, tag, commit or its beginning."""
        wanted = repository.refs.get(revision)
        for folder in sorted(each for each in repository.folder.iterdir() if each.is_dir()):
            commit = self.commit_of(folder)
            if wanted in {folder.name, commit} or (wanted is None and _names(revision, commit)):
                return commit, folder
        raise _Refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")

    def commit_of(self, folder: Path) -> str:
        """The commit of a revision's folder."""
        if len(folder.name) == 40 and all(each in "0123456789abcdef" for each in folder.name):
            return folder.name
        if folder not in self._commits:
            listed = [[each.path, each.git_blob] for each in self.list_files(folder)]
            self._commits[folder] = hashlib.sha1(json.dumps(listed).encode(), usedforsecurity=False).hexdigest()
        return self._commits[folder]

    def list_files(self, folder: Path) -> list[HubFile]:
        """All files of a revision, which doesn't change once it was asked for."""
        key = (folder, self.setting("lfsBytes"))
        if key not in self._listed:
            places = sorted(each for each in folder.rglob("*") if each.is_file())
            self._listed[key] = [self._describe(folder, place) for place in places]
        return self._listed[key]

    def find_file(self, folder: Path, path: str) -> HubFile:
        """One file of a revision, or the answer that there is none."""
        place = folder / path
        if ".." in path.split("/") or not place.is_file():
            raise _Refusal(404, "EntryNotFound", "Entry not found")
        return self._describe(folder, place)

    def _read_json(self, path: Path) -> dict[str, Any]:
        """A settings file as it is now; parsed when it changed."""
        try:
            stat = path.stat()
        except FileNotFoundError:
            return {}
        key = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        known = self._parsed.get(path)
        if known is None or known[0] != key:
            known = (key, json.loads(path.read_text()))
            self._parsed[path] = known
        return known[1]

    def _describe(self, folder: Path, place: Path) -> HubFile:
        stat = place.stat()
        key = (str(place), stat.st_size, stat.st_mtime_ns)
        if key not in self._hashes:
            self._hashes[key] = _hash(place, stat.st_size)
        git_blob, sha256 = self._hashes[key]
        path = place.relative_to(folder).as_posix()
        is_lfs = stat.st_size >= min(self.setting("lfsBytes"), _MAX_GIT_BYTES) or path.endswith(".safetensors")
        if is_lfs:
            # What git holds of it is the pointer.
            git_blob = _hash_blob(_make_pointer(sha256, stat.st_size))
        return HubFile(path, place, stat.st_size, git_blob, sha256, is_lfs)

    def sign(self, path: str, expires: int, bound: str) -> str:
        """The signature of a link to the storage."""
        return hmac.new(self._secret, f"{path} {expires} {bound}".encode(), hashlib.sha256).hexdigest()

    def end_connections(self) -> None:
        """End all connections, idle or not."""
        for server in (self._api, self._data):
            server.end_connections()

    def expire_links(self) -> None:
        """Let all links that were given out be refused from now on."""
        self._secret = os.urandom(16)

    def make_link(self, storage: str, place: str, bound: str) -> str:
        """A signed link to the storage; one that is bound to a range is good for no other, as with Xet at the real hub."""
        target = f"/repos/{quote(place)}"
        expires = int(time.time() + self.setting("linkSeconds"))
        more = f"&X-Range={quote(bound)}" if bound else ""
        return f"{storage}{target}?X-Expires={expires}&X-Signature={self.sign(target, expires, bound)}{more}"


def _names(revision: str, commit: str) -> bool:
    return len(revision) >= 7 and commit.startswith(revision)


def _hash(place: Path, size: int) -> tuple[str, str]:
    blob, content = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False), hashlib.sha256()
    with place.open("rb") as file:
        while piece := file.read(_CHUNK):
            if size < _MAX_GIT_BYTES:
                blob.update(piece)
            content.update(piece)
    return blob.hexdigest(), content.hexdigest()


def _make_pointer(sha256: str, size: int) -> bytes:
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()


def _hash_blob(content: bytes) -> str:
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content, usedforsecurity=False).hexdigest()


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 256

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[_Handler],
        hub: Hub,
        tls: ssl.SSLContext | None,
    ) -> None:
        self.hub, self._tls = hub, tls
        self._open: set[socket.socket] = set()
        super().__init__(address, handler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self._tls is not None:
            try:
                request.settimeout(10)
                request = self._tls.wrap_socket(request, server_side=True)
                request.settimeout(None)
            except OSError:
                return
        self._open.add(request)
        self.hub.count_connection()
        try:
            super().finish_request(request, client_address)
        except OSError:
            return
        finally:
            self._open.discard(request)
            if self._tls is not None:
                request.close()

    def end_connections(self) -> None:
        for each in list(self._open):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    # A head and a small body go out together.
    wbufsize = 1 << 16
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ARG002 - the base class's
        return

    @property
    def hub(self) -> Hub:
        return self.server.hub

    def reply(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        """Send an answer with a small body."""
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def reply_json(self, value: Any, headers: dict[str, str] | None = None) -> None:
        """Send JSON."""
        self.reply(200, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})

    def refuse(self, refusal: _Refusal) -> None:
        """Send a refusal as the hub does."""
        headers = {"Content-Type": "application/json", "X-Error-Message": refusal.message}
        if refusal.code:
            headers["X-Error-Code"] = refusal.code
        self.reply(refusal.status, json.dumps({"error": refusal.message}).encode(), headers)

    def own_url(self, url: str) -> str:
        """A URL of this hub, by the name that the caller knows it by where it listens on every address."""
        asked = (self.headers.get("Host") or "").rpartition(":")[0]
        return url.replace("//0.0.0.0:", f"//{asked}:")

    def meet_status(self, fault: Fault | None) -> bool:
        """Answer with a fault's status, or nothing for a while; return whether that was all."""
        if fault is None or fault.kind not in ("status", "stall") or (fault.kind == "stall" and fault.after):
            return False
        if fault.kind == "stall":
            self.wait(fault.seconds)
            self.close_connection = True
            return True
        self.reply(fault.status, b"{}", dict(fault.headers))
        return True

    def wait(self, seconds: float) -> None:
        """Be silent, until the other side gives up."""
        self.wfile.flush()
        self.connection.settimeout(seconds)
        try:
            self.connection.recv(1)
        except OSError:
            return

    def send_file(self, file: HubFile, headers: dict[str, str], fault: Fault | None, label: str) -> None:
        """Send a file or a range of it, with what goes wrong."""
        kind = fault.kind if fault else ""
        begin, end, status = 0, file.size, 200
        stated = self.headers.get("Range")
        if stated is not None and kind != "whole":
            first, _, last = stated.removeprefix("bytes=").partition("-")
            begin, end = int(first), min(int(last) + 1 if last else file.size, file.size)
            if begin >= file.size:
                self.reply(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, b"", {"Content-Range": f"bytes */{file.size}"})
                return
            status = 206
            if kind != "noRange":
                shift = 1 if kind == "badRange" else 0
                headers["Content-Range"] = f"bytes {begin + shift}-{end - 1 + shift}/{file.size}"
        headers["Accept-Ranges"] = "bytes"
        if kind in ("gzip", "chunked", "corrupt", "extra", "long"):
            self._send_altered(file, begin, end, status, headers, kind)
            return
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(end - begin))
        self.end_headers()
        if self.command == "HEAD":
            return
        stop = end if fault is None or kind not in ("cut", "stall") else min(end, begin + fault.after)
        if stop > begin:
            self._stream(label, file, begin, stop)
        if fault is not None and stop < end:
            if kind == "stall":
                self.wait(fault.seconds)
            self.close_connection = True

    def _stream(self, label: str, file: HubFile, begin: int, end: int) -> None:
        with file.place.open("rb") as opened:
            opened.seek(begin)
            if end - begin <= _SMALL:
                self.hub.count(label, self.wfile.write(opened.read(end - begin)))
                return
            self.wfile.flush()
            try:
                # sendfile(2) where the socket is plain.
                self.connection.sendfile(opened, begin, end - begin)
            finally:
                # Also of an answer that nobody took to its end; the file's place says how far it came.
                if opened.tell() > begin:
                    self.hub.count(label, opened.tell() - begin)

    def _send_altered(
        self, file: HubFile, begin: int, end: int, status: int, headers: dict[str, str], kind: str
    ) -> None:
        with file.place.open("rb") as opened:
            opened.seek(begin)
            body = opened.read(end - begin)
        if kind == "corrupt":
            body = bytes([body[0] ^ 1]) + body[1:]
        if kind == "gzip":
            body = gzip.compress(body, 1)
            headers["Content-Encoding"] = "gzip"
        if kind in ("extra", "long"):
            body += b"\0" * 64
        self.hub.count(self.path.partition("?")[0], len(body))
        if kind in ("corrupt", "gzip", "long"):
            self.reply(status, body, headers)
            return
        self.send_response(status)
        for name, value in {**headers, "Transfer-Encoding": "chunked"}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))


class _DataHandler(_Handler):
    """The storage: signed links only, no tokens."""

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        self.hub.count(f"data {unquote(parts.path)}")
        if self.headers.get("Authorization") is not None:
            # As S3 does; and the tests ask for it.
            self.hub.count("token at the storage")
            self.reply(400, b"Only one auth mechanism allowed")
            return
        query = parse_qs(parts.query)
        expires = int(query.get("X-Expires", ["0"])[0])
        signature = query.get("X-Signature", [""])[0]
        bound = query.get("X-Range", [""])[0]
        good = hmac.compare_digest(signature, self.hub.sign(parts.path, expires, bound)) and expires > time.time()
        if not good or (bound and bound != self.headers.get("Range")):
            self.hub.count("expired link")
            self.reply(403, b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>")
            return
        place = self.hub.root.joinpath(*unquote(parts.path).split("/")[2:])
        size = place.stat().st_size
        fault = self.hub.take_fault("data", unquote(parts.path))
        if self.meet_status(fault):
            return
        file = HubFile(place.name, place, size, "", "", is_lfs=True)
        self.send_file(file, {"Content-Type": "binary/octet-stream"}, fault, f"data {unquote(parts.path)}")

    do_HEAD = do_GET  # noqa: N815 - the base class looks for it


class _ApiHandler(_Handler):
    """The hub: listings, and redirects to the storage."""

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        path, query = unquote(parts.path), parse_qs(parts.query)
        self.hub.count(f"hub {self.command} {path}")
        self.hub.count("with a token" if self.headers.get("Authorization") else "without a token")
        try:
            if path == "/-/counters":
                self.reply_json({"requests": self.hub.requests, "bytes": self.hub.bytes_sent})
            elif path.startswith("/api/models/"):
                if not self.meet_status(self.hub.take_fault("api", path)):
                    self._answer_api(path.removeprefix("/api/models/"), query)
            elif "/resolve/" in path:
                fault = self.hub.take_fault("resolve", path)
                if not self.meet_status(fault):
                    self._answer_resolve(parts.path, fault)
            else:
                self.reply(404, b"")
        except _Refusal as refusal:
            self.refuse(refusal)

    do_HEAD = do_GET  # noqa: N815 - the base class looks for it

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", "0"))) or b"{}")
        path = urlsplit(self.path).path
        if not self.client_address[0].startswith("127."):
            self.reply(403, b"")
        elif path == "/-/settings":
            self.hub.settings.update(body)
            self.hub.set_faults(*self.hub.faults)
            self.reply_json({})
        elif path.startswith("/-/refs/"):
            self.hub.refs.setdefault(path.removeprefix("/-/refs/"), {}).update(body)
            self.reply_json({})
        else:
            self.reply(404, b"")

    def _authorize(self, name: str, *, content: bool) -> Repository:
        """The repository, if the caller may see it; with content, if it may read its files."""
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        tokens = self.hub.setting("tokens")
        if token and token not in tokens:
            raise _Refusal(401, "", "Invalid credentials in Authorization header")
        granted = bool(token) and ("*" in tokens[token] or name in tokens[token])
        if name in self.hub.setting("forbidden").get(token, []):
            raise _Refusal(403, "", "Forbidden: pass a token with the right permissions")
        repository = self.hub.find_repository(name)
        if repository is None or (repository.private and not granted):
            # The hub doesn't tell a private repository from none.
            message = "Repository not found" if token else "Invalid username or password."
            raise _Refusal(404 if token else 401, "RepoNotFound", message)
        if content and repository.gated and not granted:
            message = f"Access to model {name} is restricted."
            raise _Refusal(403 if token else 401, "GatedRepo", message)
        return repository

    def _answer_api(self, path: str, query: dict[str, list[str]]) -> None:
        for word in ("/revision/", "/tree/", "/auth-check", "/refs"):
            name, found, rest = path.partition(word)
            if found:
                break
        else:
            name, word, rest = path, "/revision/", "main"
        repository = self._authorize(name, content=word == "/auth-check")
        if word == "/auth-check":
            self.reply_json({})
        elif word == "/refs":
            branches = [
                {"name": ref, "ref": f"refs/heads/{ref}", "targetCommit": self.hub.find_revision(repository, ref)[0]}
                for ref in repository.refs
            ]
            self.reply_json({"branches": branches, "tags": [], "converts": []})
        elif word == "/revision/":
            self._answer_info(repository, rest)
        else:
            self._answer_tree(repository, rest, query)

    def _answer_info(self, repository: Repository, revision: str) -> None:
        commit, folder = self.hub.find_revision(repository, revision)
        siblings = [{"rfilename": each.path} for each in self.hub.list_files(folder)]
        self.reply_json(
            {
                "_id": hashlib.sha256(repository.name.encode()).hexdigest()[:24],
                "id": repository.name,
                "modelId": repository.name,
                "sha": commit,
                "private": repository.private,
                "gated": "auto" if repository.gated else False,
                "disabled": False,
                "tags": [],
                "downloads": 0,
                "likes": 0,
                "createdAt": "2026-01-01T00:00:00.000Z",
                "lastModified": "2026-01-01T00:00:00.000Z",
                "siblings": siblings,
            },
            {"X-Repo-Commit": commit},
        )

    def _answer_tree(self, repository: Repository, rest: str, query: dict[str, list[str]]) -> None:
        # A branch may have slashes; they come quoted, and are unquoted by now.
        revision, _, below = rest.partition("/")
        if revision not in repository.refs and rest in repository.refs:
            revision, below = rest, ""
        commit, folder = self.hub.find_revision(repository, revision)
        recursive = query.get("recursive", ["false"])[0].lower() in ("true", "1")
        entries = self.hub.setting("entries")
        if entries is None:
            entries = _list_tree(self.hub.list_files(folder), below.strip("/"), recursive=recursive)
        page = min(int(query.get("limit", ["1000"])[0]), self.hub.setting("pageSize"))
        begin = int(query.get("cursor", ["0"])[0])
        headers = {"X-Repo-Commit": commit}
        if begin + page < len(entries):
            kept = "&".join(f"{name}={quote(value[0])}" for name, value in query.items() if name != "cursor")
            target = f"{self.own_url(self.hub.url)}{urlsplit(self.path).path}?{kept}&cursor={begin + page}"
            headers["Link"] = f'<{target}>; rel="next"'
        self.reply_json(entries[begin : begin + page], headers)

    def _answer_resolve(self, raw_path: str, fault: Fault | None) -> None:
        name, _, rest = raw_path.removeprefix(_RESOLVE_CACHE).partition("/resolve/")
        revision, _, path = rest.partition("/")
        repository = self._authorize(unquote(name).strip("/"), content=True)
        commit, folder = self.hub.find_revision(repository, unquote(revision))
        file = self.hub.find_file(folder, unquote(path))
        etag = f'"{file.sha256 if file.is_lfs else file.git_blob}"'
        headers = {"X-Repo-Commit": "f" * 40 if fault and fault.kind == "commit" else commit}
        if not file.is_lfs and self.hub.setting("resolveCache") and not raw_path.startswith("/api/"):
            target = f"{_RESOLVE_CACHE}{repository.name}/resolve/{commit}/{quote(file.path)}"
            self.reply(307, b"Temporary Redirect", {**headers, "ETag": etag, "Location": target})
            return
        if not file.is_lfs:
            headers.update({"ETag": etag, "Content-Type": "text/plain"})
            self.send_file(file, headers, fault, f"hub {unquote(raw_path)}")
            return
        place, bound = f"{repository.name}/{folder.name}/{file.path}", self.headers.get("Range") or ""
        link = self.hub.make_link(self.own_url(self.hub.data_url), place, bound)
        headers.update({"X-Linked-Size": str(file.size), "X-Linked-Etag": etag, "Location": link})
        self.reply(302, b"Found. Redirecting", headers)


def _list_tree(files: list[HubFile], below: str, *, recursive: bool) -> list[dict[str, Any]]:
    entries: dict[str, dict[str, Any]] = {}
    prefix = f"{below}/" if below else ""
    for file in files:
        if not file.path.startswith(prefix):
            continue
        parts = file.path.removeprefix(prefix).split("/")
        for depth in range(1, len(parts) if recursive else min(len(parts), 2)):
            folder = prefix + "/".join(parts[:depth])
            oid = hashlib.sha1(folder.encode(), usedforsecurity=False).hexdigest()
            entries.setdefault(folder, {"type": "directory", "oid": oid, "size": 0, "path": folder})
        if recursive or len(parts) == 1:
            entry: dict[str, Any] = {"type": "file", "oid": file.git_blob, "size": file.size, "path": file.path}
            if file.is_lfs:
                pointer = len(_make_pointer(file.sha256, file.size))
                entry["lfs"] = {"oid": file.sha256, "size": file.size, "pointerSize": pointer}
            entries[file.path] = entry
    return list(entries.values())


def main() -> None:
    """Serve until the process ends."""
    parser = argparse.ArgumentParser(description="A Hugging Face hub for tests.")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--name", help="host name in links; default: the host, or for 0.0.0.0 what was asked for")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--data-port", type=int, default=8081)
    given = parser.parse_args()
    hub = Hub(given.root, host=given.host, port=given.port, data_port=given.data_port, name=given.name)
    print(f"hub {hub.url} storage {hub.data_url}", flush=True)
    with hub:
        threading.Event().wait()


if __name__ == "__main__":
    main()
