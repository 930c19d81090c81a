"""ModelWeights and their ConfigMaps as they are known: what the watch told, and what the API server answered to own writes.

Kept and called by the reconciler, so that a cycle, of which a staging brings a dozen, asks for nothing that is known already.
Whoever else changes an object is heard of by the watch, or at the latest by the resync, which compares versions. A status is
written for the version that it was made from: one that was older than the API server's is refused, doubted, and read anew.
"""

from modelweights_operator import errors
from modelweights_operator.domain.snapshot import EngineConfigMap, Owner
from modelweights_operator.kube import convert, paths
from modelweights_operator.kube.client import Api, Json

Key = tuple[str, str]


class Objects:
    """The newest that is known of each ModelWeights.

    Args:
        api: The connection.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._known: dict[Key, Json | Owner] = {}
        self._versions: dict[Key, int] = {}
        self._doubted: set[Key] = set()
        self._config_maps: dict[Key, EngineConfigMap] = {}

    def heard(self, body: Json) -> bool:
        """An object came or was changed, by whomever.

        Returns:
            Whether that is news: neither known already nor older.
        """
        key = (body["metadata"]["namespace"], body["metadata"]["name"])
        version = convert.version(body["metadata"]["resourceVersion"])
        if version < 0:
            self.doubt(key)
            return True
        if version <= self._versions.get(key, -1):
            return False
        self._known[key], self._versions[key] = body, version
        return True

    def gone(self, key: Key) -> None:
        """An object went."""
        self._known.pop(key, None)
        self._versions.pop(key, None)
        self._config_maps.pop(key, None)
        self._doubted.discard(key)

    def doubt(self, key: Key) -> None:
        """Read it, and its ConfigMap, anew the next time."""
        self._doubted.add(key)
        self._config_maps.pop(key, None)

    def compare(self, key: Key, version: str) -> None:
        """The API server lists an object in this version: read it anew unless that is the one that is known."""
        self._config_maps.pop(key, None)
        if self._versions.get(key) != convert.version(version):
            self._doubted.add(key)

    def keys(self) -> set[Key]:
        """All that are known."""
        return set(self._known)

    async def read(self, key: Key) -> Owner | None:
        """The object, None when it is gone."""
        if key in self._doubted or key not in self._known:
            # What comes to be doubted while the answer is on its way stays doubted.
            self._doubted.discard(key)
            try:
                body = await self._api.get(paths.modelweights(*key))
            except errors.NotFoundError:
                self.gone(key)
                return None
            except errors.ApiError:
                self._doubted.add(key)
                raise
            self.heard(body)
            if key not in self._known:
                return convert.owner(body)
        known = self._known[key]
        if not isinstance(known, Owner):
            known = self._known[key] = convert.owner(known)
        return known

    async def read_config_map(self, key: Key, owner: Owner) -> EngineConfigMap | None:
        """The ConfigMap of the object's name. One of ours is asked for once a minute only, since nobody else writes it."""
        known = self._config_maps.get(key)
        if known is not None:
            return known
        try:
            body = await self._api.get(paths.config_map(*key))
        except errors.NotFoundError:
            return None
        found = convert.config_map(body, owner.uid)
        if found.ours:
            self._config_maps[key] = found
        return found

    def wrote_config_map(self, key: Key) -> None:
        """It is to be read anew."""
        self._config_maps.pop(key, None)
