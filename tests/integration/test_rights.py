"""The chart on a real API server: it applies, and the service account has the rights that the operator asks for."""

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.aio import client as aio_client
from kubernetes.aio import config as aio_config

from modelweights_operator import errors
from modelweights_operator.domain.snapshot import FetchSettings, StorageClass
from modelweights_operator.kube import rights
from modelweights_operator.kube.client import Api
from modelweights_operator.settings import from_environment
from tests.cluster.api import ApiServer
from tests.cluster.pki import Authority
from tests.integration.client import Kube
from tests.integration.conftest import SYSTEM, render
from tests.polling import poll

BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
OTHER = "rights"


@pytest.fixture(scope="module")
def other_release(server: ApiServer, chart: str) -> Path:
    """A second release, whose roles the tests may break; the kubeconfig of its service account."""
    assert chart
    manifests = render(OTHER, "crds.enabled=false", "access.enabled=true")
    server.kubectl("apply", "--server-side", "-f", "-", input=manifests)
    return server.kubeconfig_for_service_account(SYSTEM, OTHER)


async def check(kubeconfig: Path) -> rights.Features:
    configuration = aio_client.Configuration()
    await aio_config.load_kube_config(config_file=str(kubeconfig), client_configuration=configuration)
    async with Api(aio_client.ApiClient(configuration)) as api:
        return await rights.check(api)


def reviewed(user: Kube, rule: rights.Rule) -> bool:
    attributes = {"group": rule.group, "resource": rule.resource, "verb": rule.verb, "subresource": rule.subresource}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = user.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
    return bool(answer["status"].get("allowed"))


@pytest.fixture
def user(other_release: Path) -> Kube:
    return Kube(other_release)


class Roles:
    """Takes bindings and rules away, and puts them back."""

    def __init__(self, admin: Kube, user: Kube) -> None:
        self._admin, self._user = admin, user
        self._bindings: list[dict[str, object]] = []
        self._core = admin.get(f"{ROLES}/{OTHER}-core")["rules"]

    def unbind(self, feature: str, probe: rights.Rule) -> None:
        binding = self._admin.get(f"{BINDINGS}/{OTHER}-{feature}")
        self._bindings.append(
            {key: binding[key] for key in ("roleRef", "subjects")} | {"metadata": {"name": binding["metadata"]["name"]}}
        )
        self._admin.delete(f"{BINDINGS}/{OTHER}-{feature}")
        poll(f"{probe} taken away", lambda: not reviewed(self._user, probe))

    def take_rule(self, rule: rights.Rule) -> None:
        resource = f"{rule.resource}/{rule.subresource}" if rule.subresource else rule.resource
        rules = []
        for each in self._core:
            if rule.group in each["apiGroups"] and resource in each["resources"]:
                others = [name for name in each["resources"] if name != resource]
                rules += [{**each, "resources": others}] if others else []
                verbs = [verb for verb in each["verbs"] if verb != rule.verb]
                rules += [{**each, "resources": [resource], "verbs": verbs}] if verbs else []
            else:
                rules.append(each)
        self._admin.patch(f"{ROLES}/{OTHER}-core", {"rules": rules})
        poll(f"{rule} taken away", lambda: not reviewed(self._user, rule))

    def restore(self) -> None:
        for binding in self._bindings:
            self._admin.create(BINDINGS, binding)
        self._admin.patch(f"{ROLES}/{OTHER}-core", {"rules": self._core})
        for rule in (
            *rights.REQUIRED,
            rights.LIFT_PODS,
            rights.LABEL_NODES,
            rights.HOLD_OBJECTS,
            rights.WATCH_NAMESPACES,
            rights.READ_LOGS,
        ):
            poll(f"{rule} given back", lambda rule=rule: reviewed(self._user, rule))  # type: ignore[misc]


@pytest.fixture
def roles(admin: Kube, user: Kube) -> Iterator[Roles]:
    roles = Roles(admin, user)
    yield roles
    roles.restore()


def test_applying_the_chart_twice_changes_nothing(chart: str) -> None:
    assert "serverside-applied" in chart


async def test_the_charts_rights_are_enough(account_kubeconfig: Path) -> None:
    assert await check(account_kubeconfig) == (True, True, True, True, True)


