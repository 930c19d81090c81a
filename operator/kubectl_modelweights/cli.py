"""The console script `kubectl-modelweights`, which kubectl runs for `kubectl modelweights`: parses, asks, draws. Thin on purpose.

Each command's modules are imported when it runs: what isn't needed costs no time.
"""

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from kubectl_modelweights import options
from kubectl_modelweights.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, CommandError

if TYPE_CHECKING:
    from kubectl_modelweights.client import Client
    from kubectl_modelweights.table import Answer


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    parser = options.make_parser()
    arguments = parser.parse_args(argv)
    options.check(parser, arguments)
    try:
        return _run(arguments)
    except CommandError as error:
        sys.stderr.write(f"kubectl modelweights: {error}\n")
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # As of `| head`: nobody reads on, and the interpreter's last flush would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED


def _run(arguments: Namespace) -> int:
    if arguments.command == "completion":
        from kubectl_modelweights import completion  # noqa: PLC0415 - see the module's docstring

        sys.stdout.write(completion.script(arguments.shell) + "\n")
        return EXIT_DONE
    if arguments.command == "stage":
        return _stage(arguments.words)
    from kubectl_modelweights import table  # noqa: PLC0415 - see the module's docstring

    answer = _COMMANDS[arguments.command](_client(arguments), arguments)
    if answer is None:
        return EXIT_DONE
    if arguments.output:
        sys.stdout.write(table.encode(answer.data, arguments.output) + "\n")
    elif table.draws(sys.stdout):
        console = table.console(sys.stdout)
        console.print(table.renderable(answer.blocks, console.width))
    else:
        sys.stdout.write(table.plain(answer.blocks) + "\n")
    sys.stdout.flush()
    return answer.exit_code


def _client(arguments: Namespace) -> "Client":
    from kubectl_modelweights.client import Client  # noqa: PLC0415 - see the module's docstring

    given = {"context": arguments.context, "kubeconfig": arguments.kubeconfig, "as": arguments.as_user}
    return Client(tuple(f"--{name}={value}" for name, value in given.items() if value), arguments.namespace)


def _stage(words: Sequence[str]) -> int:
    """Become the loader: what is typed on goes to it, and its exit code is ours."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "modelweights_loader", "stage", *words])  # noqa: S606 - our own program


def _status(client: "Client", arguments: Namespace) -> "Answer | None":
    from kubectl_modelweights import gathered, status  # noqa: PLC0415 - see the module's docstring

    name, everywhere = arguments.name, arguments.all_namespaces
    found = [gathered.model(client, name)] if name else gathered.models(client, everywhere=everywhere)

    def answer(models: "Sequence[dict[str, object]]") -> "Answer":
        return status.one(models[0]) if name and models else status.many(models, everywhere=everywhere)

    if not arguments.watch:
        return answer(found)
    from kubectl_modelweights import watching  # noqa: PLC0415 - see the module's docstring

    # By a selector also of one: what changes between kubectl's look at a name and its watch of it, kubectl never tells.
    one = (f"--field-selector=metadata.name={name}",) if name else ()
    words = ("--all-namespaces",) if everywhere else one
    watching.watch(client, words, found, answer, sys.stdout)
    return None


def _why(client: "Client", arguments: Namespace) -> "Answer":
    from kubectl_modelweights import explain, gathered  # noqa: PLC0415 - see the module's docstring

    return explain.answer(explain.why(gathered.surroundings(client, arguments.name)))


def _gate(client: "Client", arguments: Namespace) -> "Answer":
    from kubectl_modelweights import gate, gathered  # noqa: PLC0415 - see the module's docstring

    return gate.answer(gathered.at_gate(client, arguments.pod), datetime.now(UTC))


def _top(client: "Client", arguments: Namespace) -> "Answer":
    from kubectl_modelweights import gathered, top  # noqa: PLC0415 - see the module's docstring

    models = gathered.models(client, everywhere=arguments.all_namespaces)
    return top.answer(models, *gathered.nodes(client))


def _flags(client: "Client", arguments: Namespace) -> "Answer":
    from kubectl_modelweights import flags, gathered  # noqa: PLC0415 - see the module's docstring

    engines = flags.ENGINES if arguments.engine == "all" else (arguments.engine,)
    model, config_map = gathered.settings(client, arguments.name)
    return flags.answer(model, config_map, engines)


def _verify(client: "Client", arguments: Namespace) -> "Answer":
    from kubectl_modelweights import gathered, verify  # noqa: PLC0415 - see the module's docstring

    return verify.answer(gathered.records(client, arguments.name), arguments.digest)


def _retry(client: "Client", arguments: Namespace) -> "Answer":
    from kubectl_modelweights import writes  # noqa: PLC0415 - see the module's docstring

    return writes.retry(client, arguments.name, arguments.node, datetime.now(UTC))


def _suspend(client: "Client", arguments: Namespace) -> "Answer":
    from kubectl_modelweights import writes  # noqa: PLC0415 - see the module's docstring

    return writes.suspend(client, arguments.name, suspend=arguments.command == "pause")


_COMMANDS: Final[dict[str, Callable[["Client", Namespace], "Answer | None"]]] = {
    "status": _status,
    "why": _why,
    "gate": _gate,
    "top": _top,
    "flags": _flags,
    "verify": _verify,
    "retry": _retry,
    "pause": _suspend,
    "resume": _suspend,
}
