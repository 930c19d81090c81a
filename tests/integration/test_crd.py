"""Every rule of the CRD both ways, with the message as kubectl shows it; defaults, pruning, columns, explanations."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.api import ApiServer
from tests.cluster.errors import CommandError
from tests.integration.client import Kube, model_path
from tests.json_client import Json, RefusedError
from tests.polling import poll

HOST = {"hostPath": {"path": "/models/x"}}


def claim(name: str = "c", path: str = "") -> Json:
    return {"persistentVolumeClaim": {"claimName": name, "path": path}}


def dry_run(
    admin: Kube, namespace: str, spec: Any, name: str = "m", query: str = "dryRun=All&fieldValidation=Strict"
) -> Json:
    body = {"apiVersion": "modelweights.io/v1alpha1", "kind": "ModelWeights", "metadata": {"name": name}, "spec": spec}
    return admin.create(f"{model_path(namespace)}?{query}", body)


def kept(given: Any, found: Any) -> bool:
    """Whether all that was given is in what was found, as it was."""
    if isinstance(given, dict):
        return all(key in found and kept(value, found[key]) for key, value in given.items())
    if isinstance(given, list):
        return len(given) == len(found) and all(kept(*pair) for pair in zip(given, found, strict=True))
    return bool(given == found)


def hub(repository: str = "org/name", **fields: Any) -> Json:
    return {"source": {"huggingFace": {"repository": repository, **fields}}}


def store(url: str = "s3://bucket/llama", **fields: Any) -> Json:
    return {"source": {"objectStore": {"url": url, **fields}}}


def image(reference: str = "registry.example/llama:v1", **fields: Any) -> Json:
    return {"source": {"image": {"reference": reference, **fields}}}


def path(value: str) -> Json:
    return {"source": {"hostPath": {"path": value}}}


def toleration(**fields: str) -> Json:
    return {"source": HOST, "placement": {"tolerations": [fields]}}


def access(*expressions: Json, **labels: str) -> Json:
    selector = {"matchLabels": labels, "matchExpressions": list(expressions)}
    return {"source": HOST, "access": {"namespaceSelector": selector}}


def placement(**fields: Any) -> Json:
    return {"source": HOST, "placement": fields}


def prefetch(**fields: Any) -> Json:
    return {"source": HOST, "prefetch": fields}


def engine(**fields: Any) -> Json:
    return {"source": HOST, "validation": {"engine": fields}}


def staging(**fields: Any) -> Json:
    return {"source": HOST, "staging": fields}


ACCEPTED = {
    "a host path": {"source": HOST},
    "a path with dots in a name": path("/models/llama-3.1..v2/.hidden"),
    "a claim": {"source": claim()},
    "a claim with a path": {"source": claim("a.b-c", "x/y..z")},
    "a toleration of everything": toleration(operator="Exists"),
    "a toleration of a value": toleration(key="a", value="b", effect="NoSchedule"),
    "a block size as an integer": prefetch(blockSize=4096),
    "a block size as a quantity": prefetch(blockSize="1Gi", numThreads=4),
    "a decimal block size of whole pages": prefetch(blockSize="512k"),
    "4Gi in flight": prefetch(blockSize="16Mi", numThreads=256),
    "one thread": prefetch(numThreads=1),
    "all nodes that fit": placement(minAvailableNodes=2000),
    "a percentage of the nodes": placement(minAvailableNodes="1%"),
    "all of the nodes": placement(minAvailableNodes="100%"),
    "no canary": placement(canaryNodes=0),
    "nodes that are to come": placement(whenNoRoom="Provision"),
    "ten canaries": placement(canaryNodes=10),
    "all percent": prefetch(minResidentPercent=100),
    "labels of a queue": staging(labels={"kueue.x-k8s.io/queue-name": "a"}, annotations={"a": "b"}),
    "a serial queue": engine(queueSize=-1),
    "safetensors as the engine's library": engine(loadFormat="safetensors"),
    "a group of ranks": engine(tensorParallelSize=16),
    "a group of one with safetensors": engine(tensorParallelSize=1, loadFormat="safetensors"),
    "access for all": {"source": HOST, "access": {"namespaceSelector": {}}},
    "access for none": {"source": HOST, "access": {}},
    "access by labels": access(
        {"key": "tier", "operator": "In", "values": ["gold", "silver"]},
        {"key": "tier", "operator": "NotIn", "values": ["lead"]},
        {"key": "team", "operator": "Exists"},
        {"key": "closed", "operator": "DoesNotExist", "values": []},
        models="yes",
    ),
    "measured settings": engine(selection="Measured"),
    "every bit compared": {"source": HOST, "validation": {"mode": "Full"}},
    "what nobody can measure": prefetch(policy="Required", unknownResidency="Accept"),
    "pages that stay": prefetch(pages="Normal"),
    "no refresh": prefetch(refreshIntervalSeconds=0, mode="None"),
    "a refresh each five minutes": prefetch(refreshIntervalSeconds=300),
    "a refresh each thirty days": prefetch(refreshIntervalSeconds=2592000, mode="PageCache"),
    "a repository": hub(),
    "a repository with all": hub(
        "0rg_.-x/Name.1_-",
        revision="refs/pr/1",
        endpoint="https://mirror:8443/hf",
        tokenSecretRef={"name": "t", "key": "k"},
    ),
    "a repository of the longest name": hub("o" * 96 + "/" + "n" * 96, revision="r" * 255),
    "a bucket": store(),
    "a bucket with all": store(
        endpoint="http://minio:9000", region="eu-west-1", pathStyle=True, credentialsSecretRef={"name": "keys"}
    ),
    "a bucket of anybody's": store("gs://bucket", anonymous=True),
    "a container with an endpoint": store("az://container/a/b/", endpoint="https://account.blob.core.windows.net"),
    "a web server with a token": store("https://files.example/x/", credentialsSecretRef={"name": "t"}),
    "a container of Azure's own": store("az://$web/a"),
    "a mirror by its address": hub(endpoint="http://[fd00::1]:8080/hf"),
    "a web server": store("https://files.example:8443/llama/v1.0/"),
    "a bucket with what is off": store("gs://bucket", region="", pathStyle=False),
    "chosen files": {**hub(), "files": {"include": ["*.safetensors", "x/**"], "exclude": ["a"] * 32}},
    "a storage class": {**hub(), "storage": {"class": "nvme-1"}},
    "a cache": {**hub(), "storage": {"layout": "HuggingFaceCache"}},
    "files that stay for a while": {**hub(), "storage": {"retention": "Delete", "gracePeriodSeconds": 0}},
    "files that stay until there is no room": {**hub(), "storage": {"retention": "LeastRecentlyUsed"}},
    "files that go with the object": {**hub(), "deletionPolicy": "Delete"},
    "a copy that goes with the object": {"source": claim(), "storage": {}, "deletionPolicy": "Delete"},
    "files in place that stay": {"source": HOST, "deletionPolicy": "Retain"},
    "an image": image(),
    "an image with all": image("[::1]:5000/a/b__c-d.e:V_1.2", path="x/y..z", pullPolicy="Always"),
    "an image by digest": image(f"registry.example:5000/a@sha256:{'0' * 64}", pullPolicy="Never"),
    "an image of no registry": image("llama"),
    "an image of the longest reference": image(f"{'r' * 246}.example/{'n' * 120}:{'t' * 64}@sha256:{'0' * 64}"),
    "a copy of an image": {**image(), "storage": {}, "files": {"include": ["*"]}},
    "a copy of a claim": {"source": claim(), "storage": {}, "files": {"include": ["*"]}},
    "a copy of a host path": {"source": HOST, "storage": {"class": "nvme", "layout": "Plain"}},
}

REJECTED = {
    "no source": ({}, "spec.source: Required value"),
    "an empty source": ({"source": {}}, "exactly one of huggingFace, objectStore, persistentVolumeClaim, hostPath and image must be given"),
    "two sources": ({"source": {**HOST, **claim()}}, "exactly one of huggingFace, objectStore, persistentVolumeClaim, hostPath and image must be given"),
    "a relative path": (path("models/x"), "must be an absolute path such as /models/llama"),
    "a path that climbs": (path("/models/../etc"), "must not hold '.' or '..' as a part"),
    "a path with a dot": (path("/models/./x"), "must not hold '.' or '..' as a part"),
    "a path with two slashes": (path("/models//x"), "must not hold '//'"),
    "a path with a control character": (path("/models/x\ty"), "must not hold control characters"),
    "a claim's path with a control character": ({"source": claim(path="x\ny")}, "must not hold control characters"),
    "an environment that brings other code": (
        {"source": HOST, "staging": {"env": [{"name": "PYTHONPATH", "value": "/models/x"}]}},
        "must not start with PYTHON, LD_",
    ),
    "an environment that preloads": (
        {"source": HOST, "staging": {"env": [{"name": "LD_PRELOAD", "value": "/models/x.so"}]}},
        "must not start with PYTHON, LD_",
    ),
    "an environment with a library's own code": (
        {"source": HOST, "staging": {"env": [{"name": "OPENSSL_CONF", "value": "/models/x/openssl.cnf"}]}},
        "must not start with PYTHON, LD_ or OPENSSL_",
    ),
    "an environment that writes keys down": (
        {"source": HOST, "staging": {"env": [{"name": "SSLKEYLOGFILE", "value": "/models/x"}]}},
        "or write keys down",
    ),
    "a path too short": (path("/"), "should be at least 2 chars long"),
    "a path too long": (path("/" + "x" * 1024), "Too long"),
    "a claim's absolute path": ({"source": claim(path="/x")}, "must be relative to the volume's root"),
    "a claim's path that climbs": ({"source": claim(path="a/../..")}, "must not hold '.' or '..' as a part"),
    "a claim's bad name": ({"source": claim("Bad_Name")}, "should match"),
    "a value beside Exists": (toleration(key="a", operator="Exists", value="b"), "value must be empty when operator is Exists"),
    "Equal without a key": (toleration(value="b"), "key must be given when operator is Equal"),
    "an unknown effect": (toleration(key="a", effect="NoWay"), "Unsupported value"),
    "a block too small": (prefetch(blockSize="2Ki"), "must be at least 4Ki"),
    "a block too big": (prefetch(blockSize="2Gi", numThreads=1), "must be at most 1Gi"),
    "a block of broken pages": (prefetch(blockSize="15M"), "must be a multiple of 4Ki, a page (16Mi is one, 15M is not)"),
    "a negative block": (prefetch(blockSize=-4096), "must be at least 4Ki"),
    "a block that is no quantity": (prefetch(blockSize="16 MiB"), "should match"),
    "a block with a fraction": (prefetch(blockSize="1.5Mi"), "should match"),
    "too much in flight": (prefetch(blockSize="32Mi", numThreads=256), "numThreads times blockSize must be at most 4Gi"),
    "too much in flight with the default block": (prefetch(blockSize="1Gi"), "numThreads times blockSize must be at most 4Gi"),
    "a refresh too often": (prefetch(refreshIntervalSeconds=299), "must be 0, which turns it off, or at least 300"),
    "a refresh too seldom": (prefetch(refreshIntervalSeconds=2592001), "should be less than or equal to 2592000"),
    "a negative refresh": (prefetch(refreshIntervalSeconds=-1), "should be greater than or equal to 0"),
    "a refresh of nothing": (prefetch(refreshIntervalSeconds=300, mode="None"), "refreshIntervalSeconds needs mode PageCache"),
    "no threads": (prefetch(numThreads=0), "should be greater than or equal to 1"),
    "too many threads": (prefetch(numThreads=257), "should be less than or equal to 256"),
    "more than all": (prefetch(minResidentPercent=101), "should be less than or equal to 100"),
    "a label of ours": (staging(labels={"modelweights.io/x": "y"}), "labels must not start with modelweights.io/"),
    "a label of the Job's": (staging(labels={"batch.kubernetes.io/job-name": "y"}), "labels must not start with"),
    "an annotation of ours": (staging(annotations={"modelweights.io/x": "y"}), "annotations must not start with"),
    "a group with safetensors": (
        engine(tensorParallelSize=2, loadFormat="safetensors"),
        "tensorParallelSize above 1 needs loadFormat fastsafetensors",
    ),
    "measured settings of what isn't loaded": (
        {"source": HOST, "validation": {"mode": "Structure", "engine": {"selection": "Measured"}}},
        "engine.selection Measured needs mode Load or Full",
    ),
    "a group with measured settings": (
        engine(tensorParallelSize=2, selection="Measured"),
        "tensorParallelSize above 1 needs selection Fixed",
    ),
    "too many ranks": (engine(tensorParallelSize=17), "should be less than or equal to 16"),
    "another library": (engine(loadFormat="pickle"), "Unsupported value"),
    "access In without values": (access({"key": "a", "operator": "In"}), "In and NotIn need values"),
    "access NotIn without values": (access({"key": "a", "operator": "NotIn", "values": []}), "In and NotIn need values"),
    "access Exists with values": (access({"key": "a", "operator": "Exists", "values": ["b"]}), "the others take none"),
    "access by another operator": (access({"key": "a", "operator": "Gt", "values": ["1"]}), "Unsupported value"),
    "access without a key": (access({"operator": "Exists"}), "key: Required value"),
    "access by too many": (
        access(*({"key": "a", "operator": "Exists"} for _ in range(33))),
        "must have at most 32 items",
    ),
    "another selection": (engine(selection="Guess"), "Unsupported value"),
    "another answer to the unknown": (prefetch(unknownResidency="Perhaps"), "Unsupported value"),
    "another temperature": (prefetch(pages="Hot"), "Unsupported value"),
    "root": (staging(uid=0), "should be greater than or equal to 1"),
    "an unknown mode": ({"source": HOST, "validation": {"mode": "Guess"}}, "Unsupported value"),
    "no nodes needed": (placement(minAvailableNodes=0), "must be from 1 to 2000, or from 1% to 100%"),
    "more nodes needed than fit": (placement(minAvailableNodes=2001), "must be from 1 to 2000, or from 1% to 100%"),
    "no percent needed": (placement(minAvailableNodes="0%"), "spec.placement.minAvailableNodes in body should match"),
    "more than all needed": (placement(minAvailableNodes="101%"), "spec.placement.minAvailableNodes in body should"),
    "a number of nodes as a text": (placement(minAvailableNodes="80"), "spec.placement.minAvailableNodes in body should match"),
    "another way without room": (placement(whenNoRoom="Panic"), 'supported values: "Wait", "Provision"'),
    "eleven canaries": (placement(canaryNodes=11), "should be less than or equal to 10"),
    "fewer than no canary": (placement(canaryNodes=-1), "should be greater than or equal to 0"),
    "an empty list of terms": (
        {"source": HOST, "placement": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}}},
        "should have at least 1 items",
    ),
    "an image and a claim": ({"source": {**image()["source"], **claim()}}, "exactly one of huggingFace"),
    "an image without a reference": ({"source": {"image": {"path": "x"}}}, "reference: Required value"),
    "an image of nothing": (image(""), "at least 1 chars long"),
    "an image by URL": (image("https://registry/x"), "should match"),
    "an image in capitals": (image("registry/Llama"), "should match"),
    "an image by half a digest": (image("registry/x@sha256:abc"), "should match"),
    "an image with a space": (image("registry/x y"), "should match"),
    "an image too long": (image("r" * 513), "Too long"),
    "an image's absolute path": (image(path="/x"), "must be relative to the volume's root"),
    "an image's path that climbs": (image(path="a/../.."), "must not hold '.' or '..' as a part"),
    "an image's path with a control character": (image(path="x\ny"), "must not hold control characters"),
    "an image's path too long": (image(path="x" * 1025), "Too long"),
    "another pull policy": (image(pullPolicy="Sometimes"), "Unsupported value"),
    "files of an image used in place": ({**image(), "files": {"include": ["*"]}}, "files is for what is fetched"),
    "a cache of an image": ({**image(), "storage": {"layout": "HuggingFaceCache"}}, "needs source.huggingFace"),
    "a repository and a bucket": ({"source": {**hub()["source"], **store()["source"]}}, "exactly one of huggingFace"),
    "a repository of nobody": (hub("name"), "should match"),
    "a repository with a climb": (hub("org/a..b"), "must not hold '--' or '..'"),
    "a repository that splits a cache's name": (hub("org/a--b"), "must not hold '--' or '..'"),
    "a repository that is an option": (hub("-x/y"), "should match"),
    "a repository too long": (hub("o/" + "n" * 97), "should match"),
    "a revision that is an option": (hub(revision="--x"), "should match"),
    "a revision that climbs": (hub(revision="a/../b"), "must not hold '..'"),
    "no revision": (hub(revision=""), "at least 1 chars long"),
    "a mirror with a password": (hub(endpoint="https://me:secret@mirror"), "should match"),
    "a mirror with a query": (hub(endpoint="https://mirror/?token=x"), "should match"),
    "a mirror whose host has no end": (hub(endpoint="https://[mirror"), "should match"),
    "a mirror whose host is no ASCII": (hub(endpoint="https://exa\u2100mple.com"), "should match"),
    "a bucket whose name is none": (store("s3://[bucket/x"), "should match"),
    "a mirror of another protocol": (hub(endpoint="ftp://mirror"), "should match"),
    "a token without a name": (hub(tokenSecretRef={"key": "k"}), "name: Required value"),
    "a token of a bad key": (hub(tokenSecretRef={"name": "t", "key": "../k"}), "should match"),
    "a store of another protocol": (store("http://files/x"), "should match"),
    "a store with a password": (store("https://me:secret@files/x"), "should match"),
    "a store with a signature": (store("https://files/x?sig=1"), "should match"),
    "a store with an empty part": (store("s3://bucket//x"), "should match"),
    "a store that climbs": (store("s3://bucket/a/../b"), "must not hold '.' or '..' as a part"),
    "a store with a control character": (store("s3://bucket/a\x01b"), "must not hold control characters"),
    "a store too long": (store("s3://b/" + "x" * 1024), "Too long"),
    "a region of gs": (store("gs://b", region="eu"), "region and pathStyle are for s3:// only"),
    "a path style of az": (store("az://b", pathStyle=True), "region and pathStyle are for s3:// only"),
    "an endpoint of https": (store("https://files/x/", endpoint="https://y"), "aren't for https://"),
    "nobody of https": (store("https://files/x/", anonymous=True), "aren't for https://"),
    "credentials of nobody": (store(anonymous=True, credentialsSecretRef={"name": "k"}), "anonymous sends no credentials"),
    "files of what is used in place": ({"source": HOST, "files": {"include": ["*"]}}, "files is for what is fetched"),
    "an absolute pattern": ({**hub(), "files": {"include": ["/etc/*"]}}, "must be relative patterns"),
    "a pattern with a control character": ({**hub(), "files": {"exclude": ["a\nb"]}}, "must be relative patterns"),
    "an empty pattern": ({**hub(), "files": {"include": [""]}}, "at least 1 chars long"),
    "too many patterns": ({**hub(), "files": {"include": ["a"] * 33}}, "must have at most 32 items"),
    "a cache of a bucket": ({**store(), "storage": {"layout": "HuggingFaceCache"}}, "needs source.huggingFace"),
    "a cache of a claim": ({"source": claim(), "storage": {"layout": "HuggingFaceCache"}}, "needs source.huggingFace"),
    "another layout": ({**hub(), "storage": {"layout": "Zip"}}, "Unsupported value"),
    "a storage class that is a path": ({**hub(), "storage": {"class": "a/b"}}, "should match"),
    "another retention": ({**hub(), "storage": {"retention": "Sometimes"}}, "Unsupported value"),
    "a grace period below zero": ({**hub(), "storage": {"gracePeriodSeconds": -1}}, "greater than or equal to 0"),
    "a grace period of more than a year": ({**hub(), "storage": {"gracePeriodSeconds": 31_536_001}}, "less than or equal to"),
    "files in place that go": ({"source": HOST, "deletionPolicy": "Delete"}, "deletionPolicy Delete is for what is fetched"),
    "another deletion policy": ({**hub(), "deletionPolicy": "Orphan"}, "Unsupported value"),
    "an unknown field": ({"source": HOST, "prefech": {}}, 'unknown field "spec.prefech"'),
    "a spec that is text": ("x", "spec"),
}  # fmt: skip


@pytest.mark.parametrize("spec", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_accepted(admin: Kube, namespace: str, spec: Json) -> None:
    assert kept(spec, dry_run(admin, namespace, spec)["spec"])


@pytest.mark.parametrize(("spec", "message"), REJECTED.values(), ids=REJECTED.keys())
def test_rejected(admin: Kube, namespace: str, spec: Any, message: str) -> None:
    with pytest.raises(RefusedError) as caught:
        dry_run(admin, namespace, spec)
    assert message in caught.value.message
    assert caught.value.status in (400, 422)


def test_defaults_are_filled_in(admin: Kube, namespace: str) -> None:
    assert dry_run(admin, namespace, {"source": HOST})["spec"] == {
        "source": HOST,
        "placement": {
            "nodeSelector": {"nvidia.com/gpu.present": "true"},
            "minAvailableNodes": 1,
            "maxConcurrentNodes": 10,
            "canaryNodes": 1,
            "whenNoRoom": "Wait",
        },
        "prefetch": {
            "mode": "PageCache",
            "numThreads": 8,
            "blockSize": "16Mi",
            "policy": "BestEffort",
            "minResidentPercent": 95,
            "unknownResidency": "Fail",
            "refreshIntervalSeconds": 0,
            "pages": "Cold",
        },
        "validation": {
            "mode": "Load",
            "engine": {
                "selection": "Fixed",
                "loadFormat": "fastsafetensors",
                "tensorParallelSize": 1,
                "queueSize": 0,
            },
            "timeoutSeconds": 0,
        },
        "staging": {"resources": {"requests": {"cpu": "100m", "memory": "256Mi"}}, "uid": 65532},
        "deletionPolicy": "Retain",
        "suspend": False,
    }


def test_defaults_of_fetched_sources_are_filled_in(admin: Kube, namespace: str) -> None:
    found = dry_run(admin, namespace, {**hub(tokenSecretRef={"name": "t"}), "storage": {}})["spec"]
    assert found["source"]["huggingFace"] == {
        "repository": "org/name",
        "revision": "main",
        "tokenSecretRef": {"name": "t", "key": "token"},
    }
    assert found["storage"] == {"layout": "Plain", "retention": "Delete", "gracePeriodSeconds": 600}
    assert "files" not in found
    assert dry_run(admin, namespace, store())["spec"]["source"]["objectStore"] == {
        "url": "s3://bucket/llama",
        "pathStyle": False,
        "anonymous": False,
    }


def test_an_unknown_field_is_pruned_where_validation_is_not_strict(admin: Kube, namespace: str) -> None:
    spec = {"source": HOST, "prefech": {"numThreads": 1}}
    found = dry_run(admin, namespace, spec, query="dryRun=All&fieldValidation=Ignore")
    assert "prefech" not in found["spec"]


MANIFEST = """
apiVersion: modelweights.io/v1alpha1
kind: ModelWeights
metadata: {name: llama, namespace: %s}
spec:
  source: {hostPath: {path: /models/llama}}
  placement: {nodeSelector: {no: such-node}}
