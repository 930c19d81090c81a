"""Brings a checkpoint from a source to this node, verified: see `docs/design/0007-fetch.md` for the folders.

Called by `commands.fetch`, and as a library.

    lock --> there already? --> list --> choose --> room? --> reuse, fetch, verify --> publish
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from typing import TYPE_CHECKING, NamedTuple

from modelweights_loader.fetch.adoption import find_unrecorded
from modelweights_loader.fetch.choice import IndexedSource, choose_listed, filter_files, read_index
from modelweights_loader.fetch.damage import find_damage
from modelweights_loader.fetch.folders import Folder, error_of, open_home
from modelweights_loader.fetch.journal import Journal, Record, identify
from modelweights_loader.fetch.listing import is_pinned, list_pinned, run_pinned
from modelweights_loader.fetch.lock import hold_lock
from modelweights_loader.fetch.plan import HAVE, RESUME, Plan, check_room, make_plan
from modelweights_loader.fetch.publication import PLAIN, Fetched, finish_publication, list_snapshot_parts, publish
from modelweights_loader.fetch.published import (
    FETCH_FOLDER,
    FILES_FOLDER,
    KEY,
    Published,
    Reusable,
    find_reusable,
    must_verify,
    note_verified,
    read_published,
    read_reusable,
)
from modelweights_loader.fetch.reservation import reserve_room
from modelweights_loader.fetch.retry import Backoff
from modelweights_loader.fetch.reuse import link_reusable
from modelweights_loader.fetch.ticker import Ticker
from modelweights_loader.fetch.transfer import Transfer
from modelweights_loader.fetch.workers import Counts, Download, DownloadOptions
from modelweights_loader.interruptible import call
from modelweights_loader.memory import Reserve, measure_room

if TYPE_CHECKING:
    from collections.abc import Callable

    from modelweights_loader.progress import Progress
    from modelweights_loader.sources.contract import Listing, RemoteFile, Source

FETCHED = "Fetched"
ALREADY_THERE = "AlreadyThere"
PLANNED = "Planned"
PAGES_KEPT, PAGES_KEPT_PARTLY, PAGES_DROPPED = "Kept", "KeptPartly", "Dropped"
DEFAULT_RESERVE = Reserve(percent=5.0)


class FetchOptions(NamedTuple):
    """What to fetch and how.

    Attributes:
        url: Of the source; with the endpoint it names it.
        revision: That was asked for, or "".
        endpoint: Of a mirror, or "".
        include: Patterns; empty means what an engine would load.
        exclude: Patterns.
        layout: `Plain` or `HuggingFaceCache`.
        reserve: What is to stay free on the disk.
        download: How to fetch.
        dry_run: Only plan.
        verify: Hash what is published already.
        lock_seconds: How long to wait for another fetch.
    """

    url: str
    revision: str = ""
    endpoint: str = ""
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    layout: str = PLAIN
    reserve: Reserve = DEFAULT_RESERVE
    download: DownloadOptions = DownloadOptions()
    dry_run: bool = False
    verify: bool = False
    lock_seconds: float = 300.0


class FetchResult(NamedTuple):
    """What was done.

    Attributes:
        reason: `Fetched`, `AlreadyThere` or `Planned`.
        described: The source in words.
        revision: Resolved.
        size_bytes: Of all files.
        file_count: Their number.
        published: Where it is; None for `Planned`.
        plan: What was to be done; None for `AlreadyThere`.
        fetched_bytes: That came from the source, also what was of no use.
        reused_bytes: That were on this node.
        seconds: From the beginning of the fetch to the publication; 0 where nothing was to be done.
        retries: Attempts that failed.
        page_cache: `Kept`, `KeptPartly`, `Dropped`, or "" where nothing was written.
    """

    reason: str
    described: str
    revision: str
    size_bytes: int
    file_count: int
    published: Published | None = None
    plan: Plan | None = None
    fetched_bytes: int = 0
    reused_bytes: int = 0
    seconds: float = 0.0
    retries: int = 0
    page_cache: str = ""


def fetch(
    path: str,
    source: Source,
    options: FetchOptions,
    on_progress: Callable[[Progress], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
) -> FetchResult:
    """Fetches a checkpoint and publishes it below a home. Blocks.

    Args:
        path: The home; made where it isn't there.
        source: Where from; the caller closes it.
        options: What and how.
        on_progress: Told every tenth, and every 30 s.
        say: Told what people should know meanwhile.

    Returns:
        What was done.

    Raises:
        LoaderError: It failed; what was verified so far is gone on with by the next call.
    """
    run = _Run(path, IndexedSource(source), options, on_progress, say)
    try:
        return run_pinned(run.run, options.revision, say)
    except OSError as error:
        # Somebody else renames and removes below the home at this moment.
        raise error_of(error, "fetch to", path) from error


class _Prepared(NamedTuple):
    """What is to be fetched: the key of source, revision and filters, what the source has, and what is done with each file."""

    key: str
    listing: Listing
    plan: Plan


class _Run:
    def __init__(
        self,
        path: str,
        source: IndexedSource,
        options: FetchOptions,
        on_progress: Callable[[Progress], None],
        say: Callable[[str], None],
    ) -> None:
        self._path = path
        self._source = source
        self._options = options
        self._on_progress = on_progress
        self._say = say
        # A version names the same content only at the same place.
        self._source_id = _hash([options.url.rstrip("/"), options.endpoint.rstrip("/")])
        self._damaged: set[str] = set()
        self._counts = Counts()

    def run(self) -> FetchResult:
        with contextlib.ExitStack() as opened:
            if self._options.dry_run:
                return self._plan_only(opened)
            home = opened.enter_context(open_home(self._path, make=True))
            fetch_folder = opened.enter_context(home.folder(FETCH_FOLDER, make=True))
            opened.enter_context(hold_lock(fetch_folder, self._options.lock_seconds, self._say))
            found = self._prepare(home, finish=True)
            if isinstance(found, FetchResult):
                return found
            check_room(self._path, found.plan, self._options.reserve)
            return self._fetch(home, found)

    def _plan_only(self, opened: contextlib.ExitStack) -> FetchResult:
        try:
            home = opened.enter_context(open_home(self._path, make=False))
        except FileNotFoundError:
            home = None
        found = self._prepare(home, finish=False)
        if isinstance(found, FetchResult):
            return found
        listing, plan = found.listing, found.plan
        return FetchResult(
            reason=PLANNED,
            described=listing.described,
            revision=listing.revision,
            size_bytes=plan.size_bytes,
            file_count=len(plan.files),
            plan=plan,
            reused_bytes=plan.have_bytes,
        )

    def _prepare(self, home: Folder | None, *, finish: bool) -> FetchResult | _Prepared:
        """What an earlier run published, if that is what is asked for; else what is to be done.

        Args:
            home: None where it isn't there.
            finish: Whether to finish what a killed run had begun to publish.
        """
        found = self._find_pinned(home, finish=finish) if home is not None else None
        if found is not None:
            return found
        listing = self._list()
        key = self._key(listing.revision)
        found = self._find_published(home, key, finish=finish) if home is not None else None
        return found or _Prepared(key, listing, self._plan(home, key, listing))

    def _key(self, revision: str) -> str:
        options = self._options
        return _hash([self._source_id, revision, list(options.include), list(options.exclude), options.layout])

    def _find_pinned(self, home: Folder, *, finish: bool) -> FetchResult | None:
        """Nobody need be asked for what can't change: this works also while the source is away."""
        revision = self._options.revision
        return self._find_published(home, self._key(revision), finish=finish) if is_pinned(revision) else None

    def _find_published(self, home: Folder, key: str, *, finish: bool) -> FetchResult | None:
        """What an earlier run published, if all of it is still there; else notes what of it is damaged."""
        if finish:
            finish_publication(home, key)
        try:
            with home.folder(FETCH_FOLDER) as folder:
                published = read_published(folder, f"{key}.json")
                verify = self._options.verify or must_verify(folder)
        except FileNotFoundError:
            return None
        if published is None:
            return None
        damaged = call(lambda: find_damage(home, published, verify=verify))
        if damaged:
            self._damaged = damaged
            self._say(f"{len(damaged)} published files are damaged, gone or foreign, such as {min(damaged)}: made anew")
            return None
        if finish:
            with home.folder(FETCH_FOLDER) as folder:
                # A kill may have left what was replaced.
                folder.remove_tree(key)
                if verify:
                    note_verified(folder)
        return FetchResult(
            reason=ALREADY_THERE,
            described=published.described,
            revision=published.revision,
            size_bytes=published.size_bytes,
            file_count=len(published.files),
            published=published,
            reused_bytes=published.size_bytes,
        )

    def _list(self) -> Listing:
        listing = list_pinned(self._source, self._make_backoff(), self._say)
        listing = listing._replace(name=listing.name or _name_by_url(self._options.url))
        list_snapshot_parts(self._options.layout, listing.name, listing.revision, listing.described)
        return listing

    def _make_backoff(self) -> Backoff:
        return Backoff(self._options.download.max_attempts, self._options.download.first_wait_seconds)

    def _plan(self, home: Folder | None, key: str, listing: Listing) -> Plan:
        options, described = self._options, listing.described
        reusable: dict[tuple[object, ...], Reusable] = {}
        if home is not None and home.has_folder(FETCH_FOLDER):
            reusable = find_reusable(home, self._source_id, self._damaged)

        def get_index(file: RemoteFile) -> bytes | bytearray:
            if home is not None:
                reusable.update(self._adopt(home, [file], reusable))
            content = read_reusable(home, file, reusable) if home is not None else None
            if content is not None:
                return content
            return read_index(self._source, file, described, self._make_backoff(), time.sleep)

        files = filter_files(listing.files, options.include, options.exclude)
        chosen = choose_listed(files, described, lambda file: call(lambda: get_index(file)))
        wanted = files if options.include else chosen
        if home is not None:
            reusable |= call(lambda: self._adopt(home, wanted, reusable))
        return make_plan(home, key, wanted, reusable)

    def _adopt(
        self, home: Folder, wanted: list[RemoteFile], reusable: dict[tuple[object, ...], Reusable]
    ) -> dict[tuple[object, ...], Reusable]:
        threads = self._options.download.num_connections
        return find_unrecorded(home, wanted, reusable, self._source_id, num_threads=threads, say=self._say)

    def _fetch(self, home: Folder, prepared: _Prepared) -> FetchResult:
        key, listing, plan = prepared
        began = time.monotonic()
        counts = self._counts = Counts()
        with home.folder(FETCH_FOLDER) as fetch_folder, fetch_folder.folder(key, make=True) as own:
            with own.folder(FILES_FOLDER, make=True) as files:
                plan = link_reusable(home, files, plan)
                _remove_other_keys(fetch_folder, key)
                transfers, page_cache = self._make_transfers(plan)
                reserve_room(files, transfers, self._options.reserve, self._say)
                with contextlib.closing(Journal(own, _records_of(plan))) as journal:
                    download = Download(self._source, listing.described, files, self._options.download, counts)
                    ticker = Ticker(plan, counts, self._on_progress)
                    if transfers:
                        download.run(transfers, journal, ticker.tick)
                    ticker.end()
            finished = {one.file.path: one.finished for one in plan.files if one.finished} | download.finished
        fetched = Fetched(
            key=key,
            layout=self._options.layout,
            revision=listing.revision,
            ref=self._options.revision,
            name=listing.name,
            described=listing.described,
            source=self._source_id,
            files=[one.file for one in plan.files],
            finished=finished,
            damaged=self._damaged,
        )
        published = call(lambda: publish(home, fetched))
        with home.folder(FETCH_FOLDER) as fetch_folder:
            note_verified(fetch_folder)
        have_bytes = sum(one.have_bytes for one in plan.files if one.state == HAVE)
        return FetchResult(
            reason=FETCHED,
            described=listing.described,
            revision=listing.revision,
            size_bytes=published.size_bytes,
            file_count=len(published.files),
            published=published,
            plan=plan,
            fetched_bytes=counts.fetched_bytes,
            reused_bytes=have_bytes + counts.proven_bytes,
            seconds=time.monotonic() - began,
            retries=counts.retries,
            page_cache=page_cache,
        )

    def _make_transfers(self, plan: Plan) -> tuple[list[Transfer], str]:
        """Files to fetch; those that fit into memory, in the order in which prefetch reads them, stay in the page cache."""
        left = measure_room(0).room_bytes
        transfers = []
        for one in plan.files:
            left -= max(0, one.file.size_bytes)
            if one.state != HAVE:
                transfer = Transfer(one.file, self._options.download.part_bytes, one.prefix, one.chunks)
                transfer.keeps_pages = left >= 0
                transfers.append(transfer)
        kept = sum(transfer.keeps_pages for transfer in transfers)
        if not transfers:
            return transfers, ""
        if kept == len(transfers):
            return transfers, PAGES_KEPT
        return transfers, PAGES_KEPT_PARTLY if kept else PAGES_DROPPED


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:32]


def _name_by_url(url: str) -> str:
    """The last two parts of a path, as mirrors of the hub in object stores have them."""
    parts = [part for part in url.partition("://")[2].partition("?")[0].split("/") if part]
    return "/".join(parts[-2:])


def _remove_other_keys(fetch_folder: Folder, key: str) -> None:
    """What was begun of other revisions and is of use has a second name by now."""
    for name in fetch_folder.names():
        if KEY.fullmatch(name) and name != key:
            fetch_folder.remove_tree(name)


def _records_of(plan: Plan) -> dict[str, Record]:
    return {
        one.file.path: Record(identify(one.file), one.prefix, one.finished, one.chunks)
        for one in plan.files
        if one.state in {HAVE, RESUME}
    }
