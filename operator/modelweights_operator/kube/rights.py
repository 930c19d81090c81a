"""Which rights the operator has, asked at start by `__main__`, and by `handlers` once it acts.

Without this a missing rule shows as a watch that waits for ever.
"""

import asyncio
from dataclasses import dataclass
from typing import Final, NamedTuple

from modelweights_operator import errors
from modelweights_operator.api.v1alpha1 import GROUP, PLURAL
from modelweights_operator.kube import paths
from modelweights_operator.kube.client import Api


@dataclass(frozen=True)
class Rule:
    """One right: a verb on a resource of an API group."""

    group: str
    resource: str
    verb: str
    subresource: str = ""

    def __str__(self) -> str:
        """As it would stand in a ClusterRole."""
        resource = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        return f'apiGroups: ["{self.group}"], resources: ["{resource}"], verbs: ["{self.verb}"]'


def _rules(group: str, resource: str, *verbs: str, subresource: str = "") -> tuple[Rule, ...]:
    return tuple(Rule(group, resource, verb, subresource) for verb in verbs)


REQUIRED: Final = (
    *_rules(GROUP, PLURAL, "get", "list", "watch"),
    *_rules(GROUP, PLURAL, "patch", subresource="status"),
    *_rules("batch", "jobs", "list", "watch", "create", "patch", "delete"),
    *_rules("", "pods", "list", "watch"),
    *_rules("", "nodes", "list", "watch"),
    *_rules("", "configmaps", "get", "create", "patch"),
    *_rules("", "events", "get", "list", "create", "patch"),
)
LEASES: Final = _rules("coordination.k8s.io", "leases", "get", "create", "patch")
"""In the operator's namespace alone; all but `create` of the one Lease alone."""
LIFT_PODS: Final = Rule("", "pods", "patch")
LABEL_NODES: Final = Rule("", "nodes", "patch")
HOLD_OBJECTS: Final = Rule(GROUP, PLURAL, "patch")
WATCH_NAMESPACES: Final = Rule("", "namespaces", "watch")
READ_LOGS: Final = Rule("", "pods", "get", "log")


class Features(NamedTuple):
    """What the optional rights let the operator do.

    Attributes:
        lift_pods: Open gates.
        label_nodes: Label nodes.
        hold_objects: Hold deleted objects back by a finalizer.
        watch_namespaces: Know which namespaces may require what others have.
        read_logs: Know how far stagings are.
    """

    lift_pods: bool
    label_nodes: bool
    hold_objects: bool
    watch_namespaces: bool
    read_logs: bool


async def check(api: Api) -> Features:
    """Check the rights.

    Returns:
        Which of the optional ones are there.

    Raises:
        errors.MissingRightsError: A right without which nothing works is missing, or the CRD is.
    """
    optional = (LIFT_PODS, LABEL_NODES, HOLD_OBJECTS, WATCH_NAMESPACES, READ_LOGS)
    answers = await asyncio.gather(*(_allowed(api, rule) for rule in (*REQUIRED, *optional)))
    missing = [str(rule) for rule, allowed in zip(REQUIRED, answers, strict=False) if not allowed]
    if missing:
        raise errors.MissingRightsError("the service account lacks these rules of a ClusterRole: " + "; ".join(missing))
    try:
        await api.get(paths.ALL_MODELWEIGHTS, limit="1")
    except errors.NotFoundError as error:
        raise errors.MissingRightsError(
            f"the CustomResourceDefinition {PLURAL}.{GROUP} isn't installed: install the chart with crds.enabled=true",
        ) from error
    return Features(*answers[-len(optional) :])


async def check_lease(api: Api, namespace: str, name: str) -> None:
    """Check the rights on the Lease by which operators agree on who acts.

    Raises:
        errors.MissingRightsError: One is missing.
    """
    # RBAC can't bind the right to create to a name.
    places = [{"namespace": namespace, "name": "" if rule.verb == "create" else name} for rule in LEASES]
    answers = await asyncio.gather(*(_allowed(api, rule, **place) for rule, place in zip(LEASES, places, strict=True)))
    missing = [str(rule) for rule, allowed in zip(LEASES, answers, strict=True) if not allowed]
    if missing:
        raise errors.MissingRightsError(
            f"the service account lacks these rules of a Role in {namespace}: " + "; ".join(missing)
        )


async def _allowed(api: Api, rule: Rule, **place: str) -> bool:
    attributes = {
        "group": rule.group,
        "resource": rule.resource,
        "subresource": rule.subresource,
        "verb": rule.verb,
        **place,
    }
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = await api.create(paths.ACCESS_REVIEWS, body)
    return bool(answer["status"].get("allowed"))
