"""Operations of a training step and what a device can do at most."""

from dataclasses import dataclass

from sql_oracle.reference import GPTConfig

FORMULA = "6 N tokens + 12 L C T tokens; N without position embeddings"


def training_flops(config: GPTConfig, batch_size: int) -> float:
    """Floating-point operations of one training step on full sequences.

    ``6 N`` for each token (two for every weight in the forward pass, four in the backward pass),
    plus ``12 L C T`` for attention's two products, whose causal half is not deducted. Source:
    Chowdhery et al., "PaLM" (2022), appendix B. ``N`` leaves out the position embeddings, which
    are only added; the tied token embedding counts once, as the output layer.
    """
    weights = config.parameters - config.context * config.width
    attention = 12 * config.layers * config.width * config.context
    return float(6 * weights + attention) * batch_size * config.context


@dataclass(frozen=True, slots=True)
class Peak:
    """A device's peak rate for one precision.

    Attributes:
        flops: operations a second.
        source: where the figure is from.
    """

    flops: float
    source: str


_HOPPER = "NVIDIA H200 / H100 SXM data sheet, dense"
_AMPERE = "NVIDIA A100 data sheet, dense"

#: Part of a device's name, then precision.
_PEAKS: dict[str, dict[str, Peak]] = {
    name: {precision: Peak(flops, source) for precision, flops in rates.items()}
    for names, source, rates in (
        (
            ("H200", "H100"),
            _HOPPER,
            {"float64": 67e12, "float32": 67e12, "tf32": 494.7e12, "bfloat16": 989.4e12},
        ),
        (
            ("A100",),
            _AMPERE,
            {"float64": 19.5e12, "float32": 19.5e12, "tf32": 156e12, "bfloat16": 312e12},
        ),
    )
    for name in names
}


def device_peak(device_name: str, precision: str) -> Peak | None:
    """The peak of a device, or None where none is listed (among them every CPU)."""
    for part, rates in _PEAKS.items():
        if part in device_name:
            return rates.get(precision)
    return None
