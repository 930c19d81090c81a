"""Finds which files a web server has below a URL: HTTP itself has no lists.

Called by `objectstore_https`. Tried in this order, and the first that is there decides:

    manifest.json (ours)            its files, and no others
    SHA256SUMS, sha256sum.txt       its files, and those by one of the next ways
    the folder's index in JSON      as nginx gives it with autoindex_format json; folders below it too
    model.safetensors.index.json    its shards, and the usual small files that are there
    model.safetensors               it, and the usual small files that are there

A URL that names one of them has that one tried alone. Must not import any library.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol
from urllib.parse import quote

from modelweights_loader.errors import WillNotWorkError
from modelweights_loader.sources.bounds import (
    MAX_DOCUMENT_BYTES,
    NamesBudget,
    parse_json,
    refuse_number,
)
from modelweights_loader.sources.contract import RemoteFile
from modelweights_loader.sources.remote_manifest import NAMES as MANIFESTS
from modelweights_loader.sources.remote_manifest import read_manifest

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
# A URL that ends so names a file, every other one a folder.
FILES = (*MANIFESTS, ".safetensors.index.json", ".safetensors")
# What engines and tokenizers look for beside the weights.
COMPANIONS = frozenset(
    {
        *("config.json", "generation_config.json", "params.json", "quantization_config.json", "hf_quant_config.json"),
        *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "tekken.json", "special_tokens_map.json"),
        *("added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "chat_template.jinja", "chat_template.json"),
        *("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json", "modules.json"),
        *("sentence_bert_config.json", "1_Pooling/config.json"),
    }
)
_MAX_DEPTH = 8
# Each is a request.
_MAX_FOLDERS = 1000
_JSON = "application/json"


class Server(Protocol):
    """What of the source is needed here."""

    url: str

    def read_small(self, name: str, limit_bytes: int, accept: str = "") -> bytes | None:
        """Reads a small file; None where it is not there."""


class Names(NamedTuple):
    """Names of files that must be there, of those that may be, hashes, and where they are from."""

    required: set[str]
    optional: set[str]
    sha256: dict[str, str]
    said: str


def find_names(server: Server, leaf: str) -> Names:
    """Finds out which files there are.

    Args:
        server: Asked for small files.
        leaf: The file that the URL names; "" for a folder.

    Returns:
        Their names.

    Raises:
        WillNotWorkError: Nothing tells, or what tells can't be parsed.
        LoaderError: The server refuses.
    """
    found = _from_leaf(server, leaf) if leaf else _from_folder(server)
    if found is None:
        tried = leaf or ", ".join([*MANIFESTS, "an index in JSON", _INDEX, _SINGLE])
        message = f"{server.url}: nothing there tells which files there are ({tried}); put what `sha256sum *` prints there as SHA256SUMS"
        raise WillNotWorkError(message, reason="NotFound")
    names = found.required | found.optional
    NamesBudget(server.url).add(names)
    unsafe = sorted(name for name in names if _is_unsafe(name))
    if unsafe:
        message = f"{server.url}: {found.said} has the name {unsafe[0][:200]!r}; remove or rename that file"
        raise WillNotWorkError(message, reason="UnsafePath")
    return found


def _is_unsafe(name: str) -> bool:
    """Leads elsewhere, or is no text: JSON may hold halves of characters."""
    return bool(set(name.split("/")) & {"", ".", ".."}) or any("\ud800" <= one <= "\udfff" for one in name)


def _from_leaf(server: Server, leaf: str) -> Names | None:
    if leaf in MANIFESTS:
        return _from_manifest(server, leaf)
    if leaf.endswith(".index.json"):
        return _from_weights_index(server, leaf)
    return Names({leaf}, set(COMPANIONS), {}, leaf)


def _from_folder(server: Server) -> Names | None:
    for name in MANIFESTS:
        found = _from_manifest(server, name)
        if found is not None:
            return found
    return _from_folder_index(server) or _from_weights_index(server, _INDEX) or _from_single()


def _from_manifest(server: Server, name: str) -> Names | None:
    content = server.read_small(name, MAX_DOCUMENT_BYTES)
    if content is None:
        return None
    digests = read_manifest(RemoteFile(name, len(content)), lambda _: content, server.url.rstrip("/"))
    if digests is None:
        return None
    if name.endswith(".json"):
        return Names(set(digests), set(), digests, name)
    beside = _from_folder_index(server)
    others = beside.required if beside else set(COMPANIONS)
    return Names(set(digests), others - digests.keys(), digests, name)


def _from_folder_index(server: Server) -> Names | None:
    names: set[str] = set()
    budget = NamesBudget(server.url)
    # Folders to ask for: each is a request, and an index may lead from folder to folder without an end.
    waiting = [("", 0)]
    for count, (below, depth) in enumerate(waiting):
        files, folders = _read_folder_index(server, below)
        budget.add(files)
        names |= files
        waiting += [(folder, depth + 1) for folder in folders if depth < _MAX_DEPTH]
        if count >= _MAX_FOLDERS or len(waiting) > _MAX_FOLDERS + 1:
            refuse_number(server.url, f"more than {_MAX_FOLDERS} folders")
    return Names(names, set(), {}, "the folder's index") if names else None


def _read_folder_index(server: Server, below: str) -> tuple[set[str], list[str]]:
    """Paths of the files and of the folders in one folder."""
    files: set[str] = set()
    folders: list[str] = []
    # A name that is no text can't be asked for; `find_names` refuses it where it is a file's.
    entries = None
    if not _is_unsafe(below.rstrip("/") or "x"):
        content = server.read_small(below, MAX_DOCUMENT_BYTES, _JSON)
        entries = parse_json(content, f"{server.url}{below}", "TooManyFiles")
    for entry in entries if isinstance(entries, list) else ():
        if not (isinstance(entry, dict) and isinstance(entry.get("name"), str)):
            continue
        if entry.get("type") != "directory":
            files.add(below + entry["name"])
        elif not entry["name"].startswith("."):
            folders.append(f"{below}{entry['name']}/")
    return files, folders


def _from_weights_index(server: Server, name: str) -> Names | None:
    content = server.read_small(name, MAX_DOCUMENT_BYTES)
    if content is None:
        return None
    value = parse_json(content, f"{server.url}{quote(name)}", "BadManifest")
    shards = value.get("weight_map") if isinstance(value, dict) else None
    if not isinstance(shards, dict) or not shards or not all(isinstance(shard, str) for shard in shards.values()):
        message = f"{server.url}{quote(name)} names no shards; put the checkpoint's own index there"
        raise WillNotWorkError(message, reason="BadManifest")
    return Names({name, *shards.values()}, set(COMPANIONS), {}, name)


def _from_single() -> Names:
    # Whether it is there shows when its size is asked for; that of a large file must not be read here.
    return Names({_SINGLE}, set(COMPANIONS), {}, f"nothing but the usual name {_SINGLE}")
