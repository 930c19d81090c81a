"""What a test may ask of a cluster, whoever runs it, and the choice of who runs it."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tests.cluster.errors import ClusterError, MissingToolError

PROVIDER_VARIABLE = "MODELWEIGHTS_CLUSTER_PROVIDER"
KUBECONFIG_VARIABLE = "MODELWEIGHTS_CLUSTER_KUBECONFIG"
PROVIDERS = ("auto", "embedded", "kind", "kubeconfig")


class Cluster(Protocol):
    """A cluster with two GPU nodes and one without; all calls block."""

    @property
    def name(self) -> str:
        """Name of the instance."""

    @property
    def kubeconfig(self) -> Path:
        """File with the administrator's access, valid on this machine."""

    @property
    def gpu_nodes(self) -> tuple[str, ...]:
        """Nodes with the GPU label, a GPU in their capacity and a taint."""

    @property
    def cpu_node(self) -> str:
        """A node without taint, for the operator itself."""

    def up(self) -> str:
        """Bring it up, if it isn't; return one line on what was done."""

    def down(self) -> str:
        """Remove it; return one line on what was done."""

    def is_up(self) -> bool:
        """Return whether its API server is ready."""

    def kubectl(self, *arguments: str, input: str | None = None, check: bool = True, timeout: float = 60) -> str:  # noqa: A002
        """Run kubectl with the administrator's rights and return its output; see ``commands.run``."""

    def helm(self, *arguments: str, input: str | None = None, check: bool = True, timeout: float = 180) -> str:  # noqa: A002
        """Run helm likewise."""

    def node_exec(
        self,
        node: str,
        argv: list[str],
        input: str | None = None,  # noqa: A002
        *,
        check: bool = True,
        timeout: float = 60,
    ) -> str:
        """Run a command as root on a node, as one logged in there would, and return its output."""

    def copy_to_node(self, node: str, source: Path, destination: str, owner: str = "0:65532") -> None:
        """Copy what is in a local folder into a folder of the node, which is created; owner is UID:GID."""

    def push_image(self, source: str | Path, name_and_tag: str) -> str:
        """Make an image available to all nodes and return the reference for pods.

        Args:
            source: an OCI or Docker archive, an OCI layout folder, or the name of an image in buildah's (with kind:
                Docker's) storage.
            name_and_tag: ``modelweights-operator:abc123``. Give other content another tag: nodes keep what they have.
        """

    def has_image(self, name_and_tag: str) -> bool:
        """Return whether that name and tag was pushed before."""

    def stop_node(self, node: str) -> None:
        """Cut a node's power: all that runs there ends at once, without a goodbye to the API server."""

    def start_node(self, node: str, *, timeout: float = 60, taints: Sequence[Mapping[str, str]] = ()) -> None:
        """Start a stopped node and wait until it is Ready; one that was deleted from the API joins anew, as a new one does.

        Args:
            node: its name.
            timeout: for how many seconds.
            taints: beside its own, with which it joins; one that wasn't deleted keeps those that it has.
        """

    def set_memory_pressure(self, node: str, *, on: bool) -> None:
        """Have a node's kubelet evict pods because of memory, or no more; it is started anew, all other processes go on.

        It gets a soft threshold above what is free, so that it acts as on a node that is starved.
        """

    def restart_node(self, node: str, *, new_boot_id: bool = True, drop_caches: bool = True) -> None:
        """Reboot a node and wait until it is Ready.

        Args:
            node: its name.
            new_boot_id: let its boot ID change, as every real reboot does.
            drop_caches: empty the page cache of its disk, as every real reboot does.
        """


def choose(provider: str = "auto", instance: str = "dev", *, quiet: bool = False) -> Cluster:
    """Return the cluster that the caller, the environment or this machine asks for, and print which and why.

    Quiet is for callers whose standard output belongs to somebody else. An existing cluster is used only when asked for by name: tests create and delete things in it.

    Raises:
        MissingToolError: the tier cannot run here; the message names what to install.
    """
    # Imported here, or the implementations could not import this module.
    from tests.cluster import embedded, existing, kind, requirements  # noqa: PLC0415

    asked = "asked for" if provider != "auto" else f"{PROVIDER_VARIABLE} is set"
    chosen = provider if provider != "auto" else os.environ.get(PROVIDER_VARIABLE, "auto")
    if chosen == "auto":
        against = requirements.reason_against()
        if kind.docker_answers():
            chosen, asked = "kind", "a Docker engine answers"
        elif against is None:
            chosen, asked = "embedded", "no Docker engine answers; this is Linux, we are root"
        else:
            otherwise = "" if shutil.which("go") is None else ". Or install Docker and start it (kind is used then)"
            raise MissingToolError(f"no cluster can run here: {against}{otherwise}")
    if not quiet:
        print(f"cluster: {chosen} ({asked})", flush=True)
    if chosen == "embedded":
        return embedded.Embedded(instance)
    if chosen == "kind":
        return kind.Kind(instance)
    if chosen == "kubeconfig":
        path = os.environ.get(KUBECONFIG_VARIABLE)
        if not path:
            raise MissingToolError(f"provider kubeconfig: set {KUBECONFIG_VARIABLE} to the file to use")
        return existing.Existing(Path(path))
    raise ClusterError(f"no provider {chosen!r}: one of {', '.join(PROVIDERS)}")