async def test_without_the_core_role_every_missing_rule_is_named(other_release: Path, roles: Roles) -> None:
    roles.unbind("core", rights.REQUIRED[0])
    with pytest.raises(errors.MissingRightsError) as caught:
        await check(other_release)
    assert [str(rule) for rule in rights.REQUIRED if str(rule) not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("feature", "rule", "expected"),
    [
        ("gate", rights.LIFT_PODS, (False, True, True, True, True)),
        ("node-labels", rights.LABEL_NODES, (True, False, True, True, True)),
        ("cleanup", rights.HOLD_OBJECTS, (True, True, False, True, True)),
        ("access", rights.WATCH_NAMESPACES, (True, True, True, False, True)),
        ("progress", rights.READ_LOGS, (True, True, True, True, False)),
    ],
)
async def test_without_a_features_role_the_operator_does_without(
    other_release: Path,
    roles: Roles,
    feature: str,
    rule: rights.Rule,
    expected: tuple[bool, bool, bool, bool, bool],
) -> None:
    roles.unbind(feature, rule)
    assert await check(other_release) == expected


@pytest.mark.parametrize("rule", rights.REQUIRED, ids=str)
async def test_one_missing_rule_is_named_alone(other_release: Path, roles: Roles, rule: rights.Rule) -> None:
    roles.take_rule(rule)
    with pytest.raises(errors.MissingRightsError) as caught:
        await check(other_release)
    assert str(caught.value) == f"the service account lacks these rules of a ClusterRole: {rule}"


@pytest.mark.parametrize(
    ("values", "absent"),
    [
        ("gate.enabled=false", "gate"),
        ("nodeLabels.enabled=false", "node-labels"),
        ("cleanup.enabled=false", "cleanup"),
        ("progress.enabled=false", "progress"),
    ],
)
def test_a_feature_that_is_off_asks_for_no_right_and_makes_no_policy(values: str, absent: str) -> None:
    manifests = [each for each in yaml.safe_load_all(render("x", values)) if each]
    found = {(each["kind"], each["metadata"]["name"]) for each in manifests}
    policy = {"gate": "x-pods", "node-labels": "x-nodes", "cleanup": "x-modelweights"}.get(absent, "")
    assert not {("ClusterRole", f"x-{absent}"), ("ValidatingAdmissionPolicy", policy)} & found
    assert ("ClusterRole", "x-core") in found


def test_namespaces_are_read_only_where_access_is_on() -> None:
    def resources(*settings: str) -> set[str]:
        manifests = [each for each in yaml.safe_load_all(render("x", *settings)) if each]
        rules = [rule for each in manifests if each["kind"] == "ClusterRole" for rule in each["rules"]]
        return {resource for rule in rules for resource in rule["resources"]}

    assert "namespaces" not in resources()
    assert "namespaces" in resources("access.enabled=true")


