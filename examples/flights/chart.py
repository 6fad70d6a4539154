"""The delays as a chart."""

from __future__ import annotations

from pathlib import Path

LATE, EARLY, INK, FAINT = "#c4502e", "#2f6f8f", "#222222", "#8a8a8a"


def draw(means: dict[str, float], names: dict[str, str], overall: float, source: str, path: Path) -> None:
    """Draw one bar for each carrier, longest on top, and the mean of all flights as a line.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    carriers = sorted(means, key=means.__getitem__)
    values = [means[carrier] for carrier in carriers]
    figure, axes = pyplot.subplots(figsize=(9, 6.2), dpi=150)
    colours = [LATE if value > overall else EARLY for value in values]
    axes.barh([names.get(carrier, carrier) for carrier in carriers], values, color=colours, height=0.68)
    for row, value in enumerate(values):
        axes.text(
            value - 0.2, row, f"{value:.1f}", ha="right", va="center_baseline", color="white", fontsize=9
        )
    axes.axvline(overall, color=INK, linewidth=0.9, linestyle=(0, (4, 3)), zorder=0)
    axes.annotate(
        f"all flights {overall:.1f}",
        (overall, -0.9),
        xytext=(4, 0),
        textcoords="offset points",
        fontsize=8.5,
        color=INK,
        va="center",
        annotation_clip=False,
    )
    axes.set_xlim(0, max(values) * 1.04)
    axes.set_ylim(-1.3, len(values) - 0.4)
    axes.xaxis.set_major_locator(ticker.MultipleLocator(5))
    axes.set_xlabel("minutes", color=FAINT, fontsize=9)
    axes.tick_params(axis="x", colors=FAINT, labelsize=8.5)
    axes.tick_params(axis="y", length=0, labelsize=9.5, colors=INK)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    figure.text(0.02, 0.945, "Mean departure delay from New York, 2013", fontsize=15, color=INK)
    figure.text(0.02, 0.905, source, fontsize=9, color=FAINT)
    figure.tight_layout(rect=(0, 0, 1, 0.9))
    figure.savefig(path)
    pyplot.close(figure)
