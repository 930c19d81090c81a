"""From the request that creates a ModelWeights to Ready, beside Jobs of the same shape that do nothing. Called by `__main__`.

Three kinds of run, one after the other in each round, so that a disturbance of the machine meets all of them:

    empty        the Job that the operator made, with `true` in each container
    interpreter  the same with `modelweights-loader --version`: what starting the loader costs, without any work
    staging      a ModelWeights, by the operator

The image and the checkpoint are warm on the node in all of them: one staging comes first and isn't counted.
"""

import copy
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.bench.timeline import Milestones, Timeline, record

Json = dict[str, Any]

NAMESPACE: Final = "bench"
KINDS: Final = ("empty", "interpreter", "staging")
STEPS: Final = ("prefetch", "validate", "report")
_COMMANDS: Final = {"empty": ["true"], "interpreter": ["modelweights-loader", "--version"]}
_RUN_SECONDS: Final = 120.0


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        kind: One of KINDS.
        at_seconds: Per milestone, the time since the request was sent.
        loader_seconds: Per step of the loader, the time that its report gives.
    """

    kind: str
    at_seconds: dict[str, float]
    loader_seconds: dict[str, float]

    @property
    def total_seconds(self) -> float:
        """Until Ready, or until the Job is complete."""
        return self.at_seconds["ready" if self.kind == "staging" else "job complete"]


async def measure(kubeconfig: Path, node: str, path: str, rounds: int, say: Callable[[str], None]) -> list[Run]:
    """Do the runs; takes about half a minute for each round.

    Args:
        kubeconfig: Of a cluster with the operator.
        node: Name of the node on which everything runs.
        path: Folder of the checkpoint on it.
        rounds: How many runs of each kind.
        say: Gets a line for each run.
    """
    async with record(kubeconfig, NAMESPACE) as timeline:
        stamp = f"{time.time():.0f}"
        warm = await _stage(timeline, f"warm-{stamp}", node, path)
        say(f"warm-up: {warm.total_seconds:.2f} s, not counted")
        template = await _template(timeline, f"warm-{stamp}")
        runs = []
        for number in range(rounds):
            for kind in KINDS:
                name = f"{kind}-{stamp}-{number}"
                if kind == "staging":
                    run = await _stage(timeline, name, node, path)
                    await _delete(timeline, name)
                else:
                    run = await _idle_job(timeline, kind, name, template)
                say(f"round {number + 1}, {kind}: {run.total_seconds:.2f} s")
                runs.append(run)
        return runs


async def _stage(timeline: Timeline, name: str, node: str, path: str) -> Run:
    body = {
        "apiVersion": "modelweights.io/v1alpha1",
        "kind": "ModelWeights",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "source": {"hostPath": {"path": path}},
            "placement": {"nodeSelector": {"kubernetes.io/hostname": node}},
        },
    }
    started = time.monotonic()
    await timeline.api.create(timeline.paths()["models"], body)
    accepted = time.monotonic()
    model = timeline.models[name]
    await timeline.wait(f"ModelWeights {name} Ready", lambda: "Ready" in model.at, _RUN_SECONDS)
    job = next(job for job, seen in timeline.jobs.items() if _owner(seen) == model.body["metadata"]["uid"])
    pod = timeline.pods[job]
    # Another watch, which may lag behind the one that said Ready.
    await timeline.wait(f"the reports of Job {job}", lambda: f"{STEPS[-1]} finished" in pod.at, _RUN_SECONDS)
    moments = {"accepted": accepted, **_moments(timeline, job, until=model.at["Ready"]), "ready": model.at["Ready"]}
    return Run("staging", _since(started, moments), _loader_seconds(pod.body))


async def _idle_job(timeline: Timeline, kind: str, name: str, template: Json) -> Run:
    body = copy.deepcopy(template)
    body["metadata"]["name"] = name
    pod = body["spec"]["template"]["spec"]
    for container in (*pod["initContainers"], *pod["containers"]):
        container["command"], container["args"] = _COMMANDS[kind], []
    started = time.monotonic()
    await timeline.api.create(timeline.paths()["jobs"], body)
    accepted = time.monotonic()
    job = timeline.jobs[name]
    await timeline.wait(f"Job {name} complete", lambda: "Complete" in job.at, _RUN_SECONDS)
    moments = {"accepted": accepted, **_moments(timeline, name, until=job.at["Complete"])}
    await timeline.api.delete(f"{timeline.paths()['jobs']}/{name}")
    await timeline.wait(f"Job {name} gone", lambda: "gone" in job.at, _RUN_SECONDS)
    return Run(kind, _since(started, moments), {})


async def _template(timeline: Timeline, name: str) -> Json:
    """The operator's own Job as a plain one of nobody's, so that its shape is the operator's by construction."""
    uid = timeline.models[name].body["metadata"]["uid"]
    made = next(seen.body for seen in timeline.jobs.values() if _owner(seen) == uid)
    await _delete(timeline, name)
    pod = copy.deepcopy(made["spec"]["template"]["spec"])
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"namespace": NAMESPACE},
        "spec": {
            **{key: made["spec"][key] for key in ("backoffLimit", "podReplacementPolicy", "podFailurePolicy")},
            "template": {"spec": pod},
        },
    }


async def _delete(timeline: Timeline, name: str) -> None:
    """Delete a ModelWeights, and wait until it and its Jobs are gone: the next run finds a quiet node."""
    model = timeline.models[name]
    await timeline.api.delete(f"{timeline.paths()['models']}/{name}")
    own = [seen for seen in timeline.jobs.values() if _owner(seen) == model.body["metadata"]["uid"]]
    await timeline.wait(
        f"ModelWeights {name} gone", lambda: all("gone" in seen.at for seen in (model, *own)), _RUN_SECONDS
    )


def _owner(job: Milestones) -> str | None:
    """UID of the object that a Job belongs to."""
    references = job.body["metadata"].get("ownerReferences") or [] if job.body else []
    return references[0]["uid"] if references else None


def _moments(timeline: Timeline, job: str, until: float) -> dict[str, float]:
    """The milestones of a Job and its pod, in the order in which they come; what comes after `until` is left out.

    The operator takes the last step's report as the result, so a staging may be Ready before its Job is complete.
    """
    seen, pod = timeline.jobs[job].at, timeline.pods[job].at
    moments = {"job created": seen.get("created"), "pod created": pod.get("created"), "scheduled": pod.get("scheduled")}
    for step in STEPS:
        moments[f"{step} started"] = pod.get(f"{step} started")
        moments[f"{step} finished"] = pod.get(f"{step} finished")
    moments |= {"pod finished": pod.get("finished"), "job complete": seen.get("Complete")}
    return {name: at for name, at in moments.items() if at is not None and at <= until}


def _since(started: float, moments: dict[str, float]) -> dict[str, float]:
    return {name: round(at - started, 3) for name, at in moments.items()}


def _loader_seconds(pod: Json) -> dict[str, float]:
    """What the steps' reports, the containers' termination messages, say of their own time."""
    states = (*pod["status"]["initContainerStatuses"], *pod["status"]["containerStatuses"])
    return {state["name"]: float(json.loads(state["state"]["terminated"]["message"])["seconds"]) for state in states}
