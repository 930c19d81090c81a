"""`python -m modelweights_operator`: run the operator until SIGTERM. One line and exit code 1 when it can't start."""

import asyncio
import logging
import sys

import kopf

from modelweights_operator import (
    errors,
    handlers,  # noqa: F401 - importing it registers the handlers
    settings,
)
from modelweights_operator.kube import rights
from modelweights_operator.kube.client import Api


def main() -> int:
    """Run the operator; blocks."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # kopf logs each event that it passes on; what the operator does it says itself.
    logging.getLogger("kopf").setLevel(logging.WARNING)
    try:
        # kopf's start-up handler checks the same, but kopf shows tracebacks for what has a sentence.
        asyncio.run(_check_start())
    except errors.OperatorError as error:
        sys.stderr.write(f"modelweights-operator: {error}\n")
        return 1
    kopf.run(registry=kopf.get_default_registry(), standalone=True, clusterwide=True)
    return 0


async def _check_start() -> None:
    settings.from_environment()
    async with await Api.connect() as api:
        await rights.check(api)


if __name__ == "__main__":
    sys.exit(main())
