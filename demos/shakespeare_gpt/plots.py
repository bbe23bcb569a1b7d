"""The loss over the updates as a picture."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

__all__ = ["loss_picture", "plot_losses"]


@contextmanager
def loss_picture(path: Path) -> Iterator[Axes]:
    """Axes for losses in nats a character over updates, written to ``path`` as PNG at the end."""
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    yield axes
    axes.set_xlabel("update")
    axes.set_ylabel("cross-entropy (nats a character)")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def plot_losses(
    path: Path, updates: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]]
) -> None:
    """Write the losses of :class:`.metrics.Metrics` to ``path`` as PNG, in nats a character."""
    few = "o" if len(updates) <= 50 else None
    with loss_picture(path) as axes:
        axes.plot(
            [record["step"] for record in updates],
            [record["loss"] for record in updates],
            color="#9db4d0",
            linewidth=1,
            marker=few,
            label="batch, with dropout",
        )
        if evaluations:
            steps = [record["step"] for record in evaluations]
            for name, color in (("training", "#1f4e8c"), ("validation", "#c8553d")):
                losses = [record[f"{name}_loss"] for record in evaluations]
                axes.plot(steps, losses, color=color, marker="o", markersize=4, label=name)
