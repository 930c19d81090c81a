"""What `resolve` and `fetch` are told of a source: the options, and what is made of them.

Used by the two modules beside it. See the package for what it must not import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelweights_loader.commands.options import parse_place, parse_seconds

if TYPE_CHECKING:
    import argparse

    from modelweights_loader.sources.contract import SourceOptions


def add_source(command: argparse.ArgumentParser) -> None:
    """Adds the source, and what it may be told.

    Args:
        command: Its parser.
    """
    command.add_argument(
        "--source",
        metavar="URL",
        type=parse_place,
        required=True,
        help="hf://org/name, s3://bucket/prefix, gs://…, az://…, https://host/path/ or file:///folder",
    )
    command.add_argument("--revision", metavar="R", default="", help="branch, tag, commit, or sha256: of a listing")
    command.add_argument("--endpoint", metavar="URL", default="", help="of a mirror or an S3-compatible store")
    command.add_argument("--region", metavar="R", default="", help="of an object store")
    command.add_argument("--path-style", action="store_true", help="bucket in the path, not in the host's name")
    command.add_argument("--anonymous", action="store_true", help="send no credentials")
    command.add_argument("--token-file", metavar="F", type=parse_place, help="a token, read at each use")
    command.add_argument("--credentials-dir", metavar="D", type=parse_place, help="one file for each credential")
    command.add_argument("--ca-file", metavar="F", type=parse_place, help="PEM bundle for TLS")
    command.add_argument(
        "--extra-ca-env", metavar="NAME", type=parse_place, help="variable with PEM to trust beside the system's"
    )
    command.add_argument(
        "--stall-seconds", metavar="N", type=parse_seconds, default=30.0, help="no byte for so long: again (default 30)"
    )


def make_source_options(
    arguments: argparse.Namespace, ca_file: str | None, revision: str, num_connections: int
) -> SourceOptions:
    """Makes of the arguments what a source takes.

    Args:
        arguments: What `add_source` adds.
        ca_file: Of `open_ca_file`.
        revision: To list.
        num_connections: At the same time.

    Returns:
        The options.
    """
    from modelweights_loader.sources.contract import SourceOptions  # noqa: PLC0415 - see the package's docstring

    return SourceOptions(
        revision=revision,
        endpoint=arguments.endpoint,
        region=arguments.region,
        path_style=arguments.path_style,
        anonymous=arguments.anonymous,
        token_file=arguments.token_file,
        credentials_dir=arguments.credentials_dir,
        ca_file=ca_file,
        stall_seconds=arguments.stall_seconds,
        num_connections=num_connections,
    )
