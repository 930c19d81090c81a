"""The command `fetch` with buckets and web servers: the real checkpoint, disturbed on its way."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from tests.checkpoints.real import make_real
from tests.checkpoints.writer import make_tensor, write_safetensors
from tests.servers.fault_proxy import Fault, FaultProxy
from tests.servers.s3 import SECRET_KEY
from tests.unit.loader.conftest import Ran, run_loader

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers.s3 import S3Server
    from tests.servers.web import WebServer


def _fetch(home: Path, server: S3Server, proxy: FaultProxy, url: str, *more: str) -> Ran:
    home.mkdir(exist_ok=True)
    given = ["--source", url, "--endpoint", proxy.url, "--credentials-dir", str(server.credentials())]
    return run_loader("fetch", home, *given, *more)


def _read(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_bucket_arrives_bit_by_bit_through_throttling_cuts_and_stalls(
    s3: S3Server, s3_proxy: FaultProxy, disk: Path
) -> None:
    folder = make_real(disk / "real")
    s3.make_bucket("fetched")
    s3.put_folder("fetched", "org/model", folder)
    weights = "model.safetensors"
    s3_proxy.faults = [
        Fault("status", path="/org/model/", every=4, times=4),
        Fault("cut", path=weights, after_bytes=2_000_000, every=2, times=3),
        Fault("stall", path=weights, after_bytes=3_000_000, seconds=20, times=1),
    ]

    ran = _fetch(disk / "home", s3, s3_proxy, "s3://fetched/org/model", "--include", "*", "--stall-seconds", "1")

    assert 0 == ran.code, ran.stderr
    assert _read(folder) == _read(disk / "home" / ran.report["folder"])
    assert 4 <= ran.report["retries"]
    assert SECRET_KEY not in f"{ran.stdout} {ran.stderr} {ran.report}"


def test_an_object_that_changes_in_mid_run_is_fetched_anew_as_a_whole(
    s3: S3Server, s3_proxy: FaultProxy, disk: Path
) -> None:
    new = disk / "new" / "model.safetensors"
    for number, name in enumerate(("old", "new")):
        (disk / name).mkdir()
        write_safetensors(disk / name / "model.safetensors", [make_tensor("a", "F32", (2048, 4096), number)], {})
    s3.make_bucket("swapped")
    s3.put_folder("swapped", "m", disk / "old")
    weights = "m/model.safetensors"
    stall = Fault("stall", path=weights, after_bytes=1_000_000, seconds=20, times=1)
    # Until it is another one, however long that takes.
    s3_proxy.faults = [stall, Fault("status", path=weights)]

    def swap() -> None:
        s3_proxy.wait_for_request(weights, 60)
        s3.put("swapped", weights, new.read_bytes())
        s3_proxy.faults = []

    swapping = threading.Thread(target=swap)
    swapping.start()
    ran = _fetch(disk / "home", s3, s3_proxy, "s3://swapped/m", "--num-connections", "1", "--stall-seconds", "1")
    swapping.join(60)

    assert 0 == ran.code, ran.stderr
    assert "it is listed anew" in ran.stderr
    assert _read(disk / "new") == _read(disk / "home" / ran.report["folder"])


def test_a_pinned_bucket_that_changed_is_refused(s3: S3Server, s3_proxy: FaultProxy, disk: Path) -> None:
    s3.make_bucket("moved")
    s3.put("moved", "m/x", b"x")

    ran = _fetch(disk / "home", s3, s3_proxy, "s3://moved/m", "--revision", f"sha256:{'0' * 64}")

    assert (20, "SourceChanged") == (ran.code, ran.report["reason"])


def test_a_missing_secret_is_said(disk: Path) -> None:
    (disk / "home").mkdir()
    ran = run_loader("fetch", disk / "home", "--source", "s3://b/m", "--credentials-dir", disk / "secret")

    assert (20, "SecretMissing") == (ran.code, ran.report["reason"])


def test_a_web_server_without_ranges_is_fetched_from(web: WebServer, disk: Path) -> None:
    folder = make_real(web.folder / "fetched")
    (disk / "home").mkdir()

    ran = run_loader("fetch", disk / "home", "--source", f"{web.whole}/fetched/", "--ca-file", web.ca_file)

    found = _read(disk / "home" / ran.report["folder"])
    assert 0 == ran.code, ran.stderr
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= found.keys()
    assert {path: (folder / path).read_bytes() for path in found} == found


def test_a_file_of_a_web_server_that_changes_in_mid_run_is_fetched_anew(
    web: WebServer, web_proxy: FaultProxy, disk: Path
) -> None:
    (disk / "home").mkdir()
    folder = web.folder / "swapped"
    folder.mkdir()
    for number, name in enumerate(("model.safetensors", "next.safetensors")):
        write_safetensors(folder / name, [make_tensor("a", "F32", (2048, 4096), number)], {})
    os.utime(folder / "next.safetensors", (1_000_000, 1_000_000))
    web_proxy.faults = [
        Fault("stall", path="model.safetensors", method="GET", after_bytes=500_000, seconds=20, times=1)
    ]

    def swap() -> None:
        web_proxy.wait_for_request("model.safetensors", 60)
        (folder / "next.safetensors").rename(folder / "model.safetensors")

    swapping = threading.Thread(target=swap)
    swapping.start()
    url = f"{web_proxy.url}/index/swapped/"
    ran = run_loader("fetch", disk / "home", "--source", url, "--num-connections", "1", "--stall-seconds", "1")
    swapping.join(60)

    assert 0 == ran.code, ran.stderr
    assert "it is listed anew" in ran.stderr
    assert _read(folder)["model.safetensors"] == _read(disk / "home" / ran.report["folder"])["model.safetensors"]
