"""The plan that the init program carries out: keep these classes like the structs in go/init/plan.go."""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Forward:
    """Connections to the listener at descriptor fd go on to target, HOST:PORT, inside init's network namespace."""

    fd: int
    target: str


@dataclass(frozen=True)
class Service:
    """One supervised process; go/init/plan.go describes each field."""

    name: str
    argv: list[str]
    log: str
    env: list[str] = field(default_factory=list)
    wait_for: list[str] = field(default_factory=list)
    once: bool = False
    isolated: bool = False
    before: list[str] = field(default_factory=list)
    after_start: list[str] = field(default_factory=list)
    after_stop: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Plan:
    """All that one init supervises."""

    services: list[Service]
    setup: list[str] = field(default_factory=list)
    control: str = ""
    end_with_stdin: bool = False
    forwards: list[Forward] = field(default_factory=list)

    def write(self, path: Path) -> Path:
        """Write the plan as JSON and return its path."""
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")
        return path
