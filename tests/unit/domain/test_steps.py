"""The pod that fetches: what the steps `resolve` and `fetch` are told, and that secrets, proxies and the right to write are theirs."""

from dataclasses import replace
from typing import Any

import pytest

from modelweights_operator.domain import manifests, names
from modelweights_operator.domain.snapshot import FetchSettings, Policy
from tests.unit.domain.samples import (
    COMMIT_A,
    POLICY,
    make_claim_spec,
    make_fetch_spec,
    make_node,
    make_owner,
    make_spec,
)

Json = dict[str, Any]
TMP = "/tmp"  # noqa: S108 - the pod's own emptyDir

HUB = {"huggingFace": {"repository": "org/name", "tokenSecretRef": {"name": "hub", "key": "read"}}}
S3 = {"objectStore": {"url": "s3://bucket/llama", "credentialsSecretRef": {"name": "keys"}}}
SITE = replace(
    POLICY,
    fetch=FetchSettings(
        num_connections=4,
        max_bytes_per_second=5_000_000,
        hugging_face_endpoint="https://mirror",
        proxy={"HTTPS_PROXY": "http://proxy:1"},
        extra_ca="-----BEGIN CERTIFICATE-----",
    ),
)
FETCHED = {
    "hub": make_fetch_spec(),
    "hub with a token": make_fetch_spec(HUB),
    "bucket with keys": make_fetch_spec(S3),
    "copy of a claim": make_claim_spec(storage={}),
    "copy of a host path": make_spec(storage={}),
}


def build(spec: Any, policy: Policy = POLICY, revision: str = "") -> Json:
    return manifests.staging_job(make_owner(spec), spec, make_node(), attempt=0, policy=policy, revision=revision)


def pod_of(job: Json) -> Json:
    pod: Json = job["spec"]["template"]["spec"]
    return pod


def steps_of(job: Json) -> dict[str, Json]:
    pod = pod_of(job)
    return {container["name"]: container for container in [*pod["initContainers"], *pod["containers"]]}


def options(spec: Any, policy: Policy = POLICY, revision: str = "", step: str = "fetch") -> list[str]:
    """What a step is told beside what every step is."""
    arguments: list[str] = steps_of(build(spec, policy, revision))[step]["args"]
    return arguments[arguments.index("--results") + 2 :]


def mounts(step: Json) -> dict[str, Json]:
    return {f"{mount['name']} {mount['mountPath']}": mount for mount in step["volumeMounts"]}


# --- arguments ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (make_fetch_spec(), ["--source=hf://org/name", "--revision=main"]),
        (
            make_fetch_spec(HUB, files={"include": ["*.bin", "-x"], "exclude": ["a b"]}, storage={"layout": "HuggingFaceCache"}),
            ["--source=hf://org/name", "--revision=main", "--layout=HuggingFaceCache",
             "--token-file=/run/modelweights/secrets/hub/read", "--include=*.bin", "--include=-x", "--exclude=a b"],
        ),
        (make_fetch_spec(S3), ["--source=s3://bucket/llama", "--credentials-dir=/run/modelweights/secrets/keys"]),
        (
            make_fetch_spec({"objectStore": {"url": "s3://b", "endpoint": "http://minio", "region": "eu", "pathStyle": True, "anonymous": True}}),
            ["--source=s3://b", "--endpoint=http://minio", "--region=eu", "--path-style", "--anonymous"],
        ),
        (
            make_fetch_spec({"objectStore": {"url": "https://files/x/", "credentialsSecretRef": {"name": "t"}}}),
            ["--source=https://files/x/", "--token-file=/run/modelweights/secrets/t/token"],
        ),
        (make_claim_spec("a", storage={}), ["--source=file:///mnt/source/a"]),
        (make_spec(storage={}), ["--source=file:///models/llama"]),
    ],
)  # fmt: skip
def test_fetch_is_told_the_source_and_what_is_wanted_of_it(spec: Any, expected: list[str]) -> None:
    told = options(spec)
    usual = {"--layout=Plain", "--disk-reserve=12%"}
    if spec.source.host_path is None:
        usual.add("--resolved")
        expected = [word for word in expected if word != "--revision=main"]
    assert sorted(told) == sorted(
        {*expected, *usual} - ({"--layout=Plain"} if "--layout=HuggingFaceCache" in told else set())
    )


OF_THE_SOURCE = ("--source", "--endpoint", "--region", "--token-file", "--credentials-dir", "--extra-ca-env")
FLAGS = {"--path-style", "--anonymous"}


@pytest.mark.parametrize("policy", [POLICY, SITE], ids=["plain", "site"])
@pytest.mark.parametrize(
    "spec",
    [
        *(make_fetch_spec(), make_fetch_spec(HUB, files={"include": ["x"]}), make_fetch_spec(S3)),
        make_claim_spec("a", storage={}),
        make_fetch_spec({"objectStore": {"url": "s3://b", "region": "eu", "pathStyle": True, "anonymous": True}}),
    ],
)
def test_resolve_is_told_of_the_source_what_fetch_is(spec: Any, policy: Policy) -> None:
    of_source = [word for word in options(spec, policy) if word.split("=")[0] in OF_THE_SOURCE or word in FLAGS]
    asked = ["--revision=main"] if spec.source.hugging_face else []
    assert sorted(options(spec, policy, step="resolve")) == sorted([*of_source, *asked])


