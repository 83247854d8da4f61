"""SRG against passes, as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from league.table import Row, standard_error

#: In this order; a method of neither kind is grey.
COLOURS = {"ours": "#c2185b", "peer": "#1565c0", "control": "#9e9e9e"}


def draw(
    path: Path,
    rows: Mapping[str, Mapping[str, Row]],
    groups: Mapping[str, str],
    curve: Sequence[str],
) -> None:
    """One panel for each network; the settings of ``curve`` are joined by a line."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.fonttype"] = "none"
    matplotlib.rcParams["svg.hashsalt"] = "league"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        len(rows), 1, figsize=(8, 5 * len(rows)), squeeze=False, layout="constrained"
    )
    for panel, (network, found) in zip(axes[:, 0], rows.items(), strict=True):
        for name, row in found.items():
            gains, colour = row.all_gains, COLOURS.get(groups.get(name, ""), "grey")
            # Controls take no pass, and the axis is logarithmic.
            passes, error = max(row.passes, 1), standard_error(gains) if len(gains) > 1 else 0
            panel.errorbar(passes, row.mean, error, fmt="o", ms=4, lw=0.8, color=colour)
            panel.annotate(
                name, (passes, row.mean), (4, 3), textcoords="offset points", size=7, color=colour
            )
        joined = sorted((found[name].passes, found[name].mean) for name in curve if name in found)
        if len(joined) > 1:
            panel.plot(*zip(*joined, strict=True), color=COLOURS["ours"], lw=1.2)
        panel.set(xscale="log", xlabel="passes", ylabel="SRG", title=network)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
