"""Settings: read from the environment, and what is wrong is named."""

import json
import subprocess
import sys
from typing import Any

import pytest

from modelweights_operator import fetch_settings
from modelweights_operator.domain.snapshot import FetchSettings, Reader, StorageClass
from modelweights_operator.errors import SettingsError
from modelweights_operator.settings import Settings, from_environment

IMAGE = {"MODELWEIGHTS_LOADER_IMAGE": "loader:1"}


def test_defaults() -> None:
    assert from_environment(IMAGE) == Settings("loader:1", "IfNotPresent", (), 8080, 0, 180.0)


def test_all_of_them() -> None:
    environment = {
        **IMAGE,
        "MODELWEIGHTS_IMAGE_PULL_POLICY": "Never",
        "MODELWEIGHTS_HOST_PATH_ROOTS": "/models:/data/weights:",
        "MODELWEIGHTS_HEALTH_PORT": "9",
        "MODELWEIGHTS_METRICS_PORT": "10",
        "MODELWEIGHTS_QUIET_SECONDS": "7",
    }
    assert from_environment(environment) == Settings("loader:1", "Never", ("/models", "/data/weights"), 9, 10, 7.0)


@pytest.mark.parametrize(
    ("text", "budget"),
    [("", ""), ("1%", "1%"), ("80%", "80%"), ("100%", "100%"), ("4Ki", "4096"), ("500000000000", "500000000000")],
)
def test_the_budget_of_a_nodes_memory_is_percent_or_bytes(text: str, budget: str) -> None:
    assert from_environment({**IMAGE, "MODELWEIGHTS_NODE_MEMORY_BUDGET": text}).memory_budget == budget


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("MODELWEIGHTS_LOADER_IMAGE", ""),
        ("MODELWEIGHTS_HOST_PATH_ROOTS", "/"),
        ("MODELWEIGHTS_HOST_PATH_ROOTS", "models"),
        ("MODELWEIGHTS_HOST_PATH_ROOTS", "/models/"),
        ("MODELWEIGHTS_HOST_PATH_ROOTS", "/models/../etc"),
        ("MODELWEIGHTS_HOST_PATH_ROOTS", "/ok://"),
        ("MODELWEIGHTS_IMAGE_PULL_POLICY", "Sometimes"),
        ("MODELWEIGHTS_HEALTH_PORT", "0"),
        ("MODELWEIGHTS_HEALTH_PORT", "-1"),
        ("MODELWEIGHTS_HEALTH_PORT", "http"),
        ("MODELWEIGHTS_HEALTH_PORT", "²"),
        ("MODELWEIGHTS_HEALTH_PORT", "65536"),
        ("MODELWEIGHTS_METRICS_PORT", "65536"),
        ("MODELWEIGHTS_METRICS_PORT", "off"),
        ("MODELWEIGHTS_QUIET_SECONDS", ""),
        ("MODELWEIGHTS_LEASE_SECONDS", "2"),
        ("MODELWEIGHTS_LEASE_SECONDS", "301"),
        ("MODELWEIGHTS_NODE_MEMORY_BUDGET", "0%"),
        ("MODELWEIGHTS_NODE_MEMORY_BUDGET", "101%"),
        ("MODELWEIGHTS_NODE_MEMORY_BUDGET", "0"),
        ("MODELWEIGHTS_NODE_MEMORY_BUDGET", "-1"),
        ("MODELWEIGHTS_NODE_MEMORY_BUDGET", "most"),
    ],
)
def test_a_wrong_setting_is_named(variable: str, value: str) -> None:
    with pytest.raises(SettingsError, match=variable):
        from_environment({**IMAGE, variable: value})


# --- fetching -----------------------------------------------------------------------------------------------------


PEM = """-----BEGIN CERTIFICATE-----
MIIBhTCCASugAwIBAgIUXfn5yQzUvxEy9mST3esmL0k5vdowCgYIKoZIzj0EAwIw
HzEdMBsGA1UEAwwUbW9kZWx3ZWlnaHRzLXRlc3QtY2EwHhcNMjYxMTMwMTYxNTIz
WhcNMjYxMjMwMTYyNTIzWjAfMR0wGwYDVQQDDBRtb2RlbHdlaWdodHMtdGVzdC1j
YTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABKfuZGZTIsku24WYrJ6V5a3QkD0z
T8BRdiuDotpU9itqQbMTmo8ThCk+Upf/sR+NxruJaf76Bz+xbC6h5WPl0q+jRTBD
MBIGA1UdEwEB/wQIMAYBAf8CAQAwDgYDVR0PAQH/BAQDAgEGMB0GA1UdDgQWBBTz
NTLtB6kc/A3w6vHqBbAiA2JH+zAKBggqhkjOPQQDAgNIADBFAiBGVmwiD964ZX7t
yFkweZMkb/Zz1VH8tvQpqol93pq0MwIhAOLutBhiPnUttalmf3Vpa8Z2I1rFdF/D
sjfoP82Wbr8g
-----END CERTIFICATE-----
"""
"""Of an authority that never vouched for anything."""