"""


def test_kubectl_shows_a_rules_message_and_creates_nothing(server: ApiServer, admin: Kube, namespace: str) -> None:
    manifest = (MANIFEST % namespace).replace("/models/llama", "/models/../etc")
    with pytest.raises(
        CommandError, match=r"The ModelWeights \"llama\" is invalid: .*must not hold '.' or '..' as a part"
    ):
        server.kubectl("apply", "-f", "-", input=manifest)
    assert admin.items(model_path(namespace)) == []


def test_the_status_is_a_subresource_and_is_kept_as_declared(server: ApiServer, admin: Kube, namespace: str) -> None:
    server.kubectl("apply", "--server-side", "-f", "-", input=MANIFEST % namespace)
    where = model_path(namespace, "llama")
    admin.patch(where, {"status": {"summary": {"readyRatio": "9/9"}}})
    assert admin.get(where).get("status", {}).get("summary", {}).get("readyRatio") != "9/9"
    condition = {
        "type": "Ready", "status": "True", "reason": "AllNodesReady", "message": "2 of 2",
        "lastTransitionTime": "2026-03-01T12:00:00Z", "observedGeneration": 1,
    }  # fmt: skip
    status = {
        "observedGeneration": 1,
        "source": {"digest": "0123456789", "revision": "c" * 40, "described": "hf://org/name"},
        "published": {"manifestDigest": f"sha256:{'a' * 64}", "sizeBytes": 2**40, "revision": "c" * 40},
        "summary": {"desired": 2, "ready": 2, "readyRatio": "2/2", "size": "1Ti", "counted": 2},
        "provenStaging": "0123456789",
        "lastHandledRetry": "2026-03-01 noon",
        "lastRetryTime": "2026-03-01T12:00:00Z",
        "nodes": {
            "node.a": {
                "state": "Ready",
                "bootID": "b",
                "loadSeconds": 1.5,
                "residentBytes": 2**40,
                "fetchSeconds": 2.5,
                "fetchedBytes": 2**40,
                "coldDigest": f"sha256:{'a' * 64}",
                "refreshRefusedAt": "2026-03-01T12:00:00Z",
            }
        },
        "conditions": [condition],
    }
    admin.patch(f"{where}/status", {"status": {**status, "unknownField": 1}, "spec": {"suspend": True}})
    found = admin.get(where)
    assert found["status"] == status
    assert found["spec"]["suspend"] is False
    plain = server.kubectl("get", "mw", "llama", "-n", namespace).split("\n")
    assert plain[0].split() == ["NAME", "READY", "NODES", "SIZE", "STATUS", "AGE"]
    assert plain[1].split()[:5] == ["llama", "True", "2/2", "1Ti", "AllNodesReady"]
    wide = server.kubectl("get", "mw", "llama", "-n", namespace, "-o", "wide").split("\n")
    assert wide[0].split() == [
        "NAME",
        "READY",
        "NODES",
        "SIZE",
        "STATUS",
        "AGE",
        "AVAILABLE",
        "REVISION",
        "DIGEST",
        "MESSAGE",
    ]
    assert "sha256:aaaa" in wide[1]


@pytest.mark.parametrize(
    "patch",
    [
        {"nodes": {"n": {"state": "Dancing"}}},
        {"nodes": {"n": {"state": "Failed", "coldDigest": "all"}}},
        {"nodes": {"n": {"state": "Ready", "refreshRefusedAt": "noon"}}},
        {"conditions": [{"type": "Ready"}]},
    ],
)
def test_a_status_that_is_none_is_refused(server: ApiServer, admin: Kube, namespace: str, patch: Json) -> None:
    server.kubectl("apply", "--server-side", "-f", "-", input=MANIFEST % namespace)
    with pytest.raises(RefusedError, match="status"):
        admin.patch(f"{model_path(namespace, 'llama')}/status", {"status": patch})


def test_kubectl_explains_the_fields(server: ApiServer, chart: str) -> None:
    assert chart

    # The API server publishes a new kind's description a moment after it serves the kind.
    def explained() -> str:
        return server.kubectl("explain", "mw.spec.prefetch", check=False)

    text = poll("kubectl explain", lambda: found if "numThreads" in (found := explained()) else "")
    assert "How it is read into the page cache." in text
    assert "Threads that read, as in the engines." in text
    assert "blockSize" in text


def test_it_is_in_the_category_all(server: ApiServer, namespace: str) -> None:
    server.kubectl("apply", "--server-side", "-f", "-", input=MANIFEST % namespace)
    assert "modelweights.modelweights.io/llama" in server.kubectl("get", "all", "-n", namespace, "-o", "name")


def manifests() -> dict[str, Json]:
    """Each ModelWeights of the examples and of the guides."""
    docs = Path(__file__).resolve().parents[2] / "docs"
    found = {path.name: path.read_text() for path in sorted((docs / "examples").glob("*.yaml"))}
    for page in ("usage.md", "tenants.md"):
        blocks = re.findall(r"```yaml\n(.*?)```", (docs / page).read_text(), re.DOTALL)
        found |= {f"{page} {number}": block for number, block in enumerate(blocks)}
    parsed = {name: yaml.safe_load(text) for name, text in found.items() if "kind: ModelWeights" in text}
    return {name: body for name, body in parsed.items() if body.get("kind") == "ModelWeights"}


@pytest.mark.parametrize("name", manifests())
def test_what_the_documents_show_is_taken(admin: Kube, namespace: str, name: str) -> None:
    spec = manifests()[name]["spec"]
    assert kept(spec, dry_run(admin, namespace, spec)["spec"])
