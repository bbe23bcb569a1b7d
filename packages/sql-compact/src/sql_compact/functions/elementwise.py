"""Torch lowerings of SQL's elementwise functions, with DataFusion's values.

Each takes tensors that broadcast (constants as zero-dimensional tensors) in the argument order of
the Substrait plan, and is total: where DataFusion raises on a row (integer division by zero, say)
the value is unspecified but nothing raises, so rows that a mask hides are safe. The companions
named ``*_fails`` say where DataFusion raises. NULL is handled by the caller.
"""

import torch
from torch import Tensor

TWO_TO_700 = 2.0**700


def floating(x: Tensor) -> Tensor:
    """Integers and booleans become DOUBLE, as SQL's float functions make them."""
    return x if x.is_floating_point() else x.to(torch.float64)


def divide(x: Tensor, y: Tensor) -> Tensor:
    """IEEE division of floats; integers truncate towards zero."""
    if torch.promote_types(x.dtype, y.dtype).is_floating_point:
        return x / y
    # The machine instruction traps on x / 0 and on (smallest integer) / -1.
    quotient = torch.div(x, _plain_divisor(y), rounding_mode="trunc")
    return torch.where(y == -1, -x, quotient)


def divide_fails(x: Tensor, y: Tensor) -> Tensor:
    """Integer division by zero, or of the smallest integer by -1."""
    if torch.promote_types(x.dtype, y.dtype).is_floating_point:
        return _nowhere(x, y)
    return (y == 0) | ((y == -1) & (x == torch.iinfo(x.dtype).min))


def modulus(x: Tensor, y: Tensor) -> Tensor:
    """Remainder of truncated division: it has the dividend's sign."""
    dtype = torch.promote_types(x.dtype, y.dtype)
    if not dtype.is_floating_point:
        return torch.where(y == -1, torch.zeros_like(x), torch.fmod(x, _plain_divisor(y)))
    wide, divisor = x.to(torch.float64), y.to(torch.float64)
    if dtype == torch.float64:
        # Torch's vector fmod gives NaN once the quotient passes 1e300 or so. Reducing by a multiple
        # of the divisor first changes nothing, and scaling by a power of two is exact.
        wide = torch.fmod(wide, divisor * TWO_TO_700 * TWO_TO_700)
        wide = torch.fmod(wide, divisor * TWO_TO_700)
    return torch.fmod(wide, divisor).to(dtype)


def modulus_fails(x: Tensor, y: Tensor) -> Tensor:
    """Integer remainder by zero."""
    if torch.promote_types(x.dtype, y.dtype).is_floating_point:
        return _nowhere(x, y)
    return (y == 0).expand(torch.broadcast_shapes(x.shape, y.shape))


def absolute_fails(x: Tensor) -> Tensor:
    """The smallest integer has no absolute value."""
    if x.is_floating_point():
        return torch.zeros_like(x, dtype=torch.bool)
    return x == torch.iinfo(x.dtype).min


def power(x: Tensor, y: Tensor) -> Tensor:
    """Power of floats; integers become DOUBLE first."""
    return torch.pow(floating(x), floating(y))


def power_fails(x: Tensor, y: Tensor) -> Tensor:
    """Zero to a negative power."""
    return (x == 0) & (y < 0)


def cbrt(x: Tensor) -> Tensor:
    """Real cube root: a power, one Newton step, and subnormals scaled into the normal range."""
    x = floating(x)
    if x.dtype in (torch.float16, torch.bfloat16):
        return cbrt(x.to(torch.float32)).to(x.dtype)
    tiny = x.abs() < torch.finfo(x.dtype).tiny * 2.0**24
    scaled = torch.where(tiny, x * 2.0**72, x)
    root = torch.copysign(scaled.abs().pow(1.0 / 3.0), scaled)
    square = root * root
    root = root - (root * square - scaled) / (3.0 * square)
    root = torch.where(tiny, root * 2.0**-24, root)
    return torch.where((x == 0) | ~x.isfinite(), x, root)


