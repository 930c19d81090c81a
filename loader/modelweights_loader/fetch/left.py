"""Finds a published checkpoint by its digest, and says which of its files is no longer as `fetch` left it.

Called by `commands.refresh`. Looks at names, sizes and times only; hashes nothing, writes nothing.
"""

from __future__ import annotations

from modelweights_loader.errors import BadCheckpointError, WillNotWorkError
from modelweights_loader.fetch.folders import open_home
from modelweights_loader.fetch.published import FETCH_FOLDER, KEY, Places, Published, is_same, read_published


def find_left(path: str, digest: str) -> str:
    """Finds the folder of a published checkpoint, with all of its files as they were left.

    Args:
        path: The home.
        digest: Of the manifest, with `sha256:`.

    Returns:
        The folder, below the home.

    Raises:
        WillNotWorkError: No such checkpoint was published there, or one of its files is gone.
        BadCheckpointError: One of its files was changed.
    """
    published = _find(path, digest)
    if published is None:
        message = f"{path} holds no published checkpoint {digest}; stage it again"
        raise WillNotWorkError(message, reason="NotFetched")
    with open_home(path, make=False) as home, Places(home) as places:
        for file in published.files:
            status = places.status(file.place)
            if status is None:
                message = f"{path}/{file.place} is gone since it was fetched; stage it again"
                raise WillNotWorkError(message, reason="NotFound")
            if not is_same(status, file.finished):
                message = (
                    f"{path}/{file.place} was changed since it was fetched (it had {file.finished.size_bytes} bytes, has "
                    f"{status.st_size}); stage it again"
                )
                raise BadCheckpointError(message, reason="FileChanged")
    return published.folder


def _find(path: str, digest: str) -> Published | None:
    try:
        with open_home(path, make=False) as home, home.folder(FETCH_FOLDER) as folder:
            names = [name for name in folder.names() if KEY.fullmatch(name.removesuffix(".json"))]
            found = (read_published(folder, name) for name in names if name.endswith(".json"))
            return next((each for each in found if each is not None and each.manifest_digest == digest), None)
    except FileNotFoundError:
        return None
