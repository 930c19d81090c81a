"""What `status`, `top`, `flags` and `verify` make of an object, and how answers are drawn."""

import io
import json
from typing import Any

import pytest
import yaml
from rich.console import Console

from kubectl_modelweights import flags, status, table, top, verify
from kubectl_modelweights.errors import CommandError
from kubectl_modelweights.gathered import Records
from kubectl_modelweights.table import Answer, Cell, Line, Table
from modelweights_operator.domain import names
from tests.unit.kubectl.samples import DIGEST, OTHER, READY, Json, entry, model


def texts(answer: Answer) -> list[list[str]]:
    """The cells of its last table."""
    [*_, last] = [block for block in answer.blocks if isinstance(block, Table)]
    return [[cell.text for cell in row] for row in last.rows]


# --- status -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (READY, ["n", "Ready", "100 %", "1000 100 %", ""]),
        ({**READY, "residentBytes": 500}, ["n", "Ready", "100 %", "500 50 %", ""]),
        ({**READY, "manifestDigest": OTHER}, ["n", "Ready", "100 %", "1000", ""]),
        (entry("Staging", "Fetching", progressPercent=40), ["n", "Staging", "40 %", "-", "Fetching"]),
        (entry("Staging", "Fetching"), ["n", "Staging", "-", "-", "Fetching"]),
        (entry("Waiting", "Queued", "2 of 2"), ["n", "Waiting", "-", "-", "Queued: 2 of 2"]),
        (entry("Failed", "Bad", "x", attempts=1), ["n", "Failed", "-", "-", "Bad: x (failed 1 time)"]),
    ],
)
def test_a_nodes_row(found: Json, expected: list[str]) -> None:
    assert texts(status.one(model({"n": found}))) == [expected]


def test_what_failed_comes_first_and_what_is_ready_last() -> None:
    nodes = {
        "a": READY,
        "b": entry("Waiting", "Queued"),
        "c": entry("Failed", "Bad"),
        "d": entry("Staging", "Fetching"),
    }
    assert [row[0] for row in texts(status.one(model(nodes)))] == ["c", "d", "b", "a"]
    assert [row[:2] for row in texts(status.many([model(nodes)], everywhere=False))] == [
        ["llama", "c"],
        ["llama", "d"],
        ["llama", "b"],
    ]


def test_an_object_without_status_is_shown_too() -> None:
    fresh = {key: value for key, value in model().items() if key != "status"}
    assert texts(status.one(fresh)) == [["llama", "Unknown", "Unknown", "0/0", "-", "NotSeenYet"]]


def test_no_object_at_all() -> None:
    assert "-A shows those of all" in table.plain(status.many([], everywhere=False).blocks)


# --- top --------------------------------------------------------------------------------------------------------------


def test_top_sums_what_models_have_on_a_node() -> None:
    fetched = model({"n": {**READY, "leftovers": [OTHER], "diskFreeBytes": 7}})
    fetched["spec"] = {"source": {"huggingFace": {"repository": "a/b"}}}
    node = {"metadata": {"name": "n"}, "status": {"capacity": {"memory": "4Ki"}}}
    found = top.answer([fetched, model({"n": READY, "m": entry("Failed", "Bad")})], [node], "")
    assert texts(found) == [
        ["m", "1", "0", "1", "-", "-", "-", "-"],
        ["n", "2", "2", "0", "1.95Ki 48 %", "4Ki", "1000+", "7"],
    ]


@pytest.mark.parametrize(
    ("text", "expected"), [("4Ki", "4Ki"), ("2048", "2Ki"), ("2Gi", "2Gi"), ("1e3", "-"), ("", "-")]
)
def test_a_nodes_memory(text: str, expected: str) -> None:
    node = {"metadata": {"name": "n"}, "status": {"capacity": {"memory": text}}}
    assert texts(top.answer([model({"n": READY})], [node], ""))[0][5] == expected


# --- flags ------------------------------------------------------------------------------------------------------------

SETTINGS = {
    "FASTSAFETENSORS_ODIRECT": "0",
    "VLLM_FASTSAFETENSORS_QUEUE_SIZE": "2",
    "MODEL_PATH": "/models/a b",
    "vllm-config.yaml": "load-format: fastsafetensors\n",
    "sglang-config.yaml": "load-format: fastsafetensors\nmodel-loader-extra-config: '{\"enable_gds\": false}'\n",
}


def config_map(owner: str = "uid-1", digest: str = DIGEST) -> Json:
    metadata = {"ownerReferences": [{"uid": owner}], "annotations": {names.DIGEST_ANNOTATION: digest}}
    return {"metadata": metadata, "data": SETTINGS}


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ("vllm", ["# vLLM", "--load-format fastsafetensors"]),
        (
            "sglang",
            ["# SGLang", "--load-format fastsafetensors --model-loader-extra-config '{\"enable_gds\": false}'"],
        ),
    ],
)
def test_flags_for_a_shell(engine: str, expected: list[str]) -> None:
    lines = table.plain(flags.answer(model(), config_map(), (engine,)).blocks).splitlines()
    assert lines[-2:] == expected
    assert "export MODEL_PATH='/models/a b'" in lines
    assert any("VLLM_" in line for line in lines) == (engine == "vllm")


