"""The curve of a soak as a picture (SVG), of its figures. Called by `tests.soak`; `python -m tests.soak.picture FIGURES PICTURE` alone."""

import json
import sys
from itertools import pairwise
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from tests.json_client import Json

_COUNTS = {
    "objects": "ModelWeights",
    "finalizers": "finalizers",
    "config_maps": "ConfigMaps",
    "jobs": "Jobs",
    "staging_pods": "staging pods",
}


def draw(figures: Json, path: Path) -> None:
    """Write the picture."""
    samples, about, size = figures["samples"], figures["about"], figures["size"]
    minutes = [sample["seconds"] / 60 for sample in samples]
    # Text as text, and nothing that differs from one drawing to the next.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "soak", "font.size": 9}):
        figure = Figure(figsize=(9, 6), layout="constrained")
        memory, counts, labels = figure.subplots(3, 1, sharex=True, height_ratios=[3, 3, 2])
        memory.plot(minutes, [sample["rss_mib"] or float("nan") for sample in samples], color="tab:red")
        memory.set_ylabel("operator, MiB resident")
        memory.set_ylim(bottom=0)
        kills = [now / 60 for now in _kills(samples)]
        for axes in (memory, counts, labels):
            axes.grid(alpha=0.3)
            for kill in kills:
                axes.axvline(kill, color="black", alpha=0.25, linewidth=0.8, linestyle=":")
        for name, title in _COUNTS.items():
            counts.plot(minutes, [sample[name] for sample in samples], label=title)
        counts.set_ylabel("number")
        counts.legend(ncols=3, loc="upper right")
        labels.plot(minutes, [sample["node_labels"] for sample in samples], color="tab:green")
        labels.set_ylabel("labels on nodes")
        labels.set_xlabel("minutes; dotted: the operator was killed")
        figure.suptitle(
            f"{size['minutes']:g} minutes of churn on {size['nodes']} nodes and {size['objects']} ModelWeights, "
            f"{about['date']} at {about['commit']}"
        )
        figure.savefig(path, metadata={"Date": None})


def _kills(samples: list[Json]) -> list[float]:
    return [after["seconds"] for before, after in pairwise(samples) if before["process"] != after["process"]]


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
