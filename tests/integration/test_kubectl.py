"""`kubectl modelweights` as kubectl finds it on PATH, on a real API server, with the rights of an ordinary viewer."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from modelweights_operator.domain import names
from tests.cluster.api import ApiServer
from tests.integration.client import core_path, model_path
from tests.integration.cluster_double import DIGEST, OTHER_DIGEST, Team, gated_pod
from tests.integration.conftest import REPOSITORY
from tests.json_client import Json
from tests.polling import poll

SCRIPTS = Path(sys.executable).parent

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def yaml_blocks() -> list[str]:
    """Those of the document: the rights in it are the ones that the tests have."""
    return re.findall(r"```yaml\n(.*?)```", (REPOSITORY / "docs/kubectl.md").read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def environment(server: ApiServer, chart: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """That of a person who may view, and whose PATH has this kubectl and the plugin."""
    assert chart
    server.kubectl("apply", "-f", "-", input=next(block for block in yaml_blocks() if "kind: ClusterRole" in block))
    server.kubectl("create", "clusterrolebinding", "vera", "--clusterrole=modelweights-view", "--user=vera")
    kubeconfig = server.kubeconfig_for("vera")
    path = f"{server.folder / 'bin'}:{SCRIPTS}:/usr/bin:/bin"
    return {"PATH": path, "KUBECONFIG": str(kubeconfig), "HOME": str(tmp_path_factory.mktemp("home"))}


@pytest.fixture
def ask(environment: dict[str, str], namespace: str) -> Run:
    """Runs the plugin through kubectl, in the test's namespace."""

    def run(command: str, *words: str, **more: str) -> "subprocess.CompletedProcess[str]":
        argv = ["kubectl", "modelweights", command, *words, f"--namespace={namespace}"]
        return subprocess.run(
            argv, env={**environment, **more}, capture_output=True, text=True, timeout=60, check=False
        )

    return run


def status_of(team: Team, name: str = "llama", **nodes: Json) -> Json:
    """A ModelWeights with a status as the operator writes it. Here no operator runs."""
    made = team.create_model(name)
    now = "2026-11-30T12:00:00Z"
    condition = {"observedGeneration": 1, "lastTransitionTime": now}
    good = all(entry["state"] == "Ready" for entry in nodes.values())
    ready = {"status": str(good), "reason": "AllNodesReady" if good else "StagingFailed", "message": "as its nodes are"}
    status = {
        "observedGeneration": 1,
        "published": {"manifestDigest": DIGEST, "path": "/models/llama", "sizeBytes": 1000, "fileCount": 3},
        "summary": {
            "desired": len(nodes),
            "ready": sum(entry["state"] == "Ready" for entry in nodes.values()),
            "readyRatio": f"{sum(entry['state'] == 'Ready' for entry in nodes.values())}/{len(nodes)}",
        },
        "nodes": {team.node_name(node): entry for node, entry in nodes.items()},
        "conditions": [
            {"type": "Available", "status": "True", "reason": "NodesStaged", "message": "pods may start", **condition},
            {"type": "Ready", **ready, **condition},
        ],
    }
    team.admin.patch(f"{model_path(team.namespace, name)}/status", {"status": status})
    return made


READY = {"state": "Ready", "reason": "Staged", "manifestDigest": DIGEST, "bootID": "boot-1", "residentBytes": 1000}
FAILED = {"state": "Failed", "reason": "BadHeader", "message": "a.safetensors: short", "attempts": 2, "exitCode": 30}


def test_status_in_columns_and_for_programs(team: Team, ask: Run) -> None:
    status_of(team, a=READY, b=FAILED)
    text, data = ask("status", "llama"), ask("status", "-o", "json")
    assert (text.returncode, text.stderr) == (0, "")
    assert re.search(
        rf"{team.node_name('b')} +Failed +- +- +BadHeader: a.safetensors: short \(failed 2 times\)", text.stdout
    )
    assert re.search(rf"{team.node_name('a')} +Ready +100 % +1000 100 %", text.stdout)
    [model] = json.loads(data.stdout)["models"]
    assert model["nodes"][team.node_name("b")]["reason"] == "BadHeader"


def test_why_names_cause_remedy_and_log(team: Team, ask: Run) -> None:
    status_of(team, a=READY, b=FAILED)
    found = ask("why", "llama")
    assert (found.returncode, found.stderr) == (0, "")
    assert f"cause:    {team.node_name('b')}: BadHeader: a.safetensors: short (failed 2 times)" in found.stdout
    assert "remedy:   the checkpoint is bad" in found.stdout
    assert "unread" not in found.stdout


def test_a_viewer_reads_all_but_nodes_and_is_told_so(team: Team, ask: Run) -> None:
    status_of(team, a=READY)
    top = ask("top")
    assert top.returncode == 0
    assert re.search(rf"{team.node_name('a')} +1 +1 +0 +1000 +- ", top.stdout)
    assert "unread:   nodes is forbidden" in top.stdout
    refused = ask("pause", "llama")
    assert refused.returncode == 1
    assert 'User "vera" cannot patch resource "modelweights"' in refused.stderr
    assert team.model()["spec"].get("suspend", False) is False


def test_the_gate_is_judged_by_what_a_viewer_sees(team: Team, ask: Run) -> None:
    pods = core_path(team.namespace, "pods")
    for name, require in (("early", "later"), ("lost", "nothing"), ("fine", "llama")):
        team.admin.create(pods, gated_pod(name, require))
    status_of(team, a=READY)
    team.create_model("later")
    assert "waits until it is staged: " in ask("gate", "early").stdout
    assert "RequireNotFound: ModelWeights" in ask("gate", "lost").stdout
    assert "may start" in ask("gate", "pod/fine").stdout