def test_the_operator_may_read_no_secret_and_delete_nothing_of_users(account: Kube, namespace: str) -> None:
    refused = [
        ("GET", f"/api/v1/namespaces/{namespace}/secrets"),
        ("GET", f"/api/v1/namespaces/{namespace}/secrets/hub"),
        ("GET", "/api/v1/secrets"),
        ("POST", f"/api/v1/namespaces/{namespace}/secrets"),
        ("PATCH", f"/api/v1/namespaces/{namespace}/secrets/hub"),
        ("DELETE", f"/api/v1/namespaces/{namespace}/secrets/hub"),
        ("PUT", f"/apis/modelweights.io/v1alpha1/namespaces/{namespace}/modelweights/x"),
        ("DELETE", f"/apis/modelweights.io/v1alpha1/namespaces/{namespace}/modelweights/x"),
        ("DELETE", f"/api/v1/namespaces/{namespace}/pods/x"),
        ("GET", f"/api/v1/namespaces/{namespace}/pods/x"),
        ("POST", f"/api/v1/namespaces/{namespace}/pods/x/exec"),
        ("POST", f"/api/v1/namespaces/{namespace}/pods"),
        ("DELETE", f"/api/v1/namespaces/{namespace}/configmaps/x"),
        ("DELETE", "/api/v1/nodes/x"),
        ("PATCH", f"/api/v1/namespaces/{namespace}"),
        ("GET", "/api/v1/persistentvolumes"),
        ("POST", f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"),
    ]
    statuses = [
        account.ask(
            method,
            path,
            None if method == "GET" else {},
            "application/merge-patch+json" if method == "PATCH" else "application/json",
        )[0]
        for method, path in refused
    ]
    assert statuses == [403] * len(refused)


def test_no_role_of_the_chart_names_secrets_or_everything() -> None:
    manifests = [each for each in yaml.safe_load_all(render("x", "prepareNodes.enabled=true")) if each]
    rules = [rule for each in manifests if each["kind"] in ("ClusterRole", "Role") for rule in each["rules"]]
    assert rules
    assert not {"secrets", "*"} & {resource for rule in rules for resource in rule["resources"]}
    assert "*" not in {verb for rule in rules for verb in rule["verbs"]}


def test_the_roots_of_storage_classes_are_prepared_and_settings_reach_the_operator() -> None:
    classes = [
        "storage.classes[0].name=nvme",
        "storage.classes[0].root=/data",
        "storage.classes[0].namespaceQuota=1Gi",
        "operator.imagePullSecrets[0].name=pull",
        "storage.classes[1].name=t",
        "storage.classes[1].claimName=c",
    ]
    manifests = [
        each
        for each in yaml.safe_load_all(render("x", "prepareNodes.enabled=true", "hostPathRoots={/models}", *classes))
        if each
    ]
    found = {
        each["kind"]: each["spec"]["template"]["spec"]
        for each in manifests
        if each["kind"] in ("DaemonSet", "Deployment")
    }
    assert [volume["hostPath"]["path"] for volume in found["DaemonSet"]["volumes"]] == ["/models", "/data"]
    environment = {each["name"]: each.get("value", "") for each in found["Deployment"]["containers"][0]["env"]}
    settings = from_environment(environment)
    assert (settings.namespace, settings.pull_secrets) == (SYSTEM, ("pull",))
    assert settings.storage_classes == (
        StorageClass("nvme", root="/data", namespace_quota=2**30),
        StorageClass("t", claim="c"),
    )
    assert settings.fetch == FetchSettings()
    assert (settings.label_nodes, settings.startup_taint) == (True, False)
    assert {"key": "modelweights.io/unstaged", "operator": "Exists"} in found["DaemonSet"]["tolerations"]


def test_what_nodes_are_patched_for_reaches_the_operator() -> None:
    """The right is one and the same: which of the two it is for, the settings say."""
    manifests = yaml.safe_load_all(render("x", "nodeLabels.enabled=false", "startupTaint.enabled=true"))
    kinds = {(each["kind"], each["metadata"]["name"]): each for each in manifests if each}
    (container,) = kinds["Deployment", "x"]["spec"]["template"]["spec"]["containers"]
    settings = from_environment({each["name"]: each.get("value", "") for each in container["env"]})
    assert (settings.label_nodes, settings.startup_taint) == (False, True)
    assert ("ClusterRole", "x-node-labels") not in kinds
    assert kinds["ClusterRole", "x-startup-taint"]["rules"] == [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]}
    ]


def test_certificates_reach_the_operator_as_they_are(tmp_path: Path) -> None:
    pem = Authority(tmp_path / "authority").certificate.read_text(encoding="ascii")
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"fetch": {"extraCABundle": pem, "maxBytesPerSecond": "500M"}}))
    manifests = [each for each in yaml.safe_load_all(render("x", values=values)) if each]
    (deployment,) = (each for each in manifests if each["kind"] == "Deployment")
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    settings = from_environment({each["name"]: each.get("value", "") for each in container["env"]})
    assert (settings.fetch.extra_ca, settings.fetch.max_bytes_per_second) == (pem, 500_000_000)
    values.write_text(yaml.safe_dump({"fetch": {"extraCABundle": pem * 2500}}))
    with pytest.raises(subprocess.CalledProcessError) as caught:
        render("x", values=values)
    assert "fetch.extraCABundle is too long" in caught.value.stderr


# --- tenants ----------------------------------------------------------------------------------------------------------

CLASSES = [
    {"name": "nvme", "root": "/data", "default": True},
    {"name": "tenant", "claimName": "models", "volumesRoot": "/volumes"},
    {"name": "own", "claimName": "mine"},
]
CATALOGUE = {"namespace": "catalogue", "class": "tenant", "size": "2Ti"}


