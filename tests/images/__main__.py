"""The command line: `python -m tests.images build|base|check|lock`."""

from __future__ import annotations

import argparse
import sys
import time

from tests.images import checks
from tests.images.base import ensure_base
from tests.images.build import build_images, disk_usage
from tests.images.engine import Buildah, ImageError, choose_engine
from tests.images.inputs import TARGETS
from tests.images.lock import lock
from tests.images.remnants import one_at_a_time


def main() -> int:
    """Run one command and return its exit status."""
    arguments = _parser().parse_args()
    try:
        if arguments.command == "lock":
            lock()
        elif arguments.command == "base":
            engine = choose_engine("buildah")
            if isinstance(engine, Buildah):
                with one_at_a_time(engine.folder):
                    print(ensure_base(engine))
        else:
            targets = TARGETS if arguments.target == "all" else (arguments.target,)
            images = build_images(targets, engine=arguments.engine, torch=arguments.torch)
            print(f"images: the store takes {disk_usage() / 1e9:.2f} GB")
            if arguments.command == "check":
                return _check(images)
    except ImageError as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    return 0


def _check(images: checks.Images) -> int:
    failed = 0
    for check in checks.ALL:
        began = time.monotonic()
        try:
            result = check(images) or "holds"
        except (AssertionError, ImageError) as error:
            failed += 1
            result = f"FAILED: {error}"
        print(f"images: {check.__name__}: {result} ({time.monotonic() - began:.1f} s)", flush=True)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.images", description="Builds the images that tests run.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, purpose in (("build", "build what isn't built yet"), ("check", "build, then prove the images' promises")):
        command = commands.add_parser(name, help=purpose)
        command.add_argument("--target", choices=[*TARGETS, "all"], default="all")
        command.add_argument("--engine", choices=["auto", "docker", "buildah"], default="auto")
        command.add_argument("--torch", choices=["pip", "debian", "cuda"], default="debian")
    commands.add_parser("base", help="build the Debian base image only")
    commands.add_parser("lock", help="pin the images' packages anew, after a change of pyproject.toml")
    return parser


if __name__ == "__main__":
    sys.exit(main())