@pytest.mark.parametrize(
    ("found", "complaint"), [(None, "has no ConfigMap"), (config_map("stranger"), "isn't the operator's")]
)
def test_settings_that_arent_the_operators_are_not_printed(found: Json | None, complaint: str) -> None:
    with pytest.raises(CommandError, match=complaint):
        flags.answer(model(), found, ("vllm",))


def test_settings_of_a_former_checkpoint_say_so() -> None:
    assert "former" in table.plain(flags.answer(model(), config_map(digest=OTHER), ("vllm",)).blocks)


# --- verify -----------------------------------------------------------------------------------------------------------


def node(name: str = "n", boot: str = "boot", *digests: str) -> Json:
    labels = names.digest_labels("uid-1", digests or (DIGEST,))
    return {"metadata": {"name": name, "labels": labels}, "status": {"nodeInfo": {"bootID": boot}}}


@pytest.mark.parametrize(
    ("entries", "nodes", "differs"),
    [
        ({"n": READY}, None, []),
        ({"n": READY}, (node(),), []),
        ({"n": {**READY, "otherDigests": [OTHER]}}, (node("n", "boot", DIGEST, OTHER),), []),
        ({"n": READY}, (node("n", "boot", DIGEST, OTHER),), ["node n"]),
        ({"n": READY}, (node("n", "boot", OTHER),), ["node n"]),
        ({}, (node("stranger"),), ["node stranger"]),
        ({"n": READY}, (node(boot="later"),), []),
        ({"n": READY}, (), []),
        ({"n": {**READY, "manifestDigest": OTHER}}, None, ["node n"]),
        ({"n": entry("Staging", "Fetching", manifestDigest=OTHER)}, None, []),
    ],
)
def test_records_that_differ_are_found(entries: Json, nodes: tuple[Json, ...] | None, differs: list[str]) -> None:
    found = Records(model(entries), nodes)
    assert [check.subject for check in verify.compare(found) if check.differs] == differs
    assert verify.answer(found).exit_code == (1 if differs else 0)


@pytest.mark.parametrize(
    ("expected", "differs"),
    [("", False), (DIGEST, False), ("sha256:aaaa", False), ("aaaa", False), (OTHER, True), ("a" * 39 + "b", True)],
)
def test_the_digest_that_a_person_expects(expected: str, differs: bool) -> None:  # noqa: FBT001 - a table's value
    assert verify.compare(Records(model()), expected)[0].differs == differs


def test_a_config_map_of_another_checkpoint_differs() -> None:
    found = Records(model(), config_map=config_map(digest=OTHER))
    assert [check.differs for check in verify.compare(found)] == [False, True]


def test_nothing_published_is_nothing_to_agree_on() -> None:
    bare: Json = {**model(), "status": {}}
    assert verify.answer(Records(bare)).exit_code == 1


# --- drawing ----------------------------------------------------------------------------------------------------------


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environment", "expected"),
    [
        (_Terminal(), {"TERM": "xterm"}, True),
        (_Terminal(), {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (_Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {"TERM": "xterm"}, False),
    ],
)
def test_bars_are_for_terminals_that_want_them(
    stream: io.StringIO,
    environment: dict[str, str],
    expected: bool,  # noqa: FBT001 - a table's value
) -> None:
    assert table.draws(stream, environment) == expected


def test_plain_columns_end_with_no_blanks() -> None:
    rows = ((Cell("a"), Cell("x", part=0.5)), (Cell("long"), Cell("")))
    assert table.plain([Table(("N", "P"), rows), Line("text", "cause")]) == "N      P\na      x\nlong\ncause:    text"


@pytest.mark.parametrize("width", [60, 80, 110, 160])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    message = "a" + " long message" * 30
    nodes = {f"node-{number}.some.where.example.com": entry("Failed", "Bad", message) for number in range(3)}
    console = Console(width=width, file=io.StringIO(), force_terminal=True, record=True)
    console.print(table.renderable(status.one(model(nodes)).blocks, width))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    # Why is told however narrow it is, and in full.
    assert "WAITS FOR" in text
    assert "".join(text.split()).count("message") == 90


@pytest.mark.parametrize("load", [(("json", json.loads)), (("yaml", yaml.safe_load))])
def test_what_programs_get_is_read_back(load: tuple[str, Any]) -> None:
    answer = status.one(model({"n": READY}))
    assert load[1](table.encode(answer.data, load[0])) == answer.data


def test_markup_in_a_message_is_text() -> None:
    console = Console(width=100, file=io.StringIO(), record=True, markup=False)
    console.print(table.renderable([Line("[bold]x[/bold]"), Table(("A",), ((Cell("[red]y"),),))], 100))
    assert "[bold]x[/bold]" in (text := console.export_text())
    assert "[red]y" in text
