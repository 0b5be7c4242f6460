"""Pictures of a result: time over the floor beside others, and what a logit costs by the number of pixels and classes.

python benchmarks/plot.py RESULT.json OUT.svg      # or .png, .pdf; needs matplotlib: pip install 'numalign[bench]'
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullLocator

COLOURS = {
    "numalign": "#1f5fa8",
    "quack": "#7a4fa3",
    "quack 2 passes": "#b79bd1",
    "compile": "#e08e2b",
    "liger": "#4f9d78",
    "eager": "#7d8791",
    "eager float": "#bcc4cb",
}
"""Who is drawn, in this order."""

INK, FAINT = "#22282e", "#dfe3e7"
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.hashsalt": "numalign",  # the same picture, the same file
}

Record = dict[str, Any]


def sizes(record: Record) -> str:
    """The sizes of the logits, those that repeat as a power: 2 x 14 x 128³."""
    first, classes, *sides = record["shape"]
    if len(sides) == 3 and len(set(sides)) == 1:
        return f"{first} × {classes} × {sides[0]}³"
    return " × ".join(map(str, record["shape"]))


def bars(axes: Axes, records: list[Record], title: str) -> None:
    """Times as multiples of the floor, on a logarithmic axis that begins at the floor."""
    place, ticks, farthest = 0.0, [], 1.0
    for record in records:
        found = {name: record["times"][name] for name in COLOURS if "ms" in record["times"].get(name, {})}
        ticks.append((place + (len(found) - 1) / 2, sizes(record)))
        for name, time in found.items():
            multiple = time["over_floor"]
            farthest = max(farthest, multiple)
            ours = name == "numalign"
            axes.barh(place, multiple - 1, left=1, height=0.86, color=COLOURS[name])
            label = f"{multiple:.{2 if multiple < 10 else 0}f}" + ("*" if time["how"] == "events" else "")
            axes.annotate(
                label,
                (multiple, place),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                fontsize=7.5,
                fontweight="bold" if ours else "normal",
            )
            place += 1
        place += 0.9
    axes.set_xscale("log")
    axes.set_xlim(1, farthest * 1.6)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks([x for x in (1, 2, 5, 10, 20, 50, 100, 200, 500) if x < farthest * 1.6])
    axes.set_yticks([y for y, _ in ticks], [text for _, text in ticks])
    axes.set_ylim(place - 0.9, -1)
    axes.tick_params(length=0)
    axes.spines["left"].set_color(INK)
    axes.grid(axis="x", color=FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
    axes.set_xlabel("time / floor")


def curve(axes: Axes, records: list[Record], x: list[int], title: str, label: str) -> None:
    """Nanoseconds per logit, both axes logarithmic."""
    for name in ("eager float", "eager", "numalign"):
        points = [
            (at, record["times"][name]["ns_per_logit"])
            for at, record in zip(x, records, strict=True)
            if "ns_per_logit" in record["times"].get(name, {})
        ]
        if points:
            width = 2.2 if name == "numalign" else 1.6
            axes.plot(*zip(*points, strict=True), color=COLOURS[name], linewidth=width, marker="o", markersize=3.5)
    floor = [record["floor_ms"] * 1e6 / math.prod(record["shape"]) for record in records]
    axes.plot(x, floor, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(x)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"$2^{{{round(math.log2(v))}}}$"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    axes.tick_params(length=0, which="both")
    axes.grid(color=FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
    axes.set_xlabel(label)
    axes.set_ylabel("ns per logit")


def draw(result: dict[str, Any], out: Path) -> None:
    """All that the result has numbers for."""
    parts = result["parts"]
    first_dtype = [r for r in parts.get("spatial", []) if r["dtype"] == "float16"]
    upper = [
        (records, title)
        for records, title in (
            (first_dtype, "Images and volumes, float16"),
            (parts.get("rows", []), "Rows, bfloat16"),
        )
        if records
    ]
    pixels, classes = parts.get("pixels", []), parts.get("classes", [])
    lower = [
        (records, x, title, label)
        for records, x, title, label in (
            (pixels, [math.prod(r["shape"][2:]) for r in pixels], "By image size, 21 classes, float16", "pixels"),
            (classes, [r["shape"][1] for r in classes], "By classes, same number of logits, float16", "classes"),
        )
        if records
    ]
    if not upper and not lower:
        raise SystemExit("Nothing to draw: the result has none of spatial, rows, pixels and classes.")
    plt.rcParams.update(STYLE)
    heights = [6.0] * bool(upper) + [3.2] * bool(lower)
    figure = plt.figure(figsize=(11.5, sum(heights) + 1.0), layout="constrained")
    grids = figure.add_gridspec(len(heights), 1, height_ratios=heights)
    if upper:
        across = grids[0].subgridspec(1, len(upper))
        for i, (records, title) in enumerate(upper):
            bars(figure.add_subplot(across[i]), records, title)
    if lower:
        across = grids[-1].subgridspec(1, len(lower))
        for i, (records, x, title, label) in enumerate(lower):
            curve(figure.add_subplot(across[i]), records, x, title, label)
    drawn = {name for records, *_ in (*upper, *lower) for r in records for name, t in r["times"].items() if "ms" in t}
    keys: list[Patch | Line2D] = [Patch(color=colour, label=name) for name, colour in COLOURS.items() if name in drawn]
    keys.append(
        Line2D([], [], color=INK, linewidth=1, linestyle=(0, (4, 3)), label="floor: the bytes at copy bandwidth")
    )
    figure.legend(handles=keys, loc="outside upper left", ncols=len(keys), frameon=False, columnspacing=1.4)
    about = result["machine"]
    note = "Loss and gradient of a mean cross-entropy, kernels alone (graph replay)."
    if any(t.get("how") == "events" for records, *_ in upper for r in records for t in r["times"].values()):
        note += " * in the stream, with its gaps."
    where = f"{about.get('gpu') or about['processor']}, torch {about['torch']}, {about['date'][:10]}."
    figure.supxlabel(f"{note} {where}", x=0.01, ha="left", fontsize=8)
    figure.savefig(out, dpi=160, metadata={"Date": None} if out.suffix == ".svg" else None)
    plt.close(figure)


def main() -> None:
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))


if __name__ == "__main__":
    main()
