"""A neural network for handwritten digits, written, differentiated and trained in SQL:
``uv run demos/02_digits_mlp.py``.

scikit-learn's 1,797 digits (8 x 8 pixels) are classified by one hidden layer. The loss is a query;
its gradient and AdamW's update are queries made from it; so are the predictions on digits the
network has not seen, and the confusion matrix.
"""

import argparse
import sys
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt
import xarray as xr
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sql_compact import CompactContext
from sql_resident import AdamW, BatchInput, TrainingSession
from tqdm import trange

# pixels (b, p) -> logits (b, digit); b image, p pixel, f hidden feature.
NETWORK = """
WITH weighted_pixels AS (
    SELECT x.b, w.f, SUM(x.val * w.val) AS val
    FROM pixels x JOIN hidden_weight w ON x.p = w.p
    GROUP BY x.b, w.f
),
hidden AS (
    SELECT x.b, x.f, tanh(x.val + a.val) AS val
    FROM weighted_pixels x JOIN hidden_bias a ON x.f = a.f
),
weighted_features AS (
    SELECT x.b, w.digit, SUM(x.val * w.val) AS val
    FROM hidden x JOIN output_weight w ON x.f = w.f
    GROUP BY x.b, w.digit
),
logits AS (
    SELECT x.b, x.digit, x.val + a.val AS val
    FROM weighted_features x JOIN output_bias a ON x.digit = a.digit
),
largest AS (
    SELECT b, MAX(ddx_stop_gradient(val)) AS val FROM logits GROUP BY b
)"""

LOSS = f"""{NETWORK},
normalizer AS (
    SELECT x.b, SUM(exp(x.val - m.val)) AS val
    FROM logits x JOIN largest m ON x.b = m.b
    GROUP BY x.b
),
true_logit AS (
    SELECT x.b, x.val FROM logits x JOIN labels y ON x.b = y.b AND x.digit = y.label
)
SELECT AVG(ln(z.val) + m.val - y.val) AS loss
FROM normalizer z JOIN largest m ON z.b = m.b JOIN true_logit y ON z.b = y.b
"""

# An image is read as the digit of its largest logit.
CONFUSION = f"""{NETWORK}
SELECT y.label, x.digit, COUNT(*) AS images
FROM logits x
JOIN largest m ON x.b = m.b
JOIN labels y ON x.b = y.b
WHERE x.val = m.val
GROUP BY y.label, x.digit
"""

BATCH = 128
MOST_FEATURES = 100_000  # more would take minutes and gigabytes, for 1,797 small pictures
LARGEST_SEED = 2**32 - 1  # scikit-learn's
DIMS = {
    "hidden_weight": ("p", "f"),
    "hidden_bias": ("f",),
    "output_weight": ("f", "digit"),
    "output_bias": ("digit",),
}


def initial_weights(features: int, seed: int) -> dict[str, npt.NDArray[np.float32]]:
    """Normal weights of deviation 1 / sqrt(inputs), biases 0."""
    rng = np.random.default_rng(seed)
    sizes = {"p": 64, "f": features, "digit": 10}
    weights = {}
    for name, dims in DIMS.items():
        shape = tuple(sizes[dim] for dim in dims)
        scale = shape[0] ** -0.5 if len(shape) == 2 else 0.0
        weights[name] = (scale * rng.standard_normal(shape)).astype(np.float32)
    return weights


def make_session(weights: dict[str, npt.NDArray[np.float32]], seed: int) -> TrainingSession:
    """A session that trains the network on batches of :data:`BATCH` images."""
    return TrainingSession(
        loss=LOSS,
        parameters={
            name: xr.DataArray(
                weights[name],
                dims=dims,
                coords={
                    dim: np.arange(size)
                    for dim, size in zip(dims, weights[name].shape, strict=True)
                },
            )
            for name, dims in DIMS.items()
        },
        batch={
            "pixels": BatchInput(dims=("b", "p"), shape=(BATCH, 64), column="val", domain=None),
            "labels": BatchInput(dims=("b",), shape=(BATCH,), column="label", domain=10),
        },
        optimizer=AdamW(
            betas=(0.9, 0.99),
            eps=1e-8,
            weight_decay={name: 0.3 if len(dims) == 2 else 0.0 for name, dims in DIMS.items()},
        ),
        clip_norm=None,
        learning_rate=0.005,
        seed=seed,
        device="cpu",
        precision="float32",
    )