def with_classes(*classes: Any) -> dict[str, str]:
    return {**IMAGE, "MODELWEIGHTS_STORAGE_CLASSES": json.dumps(classes)}


def with_fetch(**fields: Any) -> dict[str, str]:
    return {**IMAGE, "MODELWEIGHTS_FETCH": json.dumps(fields)}


def test_storage_classes() -> None:
    classes = (
        {"name": "nvme", "root": "/data", "default": True},
        {"name": "b", "root": "/data2", "reserve": "10Gi"},
        {"name": "c", "claimName": "models", "reserve": "2.5%"},
        {"name": "d", "claimName": "tenant", "volumesRoot": "/data3"},
    )
    assert from_environment(with_classes(*classes)).storage_classes == (
        StorageClass("nvme", root="/data", reserve="12%", is_default=True),
        StorageClass("b", root="/data2", reserve=str(10 * 2**30)),
        StorageClass("c", claim="models", reserve="2.5%"),
        StorageClass("d", claim="tenant", volumes_root="/data3"),
    )


def test_who_reads_what_others_have_in_a_class() -> None:
    """As the chart's `tenants` have it; those that stage there are none."""
    given = [{"name": "tenant", "claimName": "models", "volumesRoot": "/v"}, {"name": "nvme", "root": "/data"}]
    tenants = [
        {"namespace": "catalogue", "class": "tenant", "size": "2Ti"},
        {"namespace": "web", "class": "tenant", "reads": "catalogue"},
        {"namespace": "app", "class": "tenant", "reads": "catalogue", "claimName": "weights", "size": 10},
    ]
    tenant, nvme = from_environment(
        {**with_classes(*given), "MODELWEIGHTS_TENANTS": json.dumps(tenants)}
    ).storage_classes
    assert tenant.readers == (Reader("web", "catalogue", "catalogue"), Reader("app", "weights", "catalogue"))
    assert nvme.readers == ()


def test_fetch_settings() -> None:
    assert from_environment(IMAGE).fetch == FetchSettings()
    environment = with_fetch(
        numConnections=4,
        maxBytesPerSecond="500M",
        maxConcurrentPerHost=0,
        maxConcurrentPerNode=2,
        huggingFaceEndpoint="https://mirror/hf/",
        proxy={"http": "", "https": "http://proxy:3128", "no": "10.0.0.0/8,.local"},
    )
    assert from_environment({**environment, "MODELWEIGHTS_EXTRA_CA": PEM}).fetch == FetchSettings(
        num_connections=4,
        max_bytes_per_second=500_000_000,
        max_concurrent_per_host=0,
        max_concurrent_per_node=2,
        hugging_face_endpoint="https://mirror/hf",
        proxy={
            "HTTPS_PROXY": "http://proxy:3128",
            "NO_PROXY": "10.0.0.0/8,.local",
            "https_proxy": "http://proxy:3128",
            "no_proxy": "10.0.0.0/8,.local",
        },
        extra_ca=PEM,
    )


