"""A real S3 server: versitygw on loopback, with its buckets as folders below /var/tmp.

    with S3Server() as server:
        server.make_bucket("models")
        server.put("models", "some/model.safetensors", content)

It stands for S3 itself but for what it lacks: several regions, and keys that can be no path of a file system.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import http.client
import json
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from tests.cluster.build import ensure_program
from tests.servers.running import ServerProcess, free_ports

if TYPE_CHECKING:
    from collections.abc import Mapping

REGION = "us-east-1"
ACCESS_KEY = "test-access"
SECRET_KEY = "test-secret-5ba1c0"  # noqa: S105 - of a server that only this process knows
# Parts have at least 5 MiB, as everywhere.
PART_BYTES = 5 << 20
_EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()


class S3Server(ServerProcess):
    """The server; a context manager. Its root user may do everything."""

    def __init__(self) -> None:
        super().__init__("versitygw")
        (self.port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}"
        for name in ("buckets", "users", "credentials"):
            (self.home / name).mkdir()

    def command(self) -> list[str]:
        """Versitygw over folders."""
        arguments = ["--port", f"127.0.0.1:{self.port}", "--region", REGION, "--keep-alive", "--quiet"]
        arguments += ["--iam-dir", str(self.home / "users"), "posix", str(self.home / "buckets")]
        return [str(ensure_program("versitygw")), *arguments]

    def environment(self) -> Mapping[str, str]:
        """Who its root user is."""
        return {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}

    def answers(self) -> bool:
        """Whether it lists its buckets."""
        try:
            return self.request("GET", "/")[0] == http.client.OK
        except OSError:
            return False

    def credentials(self, **values: str) -> Path:
        """Write a folder of credentials as a Secret is mounted; the root user's where none are given."""
        folder = Path(tempfile.mkdtemp(dir=self.home / "credentials"))
        for name, value in (values or {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}).items():
            # A line end, as editors and `echo` leave it in a Secret.
            (folder / name).write_text(f"{value}\n")
        return folder

    def make_user(self, access: str, secret: str) -> None:
        """Make a user who may do nothing."""
        program = str(ensure_program("versitygw"))
        arguments = ["admin", "--access", ACCESS_KEY, "--secret", SECRET_KEY, "--endpoint-url", self.url, "create-user"]
        arguments += ["--access", access, "--secret", secret, "--role", "user"]
        subprocess.run([program, *arguments], check=True, capture_output=True, timeout=30)

    def make_bucket(self, name: str, *, anonymous: bool = False) -> None:
        """Make a bucket, which everybody may read where it is anonymous."""
        self._must("PUT", f"/{name}")
        if anonymous:
            resources = [f"arn:aws:s3:::{name}", f"arn:aws:s3:::{name}/*"]
            statement = {"Effect": "Allow", "Principal": "*", "Action": ["s3:GetObject", "s3:ListBucket"]}
            policy = {"Version": "2012-10-17", "Statement": [{**statement, "Resource": resources}]}
            self._must("PUT", f"/{name}", "policy=", json.dumps(policy).encode())

    def put(self, bucket: str, key: str, content: bytes) -> None:
        """Write an object in one request."""
        self._must("PUT", f"/{bucket}/{quote(key)}", "", content)

    def put_folder(self, bucket: str, prefix: str, folder: Path) -> None:
        """Write all files of a folder; large ones by multipart uploads, as every client does."""
        from obstore import put  # noqa: PLC0415 - only tests that upload need it
        from obstore.store import S3Store  # noqa: PLC0415 - see above

        store = S3Store(
            bucket,
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
            region=REGION,
            endpoint=self.url,
            client_options={"allow_http": True},
        )
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                large = path.stat().st_size > PART_BYTES
                key = f"{prefix}/{path.relative_to(folder).as_posix()}"
                put(store, key, path, use_multipart=large, chunk_size=PART_BYTES)

    def delete(self, bucket: str, key: str) -> None:
        """Take an object away."""
        self._must("DELETE", f"/{bucket}/{quote(key)}")

    def _must(self, method: str, path: str, query: str = "", body: bytes = b"") -> None:
        status, text = self.request(method, path, query, body)
        assert status < 300, f"{method} {path}: {status} {text[:500]!r}"

    def request(self, method: str, path: str, query: str = "", body: bytes = b"") -> tuple[int, bytes]:
        """Send a request signed by the root user (Signature Version 4)."""
        now = dt.datetime.now(dt.UTC)
        stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
        hashed = hashlib.sha256(body).hexdigest() if body else _EMPTY_SHA256
        headers = {"host": f"127.0.0.1:{self.port}", "x-amz-content-sha256": hashed, "x-amz-date": stamp}
        lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
        canonical = "\n".join([method, path, query, lines, ";".join(headers), hashed])
        scope = f"{day}/{REGION}/s3/aws4_request"
        wanted = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
        key = f"AWS4{SECRET_KEY}".encode()
        for part in scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        signature = hmac.new(key, wanted.encode(), "sha256").hexdigest()
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/{scope}, SignedHeaders={';'.join(headers)}, Signature={signature}"
        )
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, f"{path}?{query}" if query else path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()
