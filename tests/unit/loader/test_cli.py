"""The command line in processes of its own: exit codes, reports, one line of error, quick starts, clean ends."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, NoReturn

import pytest

from modelweights_loader.cli import main
from tests.checkpoints.corrupt import make_corrupt
from tests.checkpoints.synthetic import make_synthetic
from tests.unit.loader.conftest import LOADER, evict, run_as_staging_user, run_loader

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

COMMAND = (sys.executable, "-m", "modelweights_loader")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(LOADER), "PYTHONDONTWRITEBYTECODE": "1"}


def run(words: Sequence[object]) -> subprocess.CompletedProcess[str]:
    """Runs the loader without a report of its own."""
    command = [*COMMAND, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=ENVIRONMENT)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "COMMAND"),
        (["nothing"], "invalid choice"),
        (["prefetch"], "PATH"),
        (["prefetch", ""], "PATH is empty"),
        (["prefetch", "x", "--num-threads", "0"], "1 to 256"),
        (["prefetch", "x", "--num-threads", "many"], "many"),
        (["prefetch", "x", "--block-size", "16MB"], "16Mi"),
        (["prefetch", "x", "--block-size", "0"], "1 byte to 1Gi"),
        (["prefetch", "x", "--block-size", "2Gi"], "1 byte to 1Gi"),
        (["prefetch", "x", "--num-threads", "256", "--block-size", "1Gi"], "4Gi"),
        (["prefetch", "x", "--policy", "required"], "Required"),
        (["prefetch", "x", "--rank", "1"], "rank 1 is outside of 0 to 0"),
        (["prefetch", "x", "--rank", "-1", "--world-size", "2"], "number of ranks"),
        (["prefetch", "x", "--world-size", "0"], "1 to 65536"),
        (["prefetch", "x", "--unknown-residency", "Maybe"], "Accept"),
        (["residency", "--watch", "x"], "number of seconds"),
        (["prefetch", "x", "--min-resident-percent", "nan"], "percentage"),
        (["prefetch", "x", "--min-resident-percent", "101"], "percentage"),
        (["validate", "x", "--queue-size", "-2"], "queue size"),
        (["validate", "x", "--device", "tpu"], "cuda"),
        (["validate", "x", "--time", "1"], "--time"),
        (["wait", "x", "--digest", "sha256:abc"], "64 hex"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == main(["prefetch", "--help"]) == main(["--version"]) == 0
    assert "Exit codes" in capsys.readouterr().out


def test_the_staging_pod_in_three_steps(disk: Path) -> None:
    """As the operator runs it: three containers, one results folder, a marker that `wait` then finds."""
    root = disk / "root"
    model = make_synthetic(root / "ns" / "m", 2**22, shards=3)
    (root / ".modelweights").mkdir()
    evict(model)
    common = ("--root", root, "--results", disk / "results")
    prefetch = run_loader("prefetch", model, *common, "--policy", "Required", "--block-size", "1Mi")
    assert (prefetch.code, prefetch.report["reason"]) == (0, "Prefetched"), prefetch
    assert tuple(prefetch.report[key] for key in ("files", "numThreads", "blockSize")) == (3, 8, 2**20)
    validated = run_loader("validate", model, *common)
    assert (validated.code, validated.report["reason"]) == (0, "Validated"), validated
    marker = ("--marker-dir", root / ".modelweights", "--marker-root", root, "--node-boot-id", "nb", "--cool")
    report = run_loader("report", model, *common, "--policy", "Required", *marker)
    assert (report.code, report.report["reason"], report.report["marker"]) == (0, "Staged", "Written"), report
    assert report.report["manifestDigest"] == validated.report["manifestDigest"]
    assert tuple(report.report[key] for key in ("tensorCount", "shardCount", "fileCount")) == (24, 3, 5)
    # What Required asks for: a kernel may take cold pages back at any time (DAMON).
    assert report.report["residentPercent"] >= 95
    waited = run_loader("wait", model, "--digest", report.report["manifestDigest"], "--timeout-seconds", "5")
    assert waited.code == 0, waited
    flags = run_loader("flags", "--results", disk / "results")
    assert "FASTSAFETENSORS_ODIRECT=0" in flags.stdout
    assert "--safetensors-prefetch-block-size 1048576" in flags.stdout
    assert "not proven" not in flags.stdout


def test_stage_does_it_all(split: Path) -> None:
    ran = run_loader("stage", split)
    assert (ran.code, ran.report["reason"], ran.report["tensorCount"]) == (0, "Staged", 24), ran
    assert [line.split()[0] for line in ran.stdout.splitlines()] == ["prefetch:", "validate:", "stage:"]


@pytest.mark.parametrize("command", ["validate", "stage"])
def test_a_bad_checkpoint_is_exit_30_in_one_line(split: Path, tmp_path: Path, command: str) -> None:
    bad = make_corrupt("truncated-shard", split, tmp_path / "bad")
    started = time.monotonic()
    ran = run_loader(command, bad)
    assert time.monotonic() - started < 10  # a hang, not a slow machine
    assert (ran.code, ran.report["reason"], ran.report["exitCode"]) == (30, "Truncated", 30)
    assert ran.stderr.count("\n") == 1
    assert "model-00012-of-00012.safetensors: tensor" in ran.stderr


def test_errors_have_their_exit_codes(single: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TERM", raising=False)
    assert main(["prefetch", str(tmp_path / "gone")]) == 20
    assert main(["wait", str(single)]) == 20
    assert main(["report", str(single), "--marker-dir", str(tmp_path)]) == 20
    assert main(["flags"]) == 2
    assert main(["validate", str(single), "--mode", "Structure"]) == 0
    assert main(["validate", str(single), "--mode", "None"]) == 0


def test_a_marker_folder_that_takes_no_marker_is_said_and_no_error(single: Path, tmp_path: Path) -> None:
    results = str(tmp_path / "results")
    assert main(["validate", str(single), "--mode", "Structure", "--results", results]) == 0
    arguments = ["report", str(single), "--results", results, "--marker-dir", str(tmp_path / "gone")]
    assert main([*arguments, "--report", str(tmp_path / "report")]) == 0
    assert json.loads((tmp_path / "report").read_bytes())["marker"] == "NotWritable"


def test_required_residency_that_is_not_there_is_exit_40_with_figures(disk: Path) -> None:
    model = make_synthetic(disk / "m", 2**22, shards=2)
    evict(model)
    ran = run_loader("report", model, "--policy", "Required")
    assert (ran.code, ran.report["reason"], ran.report["residentBytes"]) == (40, "NotResident", 0)


def test_memory_that_does_not_hold_it_all(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_synthetic(disk / "m", 2**22, shards=4)
    evict(model)
    from modelweights_loader import memory  # noqa: PLC0415 - replaced for this test alone

    monkeypatch.setattr(memory, "measure_room", lambda *_, **__: memory.MemoryRoom(2**21, "memory.max"))
    report = disk / "report"
    assert main(["prefetch", str(model), "--policy", "Required", "--report", str(report)]) == 40
    assert json.loads(report.read_bytes())["reason"] == "NoMemory"
    assert main(["prefetch", str(model), "--report", str(report)]) == 0
    said = json.loads(report.read_bytes())
    assert (said["reason"], said["readBytes"]) == ("PrefetchedPartly", 2**21)
    assert "memory.max" in said["message"]


def test_the_staging_user_measures_what_others_own(disk: Path) -> None:
    model = make_synthetic(disk / "m", 2**24, shards=2)
    evict(model)
    before = run_as_staging_user("residency", model)
    prefetched = run_as_staging_user("prefetch", model, "--policy", "Required")
    for ran, share in ((before, 0), (prefetched, 100)):
        assert (ran.code, ran.report["residencyMethod"]) == (0, "sample"), ran
        assert ran.report["residentPercent"] == pytest.approx(share, abs=1)
    assert "EPERM" in before.stdout


def test_a_shard_that_the_staging_user_may_not_read(disk: Path) -> None:
    model = make_synthetic(disk / "m", 2**22, shards=2)
    (model / "model-00002-of-00002.safetensors").chmod(0o600)
    best_effort = run_as_staging_user("prefetch", model)
    assert (best_effort.code, best_effort.report["reason"]) == (0, "PrefetchedPartly"), best_effort
    assert "warning: " in best_effort.stderr
    assert "EACCES" in best_effort.stderr
    required = run_as_staging_user("prefetch", model, "--policy", "Required")
    assert (required.code, required.report["reason"]) == (20, "Forbidden")
    validated = run_as_staging_user("validate", model, "--mode", "Structure")
    assert (validated.code, validated.report["reason"]) == (20, "Forbidden")
    assert "uid 65532" in validated.report["message"]


@pytest.mark.parametrize(
    ("number", "code", "reason"), [(signal.SIGTERM, 143, "Terminated"), (signal.SIGINT, 130, "Interrupted")]
)
def test_signals_end_it_in_order(tmp_path: Path, number: signal.Signals, code: int, reason: str) -> None:
    (tmp_path / ".modelweights").mkdir()
    command = [
        sys.executable,
        "-m",
        "modelweights_loader",
        "wait",
        str(tmp_path / "m"),
        "--report",
        str(tmp_path / "report"),
    ]
    environment = {**os.environ, "PYTHONPATH": str(LOADER)}
    # A shell starts what runs in the background with SIGINT ignored, and so would this test's child be.
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - the test has one thread
    ) as process:
        assert process.stderr is not None
        assert "waiting" in process.stderr.readline()
        process.send_signal(number)
        try:
            _, said = process.communicate(timeout=10)
        finally:
            process.kill()
        assert process.returncode == code
    assert said.count("\n") == 1
    assert reason == json.loads((tmp_path / "report").read_bytes())["reason"]


@pytest.mark.parametrize("command", ["prefetch", "residency", "validate", "report", "stage", "wait", "flags"])
def test_no_command_imports_torch_or_the_operators_world_itself(single: Path, command: str) -> None:
    script = (
        "import sys; from modelweights_loader.cli import main; "
        f"main([{command!r}, {str(single)!r}] + {['--mode', 'Structure'] if command in ('validate', 'stage') else []}); "
        "print(sorted({name.partition('.')[0] for name in sys.modules} "
        "& {'torch', 'numpy', 'fastsafetensors', 'safetensors', 'kopf', 'kubernetes', 'modelweights_operator'}))"
    )
    environment = {**os.environ, "PYTHONPATH": str(LOADER)}
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60, env=environment
    )
    assert ran.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_change_nothing(tmp_path: Path, closed: str) -> None:
    """And no file gets their numbers: a line that is printed would land in it."""
    model = make_synthetic(tmp_path / "m", 2**20, shards=2)
    report = tmp_path / "report.json"
    words = ("stage", str(model), "--report", str(report))
    command = f'exec "$@" {closed}'
    ended = subprocess.run(["sh", "-c", command, "sh", *COMMAND, *words], timeout=120, check=False, env=ENVIRONMENT)
    assert (ended.returncode, json.loads(report.read_bytes())["reason"]) == (0, "Staged")
    assert "prefetch:" not in "".join(path.read_text("latin-1") for path in model.glob("*.json"))


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_full_disk_behind_the_output_is_no_room_in_one_line(tmp_path: Path, stream: str) -> None:
    model = make_synthetic(tmp_path / "m", 2**20)
    report = tmp_path / "report.json"
    with open("/dev/full", "w") as full:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: full}
        words = ("stage", str(model), "--mode", "Structure", "--report", str(report))
        ended = subprocess.run([*COMMAND, *words], timeout=120, check=False, env=ENVIRONMENT, **streams)  # type: ignore[call-overload]
    assert (ended.returncode, json.loads(report.read_bytes())["reason"]) == (40, "NoRoom")
    assert b"Traceback" not in (ended.stderr or b"")


def test_a_full_disk_behind_the_last_line_changes_nothing(tmp_path: Path) -> None:
    model = make_synthetic(tmp_path / "m", 2**20)
    with open("/dev/full", "w") as full:
        words = ("validate", str(model), "--mode", "Structure")
        ended = subprocess.run(
            [*COMMAND, *words], timeout=120, check=False, env=ENVIRONMENT, stdout=full, stderr=subprocess.PIPE
        )
    assert ended.returncode == 0
    assert all(line.startswith(b"validate: ") and b" %, " in line for line in ended.stderr.splitlines())


def test_names_that_are_no_utf8_and_terminals_that_are_ascii(tmp_path: Path) -> None:
    root = tmp_path / os.fsdecode(b"r\xff\n")
    model = make_synthetic(root / os.fsdecode(b"m\xfe"), 2**20)
    shard = next(model.glob("*.safetensors"))
    shard.rename(model / os.fsdecode(b"w\xfd.safetensors"))
    for index in model.glob("*.index.json"):
        index.unlink()
    (model / os.fsdecode(b"x\xff.json")).write_text("{}")
    (root / ".modelweights").mkdir()
    ascii_only = {**ENVIRONMENT, "PYTHONIOENCODING": "ascii"}
    marker = ("--marker-dir", str(root / ".modelweights"), "--marker-root", str(root))
    for words in (("stage", str(model), *marker), ("residency", str(model)), ("wait", str(model))):
        ended = subprocess.run([*COMMAND, *words], timeout=120, check=False, env=ascii_only, capture_output=True)
        assert (ended.returncode, b"Unexpected" in ended.stderr) == (0, False), ended


@pytest.mark.parametrize(
    ("error", "reason", "code"),
    [
        (MemoryError(), "NoMemory", 40),
        (RuntimeError("can't start new thread"), "NoMemory", 40),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "NoMemory", 40),
        (OSError(errno.ENOSPC, "No space left on device"), "NoRoom", 40),
        (OSError(errno.EMFILE, "Too many open files"), "TryAgain", 10),
        (FileNotFoundError(errno.ENOENT, "No usable temporary directory found"), "NoRoom", 40),
        (KeyError("x"), "Unexpected", 20),
    ],
)
def test_what_the_machine_lacks_is_no_bug(
    error: Exception, reason: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> NoReturn:
        raise error

    monkeypatch.setattr("modelweights_loader.commands.residency.run", fail)
    assert main(["residency", "x"]) == code
    assert capsys.readouterr().err.startswith(f"residency: {reason}: ")


def test_no_report_is_written_over_a_checkpoint_that_is_refused(split: Path) -> None:
    """Neither where its files are not even looked at."""
    (split / "model.safetensors.index.json").write_text("{}", encoding="ascii")
    config = split / "config.json"
    commands: list[list[str | Path]] = [
        ["prefetch"],
        ["prefetch", "--rank", "5"],
        ["report", "--marker-dir", split],
        ["wait"],
    ]
    for words in commands:
        ended = run([*words, split, "--report", config, "--results", split / "results"])
        assert (ended.returncode, "lies in the checkpoint" in ended.stderr) == (2, True)
    assert config.read_text(encoding="ascii") == "{}"
    assert not (split / "results").exists()


def test_no_report_is_written_over_a_blob_of_the_cache(split: Path, tmp_path: Path) -> None:
    repository = tmp_path / "models--a--b"
    snapshot = repository / "snapshots" / "one"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for file in split.iterdir():
        file.rename(repository / "blobs" / file.name)
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    blob = repository / "blobs" / "config.json"
    assert run(["prefetch", snapshot, "--report", blob]).returncode == 2
    assert blob.read_text(encoding="ascii") == "{}"


def test_no_marker_is_written_between_the_weights(split: Path) -> None:
    names = sorted(path.name for path in split.iterdir())
    ended = run(["stage", split, "--mode", "Structure", "--marker-dir", split])
    assert (ended.returncode, sorted(path.name for path in split.iterdir())) == (2, names)
    (split / ".modelweights").mkdir()
    words = ["stage", split, "--mode", "Structure", "--marker-dir", split / ".modelweights", "--marker-root", split]
    assert run(words).returncode == 0
    assert run(["wait", split, "--timeout-seconds", "1"]).returncode == 0


@pytest.mark.parametrize("option", ["--root", "--report", "--results", "--marker-dir", "--marker-root"])
def test_an_empty_place_is_an_error_and_not_the_current_folder(split: Path, option: str) -> None:
    ended = run(["stage", split, option, ""])
    assert (ended.returncode, f"argument {option}: it is empty" in ended.stderr) == (2, True)


def test_a_digest_of_another_checkpoint_or_of_an_earlier_run_is_not_published(split: Path, tmp_path: Path) -> None:
    results, markers = tmp_path / "results", tmp_path / "markers"
    markers.mkdir()
    assert run(["stage", split, "--mode", "Structure", "--results", results]).returncode == 0
    other = tmp_path / "other"
    shutil.copytree(split, other)
    ended = run(["report", other, "--results", results, "--marker-dir", markers])
    assert (ended.returncode, "NotValidated" in ended.stderr) == (20, True)
    # Now the same one is staged again, and fails.
    next(split.glob("*.safetensors")).write_bytes(b"")
    assert run(["stage", split, "--mode", "Structure", "--results", results]).returncode == 30
    assert [path.name for path in results.iterdir()] == ["stage.json"]
    ended = run(["report", split, "--results", results, "--marker-dir", markers])
    assert (ended.returncode, "NotValidated" in ended.stderr) == (20, True)
    assert list(markers.iterdir()) == []


def test_a_storm_of_signals_ends_in_one_line(tmp_path: Path) -> None:
    """As from a shell's trap, a terminal and the kubelet at once, also while it is on its way out."""
    (tmp_path / ".modelweights").mkdir()
    report = tmp_path / "report"
    command = [*COMMAND, "wait", str(tmp_path / "m"), "--report", str(report)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        assert process.stderr is not None
        assert "waiting" in process.stderr.readline()
        deadline = time.monotonic() + 30
        while process.poll() is None and time.monotonic() < deadline:
            process.send_signal(signal.SIGTERM)
        said = process.stderr.read()
    assert (process.returncode, said) == (143, "wait: Terminated: terminated by SIGTERM\n")
    assert json.loads(report.read_bytes())["reason"] == "Terminated"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_work_goes_on_when_nobody_listens_any_more(tmp_path: Path, stream: str) -> None:
    model = make_synthetic(tmp_path / "m", 2**20)
    report = tmp_path / "report.json"
    read_end, write_end = os.pipe()
    os.close(read_end)
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: write_end}
    words = ("stage", str(model), "--mode", "Structure", "--report", str(report))
    ended = subprocess.run([*COMMAND, *words], timeout=120, check=False, env=ENVIRONMENT, **streams)  # type: ignore[call-overload]
    os.close(write_end)
    assert (ended.returncode, json.loads(report.read_bytes())["reason"]) == (0, "Staged")


