"""A real nginx on loopback: https with ranges and without, plain http, an index in JSON, a token, a redirect.

    with WebServer() as server:
        (server.folder / "model").mkdir()
        ... files there are https://localhost:PORT/model/... at server.https, server.whole and http at server.http

A POST to /answer gets what `answer` was given. Below /index/ the same folder has an index in JSON, below /token/ it wants `Bearer sesame`, below /moved/ it redirects to
/ and below /away/ to http.
"""

from __future__ import annotations

import http.client
import shutil
import socket
import ssl
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster.pki import Authority
from tests.debian import Tool, ensure
from tests.polling import wait_for

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

NGINX = Tool("nginx", "nginx-light")
TOKEN = "sesame"  # noqa: S105 - of a server for tests

_CONFIGURATION = """\
daemon off;
user root;
pid {own}/pid;
error_log {own}/error.log;
worker_processes 1;
events {{ worker_connections 256; }}
http {{
    access_log off;
    default_type application/octet-stream;
    types {{ application/json json; text/plain txt; }}
    client_body_temp_path {own}/body; proxy_temp_path {own}/proxy; fastcgi_temp_path {own}/fastcgi;
    uwsgi_temp_path {own}/uwsgi; scgi_temp_path {own}/scgi;
    gzip on; gzip_types *; gzip_min_length 1;
    ssl_certificate {certificate}; ssl_certificate_key {key};
    root {files};
    server {{
        listen 127.0.0.1:{https} ssl;
        location /index/ {{ alias {files}/; autoindex on; autoindex_format json; }}
        location /token/ {{ alias {files}/; if ($http_authorization != "Bearer {token}") {{ return 401; }} }}
        location /moved/ {{ rewrite ^/moved/(.*)$ https://localhost:{whole}/$1 redirect; }}
        location /away/ {{ rewrite ^/away/(.*)$ http://localhost:{http}/$1 redirect; }}
        location = /answer {{ default_type text/xml; alias {own}/answer; error_page 405 =200 $uri; }}
        location /around/ {{ return 302 https://localhost:{https}/around/; }}
    }}
    server {{ listen 127.0.0.1:{whole} ssl; max_ranges 0; }}
    server {{
        listen 127.0.0.1:{http};
        location /index/ {{ alias {files}/; autoindex on; autoindex_format json; }}
    }}
}}
"""


class WebServer:
    """The server; a context manager.

    Attributes:
        folder: What it serves.
        https: Base URL with ranges.
        whole: Base URL of the server that gives whole files only.
        http: Base URL without TLS.
        http_port: Of the last one, for a proxy of ours before it.
        ca_file: Of the authority that signed its certificate.
        other_ca_file: Of another one.
    """

    def __init__(self) -> None:
        self._home = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="web-server-"))
        self.folder = self._home / "files"
        own = self._home / "own"
        for each in (self.folder, own):
            each.mkdir()
        authority = Authority(self._home / "authority")
        self.ca_file = authority.certificate
        self.other_ca_file = Authority(self._home / "other").certificate
        pair = authority.issue("server", "localhost", alternative_names=["localhost", "127.0.0.1"])
        probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
        self._port, whole, self.http_port = [probe.getsockname()[1] for probe in probes]
        for probe in probes:
            probe.close()
        self.https, self.whole = f"https://localhost:{self._port}", f"https://localhost:{whole}"
        self.http = f"http://localhost:{self.http_port}"
        self._configuration = own / "nginx.conf"
        self._configuration.write_text(
            _CONFIGURATION.format(
                own=own,
                files=self.folder,
                certificate=pair.certificate,
                key=pair.key,
                https=self._port,
                whole=whole,
                http=self.http_port,
                token=TOKEN,
            )
        )
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        ensure([NGINX])
        log = self._home / "own/output"
        with log.open("wb") as output:
            command = [str(NGINX.find()), "-p", str(self._home / "own"), "-c", str(self._configuration)]
            self._process = subprocess.Popen(command, stdout=output, stderr=output)
        if not wait_for(self._answers, 30):
            text = log.read_text(errors="replace")
            self.__exit__(None, None, None)
            raise AssertionError(f"nginx does not answer:\n{text[-2000:]}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            # Its worker ends with it only if it may say so.
            self._process.terminate()
            self._process.wait(10)
        shutil.rmtree(self._home, ignore_errors=True)

    def answer(self, text: str) -> str:
        """Set what a POST gets; return the URL for it."""
        (self._home / "own/answer").write_text(text)
        return f"{self.https}/answer"

    def _answers(self) -> bool:
        context = ssl.create_default_context(cafile=str(self.ca_file))
        connection = http.client.HTTPSConnection("localhost", self._port, timeout=5, context=context)
        try:
            connection.request("GET", "/")
            connection.getresponse().read()
        except OSError:
            return False
        finally:
            connection.close()
        return True
