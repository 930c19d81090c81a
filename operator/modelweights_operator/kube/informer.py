"""A store of objects that is kept equal to what the API server has: list, then watch, list again when in doubt.

Called by the reconciler for Jobs, staging pods and gated pods, whose selectors keep the rest of the cluster's pods off
the wire (kopf sends no selectors). Each object is turned into a small frozen value at once; the JSON is let go.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from modelweights_operator import errors
from modelweights_operator.kube import backoff
from modelweights_operator.kube.client import Api, Json

T = TypeVar("T")
Key = tuple[str, str]

PAGE: Final = "500"
MAX_BACKOFF_SECONDS: Final = 30.0
EXPECT_SECONDS: Final = 10.0
_STEADY_SECONDS: Final = 10.0
"""What went well for so long starts the back-off over: a watch that is cut now and then is no failing server."""
_TOO_MANY: Final = 429

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Item(Generic[T]):
    """An object in the store, with the group by which it is looked up."""

    group: str
    value: T


class Informer(Generic[T]):
    """List and watch one kind of object.

    Args:
        api: The connection.
        path: The collection.
        query: Label and field selectors.
        convert: Makes an item of an object; None leaves it out.
        on_change: Called with the item that came, changed or went, after the store was brought up to date.
    """

    def __init__(
        self,
        api: Api,
        path: str,
        query: Mapping[str, str],
        convert: Callable[[Json], Item[T] | None],
        on_change: Callable[[Item[T]], None],
    ) -> None:
        self._api, self._path, self._query = api, path, dict(query)
        self._convert, self._on_change = convert, on_change
        self._items: dict[Key, Item[T]] = {}
        self._groups: defaultdict[str, dict[Key, T]] = defaultdict(dict)
        self._expected: dict[Key, tuple[Item[T], float]] = {}
        self._version = ""
        self._heard = time.monotonic()
        self.synced = asyncio.Event()

    @property
    def quiet_seconds(self) -> float:
        """Time since the API server last answered: an event, a bookmark, a list or a new watch."""
        return time.monotonic() - self._heard

    def values(self) -> list[T]:
        """All objects."""
        return [item.value for item in self._items.values()]

    def get(self, key: Key) -> T | None:
        """One object by namespace and name."""
        item = self._items.get(key)
        return item.value if item else None

    def group(self, group: str) -> list[T]:
        """The objects of a group, with those that were just created and of which the watch hasn't told yet."""
        expected = {key: item.value for key, item in self._awaited().items() if item.group == group}
        return list({**expected, **self._groups.get(group, {})}.values())

    def known(self) -> list[T]:
        """All objects, likewise with those that were just created."""
        expected = {key: item.value for key, item in self._awaited().items()}
        return list({**expected, **{key: item.value for key, item in self._items.items()}}.values())

    def _awaited(self) -> dict[Key, Item[T]]:
        now = time.monotonic()
        self._expected = {key: (item, until) for key, (item, until) in self._expected.items() if until >= now}
        return {key: item for key, (item, _) in self._expected.items()}

    def expect(self, body: Json) -> None:
        """Count an object that the caller just created as there, so that the next plan doesn't miss it.

        For EXPECT_SECONDS at most: should it be created and deleted before this call, the watch will not tell again.
        """
        item = self._convert(body)
        if item is not None and _key(body) not in self._items:
            self._expected[_key(body)] = (item, time.monotonic() + EXPECT_SECONDS)

    async def run(self) -> None:
        """List and watch until cancelled. Errors are retried with jitter, as the server asks where it does."""
        failures = 0
        while True:
            began, error = time.monotonic(), await self._attempt()
            steady = time.monotonic() - began >= _STEADY_SECONDS
            failures = 0 if error is None or steady else failures + 1
            if steady and (error is None or isinstance(error, errors.GoneError)):
                continue
            asked = error.retry_after_seconds if error is not None else None
            delay = backoff.delay(max(failures - 1, 0), MAX_BACKOFF_SECONDS, asked)
            if error is not None:
                _log.warning("%s; again in %.1f s", error, delay)
            await asyncio.sleep(delay)

    async def _attempt(self) -> errors.ApiError | None:
        """List, if there is need, and watch until that ends; the error by which it did."""
        try:
            if not self._version:
                await self._list()
            await self._watch()
        except errors.ApiError as error:
            if error.status != _TOO_MANY:
                # A list is the remedy whatever the cause: a watch that broke off may have missed something.
                self._version = ""
            return error
        return None

    async def _list(self) -> None:
        found: dict[Key, Item[T]] = {}
        query = {**self._query, "limit": PAGE}
        while True:
            page = await self._api.get(self._path, **query)
            self._heard = time.monotonic()
            for body in page.get("items") or []:
                item = self._convert(body)
                if item is not None:
                    found[_key(body)] = item
            query["continue"] = page["metadata"].get("continue") or ""
            if not query["continue"]:
                break
        self._replace(found)
        self.synced.set()
        self._version = page["metadata"]["resourceVersion"]

    def _replace(self, found: dict[Key, Item[T]]) -> None:
        gone = [key for key in self._items if key not in found]
        for key in gone:
            self._put(key, None)
        for key, item in found.items():
            self._put(key, item)

    async def _watch(self) -> None:
        async for event in self._api.watch(self._path, resourceVersion=self._version, **self._query):
            self._heard = time.monotonic()
            body = event["object"]
            if event["type"] != "BOOKMARK":
                self._put(_key(body), None if event["type"] == "DELETED" else self._convert(body))
            self._version = body["metadata"]["resourceVersion"]
        self._heard = time.monotonic()

    def _put(self, key: Key, item: Item[T] | None) -> None:
        self._expected.pop(key, None)
        former = self._items.get(key)
        if former == item:
            return
        if former is not None:
            del self._items[key]
            self._groups[former.group].pop(key)
            if not self._groups[former.group]:
                del self._groups[former.group]
        if item is not None:
            self._items[key] = item
            self._groups[item.group][key] = item.value
        changed = item or former
        if changed is not None:
            self._on_change(changed)


def _key(body: Json) -> Key:
    return body["metadata"].get("namespace", ""), body["metadata"]["name"]