def test_names_do_not_steer_the_terminal(split: Path) -> None:
    shard = next(split.glob("model*.safetensors"))
    for index in split.glob("*.index.json"):
        index.unlink()
    shard.rename(split / "a\nb\x1b[31m.safetensors")
    ended = run(["residency", split])
    assert ended.returncode == 0
    assert "a\\nb\\x1b[31m.safetensors  " in ended.stdout
    ended = run(["residency", f"{split}\x1b[31m"])
    assert (ended.returncode, "\x1b" in ended.stderr) == (20, False)


def test_without_proc_it_stages_and_says_why_it_can_not_mark(split: Path, tmp_path: Path) -> None:
    """In a mount namespace of its own, where something else lies on /proc."""
    (tmp_path / ".modelweights").mkdir()
    script = 'mount --make-rprivate / && mount -t tmpfs none /proc && exec "$@"'
    shell = ["unshare", "--mount", "sh", "-c", script, "sh", *COMMAND]
    words = ["stage", str(split), "--mode", "Structure"]
    commands = {
        0: [*shell, *words],
        20: [*shell, "wait", str(split), "--timeout-seconds", "1"],
    }
    for code, command in commands.items():
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=ENVIRONMENT)
        assert (ended.returncode, "bug" in ended.stderr) == (code, False), ended


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_before_there_is_a_step_ends_it_without_a_traceback(number: signal.Signals, code: int) -> None:
    script = (
        "import os, signal, sys; from modelweights_loader import cli;"
        f"cli.build_parser = lambda: os.kill(os.getpid(), {int(number)}); raise SystemExit(cli.main())"
    )
    command = [sys.executable, "-c", script]
    ended = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=ENVIRONMENT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert (ended.returncode, ended.stderr) == (code, "")


def test_a_manifest_is_not_written_into_the_checkpoint(single: Path, tmp_path: Path) -> None:
    """It would be one of the files that are hashed, and change the digest."""
    refused = run_loader("validate", single, "--mode", "Structure", "--manifest", single / "manifest.json")
    assert (refused.code, (single / "manifest.json").exists()) == (2, False)
    assert "--manifest" in refused.stderr
    written = run_loader("validate", single, "--mode", "Structure", "--manifest", tmp_path / "manifest.json")
    assert (written.code, (tmp_path / "manifest.json").exists()) == (0, True)


def test_what_is_not_loaded_is_not_timed(single: Path) -> None:
    refused = run_loader("stage", single, "--mode", "Structure", "--tune")
    assert (refused.code, "--tune" in refused.stderr) == (2, True)
