"""Which folders of the nodes a ModelWeights may name, and what of them its pods see."""

from typing import Any

import pytest

from modelweights_operator.domain import host_folders, manifests, storage
from modelweights_operator.domain.host_folders import HostFolder, LocationError
from modelweights_operator.domain.snapshot import Policy, StorageClass
from tests.unit.domain.samples import make_node, make_owner, make_spec

CLASS = StorageClass("nvme", root="/models/fetched", is_default=True)
POLICY = Policy("loader:1", "Always", ("/models",), storage_classes=(CLASS, StorageClass("tenant", claim="models")))


@pytest.mark.parametrize(
    ("path", "roots", "expected"),
    [
        ("/models/llama", ("/models",), "/models"),
        ("/models/a/b/c", ("/models", "/models/a"), "/models/a"),
        ("/modelsevil/llama", ("/models",), None),
        ("/models", ("/models",), None),
        ("/models/", ("/models",), None),
        ("/models/..", ("/models",), None),
        ("/models/../etc", ("/models",), None),
        ("/models/a/../../etc/shadow", ("/models",), None),
        ("/models/./llama", ("/models",), "/models"),
        ("models/llama", ("/models",), None),
        ("/etc", (), None),
        ("/models/llama", ("/models/",), "/models"),
    ],
)
def test_only_folders_below_an_allowed_root_are_let_in(path: str, roots: tuple[str, ...], expected: str | None) -> None:
    assert host_folders.allowed_root(path, roots) == expected


def test_a_path_that_is_not_allowed_names_the_roots() -> None:
    policy = Policy("loader:1", "Always", ("/models", "/data"))
    with pytest.raises(LocationError, match=r"/etc/x lies below none of the allowed roots \(/models, /data\)"):
        storage.locate(make_owner(), make_spec(source={"hostPath": {"path": "/etc/x"}}), policy)


@pytest.mark.parametrize(
    ("path", "roots", "expected"),
    [
        ("/models/llama", ("/models",), HostFolder("/models", "/models", "/models/llama")),
        ("/models/fetchedx/a", ("/models",), HostFolder("/models", "/models", "/models/fetchedx/a")),
        (
            "/models/fetched/team/a",
            ("/models",),
            HostFolder("/models", "/models/fetched/team", "/models/fetched/team/a"),
        ),
        (
            "/models/fetched/team/a",
            ("/models/fetched",),
            HostFolder("/models/fetched", "/models/fetched/team", "/models/fetched/team/a"),
        ),
        (
            "/models/fetched/team/a/b",
            ("/models/fetched/team/a",),
            HostFolder("/models/fetched/team/a", "/models/fetched/team/a", "/models/fetched/team/a/b"),
        ),
    ],
)
def test_a_namespace_sees_its_own_part_of_a_classs_root(
    path: str, roots: tuple[str, ...], expected: HostFolder
) -> None:
    policy = Policy("loader:1", "Always", roots, storage_classes=(CLASS,))
    assert host_folders.find("team", path, policy) == expected


@pytest.mark.parametrize(
    "path",
    [
        "/models/fetched",
        "/models/fetched/",
        "/models/fetched/team",
        "/models/fetched/other",
        "/models/fetched/other/a/0123",
        "/models/fetched/teams/a",
        "/models/fetched/Team/a",
        "/models/fetched/.modelweights",
        "/models/fetched/team/../other/a",
        "/models/x/../fetched/other/a",
    ],
)
@pytest.mark.parametrize(
    "spec", [{}, {"storage": {}}, {"storage": {"class": "tenant"}}], ids=["in place", "copy", "to a claim"]
)
def test_the_part_of_another_namespace_is_refused(path: str, spec: dict[str, Any]) -> None:
    given = make_spec(source={"hostPath": {"path": path}}, **spec)
    with pytest.raises(LocationError) as caught:
        storage.locate(make_owner(), given, POLICY)
    assert (caught.value.reason, "/models/fetched/team only" in str(caught.value)) == ("PathNotAllowed", True)


def test_the_volumes_of_a_class_with_claims_are_parts_too() -> None:
    volumes = StorageClass("tenant", claim="models", volumes_root="/models/volumes")
    policy = Policy("loader:1", "Always", ("/models",), storage_classes=(volumes,))
    with pytest.raises(LocationError, match="name folders in /models/volumes/team only"):
        host_folders.find("team", "/models/volumes/other/llama", policy)
    assert host_folders.find("team", "/models/volumes/team/a", policy).mount == "/models/volumes/team"


def test_a_folder_above_a_classs_root_is_refused() -> None:
    """A copy of it would take along what lies below."""
    policy = Policy("loader:1", "Always", ("/srv",), storage_classes=(StorageClass("nvme", root="/srv/a/fetched"),))
    with pytest.raises(LocationError, match="below /srv/a/fetched, the root of the storage class nvme"):
        host_folders.find("team", "/srv/a", policy)


@pytest.mark.parametrize("spec", [{}, {"storage": {}}], ids=["in place", "copy"])
def test_the_pod_mounts_nothing_but_the_own_part(spec: dict[str, Any]) -> None:
    given = make_spec(source={"hostPath": {"path": "/models/fetched/team/mine"}}, **spec)
    job = manifests.staging_job(make_owner(), given, make_node(), attempt=0, policy=POLICY)
    pod = job["spec"]["template"]["spec"]
    volumes = {each["name"]: each["hostPath"]["path"] for each in pod["volumes"] if "hostPath" in each}
    seen = {
        f"{volumes[mount['name']]}/{mount.get('subPath', '')}".rstrip("/"): mount["mountPath"]
        for container in (*pod["initContainers"], *pod["containers"])
        for mount in container["volumeMounts"]
        if mount["name"] in volumes
    }
    own = {"/models/fetched/team", "/models/fetched/team/llama"}
    markers = {"/models/.modelweights", "/models/fetched/.modelweights"}
    assert seen
    assert set(seen) <= own | markers
    assert {place: path for place, path in seen.items() if place in own} == {
        place: place for place in seen if place in own
    }
