"""A real nginx on loopback: https with ranges and without, plain http, an index in JSON, a token, a redirect.

    with WebServer() as server:
        (server.folder / "model").mkdir()
        ... files there are https://localhost:PORT/model/... at server.https, server.whole and http at server.http

A POST to /answer gets what `answer` was given. Below /index/ the same folder has an index in JSON, below /token/ it wants `Bearer sesame`, below /moved/ it redirects to
/ and below /away/ to http.
"""

from __future__ import annotations

import http.client
import signal
import ssl

from tests.cluster.pki import Authority
from tests.debian import Tool, ensure
from tests.servers.running import ServerProcess, free_ports

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


class WebServer(ServerProcess):
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

    # Its worker ends with it only if it may say so.
    end_signal = signal.SIGTERM

    def __init__(self) -> None:
        super().__init__("nginx")
        self.folder = self.home / "files"
        own = self.home / "own"
        for each in (self.folder, own):
            each.mkdir()
        authority = Authority(self.home / "authority")
        self.ca_file = authority.certificate
        self.other_ca_file = Authority(self.home / "other").certificate
        pair = authority.issue("server", "localhost", alternative_names=["localhost", "127.0.0.1"])
        self._port, whole, self.http_port = free_ports(3)
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

    def command(self) -> list[str]:
        """Nginx with the configuration above."""
        ensure([NGINX])
        return [str(NGINX.find()), "-p", str(self.home / "own"), "-c", str(self._configuration)]

    def answer(self, text: str) -> str:
        """Set what a POST gets; return the URL for it."""
        (self.home / "own/answer").write_text(text)
        return f"{self.https}/answer"

    def answers(self) -> bool:
        """Whether it speaks TLS."""
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
