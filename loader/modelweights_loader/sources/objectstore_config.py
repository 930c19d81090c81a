"""Makes the client of a bucket: URL, endpoint, region, and whose credentials.

Called by `objectstore`. Without a folder of credentials obstore looks for an identity by itself: environment variables
(AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN, AZURE_FEDERATED_TOKEN_FILE, ...), then the machine's metadata service.
"""

from __future__ import annotations

import ipaddress
import os
import urllib.parse
from typing import TYPE_CHECKING, Any, NamedTuple

from modelweights_loader.errors import UsageError, WillNotWorkError, describe_os_error
from modelweights_loader.sources.redaction import redact_url
from modelweights_loader.sources.secret_file import SECRET_MISSING, read_secret
from modelweights_loader.sources.tls import make_tls_context

if TYPE_CHECKING:
    from collections.abc import Mapping

    from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

    from modelweights_loader.sources.contract import SourceOptions

    Store = AzureStore | GCSStore | HTTPStore | S3Store

SCHEMES = ("s3", "gs", "az")
# File in the folder of credentials, and how obstore calls it.
_CREDENTIALS = {
    "s3": {
        "AWS_ACCESS_KEY_ID": "access_key_id",
        "AWS_SECRET_ACCESS_KEY": "secret_access_key",
        "AWS_SESSION_TOKEN": "session_token",
    },
    "gs": {"GOOGLE_SERVICE_ACCOUNT_KEY": "service_account_key", "GOOGLE_BEARER_TOKEN": "bearer_token"},
    "az": {
        "AZURE_STORAGE_ACCOUNT_NAME": "account_name",
        "AZURE_STORAGE_ACCOUNT_KEY": "account_key",
        "AZURE_STORAGE_SAS_TOKEN": "sas_key",
        "AZURE_CLIENT_ID": "client_id",
        "AZURE_CLIENT_SECRET": "client_secret",
        "AZURE_TENANT_ID": "tenant_id",
    },
}
_MAX_CA_BYTES = 16 * 2**20
_ACCOUNT = "account_name"


class Bucket(NamedTuple):
    """Where the objects are.

    Attributes:
        scheme: Of `SCHEMES`.
        name: Of the bucket or container.
        prefix: Without '/' at either end; "" for the whole bucket.
    """

    scheme: str
    name: str
    prefix: str

    @property
    def url(self) -> str:
        """As it is shown; it has nothing secret."""
        return f"{self.scheme}://{self.name}/{self.prefix}".rstrip("/")


class Opened(NamedTuple):
    """A client of obstore.

    Attributes:
        store: It.
        has_credentials: Whether it sends any.
        is_static: Whether they are an access key that needs no session token.
    """

    store: Store
    has_credentials: bool
    is_static: bool


def parse_bucket(url: str) -> Bucket:
    """Takes a URL such as `s3://bucket/some/prefix` apart.

    Args:
        url: With the name of the bucket as it is, not percent-encoded.

    Returns:
        Its parts.

    Raises:
        UsageError: It is no such URL.
    """
    scheme, separator, rest = url.partition("://")
    name, _, prefix = rest.partition("/")
    prefix = prefix.strip("/")
    parts = prefix.split("/") if prefix else []
    if scheme not in SCHEMES or not separator or not name or any(mark in name for mark in "@?#:") or "?" in prefix:
        message = f"{redact_url(url)} is not the URL of a bucket; write s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"
        raise UsageError(message)
    if any(part in {"", ".", ".."} for part in parts):
        message = f"{redact_url(url)} has an empty part, '.' or '..' in it; write the prefix as it is in the store"
        raise UsageError(message)
    return Bucket(scheme, name, prefix)


def read_credentials(folder: str, scheme: str) -> dict[str, str]:
    """Reads a folder with one file per credential, as a Secret is mounted.

    Args:
        folder: Read each time, since a Secret may be rotated.
        scheme: Whose credentials.

    Returns:
        By obstore's names.

    Raises:
        WillNotWorkError: The folder is missing or empty (SecretMissing), or has files of other names.
    """
    known = _CREDENTIALS[scheme]
    listed = ", ".join(known)
    try:
        # The kubelet's own links begin with '..'.
        names = sorted(name for name in os.listdir(folder) if not name.startswith(".."))
    except OSError as error:
        message = f"no credentials in {folder} ({describe_os_error(error)}); make the Secret, with keys of {listed}"
        raise WillNotWorkError(message, reason=SECRET_MISSING) from error
    if not names:
        message = f"no credentials in {folder}: it is empty; make the Secret, with keys of {listed}"
        raise WillNotWorkError(message, reason=SECRET_MISSING)
    unknown = [name for name in names if name not in known]
    if unknown:
        message = f"{folder} has {', '.join(map(repr, unknown[:5]))}, which {scheme}:// doesn't know; its keys may be {listed}"
        raise WillNotWorkError(message, reason="UnknownCredential")
    remedy = "put the credential itself into the Secret"
    return {known[name]: read_secret(os.path.join(folder, name), "credential", remedy) for name in names}


def allows_http(url: str) -> bool:
    """Tells whether a URL itself asks for a connection without encryption.

    Args:
        url: Of an endpoint; "" for the store's own.

    Returns:
        True for http://.
    """
    return url.lower().startswith("http://")


