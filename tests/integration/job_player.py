"""Plays the Job controller and the kubelets by itself, for tests that let the operator work alone: every Job of it ends well.

Whatever it meets half way is met again at the next look: the API server may be away, and a Job may go at any time.
"""

import hashlib
import http.client
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from modelweights_operator.domain import names
from tests.integration.client import Kube
from tests.integration.cluster_double import Team, end_job, failure, report
from tests.json_client import Json, RefusedError

_JOBS = f"/apis/batch/v1/jobs?labelSelector={names.MANAGED_BY_LABEL}%3D{names.MANAGED_BY}"
_CLEANUPS = f"/apis/batch/v1/jobs?labelSelector={names.CLEANUP_LABEL}"
_LOOK_SECONDS = 0.1
_HANDS = 4


def digest_of(revision: str) -> str:
    """The digest of what is fetched at a revision."""
    return "sha256:" + hashlib.sha256(revision.encode()).hexdigest()


class JobPlayer:
    """A thread; a context manager.

    Args:
        admin: The administrator.
        belongs: Part of the name of the nodes whose Jobs are played; others are left alone.
        fails: Which stagings end badly, and may be tried again.

    Attributes:
        played: How many Jobs it ended.
        waiting: How many Jobs there were to be ended when it looked last.
        ended: Per node and what was done there, the UIDs of the Jobs that ended well.
    """

    def __init__(self, admin: Kube, belongs: str, fails: Callable[[Json], bool] = lambda _: False) -> None:
        self._admin, self._belongs, self._fails = admin, belongs, fails
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._play, daemon=True)
        self.played = 0
        self.waiting = 0
        self.ended: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(30)

    def _play(self) -> None:
        with ThreadPoolExecutor(_HANDS) as hands:
            while not self._stop.wait(_LOOK_SECONDS):
                try:
                    jobs = [*self._admin.items(_JOBS), *self._admin.items(_CLEANUPS)]
                except (OSError, http.client.HTTPException, RefusedError):
                    # Away, or out of breath.
                    continue
                due = [job for job in jobs if self._is_due(job)]
                self.waiting = len(due)
                self.played += sum(hands.map(self._try_to_end, due))

    def _is_due(self, job: Json) -> bool:
        metadata = job["metadata"]
        if job.get("status", {}).get("conditions") or "deletionTimestamp" in metadata:
            return False
        return self._belongs in (metadata.get("annotations") or {}).get(names.NODE_ANNOTATION, "")

    def _try_to_end(self, job: Json) -> bool:
        """Whether it could; one that couldn't be ended is met again, if it is still there."""
        if self._stop.is_set():
            return False
        try:
            self._end(job, job["metadata"]["annotations"])
        except (OSError, http.client.HTTPException, RefusedError):
            return False
        return True

    def _end(self, job: Json, notes: dict[str, str]) -> None:
        if names.CLEANUP_DIGESTS_ANNOTATION in notes:
            end_job(self._admin, job, good=True)
            self.ended[what_is_done(notes)].add(job["metadata"]["uid"])
            return
        team, revision = Team(self._admin, job["metadata"]["namespace"]), notes.get(names.REVISION_ANNOTATION, "")
        if revision:
            team.end_fetch(job, revision)
        if self._fails(job):
            team.end(job, failure("Timeout", 10))
            return
        team.end(job, report(digest_of(revision)))
        self.ended[what_is_done(notes)].add(job["metadata"]["uid"])


def what_is_done(notes: dict[str, str]) -> tuple[str, ...]:
    """What a Job does where, by its annotations."""
    keys = (names.NODE_ANNOTATION, names.BOOT_ID_ANNOTATION, names.STAGING_DIGEST_ANNOTATION, names.REVISION_ANNOTATION)
    return tuple(notes.get(key, "") for key in (*keys, names.CLEANUP_DIGESTS_ANNOTATION))