def logarithm(x: Tensor, base: Tensor | None = None) -> Tensor:
    """``log(x)`` to base 10, or ``log(base, x)``, whose plan has the base second."""
    x = floating(x)
    return torch.log10(x) if base is None else torch.log(x) / torch.log(floating(base))


def cotangent(x: Tensor) -> Tensor:
    """Reciprocal of the tangent."""
    return 1.0 / torch.tan(floating(x))


def rounded(x: Tensor, digits: Tensor | None = None) -> Tensor:
    """Nearest integer, ties away from zero; with digits, of ``x * 10^digits``, scaled back."""
    x = floating(x)
    if digits is not None:
        factor = _power_of_ten(x, digits)
        return rounded(x * factor) / factor
    whole = torch.trunc(x)
    tie_or_more = ((x - whole).abs() >= 0.5).to(x.dtype)
    return whole + torch.copysign(tie_or_more, x)


def truncated(x: Tensor, digits: Tensor | None = None) -> Tensor:
    """Towards zero, as ``round`` is scaled by digits; of a zero it is positive zero."""
    x = floating(x)
    if digits is not None:
        factor = _power_of_ten(x, digits)
        return torch.trunc(x * factor) / factor
    return torch.where(x == 0, torch.zeros_like(x), torch.trunc(x))


def signum(x: Tensor) -> Tensor:
    """-1, 0 or 1; NaN of NaN; positive zero of either zero."""
    x = floating(x)
    return torch.where(x.isnan(), x, torch.sign(x))


def greatest(*arguments: Tensor) -> Tensor:
    """The largest argument; floats in IEEE total order (-0 below 0, NaN above infinity)."""
    return _extreme(arguments, largest=True)


def least(*arguments: Tensor) -> Tensor:
    """The smallest argument, in the order of ``greatest``."""
    return _extreme(arguments, largest=False)


def nanvl(x: Tensor, y: Tensor) -> Tensor:
    """``x``, or ``y`` where ``x`` is NaN."""
    return torch.where(x.isnan(), y, x)


def shift_left(x: Tensor, y: Tensor) -> Tensor:
    """Left shift by ``y`` modulo the width of the type."""
    return torch.bitwise_left_shift(x, y & (torch.iinfo(x.dtype).bits - 1))


def shift_right(x: Tensor, y: Tensor) -> Tensor:
    """Arithmetic right shift by ``y`` modulo the width of the type."""
    return torch.bitwise_right_shift(x, y & (torch.iinfo(x.dtype).bits - 1))


def identity(x: Tensor) -> Tensor:
    """The argument itself."""
    return x


def _extreme(arguments: tuple[Tensor, ...], *, largest: bool) -> Tensor:
    first, *others = arguments
    for other in others:
        dtype = torch.promote_types(first.dtype, other.dtype)
        first, other = first.to(dtype), other.to(dtype)
        if dtype.is_floating_point:
            a, b = _total_order_key(first), _total_order_key(other)
            first = torch.where(a >= b if largest else a <= b, first, other)
        else:
            first = torch.maximum(first, other) if largest else torch.minimum(first, other)
    return first


def _total_order_key(x: Tensor) -> Tensor:
    """Integers in IEEE 754 total order: the bits, all but the sign inverted when it is set."""
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    bits = x.contiguous().view(integer)
    return bits ^ ((bits >> (8 * x.element_size() - 1)) & torch.iinfo(integer).max)


def _power_of_ten(x: Tensor, digits: Tensor) -> Tensor:
    return torch.pow(10.0, torch.as_tensor(digits, device=x.device).to(torch.float64)).to(x.dtype)


def _plain_divisor(y: Tensor) -> Tensor:
    return torch.where((y == 0) | (y == -1), torch.ones_like(y), y)


def _nowhere(x: Tensor, y: Tensor) -> Tensor:
    shape = torch.broadcast_shapes(x.shape, y.shape)
    return torch.zeros((), dtype=torch.bool, device=x.device).expand(shape)
