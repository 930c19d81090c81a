"""Which pods may require a ModelWeights: those of its namespace, and of others that its spec selects. Called by `gate`; pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from modelweights_operator.api.v1alpha1 import Access, LabelSelector
from modelweights_operator.domain.placement import matches


@dataclass(frozen=True)
class NamespaceLabels:
    """A namespace, as far as this cares."""

    namespace: str
    labels: Mapping[str, str]


def allows(access: Access, namespace: NamespaceLabels | None) -> bool:
    """Whether pods of another namespace may require it.

    Args:
        access: Of the ModelWeights' spec.
        namespace: That one; None where its labels aren't known.
    """
    selector = access.namespace_selector
    return selector is not None and namespace is not None and _matches(selector, namespace.labels)


def _matches(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in selector.match_labels.items()) and all(
        matches(requirement, labels.get(requirement.key)) for requirement in selector.match_expressions
    )
