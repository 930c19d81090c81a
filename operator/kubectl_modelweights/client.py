"""Asks the cluster by kubectl itself. Called by `gathered`, `writes`, `watching` and `completion`.

Not by a library: the plugin then has the same contexts, credentials, proxies and caches as the kubectl that called it, and
starts in a fraction of the time (the library alone takes a second to import).
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kubectl_modelweights import refusals
from kubectl_modelweights.errors import CommandError

Json = dict[str, Any]

RESOURCE: Final = "modelweights.modelweights.io"
FIELD_MANAGER: Final = "kubectl-modelweights"
_REQUEST_SECONDS: Final = 20
_PROCESS_SECONDS: Final = 60
"""A kubectl that asks for a login in a browser takes its time; the requests have a time-out of their own."""


@dataclass(frozen=True)
class Client:
    """kubectl with the options that the person gave.

    Attributes:
        options: Words such as `--context=x`, which each call is given.
        namespace: Which one, "" for that of the context.
    """

    options: tuple[str, ...] = ()
    namespace: str = ""

    def get(self, *words: str) -> Json:
        """One object, or a list of them. Blocks until the answer.

        Raises:
            CommandError: It can't be had.
        """
        return json.loads(self.run("get", *words, "--output=json"))  # type: ignore[no-any-return]

    def items(self, *words: str) -> list[Json]:
        """The objects of a list."""
        found: list[Json] = self.get(*words)["items"]
        return found

    def readable(self, *words: str) -> tuple[list[Json], str]:
        """The objects of a list, as far as they may be read, and why not all of them; "" for all."""
        done = self._ask(("get", *words, "--output=json"))
        said = refusals.translate(done.stderr) if done.returncode else ""
        try:
            found: list[Json] = json.loads(done.stdout)["items"]
        except (ValueError, KeyError):
            return [], said
        return found, said

    def patch(self, name: str, patch: Json) -> Json:
        """A merge patch of a ModelWeights; the object as it is then."""
        words = ("--type=merge", f"--patch={json.dumps(patch)}", f"--field-manager={FIELD_MANAGER}", "--output=json")
        return json.loads(self.run("patch", RESOURCE, name, *words))  # type: ignore[no-any-return]

    def run(self, *words: str) -> str:
        """What kubectl prints."""
        done = self._ask(words)
        if done.returncode:
            raise CommandError(refusals.translate(done.stderr))
        return done.stdout

    def _ask(self, words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        argv = [*self._argv(words), f"--request-timeout={_REQUEST_SECONDS}s"]
        try:
            return subprocess.run(argv, capture_output=True, text=True, timeout=_PROCESS_SECONDS, check=False)  # noqa: S603 - kubectl, found on PATH
        except subprocess.TimeoutExpired:
            raise CommandError(f"kubectl gave no answer within {_PROCESS_SECONDS} s: {' '.join(words[:2])}") from None

    def watch(self, *words: str) -> "Watch":
        """Starts `kubectl get --watch`; whoever asks has to close it."""
        return Watch(self._argv(("get", *words, "--output=json", "--watch", "--output-watch-events")))

    def _argv(self, words: Sequence[str]) -> list[str]:
        name = os.environ.get("KUBECTL") or "kubectl"
        program = shutil.which(name)
        if program is None:
            raise CommandError(f"{name} isn't on PATH: install kubectl, or name it in the variable KUBECTL")
        # All namespaces and one of them don't go together.
        everywhere = "--all-namespaces" in words
        scope = [f"--namespace={self.namespace}"] if self.namespace and not everywhere else []
        return [program, *self.options, *scope, *words]


class Watch:
    """A kubectl that reports changes until it is closed, or the API server ends the watch."""

    def __init__(self, argv: Sequence[str]) -> None:
        # In a group of its own: Ctrl-C is for us, and we end it.
        self._process = subprocess.Popen(  # noqa: S603 - kubectl, found on PATH
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )

    def __iter__(self) -> Iterator[tuple[str, Json]]:
        """Kind of change and object, as they come.

        Raises:
            CommandError: kubectl failed.
        """
        assert self._process.stdout is not None  # noqa: S101 - asked for above
        assert self._process.stderr is not None  # noqa: S101 - asked for above
        for event in parse_stream(iter(self._process.stdout)):
            yield event["type"], event["object"]
        said = self._process.stderr.read()
        if self._process.wait() > 0:
            raise CommandError(refusals.translate(said))

    def close(self) -> None:
        """End it; harmless when it has ended."""
        self._process.terminate()
        self._process.wait()


def parse_stream(lines: Iterator[str]) -> Iterator[Json]:
    """The JSON objects of a text in which each begins and ends at the start of a line, as kubectl prints them."""
    text = ""
    for line in lines:
        text += line
        if line.startswith("}") or (text == line and line.rstrip().endswith("}")):
            try:
                found = json.loads(text)
            except json.JSONDecodeError:
                continue
            text = ""
            yield found
