"""kopf's handlers: they only pass on what happened. Registered when `__main__` imports this, run once it leads.

`__main__` gives them, in the memo: `settings`; `api`, the connection whose writes end with the lead; `health` and `metrics`; and
`stop`, kopf's flag to stop.

All are event handlers: these put no finalizer and no annotation on anything, and what is done depends on the state that is
found, never on the difference that an event brought.
"""

import itertools
import logging
from collections.abc import Iterator
from typing import Any, Final

import kopf

from modelweights_operator import errors
from modelweights_operator.api.v1alpha1 import GROUP, PLURAL, VERSION
from modelweights_operator.kube import login, rights
from modelweights_operator.kube.client import SILENCE_SECONDS, WATCH_SECONDS
from modelweights_operator.reconciler import Reconciler

_LIST_SECONDS: Final = 60.0

_log = logging.getLogger(__name__)


class _Patience:
    """Seconds between kopf's tries of a request that fails: without end, since after its last one kopf ends the process."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((1, 1, 2, 3, 5, 8, 13), itertools.repeat(20))


@kopf.on.startup()
async def start(settings: kopf.OperatorSettings, memo: kopf.Memo, **_: Any) -> None:
    """Tune kopf, look at the rights, and start the rest."""
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.watching.server_timeout = WATCH_SECONDS
    settings.watching.client_timeout = WATCH_SECONDS + 30
    settings.watching.inactivity_timeout = SILENCE_SECONDS
    settings.networking.error_backoffs = _Patience()
    settings.networking.request_timeout = _LIST_SECONDS
    try:
        memo.reconciler = await _make_reconciler(memo)
    except errors.OperatorError as error:
        # Permanent for kopf, so that the process ends and the kubelet restarts it, with the cause as its last line.
        raise kopf.PermanentError(str(error)) from error
    memo.health.watched = memo.metrics.state = memo.reconciler
    memo.reconciler.start()


async def _make_reconciler(memo: kopf.Memo) -> Reconciler:
    features = await rights.check(memo.api)
    if not features.lift_pods:
        _log.warning("no right to patch pods: waiting pods are not started (chart: gate.enabled)")
    startup_taint = memo.settings.startup_taint and features.label_nodes
    if memo.settings.startup_taint and not features.label_nodes:
        _log.warning("no right to patch nodes: the startup taint stays on them")
    features = features._replace(label_nodes=features.label_nodes and memo.settings.label_nodes)
    if not features.label_nodes:
        _log.warning("no right to patch nodes: pods are bound to the nodes that are ready at the time of the lift")
    if not features.hold_objects:
        _log.warning("no right to patch ModelWeights: deletionPolicy Delete removes nothing (chart: cleanup.enabled)")
    if not features.read_logs:
        _log.info("no right to read pods' logs: the status has no progressPercent (chart: progress.enabled)")
    return Reconciler(memo.api, memo.settings, features, memo.metrics, startup_taint=startup_taint)


@kopf.on.login()
def log_in(**kwargs: Any) -> kopf.ConnectionInfo | None:
    """Let kopf connect as `Api.connect` does: as the pod's service account, else as KUBECONFIG says.

    By the client's rules: kopf's own for service accounts need the cluster's DNS, which may not be up yet.
    """
    return login.relaxed(kopf.login_via_client(**kwargs))


@kopf.on.cleanup()
async def stop(memo: kopf.Memo, **_: Any) -> None:
    """Finish what is at hand."""
    if "reconciler" in memo:
        await memo.reconciler.close()
    # kopf was stopped by a signal, which it takes itself; and its own task that waits for this flag is given five seconds to end.
    memo.stop.set()


@kopf.on.event(GROUP, VERSION, PLURAL)
async def model_changed(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
    """Tell that a ModelWeights came, changed or went."""
    memo.reconciler.model_seen(event["object"], gone=event["type"] == "DELETED")
