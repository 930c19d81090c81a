"""The settings of fetching: storage classes and limits, as JSON in the environment. Called by `settings`.

Read strictly: what is wrong ends the operator at its start, with the name of the value in the chart.
"""

import json
import posixpath
import re
import ssl
from collections.abc import Mapping
from typing import Final, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from modelweights_operator.api.quantity import to_bytes
from modelweights_operator.api.sources import ENDPOINT
from modelweights_operator.domain.snapshot import FetchSettings, Reader, StorageClass
from modelweights_operator.errors import SettingsError

T = TypeVar("T")

STORAGE_CLASSES: Final = "MODELWEIGHTS_STORAGE_CLASSES"
TENANTS: Final = "MODELWEIGHTS_TENANTS"
FETCH: Final = "MODELWEIGHTS_FETCH"
EXTRA_CA: Final = "MODELWEIGHTS_EXTRA_CA"

MAX_CA_BYTES: Final = 128 * 1024 - len(EXTRA_CA) - 2
"""Linux takes no variable of more than 128 KiB, its name, '=' and the NUL at its end included."""

_PERCENT: Final = re.compile(r"[0-9]{1,2}(\.[0-9]{1,2})?%", re.ASCII)
_CERTIFICATE: Final = re.compile(r"-----BEGIN CERTIFICATE-----.*?(?:-----END CERTIFICATE-----|\Z)", re.DOTALL)
_PROXIES: Final = {"http": "HTTP_PROXY", "https": "HTTPS_PROXY", "no": "NO_PROXY"}


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, alias_generator=to_camel, extra="forbid", strict=True)


class _Class(_Strict):
    name: str = Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")
    root: str = ""
    claim_name: str = Field(default="", pattern=r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)?$")
    volumes_root: str = ""
    reserve: str | int = "12%"
    namespace_quota: str | int = 0
    default: bool = False


class _Tenant(_Strict):
    namespace: str
    storage_class: str = Field(alias="class")
    reads: str = ""
    claim_name: str = ""
    size: str | int = ""


class _Proxy(_Strict):
    http: str = ""
    https: str = ""
    no: str = ""


class _Fetch(_Strict):
    num_connections: int | None = Field(default=None, ge=1, le=64)
    max_bytes_per_second: int | str = 0
    max_concurrent_per_host: int = Field(default=20, ge=0, le=100_000)
    max_concurrent_per_node: int = Field(default=1, ge=1, le=100)
    hugging_face_endpoint: str = Field(default="", pattern=ENDPOINT)
    proxy: _Proxy = _Proxy()


def is_folder(path: str) -> bool:
    """Whether it is an absolute path, written out, and not the root itself."""
    # normpath keeps two leading slashes, as POSIX allows: '//' would be '/' itself.
    return path.startswith("/") and not path.startswith("//") and posixpath.normpath(path) == path and path != "/"


def read_storage_classes(environment: Mapping[str, str]) -> tuple[StorageClass, ...]:
    """Read the storage classes.

    Raises:
        SettingsError: They are wrong; the message names the class.
    """
    given = _parse(environment, STORAGE_CLASSES, "storage.classes", list[_Class], [])
    tenants = _parse(environment, TENANTS, "tenants", list[_Tenant], [])
    found = tuple(_storage_class(each, _readers(each.name, tenants)) for each in given)
    names = [each.name for each in found]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(f"storage.classes has {name} twice: name each class once")
    defaults = [each.name for each in found if each.is_default]
    if len(defaults) > 1:
        raise SettingsError(f"storage.classes has more than one default ({', '.join(defaults)}): mark one of them")
    _refuse_nested([each for each in found if each.shared_root])
    return found


def _readers(class_name: str, tenants: list[_Tenant]) -> tuple[Reader, ...]:
    """Those that the chart gives a volume with what another namespace has in the class."""
    return tuple(
        Reader(each.namespace, each.claim_name or each.reads, each.reads)
        for each in tenants
        if each.storage_class == class_name and each.reads
    )


def _storage_class(given: _Class, readers: tuple[Reader, ...]) -> StorageClass:
    what = f"storage.classes: {given.name}"
    if bool(given.root) == bool(given.claim_name):
        raise SettingsError(f"{what} needs exactly one of root and claimName")
    for name, root in (("root", given.root), ("volumesRoot", given.volumes_root)):
        if root and not is_folder(root):
            raise SettingsError(f"{what} has the {name} {root!r}: absolute, written out, and not / itself")
    if given.volumes_root and not given.claim_name:
        raise SettingsError(f"{what} has a volumesRoot, which is for classes with a claimName")
    quota = given.namespace_quota
    return StorageClass(
        name=given.name,
        root=given.root,
        claim=given.claim_name,
        reserve=_reserve(given.reserve, what),
        is_default=given.default,
        namespace_quota=_bytes(
            quota, f"{what} has the namespaceQuota {quota!r}: bytes such as 500Gi, or 0 for no bound"
        ),
        volumes_root=given.volumes_root,
        readers=readers,
    )


