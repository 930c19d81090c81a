"""The command `flags`: the settings that the operator published for engines, for a shell. Called by `cli`; pure.

Printed as `modelweights-loader flags` prints them. Only what stands in the ConfigMap: nothing is made up here.
"""

import shlex
from typing import TYPE_CHECKING, Any, Final

from kubectl_modelweights import reading
from kubectl_modelweights.errors import CommandError
from kubectl_modelweights.reading import Json
from kubectl_modelweights.table import FAINT, Answer, Line
from modelweights_operator.domain import names

if TYPE_CHECKING:
    from collections.abc import Mapping

ENGINES: Final = ("vllm", "sglang")
_NAMES: Final = {"vllm": "vLLM", "sglang": "SGLang"}
_PREFIXES: Final = {"vllm": "VLLM_", "sglang": "SGLANG_"}


def answer(model: Json, config_map: Json | None, engines: tuple[str, ...]) -> Answer:
    """Variables and flags.

    Args:
        model: The ModelWeights.
        config_map: The one of its name, None for none.
        engines: For which ones.

    Raises:
        CommandError: There is none, or it isn't the operator's.
    """
    if config_map is None:
        raise CommandError(
            f"{reading.name(model)} has no ConfigMap of engine settings: it appears once it is available "
            f"(kubectl modelweights why {model['metadata']['name']})"
        )
    owners = config_map["metadata"].get("ownerReferences") or []
    if not any(owner.get("uid") == model["metadata"]["uid"] for owner in owners):
        raise CommandError(
            f"the ConfigMap {reading.name(model)} isn't the operator's: rename one of the two, or delete it"
        )
    data: Mapping[str, str] = config_map.get("data") or {}
    environment = {
        key: value
        for key, value in sorted(data.items())
        if key.isupper()
        and not any(key.startswith(prefix) for engine, prefix in _PREFIXES.items() if engine not in engines)
    }
    digest = (config_map["metadata"].get("annotations") or {}).get(names.DIGEST_ANNOTATION, "")
    notes = _notes(model, digest)
    words = {engine: _flags(data.get(f"{engine}-config.yaml", "")) for engine in engines}
    lines = [Line(f"# {note}", style=FAINT) for note in notes]
    lines += [Line(f"export {key}={shlex.quote(value)}") for key, value in environment.items()]
    for engine, found in words.items():
        lines += [Line(f"# {_NAMES[engine]}", style=FAINT), Line(shlex.join(found))]
    shown: dict[str, Any] = {"digest": digest, "environment": environment, "flags": words, "notes": notes}
    return Answer(tuple(lines), shown)


def _notes(model: Json, digest: str) -> list[str]:
    found = reading.published(model)
    engine = found.get("engine")
    notes = [
        f"proven on a node of {reading.name(model)} with checkpoint {reading.short(digest)}"
        if engine
        else f"{reading.name(model)}: defaults, nothing was loaded to prove them"
    ]
    if digest != found.get("manifestDigest", ""):
        notes.append(f"of a former checkpoint: {reading.short(str(found.get('manifestDigest', '')))} is published now")
    return notes


def _flags(config: str) -> list[str]:
    """An engine's configuration file as flags: lines of `name: value`, which is all that the operator writes."""
    words = []
    for line in config.splitlines():
        name, found, value = line.partition(": ")
        if found:
            text = value.strip()
            quoted = len(text) > 1 and text[0] == text[-1] == "'"
            words += [f"--{name.strip()}", text[1:-1].replace("''", "'") if quoted else text]
    return words
