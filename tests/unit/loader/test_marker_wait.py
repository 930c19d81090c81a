"""Marker and wait: one pod writes, another one waits; another boot, digest or model does not count."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest

from modelweights_loader.cli import main
from modelweights_loader.errors import TryAgainError, WillNotWorkError
from modelweights_loader.marker import Marker, find_marker_folder, name_marker, read_boot_id, read_marker, write_marker
from modelweights_loader.newest import find_newest
from modelweights_loader.wait import wait

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DIGEST = f"sha256:{'a' * 64}"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root" / ".modelweights").mkdir(parents=True)
    (tmp_path / "root" / "ns" / "m").mkdir(parents=True)
    return tmp_path / "root"


def _marker(path: str = "ns/m", boot_id: str = "boot", digest: str = DIGEST, *, warm: bool = True) -> Marker:
    return Marker(path, digest, boot_id, "node-boot", 7, 2, "2026-01-01T00:00:00Z", warm)


class Clock:
    """Time that passes only when somebody sleeps; may do something meanwhile."""

    def __init__(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.now = 0.0
        self._meanwhile = meanwhile

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self._meanwhile()


def _wait(root: Path, clock: Clock, digest: str | None = None, timeout: float = 10) -> tuple[Marker, list[str]]:
    said: list[str] = []
    path = str(root / "ns" / "m")
    found = wait(
        path, digest=digest, timeout_seconds=timeout, say=said.append, sleep=clock.sleep, clock=clock, boot_id="boot"
    )
    return found, said


@pytest.mark.parametrize(
    ("path", "expected"),
    [("ns/m", "ns%2Fm.json"), ("a b", "a%20b.json"), (".", "..json"), ("é", "%C3%A9.json"), ("a_b-c~", "a_b-c~.json")],
)
def test_names_of_markers(path: str, expected: str) -> None:
    assert expected == name_marker(path)


def test_long_names_are_cut_and_stay_different() -> None:
    names = {name_marker("é" * 200), name_marker("é" * 201), name_marker("é" * 43)}
    assert len(names) == 3
    assert all(len(name) <= 255 for name in names)
    assert len(name_marker("é" * 200)) == 180 + 1 + 16 + len(".json")
    assert unquote(name_marker("x" * 250)) == "x" * 250 + ".json"


def test_a_marker_is_read_back_by_everybody(root: Path) -> None:
    write_marker(str(root / ".modelweights"), _marker())
    assert _marker() == read_marker(str(root / ".modelweights"), "ns/m")
    assert (root / ".modelweights" / "ns%2Fm.json").stat().st_mode & 0o777 == 0o644
    assert len(os.listdir(root / ".modelweights")) == 1


def test_the_marker_folder_is_found_on_the_way_up(root: Path) -> None:
    assert (str(root / ".modelweights"), "ns/m") == find_marker_folder(str(root / "ns" / "m"))
    assert (str(root / ".modelweights"), ".") == find_marker_folder(str(root))


def test_what_is_staged_already_waits_for_nothing(root: Path) -> None:
    write_marker(str(root / ".modelweights"), _marker())
    clock = Clock()
    assert (_marker(), []) == _wait(root, clock, DIGEST)
    assert clock.now == 0


def test_a_marker_that_comes_meanwhile_ends_the_wait(root: Path) -> None:
    clock = Clock(lambda: write_marker(str(root / ".modelweights"), _marker()))
    marker, said = _wait(root, clock)
    assert _marker() == marker
    assert [line[:29] for line in said] == ["waiting: no marker of ns/m in"]


def _garbage(root: Path) -> None:
    (root / ".modelweights" / "ns%2Fm.json").write_text("{", encoding="ascii")


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        (lambda _: None, "no marker"),
        (lambda root: write_marker(str(root / ".modelweights"), _marker(boot_id="older")), "another boot"),
        (lambda root: write_marker(str(root / ".modelweights"), _marker(digest="sha256:b")), "not sha256:a"),
        (lambda root: write_marker(str(root / ".modelweights"), _marker(path="ns/other")), "no marker"),
        (
            lambda root: write_marker(str(root / ".modelweights"), _marker(warm=False)),
            "too little of ns/m is in the page",
        ),
        (_garbage, "can't be read"),
    ],
)
def test_what_does_not_count_is_waited_for_until_the_time_is_over(
    root: Path, prepare: Callable[[Path], None], says: str
) -> None:
    prepare(root)
    clock = Clock()
    with pytest.raises(TryAgainError, match=says) as caught:
        _wait(root, clock, DIGEST)
    assert (caught.value.reason, clock.now) == ("NotStaged", 10)


def test_one_that_is_cold_is_waited_for_until_a_refresh_warmed_it(root: Path) -> None:
    write_marker(str(root / ".modelweights"), _marker(warm=False))
    clock = Clock(lambda: write_marker(str(root / ".modelweights"), _marker()))
    marker, said = _wait(root, clock, DIGEST)
    assert (marker.warm, said) == (
        True,
        ["waiting: too little of ns/m is in the page cache, its marker says; a refresh warms it again"],
    )


def test_a_marker_of_an_older_version_counts_as_warm(root: Path) -> None:
    folder = root / ".modelweights"
    write_marker(str(folder), _marker())
    content = json.loads((folder / "ns%2Fm.json").read_text())
    del content["warm"]
    (folder / "ns%2Fm.json").write_text(json.dumps(content))
    assert (_marker(), []) == _wait(root, Clock())


def test_waiting_for_ever_says_so_once_a_minute(root: Path) -> None:
    clock = Clock()

    def meanwhile() -> None:
        if clock.now >= 150:
            write_marker(str(root / ".modelweights"), _marker())

    clock._meanwhile = meanwhile
    _, said = _wait(root, clock, timeout=0)
    assert len(said) == 3


def test_without_a_marker_folder_it_says_what_to_mount(tmp_path: Path) -> None:
    with pytest.raises(WillNotWorkError, match=r"mount the root.*\.modelweights") as caught:
        wait(str(tmp_path), digest=None, timeout_seconds=1, say=print)
    assert (caught.value.exit_code, caught.value.reason) == (20, "NoMarkerFolder")


def test_the_kernels_boot_id_is_a_uuid() -> None:
    assert len(read_boot_id()) == 36


@pytest.mark.parametrize(
    "content",
    [
        '{"version": 1, "path": "ns/m", "sizeBytes": {}}',
        '{"version": 1, "path": "ns/m", "sizeBytes": 1e999}',
        '{"version": 1, "path": "ns/m", "manifestDigest": "sha256:a", "warm": "no"}',
        '{"version": 1, "path": "ns/m", "fileCount": null}',
        "[" * 60000,
        "\x00",
    ],
)
def test_a_spoilt_marker_is_waited_out(root: Path, content: str) -> None:
    marker = root / ".modelweights" / name_marker("ns/m")
    marker.write_text(content)
    clock = Clock(lambda: write_marker(str(root / ".modelweights"), _marker()))
    found, said = _wait(root, clock)
    assert found.path == "ns/m"
    assert "can't be read" in said[0]


# --- any checkpoint in a home ---------------------------------------------------------------------------------------------


HEX, OTHER = "a" * 64, "b" * 64


def _newest(root: Path, home: str = "ns/m", boot_id: str = "boot") -> tuple[str, str]:
    marker, lacks = find_newest(str(root / ".modelweights"), home, boot_id)
    return (marker.path if marker else "", lacks)


def _stage(
    root: Path, path: str, at: str = "2026-01-01T00:00:00Z", boot_id: str = "boot", *, warm: bool = True
) -> None:
    (root / path).mkdir(parents=True)
    write_marker(str(root / ".modelweights"), _marker(path, boot_id, warm=warm)._replace(staged_at=at))


def test_the_one_that_was_staged_last_is_taken_whatever_its_digest(root: Path) -> None:
    assert _newest(root) == ("", f"no marker of a checkpoint in ns/m in {root}/.modelweights yet")
    _stage(root, f"ns/m/{OTHER}", "2026-01-01T00:00:00Z")
    _stage(root, f"ns/m/{HEX}/models--o--n/snapshots/{'c' * 40}", "2026-01-02T00:00:00Z")
    assert _newest(root) == (f"ns/m/{HEX}/models--o--n/snapshots/{'c' * 40}", "")
    (root / f"ns/m/{HEX}").rename(root / "gone")
    assert _newest(root) == (f"ns/m/{OTHER}", "")


@pytest.mark.parametrize(
    "path",
    [f"ns/m2/{HEX}", f"ns/{HEX}", "ns/m", f"ns/m/x{HEX[1:]}", f"ns/m/{HEX[1:]}", f"other/m/{HEX}", f"ns/m/sub/{HEX}"],
)
def test_what_is_no_checkpoint_of_the_home_doesnt_count(root: Path, path: str) -> None:
    (root / path).mkdir(parents=True, exist_ok=True)
    write_marker(str(root / ".modelweights"), _marker(path))
    assert _newest(root)[0] == ""


def test_another_boot_and_cold_pages_dont_count(root: Path) -> None:
    _stage(root, f"ns/m/{HEX}", boot_id="former")
    assert "from another boot" in _newest(root)[1]
    _stage(root, f"ns/m/{OTHER}", warm=False)
    assert "in the page cache; a refresh" in _newest(root)[1]
    assert _newest(root, boot_id="former") == (f"ns/m/{HEX}", "")


def test_spoilt_markers_and_those_that_name_something_else_are_passed_over(root: Path) -> None:
    folder = root / ".modelweights"
    for number, content in enumerate(
        ("", "[]", "{}", "[" * 20_000, '{"path": 7}', json.dumps({"path": "ns/m/../../etc"}))
    ):
        (folder / f"ns%2Fm%2F{number}.json").write_text(content)
    (folder / name_marker(f"ns/m/{OTHER}")).write_text(json.dumps({"path": f"ns/m/{HEX}"}))
    (folder / f"ns%2Fm%2F{HEX[:-1]}x.json").mkdir()
    assert _newest(root)[0] == ""
    _stage(root, f"ns/m/{HEX}")
    assert _newest(root) == (f"ns/m/{HEX}", "")


def test_a_home_of_a_long_name_is_found_as_well(root: Path) -> None:
    home = f"ns/{'n' * 200}"
    _stage(root, f"{home}/{HEX}")
    _stage(root, f"ns/{'n' * 199}x/{OTHER}")
    assert _newest(root, home) == (f"{home}/{HEX}", "")


def test_the_link_leads_to_it_by_the_path_that_was_given(root: Path, tmp_path: Path) -> None:
    (tmp_path / "mounted").symlink_to(root)
    write_marker(str(root / ".modelweights"), _marker(f"ns/m/{HEX}", boot_id=read_boot_id()))
    (root / "ns" / "m" / HEX).mkdir()
    home, link = str(tmp_path / "mounted" / "ns" / "m"), tmp_path / "current"
    for _ in range(2):
        assert main(["wait", home, "--newest", "--link", str(link)]) == 0
        assert os.readlink(link) == f"{home}/{HEX}"
    assert main(["wait", f"{home}/{HEX}", "--link", str(tmp_path / "there")]) == 0
    assert os.readlink(tmp_path / "there") == f"{home}/{HEX}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["current", "mounted", "root", "there"]


def test_a_link_that_cannot_be_made_is_told(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_marker(str(root / ".modelweights"), _marker(boot_id=read_boot_id()))
    assert main(["wait", str(root / "ns" / "m"), "--link", str(root / "none" / "link")]) == 20
    assert "cannot make the link" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["--newest", "--digest", DIGEST], ["--newest", "--hold"], ["--link", "/x", "--hold"]]
)
def test_what_does_not_go_together_is_refused(root: Path, words: list[str]) -> None:
    try:
        status = main(["wait", str(root / "ns" / "m"), *words])
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else -1
    assert status == 2
