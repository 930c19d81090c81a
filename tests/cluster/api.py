"""A lone API server, up in seconds and without root, for tests of what needs no nodes: CRDs, RBAC, handlers.

etcd and kube-apiserver listen on free ports of the loopback interface with the same certificates, authorization and
admission as in the embedded cluster. They end with the process that started them, also when that is killed.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.cluster.build import API_PROGRAMS, ensure_programs
from tests.cluster.commands import run
from tests.cluster.controlplane import ControlPlane
from tests.cluster.embedded_files import link_programs
from tests.cluster.errors import ClusterError, CommandError
from tests.cluster.paths import cache_root
from tests.cluster.pki import Authority
from tests.cluster.plan import Plan
from tests.cluster.state import Process

START_TIMEOUT_SECONDS = 60.0
_OWNER = "owner.json"


def _free_ports(count: int) -> list[int]:
    """Return free ports, all held until the last was found so that none comes twice."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _sweep(parent: Path) -> None:
    """Remove the folders of servers whose owner was killed; the servers themselves ended with it."""
    for folder in parent.glob("server-*"):
        owner = Process.read(folder / _OWNER)
        if owner is not None and not owner.alive():
            shutil.rmtree(folder, ignore_errors=True)


class ApiServer:
    """Context manager: etcd and kube-apiserver alone, and the controllers that were asked for.

    Attributes:
        url: the API server's address.
        kubeconfig: the administrator's.
        authority: path of the certificate authority's certificate.
    """

    def __init__(self, controllers: Sequence[str] = (), *, image_volumes: bool = True) -> None:
        """Prepare; nothing is started yet.

        Args:
            controllers: names such as ``garbage-collector-controller``; kube-controller-manager runs only these.
            image_volumes: whether the feature gate ImageVolume is on, which by default it isn't.
        """
        self._controllers = tuple(controllers)
        self._feature_gates = {"ImageVolume": image_volumes}
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start and wait until the API server is ready; on failure nothing stays behind."""
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _start(self) -> None:
        programs = ensure_programs(API_PROGRAMS)
        # In the cache: programs are hard-linked, and a temporary folder is often another file system.
        parent = cache_root() / "api"
        parent.mkdir(parents=True, exist_ok=True)
        _sweep(parent)
        self._folder = Path(tempfile.mkdtemp(prefix="server-", dir=parent))
        Process.of(os.getpid()).write(self._folder / _OWNER)
        logs = self._folder / "logs"
        logs.mkdir()
        link_programs(self._folder / "bin", programs)
        self._plane = self._control_plane(self._folder, logs)
        self._plane.write_files(("admin", "controller-manager"))
        # Without its controller no service account appears, and every pod would be refused for want of one.
        makes_accounts = "serviceaccount-controller" in self._controllers
        without = () if makes_accounts else ("ServiceAccount",)
        services = [self._plane.etcd(), self._plane.api_server(without)]
        if self._controllers:
            services.append(self._plane.controller_manager(self._controllers, port=_free_ports(1)[0]))
        plan = Plan(services, end_with_stdin=True).write(self._folder / "plan.json")
        with (logs / "init.log").open("wb") as log:
            # Init ends when the pipe closes, which the kernel does for a killed process too.
            argv = [str(self._folder / "bin" / "init"), str(plan)]
            self._process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
            )
        self._wait()

    def _control_plane(self, folder: Path, logs: Path) -> ControlPlane:
        api_port, etcd_port, etcd_peer_port = _free_ports(3)
        return ControlPlane(
            root=folder,
            programs=folder / "bin",
            logs=logs,
            address="127.0.0.1",
            api_port=api_port,
            etcd_port=etcd_port,
            etcd_peer_port=etcd_peer_port,
            bind_address="127.0.0.1",
            authority=Authority(folder / "pki"),
            feature_gates=self._feature_gates,
        )

    def _wait(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        answer = "nothing"
        while time.monotonic() < deadline:
            try:
                # The namespace comes after readiness, and tests create things in it at once.
                self.kubectl("get", "namespace", "default", timeout=10)
            except CommandError as error:
                answer = str(error)[-300:]
                time.sleep(0.1)
            else:
                return
        logs = {path.name: path.read_text()[-2000:] for path in sorted((self.folder / "logs").glob("*.log"))}
        raise ClusterError(f"the API server is not ready after {START_TIMEOUT_SECONDS:g} s: {answer}\n{logs}")

    def close(self) -> None:
        """End all processes and remove the folder; harmless when done twice."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self._process.send_signal(signal.SIGKILL)
                self._process.wait()
            self._process = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    @property
    def folder(self) -> Path:
        if self._folder is None:
            raise ClusterError("the API server does not run: use it as a context manager")
        return self._folder

    @property
    def url(self) -> str:
        return self._plane.server

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "admin.kubeconfig"

    @property
    def issuer(self) -> Authority:
        """What signs the cluster's certificates: a kubelet that the API server talks to needs one of them."""
        return self._plane.authority

    @property
    def authority(self) -> Path:
        return self._plane.authority.certificate

    def kubectl(self, *arguments: str, input: str | None = None, check: bool = True, timeout: float = 60) -> str:  # noqa: A002
        """Run kubectl with the administrator's rights and return its output; see ``commands.run``."""
        argv = [str(self.folder / "bin" / "kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments]
        return run(argv, input=input, check=check, timeout=timeout)

    def kubeconfig_for(self, user: str, groups: Sequence[str] = ()) -> Path:
        """Write and return the kubeconfig of a user, who has the rights that RBAC gives to user and groups.

        A service account is ``system:serviceaccount:NAMESPACE:NAME`` with the groups ``system:serviceaccounts`` and
        ``system:serviceaccounts:NAMESPACE``; ``kubeconfig_for_service_account`` fills them in.
        """
        name = "user-" + "".join(letter if letter.isalnum() else "-" for letter in user)
        return self._plane.write_kubeconfig(self.folder / f"{name}.kubeconfig", name, user, groups)

    def kubeconfig_for_service_account(self, namespace: str, name: str) -> Path:
        """Write and return a kubeconfig with exactly the rights of a service account, which need not exist."""
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")
        return self.kubeconfig_for(f"system:serviceaccount:{namespace}:{name}", groups)
