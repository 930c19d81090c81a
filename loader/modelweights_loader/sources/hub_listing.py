"""Resolves a revision and lists its files, by huggingface_hub over the connections of `http_ranges`.

Called by `huggingface` alone, the only one that imports the library: it takes 0.3 s. One transport for both means one set of
rules for TLS, proxies, time-outs, redirects of tokens and errors. The library's session is one for the whole process.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from typing import TYPE_CHECKING, Any, Protocol

from modelweights_loader import __version__
from modelweights_loader.errors import LoaderError, UsageError, WillNotWorkError
from modelweights_loader.sources.bounds import MAX_FILES, NamesBudget, check_json, refuse_number
from modelweights_loader.sources.contract import RemoteFile
from modelweights_loader.sources.hub_errors import HubRequest, explain_hub_status

if TYPE_CHECKING:
    import httpx2
    from huggingface_hub import HfApi

    from modelweights_loader.sources.http_ranges import Answer

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_BAD_STATUS = 400
# A page of the tree has 0.4 MB; the answer before it names all files.
_MAX_PAGE_BYTES = 16 << 20
# Of requests: a page has 1000 files, of some mirrors 50, and one may lead to the next without an end.
_MAX_PAGES = MAX_FILES // 50
# Read once, when huggingface_hub is imported: it then asks no other service, writes nothing and draws nothing.
_SETTINGS = (
    "HF_HUB_DISABLE_TELEMETRY",
    "HF_HUB_DISABLE_PROGRESS_BARS",
    "HF_HUB_DISABLE_UPDATE_CHECK",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN",
)
_session_lock = threading.Lock()


class Send(Protocol):
    """Sends a GET, with the token where it may go."""

    def __call__(self, url: str, headers: dict[str, str]) -> Answer:
        """See `huggingface.HuggingFaceSource`."""


def list_repository(request: HubRequest, send: Send, token: str | None) -> tuple[str, tuple[RemoteFile, ...]]:
    """Resolve a revision and list the files of its commit.

    Args:
        request: What to list.
        send: Sends requests; sees to the token itself.
        token: For the library, which makes headers of it.

    Returns:
        The commit, and the files.

    Raises:
        LoaderError: See `contract.Source.list_files`.
    """
    with _session_lock:
        hub = _import_library()
        transport = _Transport(request, send)
        hub.set_client_factory(lambda: _make_client(transport))
        try:
            return _list_commit(_make_api(hub, request, token), request, transport)
        except LoaderError:
            raise
        except hub.errors.HFValidationError as error:
            raise UsageError(f"{request.name!r} is no name of a repository; write org/name") from error
        # The library takes answers apart without looking, in places that are many.
        except Exception as error:
            message = f"{request.host} gives no listing as a hub does ({type(error).__name__}); check the endpoint"
            raise WillNotWorkError(message, reason="BadListing") from error
        finally:
            hub.close_session()


def _import_library() -> Any:
    for name in _SETTINGS:
        os.environ[name] = "1"
    try:
        import huggingface_hub  # noqa: PLC0415 - takes 0.3 s, and reads the environment
        import huggingface_hub.errors  # noqa: PLC0415 - see above
        import huggingface_hub.hf_api  # noqa: PLC0415 - its loggers are set up when it is imported, else only later
        from huggingface_hub import constants  # noqa: PLC0415 - see above
    except ImportError as error:
        message = f"huggingface_hub can't be imported ({error}); install modelweights-operator[sources]"
        raise WillNotWorkError(message, reason="LibraryMissing") from error
    # What it says names URLs, and HF_DEBUG makes each of its loggers talk.
    logger = logging.getLogger("huggingface_hub")
    logger.handlers, logger.propagate = [logging.NullHandler()], False
    if constants.is_offline_mode():
        message = (
            "HF_HUB_OFFLINE (or TRANSFORMERS_OFFLINE) is set; unset it where checkpoints are fetched (staging.env)"
        )
        raise WillNotWorkError(message, reason="Offline")
    return huggingface_hub


def _make_api(hub: Any, request: HubRequest, token: str | None) -> HfApi:
    api: HfApi = hub.HfApi(
        endpoint=request.endpoint,
        token=token or False,
        library_name="modelweights-loader",
        library_version=__version__,
    )
    return api


def _list_commit(api: HfApi, request: HubRequest, transport: _Transport) -> tuple[str, tuple[RemoteFile, ...]]:
    info = api.model_info(request.name, revision=request.revision)
    commit = info.sha
    if not isinstance(commit, str) or _COMMIT.fullmatch(commit) is None:
        raise WillNotWorkError(f"{request.host} names no commit for {request.revision!r}", reason="BadListing")
    if _COMMIT.fullmatch(request.revision) and commit != request.revision:
        message = f"{request.host} gives the commit {commit} for {request.revision}; check the mirror"
        raise WillNotWorkError(message, reason="RevisionNotFound")
    if info.gated:
        transport.gated = True
        _check_access(api, request.name)
    files, budget = [], NamesBudget(request.name)
    # Without `expand` it has all that is needed, in pages of 1000 and not of 50.
    for entry in api.list_repo_tree(request.name, recursive=True, revision=commit):
        budget.add((str(entry.path),))
        # Folders have no size.
        if hasattr(entry, "size"):
            files.append(_make_file(entry, commit, request))
    return commit, tuple(files)


def _check_access(api: HfApi, name: str) -> None:
    """Listings of gated repositories are public: without this the refusal would come after the plan."""
    try:
        api.auth_check(name)
    except WillNotWorkError as error:
        # A mirror may know nothing of it; then the first file tells.
        if error.reason not in {"RepositoryNotFound", "NotFound"}:
            raise


def _make_file(entry: Any, commit: str, request: HubRequest) -> RemoteFile:
    path, size, blob, lfs = entry.path, entry.size, entry.blob_id, entry.lfs
    sha256 = "" if lfs is None else lfs.sha256
    if lfs is not None:
        size, blob = lfs.size, ""
    well_formed = (
        isinstance(path, str)
        and type(size) is int
        and size >= 0
        and (_SHA256.fullmatch(sha256) if lfs is not None else _COMMIT.fullmatch(blob))
    )
    if not well_formed:
        message = f"{request.host} lists {str(path)[:200]!r} without a proper size or hash; check the mirror"
        raise WillNotWorkError(message, reason="BadListing")
    return RemoteFile(path, size, sha256=sha256, git_blob=blob, version=commit)


class _Transport:
    """What the library's client sends goes over our connections; each refusal ends the call, without tries of its own."""

    def __init__(self, request: HubRequest, send: Send) -> None:
        self._request, self._send = request, send
        self._count = 0
        self.gated = False

    def handle(self, sent: httpx2.Request) -> tuple[int, list[tuple[str, str]], bytes]:
        self._count += 1
        if self._count > _MAX_PAGES:
            refuse_number(self._request.host, f"{self._request.name} in more than {_MAX_PAGES} pages")
        # A page's link to the next one may lead elsewhere: whether the token goes along is decided anew for each request.
        headers = {"Accept": "application/json", "User-Agent": sent.headers["user-agent"]}
        answer = self._send(str(sent.url), headers)
        if answer.status >= _BAD_STATUS:
            answer.close()
            raise explain_hub_status(answer.status, answer.headers, self._request, gated=self.gated)
        content = answer.read_all(_MAX_PAGE_BYTES)
        check_json(content, self._request.host, "BadListing")
        return answer.status, answer.headers.items(), content


def _make_client(transport: _Transport) -> httpx2.Client:
    import httpx2  # noqa: PLC0415 - comes with the library

    class Bridge(httpx2.BaseTransport):
        def handle_request(self, request: httpx2.Request) -> httpx2.Response:
            status, headers, body = transport.handle(request)
            return httpx2.Response(status, headers=headers, content=body, request=request)

    return httpx2.Client(transport=Bridge(), follow_redirects=True, trust_env=False)
