"""Certificates, kubeconfigs and command lines of the control plane, for the embedded cluster and the lone API server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.kubeconfig import write_kubeconfig
from tests.cluster.pki import Authority, write_service_account_key
from tests.cluster.plan import Service
from tests.cluster.topology import KUBERNETES_SERVICE_ADDRESS, POD_SUBNET, SERVICE_SUBNET

_SERVICE_NAMES = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
IDENTITIES = {
    "admin": ("modelweights-admin", ("system:masters",)),
    "controller-manager": ("system:kube-controller-manager", ()),
    "scheduler": ("system:kube-scheduler", ()),
    "proxy": ("system:kube-proxy", ()),
}


@dataclass(frozen=True)
class ControlPlane:
    """One control plane: where its files lie, and where its servers listen.

    Attributes:
        root: folder for certificates, kubeconfigs and etcd's data.
        programs: folder where the programs lie under their usual names.
        logs: folder of the log files.
        address: what pods and nodes reach the API server at; also in its certificate.
        api_port: the API server's port on all addresses of bind_address.
        etcd_port: etcd's client port on loopback; the next one down the list is its peers' port.
        etcd_peer_port: etcd's port for peers, which there are none of.
        bind_address: where the API server listens.
        authority: signs everything.
        feature_gates: of the API server, by name.
    """

    root: Path
    programs: Path
    logs: Path
    address: str
    api_port: int
    etcd_port: int
    etcd_peer_port: int
    bind_address: str
    authority: Authority
    feature_gates: Mapping[str, bool] = field(default_factory=lambda: {"ImageVolume": True})

    @property
    def server(self) -> str:
        return f"https://{self.address}:{self.api_port}"

    @property
    def _pki(self) -> Path:
        return self.authority.folder

    def write_files(self, identities: Sequence[str]) -> None:
        """Issue the servers' certificates and write one kubeconfig for each identity, into the root folder."""
        names = [*_SERVICE_NAMES, "localhost", "127.0.0.1", KUBERNETES_SERVICE_ADDRESS, self.address]
        self.authority.issue("apiserver", "kube-apiserver", alternative_names=names)
        self.authority.issue("kubelet-client", "kube-apiserver-kubelet-client", ["system:masters"])
        self.authority.issue("front-proxy", "front-proxy-client")
        write_service_account_key(self._pki / "service-accounts.key")
        for identity in identities:
            user, groups = IDENTITIES[identity]
            self.write_kubeconfig(self.root / f"{identity}.kubeconfig", identity, user, groups)

    def write_kubeconfig(self, path: Path, name: str, user: str, groups: Sequence[str]) -> Path:
        """Write the kubeconfig of a user with a client certificate of its own."""
        return write_kubeconfig(path, self.server, self.authority.certificate, self.authority.issue(name, user, groups))

    def _command(self, name: str, flags: dict[str, str]) -> list[str]:
        return [str(self.programs / name), *(f"--{flag}={value}" for flag, value in flags.items())]

    def _service(self, name: str, flags: dict[str, str], wait_for: Sequence[str] = ()) -> Service:
        log = str(self.logs / f"{name}.log")
        return Service(name, self._command(name, flags), log, wait_for=list(wait_for))

    def etcd(self) -> Service:
        """Return etcd without fsync: the cluster does not outlive a crash of the machine, and tests wait less."""
        client, peer = f"http://127.0.0.1:{self.etcd_port}", f"http://127.0.0.1:{self.etcd_peer_port}"
        flags = {
            "name": "default",
            "data-dir": str(self.root / "etcd"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "unsafe-no-fsync": "true",
            "log-level": "warn",
        }
        return self._service("etcd", flags)

    def api_server(self, without_admission: Sequence[str] = ()) -> Service:
        """Return the API server with RBAC, node authorization and Pod Security admission.

        Args:
            without_admission: admission plugins to leave out.
        """
        pki = self._pki
        flags = {
            "etcd-servers": f"http://127.0.0.1:{self.etcd_port}",
            "bind-address": self.bind_address,
            "secure-port": str(self.api_port),
            "advertise-address": self.address,
            "endpoint-reconciler-type": "master-count",
            "service-cluster-ip-range": SERVICE_SUBNET,
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",
            "anonymous-auth": "true",
            "client-ca-file": str(self.authority.certificate),
            "tls-cert-file": str(pki / "apiserver.crt"),
            "tls-private-key-file": str(pki / "apiserver.key"),
            "kubelet-certificate-authority": str(self.authority.certificate),
            "kubelet-client-certificate": str(pki / "kubelet-client.crt"),
            "kubelet-client-key": str(pki / "kubelet-client.key"),
            "kubelet-preferred-address-types": "InternalIP",
            "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
            "service-account-key-file": str(pki / "service-accounts.key"),
            "service-account-signing-key-file": str(pki / "service-accounts.key"),
            "requestheader-client-ca-file": str(self.authority.certificate),
            "requestheader-allowed-names": "front-proxy-client",
            "requestheader-extra-headers-prefix": "X-Remote-Extra-",
            "requestheader-group-headers": "X-Remote-Group",
            "requestheader-username-headers": "X-Remote-User",
            "proxy-client-cert-file": str(pki / "front-proxy.crt"),
            "proxy-client-key-file": str(pki / "front-proxy.key"),
            # Webhooks and aggregated APIs are reached at their pods: the control plane has no kube-proxy of its own.
            "enable-aggregator-routing": "true",
            "allow-privileged": "true",
            "feature-gates": ",".join(f"{name}={str(on).lower()}" for name, on in self.feature_gates.items()),
            "profiling": "false",
        }
        if without_admission:
            flags["disable-admission-plugins"] = ",".join(without_admission)
        return self._service("kube-apiserver", flags, [f"tcp:127.0.0.1:{self.etcd_port}"])

    def controller_manager(self, controllers: Sequence[str] = (), port: int = 10257) -> Service:
        """Return the controller manager with all controllers, or only with those named."""
        kubeconfig = str(self.root / "controller-manager.kubeconfig")
        flags = {
            "kubeconfig": kubeconfig,
            "authentication-kubeconfig": kubeconfig,
            "authorization-kubeconfig": kubeconfig,
            "bind-address": "127.0.0.1",
            "secure-port": str(port),
            "leader-elect": "false",
            "use-service-account-credentials": "true",
            "service-account-private-key-file": str(self._pki / "service-accounts.key"),
            "root-ca-file": str(self.authority.certificate),
            "cluster-signing-cert-file": str(self.authority.certificate),
            "cluster-signing-key-file": str(self.authority.key),
            "cluster-cidr": POD_SUBNET,
            # A lost node must show within a test's patience; the defaults are 5 and 40 s.
            "node-monitor-period": "2s",
            "node-monitor-grace-period": "16s",
            "profiling": "false",
        }
        if controllers:
            flags["controllers"] = ",".join(controllers)
        return self._service("kube-controller-manager", flags, [f"tcp:127.0.0.1:{self.api_port}"])

    def scheduler(self) -> Service:
        """Return the scheduler with its defaults."""
        kubeconfig = str(self.root / "scheduler.kubeconfig")
        flags = {
            "kubeconfig": kubeconfig,
            "authentication-kubeconfig": kubeconfig,
            "authorization-kubeconfig": kubeconfig,
            "bind-address": "127.0.0.1",
            "leader-elect": "false",
            "profiling": "false",
        }
        return self._service("kube-scheduler", flags, [f"tcp:127.0.0.1:{self.api_port}"])