def client_options(options: SourceOptions, url: str) -> dict[str, Any]:
    """Makes the options of obstore's HTTP client.

    Args:
        options: Of the source.
        url: Endpoint, which decides whether http:// is allowed.

    Returns:
        For obstore.

    Raises:
        LoaderError: The file with the CA's certificate can't be read.
    """
    seconds = f"{max(round(options.stall_seconds * 1000), 1)}ms"
    found: dict[str, Any] = {
        "allow_http": allows_http(url),
        "connect_timeout": seconds,
        "read_timeout": seconds,
        # Of the whole request; a range of many GiB through a narrow line takes its time.
        "timeout": "30days",
        "user_agent": "modelweights-loader",
    }
    if options.ca_file:
        # For its checks alone: what obstore says of a bad one is no help.
        make_tls_context(options.ca_file)
        with open(options.ca_file, "rb") as file:
            found["root_certificate"] = file.read(_MAX_CA_BYTES)
    return found


def open_store(bucket: Bucket, options: SourceOptions) -> Opened:
    """Makes obstore's client for a bucket. Asks nothing of the network.

    Args:
        bucket: Which.
        options: Of the source.

    Returns:
        The client, which lists below the prefix.

    Raises:
        LoaderError: Credentials are missing, or the options contradict each other.
    """
    from obstore.exceptions import BaseError  # noqa: PLC0415 - obstore costs 30 ms and is not everywhere

    if options.anonymous and options.credentials_dir:
        message = "credentials and anonymous exclude each other; pass one of them"
        raise UsageError(message)
    _check_endpoint(options.endpoint)
    given = read_credentials(options.credentials_dir, bucket.scheme) if options.credentials_dir else {}
    config: dict[str, object] = {**given}
    if options.anonymous:
        config["skip_signature"] = True
    try:
        store = _make(bucket, options, config)
    except (BaseError, ValueError) as error:
        # Its text may hold a part of what it could not read.
        names = ", ".join(_CREDENTIALS[bucket.scheme])
        message = f"{bucket.url}: the credentials or the endpoint can't be used ({type(error).__name__}); check the values of {names}"
        raise WillNotWorkError(message, reason="Unauthorized") from None
    is_static = "secret_access_key" in given and "session_token" not in given
    return Opened(store, has_credentials=not options.anonymous, is_static=is_static)


def _check_endpoint(endpoint: str) -> None:
    if not endpoint:
        return
    parts = urllib.parse.urlsplit(endpoint)
    if parts.scheme.lower() not in {"http", "https"} or not parts.hostname or parts.query or "@" in parts.netloc:
        message = (
            f"{redact_url(endpoint)} is no endpoint; write https://host or http://host:port, without a user or a query"
        )
        raise UsageError(message)


def _make(bucket: Bucket, options: SourceOptions, config: Any) -> Store:
    from obstore import store  # noqa: PLC0415 - see open_store

    common: dict[str, Any] = {
        "prefix": bucket.prefix or None,
        "client_options": client_options(options, options.endpoint),
        # `fetch` tries again by itself, with more patience.
        "retry_config": {"max_retries": 0},
    }
    if bucket.scheme == "s3":
        config.update(_locate_s3(bucket, options))
        return store.S3Store(bucket.name, config=config, **common)
    if bucket.scheme == "gs":
        if options.endpoint:
            config["base_url"] = options.endpoint
        return store.GCSStore(bucket.name, config=config, **common)
    if options.endpoint:
        config["endpoint"] = options.endpoint
    if _ACCOUNT not in config:
        config[_ACCOUNT] = _azure_account(options.endpoint, os.environ)
    return store.AzureStore(bucket.name, config=config, **common)


def _locate_s3(bucket: Bucket, options: SourceOptions) -> dict[str, Any]:
    """Endpoint and style: obstore wants the bucket's name in the endpoint's host itself, unless it goes into the path."""
    located: dict[str, Any] = {}
    if options.region:
        located["region"] = options.region
    parts = urllib.parse.urlsplit(options.endpoint)
    # With dots in it no wildcard certificate has the name; an address has no names before it.
    in_path = options.path_style or "." in bucket.name or _is_address(parts.hostname)
    located["virtual_hosted_style_request"] = not in_path
    if options.endpoint:
        host = parts.netloc if in_path else f"{bucket.name}.{parts.netloc}"
        located["endpoint"] = f"{parts.scheme}://{host}{parts.path.rstrip('/')}"
    return located


def _is_address(host: str | None) -> bool:
    if host == "localhost":
        return True
    try:
        ipaddress.ip_address(host or "")
    except ValueError:
        return False
    return True


def _azure_account(endpoint: str, environment: Mapping[str, str]) -> str:
    """The account is not in az://container/prefix: it is in the environment, or the endpoint has it."""
    account = environment.get("AZURE_STORAGE_ACCOUNT_NAME")
    if account:
        return account
    parts = urllib.parse.urlsplit(endpoint)
    in_path = parts.path.strip("/").partition("/")[0]
    # As Azurite and Azure Stack have it: http://127.0.0.1:10000/account.
    if in_path:
        return in_path
    if parts.hostname and "." in parts.hostname and not _is_address(parts.hostname):
        return parts.hostname.partition(".")[0]
    message = "the account is not known; put AZURE_STORAGE_ACCOUNT_NAME into the Secret, or the account into the endpoint (https://ACCOUNT.blob.core.windows.net)"
    raise UsageError(message)
