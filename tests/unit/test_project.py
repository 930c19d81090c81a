"""What holds of the repository as a whole: borders between packages, versions, folders, and what must not stand in it."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "charts" / "modelweights-operator"
TIERS = {"unit", "integration", "e2e", "faults"}


def imported_by(statement: str) -> set[str]:
    """Top-level modules that are loaded after a statement, in a process of its own."""
    code = f"import sys; {statement}; print('\\n'.join(sorted({{name.split('.')[0] for name in sys.modules}})))"
    paths = f"{REPOSITORY / 'operator'}:{REPOSITORY / 'loader'}"
    argv = [sys.executable, "-c", code]
    found = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60, env={"PYTHONPATH": paths})
    return set(found.stdout.split())


def test_the_loader_loads_nothing_of_the_operator_or_kubernetes() -> None:
    loaded = imported_by("import modelweights_loader.cli")
    assert "modelweights_loader" in loaded
    assert loaded & {"modelweights_operator", "kopf", "kubernetes", "aiohttp", "pydantic"} == set()


def test_the_loader_starts_without_torch() -> None:
    assert imported_by("import modelweights_loader.cli") & {"torch", "fastsafetensors", "numpy"} == set()


def test_the_operator_loads_nothing_of_the_loader() -> None:
    loaded = imported_by("import modelweights_operator.handlers")
    assert "kopf" in loaded
    assert loaded & {"modelweights_loader", "torch", "fastsafetensors"} == set()


def test_the_domain_loads_no_framework() -> None:
    loaded = imported_by("import modelweights_operator.domain.plan, modelweights_operator.domain.gate")
    assert loaded & {"kopf", "kubernetes", "aiohttp"} == set()


def test_the_folder_operator_is_no_package_and_shadows_nothing() -> None:
    assert not (REPOSITORY / "operator" / "__init__.py").exists()
    assert "attrgetter" in subprocess.run(
        [sys.executable, "-c", "import operator; print(dir(operator))"],
        check=True, capture_output=True, text=True, cwd=REPOSITORY, timeout=60,
    ).stdout  # fmt: skip


def test_folders_below_tests_are_tiers_or_support_and_none_shadows_a_module() -> None:
    found = {path.name for path in (REPOSITORY / "tests").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert found >= TIERS
    assert not found & set(sys.stdlib_module_names)
    assert "operator" not in found


def test_chart_and_package_have_one_version() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (project["version"], project["version"])


def test_every_test_file_is_collected_and_no_two_share_a_module_name() -> None:
    files = [path.relative_to(REPOSITORY) for path in (REPOSITORY / "tests").rglob("test_*.py")]
    assert files
    stray = [path for path in files if path.parts[1] not in TIERS]
    assert stray == []


def committed_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPOSITORY, check=True, capture_output=True, text=True, timeout=60
    )
    return [REPOSITORY / name for name in listed.stdout.split("\0") if name]


# Split, so that this file does not hold them itself.
FORBIDDEN = {
    "an author that is a machine": re.compile(r"\b(" + "|".join(["cla" + "ude", "chat" + "gpt", "co" + "pilot"]) + r")\b", re.IGNORECASE),
    "a path of one machine": re.compile("/wo" + "rk/"),
    "a private key": re.compile("-----BEGIN [A-Z ]*PRIV" + "ATE KEY-----\n[A-Za-z0-9+/=]{16}"),
    "a token of a hub": re.compile(r"\b(hf|ghp|gho)_[A-Za-z0-9]{30,}"),
}  # fmt: skip


@pytest.mark.parametrize("what", FORBIDDEN)
def test_nothing_that_is_committed_holds(what: str) -> None:
    if not (REPOSITORY / ".git").exists():
        pytest.skip("no clone: an unpacked archive")
    found = []
    for path in committed_files():
        try:
            text = path.read_text()
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue
        found += [f"{path.relative_to(REPOSITORY)}: {match[0]}" for match in FORBIDDEN[what].finditer(text)]
    assert found == []
