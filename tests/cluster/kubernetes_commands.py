"""What the providers kind and kubeconfig have in common: kubectl and helm with a kubeconfig of their own."""

import os
from pathlib import Path

from tests.cluster.build import ensure_program
from tests.cluster.commands import run


class KubernetesCommands:
    """Base of providers whose cluster is reached by a kubeconfig and nothing else."""

    def __init__(self, name: str, kubeconfig: Path) -> None:
        self.name = name
        self.kubeconfig = kubeconfig

    @property
    def kubectl_program(self) -> str:
        """Our program; its first argument must be ``kubectl``."""
        return str(ensure_program("kubernetes"))

    def kubectl(self, *arguments: str, input: str | None = None, check: bool = True, timeout: float = 60) -> str:  # noqa: A002
        argv = [self.kubectl_program, "kubectl", f"--kubeconfig={self.kubeconfig}", *arguments]
        return run(argv, input=input, check=check, timeout=timeout)

    def helm(self, *arguments: str, input: str | None = None, check: bool = True, timeout: float = 180) -> str:  # noqa: A002
        argv = [str(ensure_program("helm")), f"--kubeconfig={self.kubeconfig}", *arguments]
        return run(argv, input=input, check=check, timeout=timeout, env=dict(os.environ))

    def is_up(self) -> bool:
        return self.kubeconfig.exists() and self.kubectl("get", "--raw=/readyz", check=False, timeout=15) == "ok"