def test_what_isnt_there_is_answered_with_what_is(team: Team, ask: Run) -> None:
    team.create_model()
    found = ask("why", "lama")
    assert found.returncode == 1
    assert found.stderr == "kubectl modelweights: there is no ModelWeights lama here: did you mean llama?\n"


def test_a_server_that_isnt_there_and_a_context_that_isnt(ask: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    assert "there is no kubeconfig" in ask("status", KUBECONFIG=str(tmp_path / "empty")).stderr
    assert "context" in ask("status", "--context=nowhere").stderr


def test_pause_resume_and_retry_write_what_the_operator_reads(team: Team, ask: Run, server: ApiServer) -> None:
    admin = {"KUBECONFIG": str(server.kubeconfig)}
    status_of(team, a=READY, b=FAILED)
    assert "put spec.suspend back" in ask("pause", "llama", **admin).stdout
    assert team.model()["spec"]["suspend"] is True
    assert ask("resume", "llama", **admin).returncode == 0
    assert team.model()["spec"]["suspend"] is False
    assert "has not failed" in ask("retry", "llama", "--node", team.node_name("a"), **admin).stderr
    assert names.RETRY_ANNOTATION not in team.model()["metadata"].get("annotations", {})
    assert ask("retry", "llama", **admin).returncode == 0
    assert team.model()["metadata"]["annotations"][names.RETRY_ANNOTATION]


def test_verify_finds_a_label_that_lies(team: Team, ask: Run, server: ApiServer) -> None:
    admin = {"KUBECONFIG": str(server.kubeconfig)}
    team.add_node("a")
    uid = status_of(team, a=READY)["metadata"]["uid"]
    good = ask("verify", "llama", **admin)
    assert (good.returncode, "all records agree" in good.stdout) == (0, True)
    team.label_node("a", {names.node_label(uid, OTHER_DIGEST): names.label_digest(OTHER_DIGEST)})
    bad = ask("verify", "llama", **admin)
    assert (bad.returncode, "its label promises" in bad.stdout) == (1, True)


def test_kubectl_completes_commands_and_names(team: Team, environment: dict[str, str]) -> None:
    team.create_model()
    argv = ["kubectl", "__complete", "modelweights", "why", f"--namespace={team.namespace}", "ll"]
    found = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert found.stdout.splitlines()[:2] == ["llama", ":4"]


class Terminal:
    """A program at a pseudo-terminal of 100 columns. What it writes is read without end, so that it never waits for us."""

    def __init__(self, argv: list[str], environment: dict[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        termios.tcsetwinsize(self._ours, (30, 100))
        self.before = termios.tcgetattr(self._ours)
        # It is the terminal's foreground group then, as in a shell: Ctrl-C is for it.
        # And it isn't ignored, as it would be where these tests themselves were started in a shell's background.
        argv = ["env", "--default-signal=INT", "setsid", "--ctty", *argv]
        more = {"TERM": "xterm-256color", "PYTHONFAULTHANDLER": "1"}
        self.process = subprocess.Popen(argv, env={**environment, **more}, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        os.set_blocking(self._ours, False)
        self.written = ""

    def read(self) -> str:
        """All that it wrote so far."""
        try:
            while chunk := os.read(self._ours, 65536):
                self.written += chunk.decode()
        except OSError:
            # Nothing more for now, or for ever.
            pass
        return self.written

    def press_ctrl_c(self) -> None:
        os.write(self._ours, b"\x03")

    def end(self) -> int:
        """Its exit code. One that doesn't end says where each of its threads is."""
        try:
            return self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)
            self.process.wait(timeout=60)
            raise AssertionError(f"it didn't end within 60 s: {self.read()[-4000:]}") from None

    def settings(self) -> list[object]:
        return termios.tcgetattr(self._ours)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)


@pytest.fixture
def terminal(environment: dict[str, str], team: Team) -> Iterator[Terminal]:
    status_of(team, a=READY, b={"state": "Staging", "reason": "Fetching", "progressPercent": 40})
    argv = ["kubectl", "modelweights", "status", "llama", "--watch", f"--namespace={team.namespace}"]
    terminal = Terminal(argv, environment)
    yield terminal
    terminal.close()


def test_watch_draws_bars_and_ends_with_ctrl_c(team: Team, terminal: Terminal) -> None:
    poll("40 % is drawn", lambda: "40 %" in terminal.read(), show=[terminal.read])
    assert "━" in terminal.written
    nodes = {team.node_name("b"): {"state": "Staging", "reason": "Prefetching", "progressPercent": 70}}
    team.admin.patch(f"{model_path(team.namespace, 'llama')}/status", {"status": {"nodes": nodes}})
    poll("70 % is drawn", lambda: "70 %" in terminal.read(), show=[terminal.read])
    assert "\x1b[?25l" in terminal.written

    terminal.press_ctrl_c()

    assert terminal.end() == 130
    assert terminal.read().rfind("\x1b[?25h") > terminal.written.rfind("\x1b[?25l")
    assert "Traceback" not in terminal.written
    assert terminal.settings() == terminal.before


def test_a_killed_watch_leaves_no_kubectl_behind(terminal: Terminal) -> None:
    poll("it draws", lambda: "40 %" in terminal.read(), show=[terminal.read])
    children = poll("its kubectl runs", lambda: watchers(terminal))
    terminal.process.terminate()
    assert terminal.end() == 130
    assert terminal.read().endswith("\x1b[?25h")
    poll("they are gone", lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))


def watchers(terminal: Terminal) -> list[int]:
    """Processes that terminal's program started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == terminal.process.pid:
            found.append(int(folder.name))
    return found