@pytest.mark.parametrize("revision", ["", COMMIT_A])
@pytest.mark.parametrize("spec", FETCHED.values(), ids=FETCHED.keys())
def test_only_what_is_not_known_is_resolved(spec: Any, revision: str) -> None:
    resolves = not revision and spec.source.host_path is None
    found = steps_of(build(spec, revision=revision))
    assert ("resolve" in found, "--resolved" in found["fetch"]["args"]) == (resolves, resolves)
    assert list(found)[:2] == (["resolve", "fetch"] if resolves else ["fetch", "prefetch"])


def test_fetch_is_told_the_administrators_limits_mirror_and_certificates() -> None:
    told = options(make_fetch_spec(), SITE)
    assert {
        "--endpoint=https://mirror",
        "--num-connections=4",
        "--max-bytes-per-second=5000000",
        "--extra-ca-env=MODELWEIGHTS_EXTRA_CA",
    } <= set(told)


def test_a_resolved_revision_takes_the_place_of_the_branch() -> None:
    assert [word for word in options(make_fetch_spec(), revision=COMMIT_A) if "revision" in word] == [
        f"--revision={COMMIT_A}"
    ]


@pytest.mark.parametrize("spec", FETCHED.values(), ids=FETCHED.keys())
def test_the_other_steps_get_the_home_and_look_for_what_was_fetched(spec: Any) -> None:
    steps = steps_of(build(spec))
    assert list(steps)[-4:] == ["fetch", "prefetch", "validate", "report"]
    assert {step["args"][1] for step in steps.values()} == {"/data/team/llama"}
    later = {"prefetch", "validate", "report"}
    assert {name for name, step in steps.items() if "--fetched" in step["args"]} == later


def test_what_is_used_in_place_is_staged_as_before() -> None:
    for spec in (make_spec(), make_claim_spec()):
        job = build(spec)
        assert "fetch" not in steps_of(job)
        assert not any("--fetched" in step["args"] for step in steps_of(job).values())
        assert "fsGroup" not in pod_of(job)["securityContext"]


# --- volumes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", FETCHED.values(), ids=FETCHED.keys())
def test_only_fetch_writes_the_home_and_it_sees_no_other_of_the_root(spec: Any) -> None:
    steps = steps_of(build(spec))
    if "resolve" in steps:
        assert not [mount for mount in steps.pop("resolve")["volumeMounts"] if mount["name"] == "model"]
    for name, step in steps.items():
        home = mounts(step)["model /data/team/llama"]
        assert home["subPath"] == "team/llama"
        assert home.get("readOnly", False) == (name != "fetch")
    marker = {"name": "model", "mountPath": "/run/modelweights/markers", "subPath": ".modelweights"}
    writers = {name for name, step in steps.items() if marker in step["volumeMounts"]}
    assert writers == {"report"}
    arguments = steps["report"]["args"]
    assert arguments[arguments.index("--marker-root") + 1] == "/data"


def test_a_fetch_waits_for_a_root_that_is_prepared() -> None:
    job = build(FETCHED["hub"])
    prepared = {"name": "prepared", "hostPath": {"path": "/data/.modelweights", "type": "Directory"}}
    assert prepared in pod_of(job)["volumes"]
    mounted = [
        mount for step in steps_of(job).values() for mount in step["volumeMounts"] if mount["name"] == "prepared"
    ]
    assert mounted == [{"name": "prepared", "mountPath": "/run/modelweights/prepared", "readOnly": True}]
    in_place = build(make_spec())
    assert not [volume for volume in pod_of(in_place)["volumes"] if volume["name"] == "prepared"]


def test_with_a_claims_class_nothing_of_the_node_is_mounted() -> None:
    spec = make_fetch_spec(HUB, storage={"class": "shared"})
    job = build(spec, SITE)
    assert [volume for volume in pod_of(job)["volumes"] if "hostPath" in volume] == []
    assert pod_of(job)["volumes"][0] == {"name": "model", "persistentVolumeClaim": {"claimName": "models"}}
    home = mounts(steps_of(job)["fetch"])["model /mnt/model/llama"]
    assert home == {"name": "model", "mountPath": "/mnt/model/llama", "subPath": "llama"}
    assert "--marker-dir" not in steps_of(job)["report"]["args"]


def test_the_name_of_a_model_may_be_as_long_as_a_folders() -> None:
    spec, name = make_fetch_spec(), "m" * 253
    job = manifests.staging_job(make_owner(spec, name=name), spec, make_node(), attempt=0, policy=POLICY)
    assert mounts(steps_of(job)["fetch"])[f"model /data/team/{name}"]["subPath"] == f"team/{name}"


