"""The CRD: structural, described, bounded, and the file in the chart is the current one."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from modelweights_operator import crdgen

Schema = dict[str, Any]
REPOSITORY = Path(__file__).resolve().parents[2]
NOT_STRUCTURAL = {"$ref", "$defs", "title", "allOf", "oneOf", "not", "const", "propertyNames", "additionalItems"}


def walk(schema: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    """Each node of a schema with its path."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from walk(child, f"{path}.{name}")
    if "items" in schema:
        yield from walk(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from walk(schema["additionalProperties"], f"{path}{{}}")


OPENAPI = crdgen.openapi_schema()
NODES = dict(walk(OPENAPI, ""))
FIELDS = {path: node for path, node in NODES.items() if path and not path.endswith(("[]", "{}"))}


@pytest.mark.parametrize("path", NODES)
def test_every_node_is_structural(path: str) -> None:
    node = NODES[path]
    assert not NOT_STRUCTURAL & node.keys()
    assert node.get("default", ...) is not None
    if node.get("x-kubernetes-int-or-string"):
        assert "type" not in node
        assert node["anyOf"] == [{"type": "integer"}, {"type": "string"}]
    else:
        assert "anyOf" not in node
        assert node["type"] in {"object", "array", "string", "integer", "number", "boolean"}


@pytest.mark.parametrize("path", [path for path in FIELDS if path != ".metadata"])
def test_every_field_is_described_in_a_sentence(path: str) -> None:
    description = FIELDS[path].get("description", "")
    assert len(description) >= 10
    assert description[0].isupper() or description.split()[0].islower()
    assert description.endswith(".")


def is_bounded(node: Schema) -> bool:
    kind = "any" if node.get("x-kubernetes-int-or-string") else node["type"]
    return {
        "string": "maxLength" in node or "enum" in node or "format" in node,
        "array": "maxItems" in node,
        "integer": "minimum" in node and "maximum" in node,
        "number": "minimum" in node and "maximum" in node,
        "any": "maxLength" in node and bool(node.get("x-kubernetes-validations")),
        "boolean": True,
        "object": "properties" in node or "maxProperties" in node,
    }[kind]


# The API server and quantities bound these: they are handed to pods as they are.
PASSED_ON = (".spec.staging.resources.requests{}", ".spec.staging.resources.limits{}")


@pytest.mark.parametrize("path", [path for path in NODES if path.startswith(".spec") and path not in PASSED_ON])
def test_every_field_of_the_spec_is_bounded(path: str) -> None:
    assert is_bounded(NODES[path])


@pytest.mark.parametrize("path", [path for path in NODES if path.startswith(".spec") and "default" in NODES[path]])
def test_defaults_are_never_empty_but_for_objects_whose_fields_have_some(path: str) -> None:
    default = NODES[path]["default"]
    if default == {}:
        assert any("default" in child for child in NODES[path]["properties"].values())
    else:
        assert default not in ("", [])


def test_the_status_has_one_default_which_says_that_nobody_has_seen_the_object() -> None:
    found = {path: node["default"] for path, node in NODES.items() if path.startswith(".status") and "default" in node}
    assert found == {".status": {"observedGeneration": -1}}


def test_the_file_in_the_chart_is_the_current_one() -> None:
    target = REPOSITORY / crdgen.DEFAULT_TARGET
    assert target.read_text() == crdgen.render()
    assert yaml.safe_load(target.read_text()) == crdgen.custom_resource_definition()


def test_the_file_has_no_anchors() -> None:
    assert "&id" not in crdgen.render()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "modelweights_operator.crdgen", *arguments]
    environment = {"PYTHONPATH": str(REPOSITORY / "operator")}
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, env=environment)


def test_check_fails_on_a_difference_and_generate_mends_it(tmp_path: Path) -> None:
    target = tmp_path / "below" / "crd.yaml"
    missing = run("--check", str(target))
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "run `make generate` and commit it" in missing.stderr
    assert run(str(target)).returncode == 0
    assert run("--check", str(target)).returncode == 0
    target.write_text(target.read_text() + "# edited\n")
    assert run("--check", str(target)).returncode == 1
