"""Neither the token nor a signed link shows anywhere: output, reports, files, arguments, environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.polling import wait_for
from tests.servers.hub import Fault, Hub
from tests.servers.repositories import NAME, WEIGHTS, make_repository

if TYPE_CHECKING:
    from collections.abc import Iterator

LOADER = Path(__file__).resolve().parents[5] / "loader"
TOKEN = "hf_SecretSecretSecret"  # noqa: S105 - of the test's hub
# Of the token, and of a link to the storage.
SECRETS = ("SecretSecret", "X-Signature", "X-Expires")
STORAGE = f"data /repos/{NAME}/one/{WEIGHTS}"


class Site(NamedTuple):
    """A hub with a private repository, and a folder to fetch it to."""

    hub: Hub
    folder: Path

    def start(self, **environment: str) -> subprocess.Popen[str]:
        """Start `fetch` with the token in a file."""
        (self.folder / "token").write_text(TOKEN)
        options = ["--source", f"hf://{NAME}", "--endpoint", self.hub.url, "--token-file", str(self.folder / "token")]
        more = [
            "--stall-seconds",
            "2",
            "--report",
            str(self.folder / "report"),
            "--results",
            str(self.folder / "results"),
        ]
        command = [sys.executable, "-m", "modelweights_loader", "fetch", str(self.folder / "home"), *options, *more]
        return subprocess.Popen(
            command,
            env={**os.environ, **environment, "PYTHONPATH": str(LOADER)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def find_secrets(self, *outputs: str) -> list[str]:
        """Which secrets are in the outputs, or in any file but the token's own."""
        places = [each for each in self.folder.rglob("*") if each.is_file() and "hub" not in each.parts]
        texts = [*outputs, *(each.read_text("latin-1") for each in places if each.name != "token")]
        assert len(texts) > len(outputs)
        return [secret for secret in SECRETS if any(secret in text for text in texts)]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    make_repository(tmp_path / "hub", private=True, gated=True)
    with Hub(tmp_path / "hub") as hub:
        hub.settings["tokens"] = {TOKEN: [NAME]}
        yield Site(hub, tmp_path)


@pytest.mark.parametrize(
    ("settings", "fault", "code", "words"),
    [
        ({}, None, 0, "4 files"),
        ({"tokens": {}}, None, 20, "refuses the token in"),
        ({"tokens": {TOKEN: []}}, None, 20, "has no repository"),
        ({"forbidden": {TOKEN: [NAME]}}, None, 20, "forbids"),
        ({"linkSeconds": -10}, None, 20, "refuses a link that the hub has just given"),
        ({}, Fault("data", "cut", after=1000, times=1), 0, "4 files"),
        ({}, Fault("data", "status", status=403), 20, "refuses a link that the hub has just given"),
        ({}, Fault("data", "gzip"), 20, "compresses"),
        ({}, Fault("resolve", "status", status=403), 20, "forbids"),
    ],
    ids=["good", "refused", "private", "forbidden", "expired", "cut", "storage refuses", "gzip", "file forbidden"],
)
def test_no_secret_in_what_fetch_leaves(
    site: Site, settings: dict[str, Any], fault: Fault | None, code: int, words: str
) -> None:
    site.hub.settings.update(settings)
    site.hub.set_faults(*([fault] if fault else []))
    with site.start(HF_DEBUG="1", HF_HUB_VERBOSITY="debug") as process:
        output, errors = process.communicate(timeout=60)
    assert (code, True) == (process.returncode, words in output + errors), output + errors
    assert [] == site.find_secrets(output, errors)
    assert "Traceback" not in errors
    assert 0 == site.hub.requests["token at the storage"]


def test_no_secret_in_the_process_list_while_it_runs(site: Site) -> None:
    site.hub.set_faults(Fault("data", "stall", after=1000, times=1))
    with site.start() as process:
        assert wait_for(lambda: site.hub.requests[STORAGE] > 0)
        shown = Path(f"/proc/{process.pid}/cmdline").read_text() + Path(f"/proc/{process.pid}/environ").read_text()
        output, errors = process.communicate(timeout=60)
    assert 0 == process.returncode
    assert "--token-file" in shown
    assert [] == site.find_secrets(shown, output, errors)
