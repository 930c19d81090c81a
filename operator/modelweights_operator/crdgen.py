"""Turns the API models into the CustomResourceDefinition of the chart (`make generate`).

Called by hand and by the check that the file in the chart is the current one. A structural schema knows no `$ref`, no
`null` and no `title`, and wants `x-kubernetes-*` marks where pydantic writes alternatives; that is all that is
translated here. Imports the API models only.
"""

import argparse
import copy
import sys
from pathlib import Path
from typing import Any, Final

import yaml

from modelweights_operator.api import v1alpha1 as api

Schema = dict[str, Any]

DEFAULT_TARGET: Final = Path("charts/modelweights-operator/files/crds/modelweights.yaml")
HEADER: Final = "# Generated from operator/modelweights_operator/api/v1alpha1.py by `make generate`. Do not edit.\n"

_INT_OR_STRING: Final[Schema] = {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}
# An empty default says nothing that the reader's model doesn't, and would show up as drift under GitOps.
_EMPTY: Final[tuple[Any, ...]] = (None, "", [], {})
_UNSUPPORTED: Final = ("title", "propertyNames", "$defs", "x-kubernetes-int-or-string")


def structural(schema: Schema, definitions: dict[str, Schema], *, defaults: bool) -> Schema:
    """Translate one JSON schema node, and all below it, into a structural one.

    Args:
        schema: The node as pydantic wrote it.
        definitions: The `$defs` that its references name.
        defaults: Whether defaults are kept: in spec the API server fills them in, in status they'd only take room.

    Returns:
        The structural schema; the input is left as it is.
    """
    node = _inline(schema, definitions)
    if "const" in node:
        node["enum"] = [node.pop("const")]
    if not defaults or node.get("default", True) in _EMPTY:
        node.pop("default", None)
    required = node.get("required", ())
    for name, child in node.get("properties", {}).items():
        below = structural(child, definitions, defaults=defaults)
        if defaults and name not in required and _may_be_absent_whole(child, below):
            below["default"] = {}
        node["properties"][name] = below
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            node[key] = structural(node[key], definitions, defaults=defaults)
    return node


def _may_be_absent_whole(schema: Schema, node: Schema) -> bool:
    """Whether an object needs `default: {}` so that the defaults inside it apply when it is left out."""
    optional = any(option == {"type": "null"} for option in schema.get("anyOf", ()))
    return not optional and any("default" in child for child in node.get("properties", {}).values())


def _inline(schema: Schema, definitions: dict[str, Schema]) -> Schema:
    """Resolve a reference and alternatives; what stands beside them wins over what they hold."""
    beside = {
        # A copy: the document must not share parts, or YAML would write them as anchors.
        key: copy.deepcopy(value)
        for key, value in schema.items()
        if key not in ("$ref", "anyOf", *_UNSUPPORTED)
    }
    if "$ref" in schema:
        referred = definitions[schema["$ref"].removeprefix("#/$defs/")]
        return {**_inline(referred, definitions), **beside}
    options = [option for option in schema.get("anyOf", ()) if option != {"type": "null"}]
    if not options:
        return beside
    if len(options) == 1:
        return {**_inline(options[0], definitions), **beside}
    if sorted(option["type"] for option in options) != ["integer", "string"]:
        raise TypeError(f"no structural form for the alternatives {options}")
    bounds = {key: value for option in options for key, value in option.items() if key in ("pattern", "maxLength")}
    return {**copy.deepcopy(_INT_OR_STRING), **bounds, **beside}


def openapi_schema() -> Schema:
    """The structural schema of a ModelWeights object."""
    generated = api.ModelWeights.model_json_schema(by_alias=True)
    definitions = generated["$defs"]
    spec = structural(generated["properties"]["spec"], definitions, defaults=True)
    status = structural(generated["properties"]["status"], definitions, defaults=False)
    # Else kstatus, and with it Flux, would take an object that nobody has looked at yet for one that is as it should be.
    status["default"] = {"observedGeneration": -1}
    return {
        "type": "object",
        "description": generated["description"],
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": "Version of the schema of this object."},
            "kind": {"type": "string", "description": "Kind of this object."},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
    }


def _columns() -> list[Schema]:
    ready = '.status.conditions[?(@.type=="Ready")]'
    return [
        {"name": "Ready", "type": "string", "jsonPath": f"{ready}.status"},
        {"name": "Nodes", "type": "string", "jsonPath": ".status.summary.readyRatio"},
        {"name": "Size", "type": "string", "jsonPath": ".status.summary.size"},
        {"name": "Status", "type": "string", "jsonPath": f"{ready}.reason"},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        {
            "name": "Available",
            "type": "string",
            "jsonPath": '.status.conditions[?(@.type=="Available")].status',
            "priority": 1,
        },
        {"name": "Revision", "type": "string", "jsonPath": ".status.published.requested", "priority": 1},
        {"name": "Digest", "type": "string", "jsonPath": ".status.published.manifestDigest", "priority": 1},
        {"name": "Message", "type": "string", "jsonPath": f"{ready}.message", "priority": 1},
    ]


def custom_resource_definition() -> Schema:
    """The whole CustomResourceDefinition."""
    version = {
        "name": api.VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": openapi_schema()},
        "subresources": {"status": {}},
        "additionalPrinterColumns": _columns(),
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{api.PLURAL}.{api.GROUP}"},
        "spec": {
            "group": api.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": api.KIND,
                "listKind": f"{api.KIND}List",
                "plural": api.PLURAL,
                "singular": api.PLURAL,
                "shortNames": ["mw"],
                "categories": ["all"],
            },
            "versions": [version],
        },
    }


def render() -> str:
    """The file as it stands in the chart."""
    return HEADER + yaml.safe_dump(custom_resource_definition(), sort_keys=False, width=120)


def main() -> int:
    """Write the CRD, or with `--check` compare it; 1 when it differs."""
    parser = argparse.ArgumentParser(description="Generate the CRD of the chart from the API models.")
    parser.add_argument("target", nargs="?", type=Path, default=DEFAULT_TARGET)
    parser.add_argument("--check", action="store_true", help="change nothing; fail when the file isn't the current one")
    arguments = parser.parse_args()
    if arguments.check:
        if arguments.target.exists() and arguments.target.read_text() == render():
            return 0
        sys.stderr.write(f"{arguments.target} differs from the API models: run `make generate` and commit it\n")
        return 1
    arguments.target.parent.mkdir(parents=True, exist_ok=True)
    arguments.target.write_text(render())
    return 0


if __name__ == "__main__":
    sys.exit(main())