NVME = {"name": "nvme", "root": "/data"}
WRONG = {
    "no name": (with_classes({"root": "/data"}), "storage.classes.0.name: Field required"),
    "a name that is none": (with_classes({"name": "A b", "root": "/data"}), "storage.classes.0.name"),
    "neither root nor claim": (with_classes({"name": "a"}), "a needs exactly one of root and claimName"),
    "both": (with_classes({**NVME, "claimName": "c"}), "nvme needs exactly one of root and claimName"),
    "a relative root": (with_classes({"name": "a", "root": "data"}), "a has the root 'data': absolute"),
    "the root itself": (with_classes({"name": "a", "root": "/"}), "a has the root '/'"),
    "a root that climbs": (with_classes({"name": "a", "root": "/data/../etc"}), "written out"),
    "a reserve that is none": (with_classes({**NVME, "reserve": "much"}), "nvme has the reserve 'much'"),
    "a reserve of all": (with_classes({**NVME, "reserve": "100%"}), "nvme has the reserve '100%'"),
    "a name twice": (with_classes(NVME, {"name": "nvme", "root": "/b"}), "has nvme twice"),
    "two defaults": (
        with_classes({**NVME, "default": True}, {"name": "b", "root": "/b", "default": True}),
        "more than one default (nvme, b)",
    ),
    "a root in a root": (with_classes(NVME, {"name": "b", "root": "/data/b"}), "the root of b lies in that of nvme"),
    "one root for two": (with_classes(NVME, {"name": "b", "root": "/data"}), "lies in that of"),
    "volumes in a root": (
        with_classes(NVME, {"name": "b", "claimName": "c", "volumesRoot": "/data/b"}),
        "the root of b lies in that of nvme",
    ),
    "one root for both kinds": (
        with_classes(NVME, {"name": "b", "claimName": "c", "volumesRoot": "/data"}),
        "lies in that of",
    ),
    "one root for two classes of volumes": (
        with_classes(*({"name": name, "claimName": name, "volumesRoot": "/data"} for name in "ab")),
        "lies in that of",
    ),
    "volumes that climb": (
        with_classes({"name": "a", "claimName": "c", "volumesRoot": "/data/.."}),
        "a has the volumesRoot '/data/..'",
    ),
    "volumes without claims": (with_classes({**NVME, "volumesRoot": "/v"}), "nvme has a volumesRoot"),
    "a key of no class": (with_classes({**NVME, "size": 1}), "storage.classes.0.size: Extra inputs"),
    "classes that are no JSON": ({**IMAGE, "MODELWEIGHTS_STORAGE_CLASSES": "{"}, "MODELWEIGHTS_STORAGE_CLASSES is no JSON"),
    "no connections": (with_fetch(numConnections=0), "fetch.numConnections"),
    "a rate that is none": (with_fetch(maxBytesPerSecond="fast"), "fetch.maxBytesPerSecond is 'fast'"),
    "a negative rate": (with_fetch(maxBytesPerSecond=-1), "fetch.maxBytesPerSecond is -1"),
    "no fetch on a node": (with_fetch(maxConcurrentPerNode=0), "fetch.maxConcurrentPerNode"),
    "a mirror with a password": (with_fetch(huggingFaceEndpoint="https://a:b@mirror"), "fetch.huggingFaceEndpoint"),
    "a proxy of another protocol": (with_fetch(proxy={"https": "socks5://p"}), "fetch.proxy.https isn't the URL of a proxy"),
    "a proxy with a password": (with_fetch(proxy={"http": "http://a:b@p"}), "fetch.proxy.http has a user name"),
    "an unknown key": (with_fetch(speed=1), "fetch.speed: Extra inputs"),
    "no certificate": ({**IMAGE, "MODELWEIGHTS_EXTRA_CA": "x"}, "fetch.extraCABundle holds no certificate"),
    "a broken certificate": ({**IMAGE, "MODELWEIGHTS_EXTRA_CA": PEM.replace("MII", "MIJ")}, "a certificate that can't be read"),
    "half a certificate": ({**IMAGE, "MODELWEIGHTS_EXTRA_CA": PEM + PEM[:200]}, "a certificate that can't be read"),
    "a certificate with other letters": (
        {**IMAGE, "MODELWEIGHTS_EXTRA_CA": PEM.replace("MII", "MÏI")}, "a certificate that can't be read"
    ),
    "a proxy without a host's end": (with_fetch(proxy={"https": "http://[x"}), "fetch.proxy.https isn't the URL of a proxy"),
    "a proxy of a wrong port": (with_fetch(proxy={"https": "http://p:99999"}), "fetch.proxy.https isn't the URL of a proxy"),
    "a mirror without a host's end": (with_fetch(huggingFaceEndpoint="https://[x"), "fetch.huggingFaceEndpoint"),
    "a mirror with a query": (with_fetch(huggingFaceEndpoint="https://mirror/?a=b"), "fetch.huggingFaceEndpoint"),
    "a rate that is a word": (with_fetch(maxBytesPerSecond=True), "fetch.maxBytesPerSecond"),
    "a number in quotes": (with_fetch(numConnections="8"), "fetch.numConnections"),
    "a reserve of more than all": (with_classes({**NVME, "reserve": "105%"}), "nvme has the reserve '105%'"),
    "two slashes for a root": (with_classes({"name": "a", "root": "//data"}), "a has the root '//data'"),
    "a private key": ({**IMAGE, "MODELWEIGHTS_EXTRA_CA": f"{PEM}-----BEGIN PRIVATE KEY-----"}, "holds a private key"),
    "too many certificates": ({**IMAGE, "MODELWEIGHTS_EXTRA_CA": PEM * 2500}, "a variable of a container takes 131049"),
}  # fmt: skip


@pytest.mark.parametrize(("environment", "expected"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_with_fetching_is_named(environment: dict[str, str], expected: str) -> None:
    with pytest.raises(SettingsError) as caught:
        from_environment(environment)
    assert expected in str(caught.value)
    assert "a:b@" not in str(caught.value)


@pytest.mark.parametrize(("more", "fits"), [(0, True), (1, False)])
def test_the_bound_of_certificates_is_that_of_the_kernel(more: int, fits: bool) -> None:  # noqa: FBT001
    environment = {fetch_settings.EXTRA_CA: "x" * (fetch_settings.MAX_CA_BYTES + more)}
    try:
        started = subprocess.run([sys.executable, "-c", ""], env=environment, check=False, timeout=60).returncode == 0
    except OSError:
        started = False
    assert started == fits


def test_certificates_may_have_comments_in_any_language() -> None:
    text = f"# Autorité de certification\n{PEM}"
    assert from_environment({**IMAGE, "MODELWEIGHTS_EXTRA_CA": text}).fetch.extra_ca == text