def render_tenants(tmp_path: Path, *tenants: Mapping[str, object]) -> list[dict[str, Any]]:
    values = tmp_path / "values.yaml"
    given = {"storage": {"classes": CLASSES}, "tenants": tenants, "prepareNodes": {"enabled": True}}
    values.write_text(yaml.safe_dump(given))
    return [each for each in yaml.safe_load_all(render("x", values=values)) if each]


def test_each_tenant_gets_a_volume_that_no_other_claim_can_take(
    server: ApiServer, admin: Kube, chart: str, tmp_path: Path
) -> None:
    assert chart
    reader = {"namespace": "team-a", "class": "tenant", "reads": "catalogue"}
    other = {"namespace": "team-b", "class": "nvme", "reads": "catalogue", "claimName": "cat"}
    found = render_tenants(tmp_path, CATALOGUE, reader, other)
    volumes = {each["metadata"]["name"]: each["spec"] for each in found if each["kind"] == "PersistentVolume"}
    claims = {
        (each["metadata"]["namespace"], each["metadata"]["name"]): each["spec"]
        for each in found
        if each["kind"] == "PersistentVolumeClaim"
    }
    bound = {(spec["claimRef"]["namespace"], spec["claimRef"]["name"]): name for name, spec in volumes.items()}
    assert bound == {key: spec["volumeName"] for key, spec in claims.items()}
    assert set(bound) == {("catalogue", "models"), ("team-a", "catalogue"), ("team-b", "cat")}
    own, read = volumes[bound["catalogue", "models"]], volumes[bound["team-a", "catalogue"]]
    assert own["hostPath"] == {"path": "/volumes/catalogue", "type": "Directory"}
    assert (read["local"], read["mountOptions"]) == ({"path": "/volumes/catalogue"}, ["ro"])
    assert all(spec["persistentVolumeReclaimPolicy"] == "Retain" for spec in volumes.values())
    (daemon_set,) = (each for each in found if each["kind"] == "DaemonSet")
    prepared = daemon_set["spec"]["template"]["spec"]["initContainers"]
    assert [each["args"] for each in prepared] == [
        ["prepare", "/roots/0", "--namespace=catalogue"],
        ["prepare", "/roots/1", "--namespace=catalogue"],
    ]
    # The operator is told who reads what, since it can't look at claims of others.
    (deployment,) = (each for each in found if each["kind"] == "Deployment")
    variables = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    told = from_environment({each["name"]: each["value"] for each in variables if "value" in each})
    readers = {each.name: [(r.namespace, r.claim, r.reads) for r in each.readers] for each in told.storage_classes}
    assert readers["tenant"] == [("team-a", "catalogue", "catalogue")]
    assert readers["nvme"] == [("team-b", "cat", "catalogue")]
    # What is rendered is what an API server takes.
    for name in ("catalogue", "team-a", "team-b"):
        admin.create("/api/v1/namespaces", {"metadata": {"name": name}})
    objects = [each for each in found if each["kind"] in ("PersistentVolume", "PersistentVolumeClaim")]
    server.kubectl("apply", "--server-side", "-f", "-", input=yaml.safe_dump_all(objects))


@pytest.mark.parametrize(
    ("tenant", "message"),
    [
        ({"namespace": "a", "class": "none"}, "names the class none, which isn't among storage.classes"),
        ({"namespace": "a", "class": "nvme"}, "the class nvme needs a claimName and a volumesRoot"),
        ({"namespace": "a", "class": "own"}, "the class own needs a claimName and a volumesRoot"),
        ({"namespace": "a", "class": "own", "reads": "b"}, "the class own has neither a root nor a volumesRoot"),
        ({"namespace": "a", "class": "tenant", "reads": "a"}, "reads names itself"),
        ({"namespace": "a", "class": "tenant", "claimName": "c"}, "claimName is for what is read of another namespace"),
        ({"namespace": "../b", "class": "tenant"}, "does not match pattern"),
        ({"namespace": "a/b", "class": "tenant"}, "does not match pattern"),
        ({"namespace": "a", "class": "tenant", "reads": "../b"}, "does not match pattern"),
        ({"namespace": "a", "class": "tenant", "path": "/etc"}, "additional properties 'path' not allowed"),
        ({"namespace": "a"}, "missing property 'class'"),
    ],
)
def test_a_tenant_that_is_none_is_refused(tmp_path: Path, tenant: dict[str, object], message: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        render_tenants(tmp_path, tenant)
    assert message in caught.value.stderr