def _reserve(given: str | int, what: str) -> str:
    if isinstance(given, str) and _PERCENT.fullmatch(given):
        return given
    return str(_bytes(given, f"{what} has the reserve {given!r}: a percentage such as 12%, or bytes"))


def _refuse_nested(classes: list[StorageClass]) -> None:
    """The folder of a class would be a namespace's folder in the other."""
    for first in classes:
        for second in classes:
            outer, inner = f"{first.shared_root}/", f"{second.shared_root}/"
            if first is not second and inner.startswith(outer):
                raise SettingsError(
                    f"storage.classes: the root of {second.name} lies in that of {first.name}: give each a folder of its own"
                )


def read_fetch(environment: Mapping[str, str]) -> FetchSettings:
    """Read the limits, mirrors, proxies and certificates.

    Raises:
        SettingsError: One is wrong; the message names it.
    """
    given = _parse(environment, FETCH, "fetch", _Fetch, _Fetch())
    rate = given.max_bytes_per_second
    return FetchSettings(
        num_connections=given.num_connections or 0,
        max_bytes_per_second=_bytes(
            rate, f"fetch.maxBytesPerSecond is {rate!r}: bytes, such as 500M, or 0 for no bound"
        ),
        max_concurrent_per_host=given.max_concurrent_per_host,
        max_concurrent_per_node=given.max_concurrent_per_node,
        hugging_face_endpoint=given.hugging_face_endpoint.rstrip("/"),
        proxy=_proxy(given.proxy),
        extra_ca=_extra_ca(environment.get(EXTRA_CA, "")),
    )


def _proxy(given: _Proxy) -> dict[str, str]:
    for name, value in (("http", given.http), ("https", given.https)):
        if value and not _is_proxy(value):
            raise SettingsError(f"fetch.proxy.{name} isn't the URL of a proxy: write http://host:port")
        if "@" in value:
            raise SettingsError(
                f"fetch.proxy.{name} has a user name: it would stand in every staging pod, for all who read pods to see. "
                "Let the proxy know the nodes by their addresses"
            )
    values = {_PROXIES[name]: value for name, value in given.model_dump().items() if value}
    # Some libraries read the one, some the other.
    return {**values, **{name.lower(): value for name, value in values.items()}}


def _is_proxy(text: str) -> bool:
    try:
        url = urlsplit(text)
        return url.scheme == "http" and bool(url.hostname) and url.port != 0
    except ValueError:
        return False


def _extra_ca(text: str) -> str:
    if not text.strip():
        return ""
    if "-----BEGIN CERTIFICATE-----" not in text:
        raise SettingsError(
            "fetch.extraCABundle holds no certificate: put PEM there, -----BEGIN CERTIFICATE----- and so on"
        )
    if "PRIVATE KEY-----" in text:
        raise SettingsError("fetch.extraCABundle holds a private key: put only certificates there")
    size_bytes = len(text.encode())
    if size_bytes > MAX_CA_BYTES:
        raise SettingsError(
            f"fetch.extraCABundle has {size_bytes} bytes, and a variable of a container takes {MAX_CA_BYTES}: leave only the "
            "site's own authorities there, the usual ones are in the image"
        )
    try:
        # Comments around them may be in any language; within, PEM is ASCII.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata="\n".join(_CERTIFICATE.findall(text)))
    except (ssl.SSLError, ValueError, TypeError) as error:
        raise SettingsError(
            "fetch.extraCABundle holds a certificate that can't be read: put each there whole, as its authority gave it"
        ) from error
    return text


def _bytes(given: str | int, message: str) -> int:
    try:
        size_bytes = to_bytes(given)
    except ValueError as error:
        raise SettingsError(message) from error
    if size_bytes < 0:
        raise SettingsError(message)
    return size_bytes


def _parse(environment: Mapping[str, str], variable: str, value: str, kind: type[T], default: T) -> T:
    text = environment.get(variable, "")
    if not text:
        return default
    try:
        return TypeAdapter(kind).validate_python(json.loads(text))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, (value, *first["loc"])))
        raise SettingsError(f"{variable}: {where}: {first['msg']}") from error
    except ValueError as error:
        raise SettingsError(f"{variable} is no JSON: {error}") from error