@pytest.mark.parametrize(
    ("spec", "name", "secret"),
    [
        (
            make_fetch_spec(HUB), "token",
            {"secretName": "hub", "items": [{"key": "read", "path": "read"}], "optional": True, "defaultMode": 0o440},
        ),
        (make_fetch_spec(S3), "credentials", {"secretName": "keys", "optional": True, "defaultMode": 0o440}),
    ],
)  # fmt: skip
def test_a_secret_reaches_those_that_ask_the_source_alone_and_as_a_file(spec: Any, name: str, secret: Json) -> None:
    job = build(spec)
    assert [volume for volume in pod_of(job)["volumes"] if "secret" in volume] == [{"name": name, "secret": secret}]
    holders = {step for step, container in steps_of(job).items() if name in str(container["volumeMounts"])}
    assert holders == {"resolve", "fetch"}
    for step in holders:
        place = f"{name} /run/modelweights/secrets/{secret['secretName']}"
        assert mounts(steps_of(job)[step])[place]["readOnly"] is True
    given = steps_of(build(spec, revision=COMMIT_A))
    assert {step for step, container in given.items() if name in str(container["volumeMounts"])} == {"fetch"}
    assert "secretKeyRef" not in str(job)
    # Secrets are root's: this group may read them, and write into a claim.
    assert pod_of(job)["securityContext"]["fsGroup"] == 65532
    assert pod_of(job)["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"


@pytest.mark.parametrize(
    ("spec", "volume", "mount"),
    [
        (
            make_claim_spec(storage={}),
            {"name": "source", "persistentVolumeClaim": {"claimName": "weights", "readOnly": True}},
            "/mnt/source",
        ),
        (
            make_spec(storage={}),
            {"name": "source", "hostPath": {"path": "/models", "type": "Directory"}},
            "/models",
        ),
    ],
)
def test_what_is_copied_is_mounted_read_only_where_it_is_read_alone(spec: Any, volume: Json, mount: str) -> None:
    job = build(spec)
    assert volume in pod_of(job)["volumes"]
    holders = {name for name, step in steps_of(job).items() if f"source {mount}" in mounts(step)}
    assert holders == {"fetch"} | ({"resolve"} if spec.source.host_path is None else set())
    for holder in holders:
        assert mounts(steps_of(job)[holder])[f"source {mount}"]["readOnly"] is True


def test_the_libraries_have_room_for_what_they_write() -> None:
    sizes = {
        volume["name"]: volume["emptyDir"]["sizeLimit"]
        for volume in pod_of(build(make_fetch_spec()))["volumes"]
        if "emptyDir" in volume
    }
    assert sizes == {"results": "64Mi", "tmp": "1Gi"}


# --- environment --------------------------------------------------------------------------------------------------


def environment(step: Json) -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in step["env"]}


def test_proxies_and_certificates_are_those_of_resolve_and_fetch_alone() -> None:
    steps = steps_of(build(make_fetch_spec(), SITE))
    assert environment(steps["fetch"]) == {
        "HTTPS_PROXY": "http://proxy:1",
        "HOME": TMP,
        "TMPDIR": TMP,
        "HF_HOME": f"{TMP}/huggingface",
        "MODELWEIGHTS_EXTRA_CA": "-----BEGIN CERTIFICATE-----",
    }
    assert steps["resolve"]["env"] == steps["fetch"]["env"]
    others = {name: step["env"] for name, step in steps.items() if name not in ("resolve", "fetch")}
    assert others == {"prefetch": [], "validate": [], "report": []}


def test_the_users_variables_count_more_than_the_sites_and_less_than_what_is_needed() -> None:
    given = [
        {"name": "HTTPS_PROXY", "value": "http://own"},
        {"name": "HOME", "value": "/etc"},
        {"name": "A", "value": "b"},
    ]
    found = environment(steps_of(build(make_fetch_spec(staging={"env": given}), SITE))["fetch"])
    assert (found["HTTPS_PROXY"], found["HOME"], found["A"]) == ("http://own", TMP, "b")


def test_a_proxy_with_a_dollar_is_taken_as_it_is() -> None:
    policy = replace(POLICY, fetch=FetchSettings(proxy={"NO_PROXY": "$(HOME)"}))
    assert environment(steps_of(build(make_fetch_spec(), policy))["fetch"])["NO_PROXY"] == "$$(HOME)"


# --- the Job ------------------------------------------------------------------------------------------------------


def test_the_job_says_what_it_fetches_from_where_and_of_which_revision() -> None:
    spec = make_fetch_spec()
    notes = build(spec)["metadata"]["annotations"]
    assert notes["modelweights.io/source-digest"] == names.source_digest(spec)
    assert notes["modelweights.io/source-host"] == "huggingface.co"
    assert "modelweights.io/revision" not in notes
    assert build(spec, revision=COMMIT_A)["metadata"]["annotations"]["modelweights.io/revision"] == COMMIT_A


def test_a_job_that_was_given_a_revision_is_another_than_one_that_finds_out() -> None:
    spec = make_fetch_spec()
    assert build(spec)["metadata"]["name"] != build(spec, revision=COMMIT_A)["metadata"]["name"]


@pytest.mark.parametrize("spec", FETCHED.values(), ids=FETCHED.keys())
def test_the_containers_are_as_pod_security_restricted_asks(spec: Any) -> None:
    for container in steps_of(build(spec)).values():
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