def confusion_matrix(
    weights: dict[str, npt.NDArray[np.floating]],
    pixels: npt.NDArray[np.float32],
    labels: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """Number of images of each true digit (rows) read as each digit (columns)."""
    context = CompactContext(precision="float32")
    for name, dims in DIMS.items():
        context.register(name, weights[name], dims=dims, column="val")
    context.register("pixels", pixels, dims=("b", "p"), column="val")
    context.register("labels", labels, dims=("b",), column="label", domain=10)
    counts = np.zeros((10, 10), dtype=np.int64)
    for row in context.sql(CONFUSION).to_pandas().itertuples():
        counts[int(row.label), int(row.digit)] = int(row.images)
    return counts


def plot(path: Path, losses: list[float], confusion: npt.NDArray[np.int64]) -> None:
    """The loss over the updates and the confusion matrix, as PNG."""
    accuracy = np.trace(confusion) / confusion.sum()
    figure, (curve, matrix) = plt.subplots(1, 2, figsize=(11, 4.8), layout="constrained")
    curve.semilogy(range(1, len(losses) + 1), losses, color="#1f4e8c", linewidth=1)
    curve.set(title="training", xlabel="update", ylabel="cross-entropy (nats)")
    curve.grid(alpha=0.3)
    matrix.imshow(confusion, cmap="Blues")
    for (true, read), count in np.ndenumerate(confusion):
        if count:
            color = "white" if count > confusion.max() / 2 else "black"
            matrix.text(read, true, count, ha="center", va="center", color=color)
    matrix.set(
        title=f"unseen digits, {accuracy:.1%} right",
        xlabel="read as",
        ylabel="true digit",
        xticks=range(10),
        yticks=range(10),
    )
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description="Digits by a neural network in SQL.")
    parser.add_argument("--steps", type=int, default=400, help="updates")
    parser.add_argument("--features", type=int, default=128, help="hidden features")
    parser.add_argument("--seed", type=int, default=0, help="of weights, split and batches")
    parser.add_argument("--output", type=Path, default=Path("runs/digits"), help="folder")
    arguments = parser.parse_args()
    if arguments.steps < 1 or arguments.features < 1 or arguments.seed < 0:
        parser.error("--steps and --features must be at least 1, and --seed at least 0")
    if arguments.features > MOST_FEATURES or arguments.seed > LARGEST_SEED:
        parser.error(
            f"--features must be at most {MOST_FEATURES:,}, and --seed at most {LARGEST_SEED:,}"
        )

    try:
        arguments.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--output cannot be made: {error}")

    digits = load_digits()
    images = (digits.data / 16).astype(np.float32)
    pixels, unseen_pixels, labels, unseen_labels = train_test_split(
        images,
        digits.target.astype(np.int64),
        test_size=0.2,
        random_state=arguments.seed,
        stratify=digits.target,
    )
    print(f"{len(labels):,} digits to learn from, {len(unseen_labels)} kept unseen")
    started = time.perf_counter()
    session = make_session(initial_weights(arguments.features, arguments.seed), arguments.seed)
    losses = []
    with trange(arguments.steps, unit="update") as steps:
        for step in steps:
            rng = np.random.default_rng((arguments.seed, step))
            chosen = rng.choice(len(labels), BATCH, replace=False)
            report = session.step({"pixels": pixels[chosen], "labels": labels[chosen]})
            losses.append(report.loss)
            steps.set_postfix(loss=f"{report.loss:.4f}", refresh=False)
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f} in {time.perf_counter() - started:.1f} s")

    state = session.state()
    confusion = confusion_matrix({name: state[name] for name in DIMS}, unseen_pixels, unseen_labels)
    print(f"unseen digits read right: {np.trace(confusion) / len(unseen_labels):.1%}")
    picture = arguments.output / "digits.png"
    try:
        plot(picture, losses, confusion)
    except OSError as error:
        print(f"error: cannot write {picture}: {error.strerror or error}", file=sys.stderr)
        return 1
    print(f"written: {picture}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
