"""What the plain library does: `python obstore_get.py ENDPOINT BUCKET PREFIX FOLDER`, eight whole files at a time, no hashes."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from obstore.store import S3Store


def main(endpoint: str, bucket: str, prefix: str, folder: str) -> None:
    """Copy all objects below a prefix."""
    store = S3Store(
        bucket,
        prefix=prefix,
        endpoint=endpoint,
        region=os.environ["AWS_REGION"],
        access_key_id=os.environ["AWS_ACCESS_KEY_ID"],
        secret_access_key=os.environ["AWS_SECRET_ACCESS_KEY"],
        client_options={"allow_http": True},
    )
    Path(folder).mkdir()

    def copy(path: str) -> None:
        with (Path(folder) / path).open("wb", buffering=0) as file:
            for piece in store.get(path).stream(min_chunk_size=2**20):
                file.write(memoryview(piece))

    paths = [found["path"] for page in store.list() for found in page]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(copy, paths))


if __name__ == "__main__":
    main(*sys.argv[1:])
