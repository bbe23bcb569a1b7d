"""The dropout mask operator against an independent computation with Python integers."""

import pytest
import torch
from sql_compact.kernels import dropout_mask

M = 0xFFFFFFFF


def philox_integers(counter: list[int], key: tuple[int, int]) -> list[int]:
    c, (k0, k1) = list(counter), key
    for _ in range(7):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k0, b & M, (a >> 32) ^ c[3] ^ k1, a & M]
        k0, k1 = (k0 + 0x9E3779B9) & M, (k1 + 0xBB67AE85) & M
    return c


@pytest.mark.parametrize("shape", [(9,), (3, 6), (2, 3, 5), (2, 3, 4, 7)])
def test_mask_is_the_contract_of_dropout_keep(shape: tuple[int, ...]) -> None:
    p, seed, step, site = 0.3, (9 << 32) + 1337, (2 << 32) + 4, 5
    mask = dropout_mask(
        torch.tensor(p, dtype=torch.float64), torch.tensor(seed), torch.tensor(step), site, shape
    )
    key = philox_integers([site, step & M, step >> 32, len(shape)], (seed & M, seed >> 32))[:2]
    assert mask.shape == shape
    for index in torch.cartesian_prod(*(torch.arange(n) for n in shape)).reshape(-1, len(shape)):
        *leading, last = index.tolist()
        counter = [last // 4, *reversed(leading), 0, 0, 0][:4]
        word = philox_integers(counter, (key[0], key[1]))[last % 4]
        assert bool(mask[tuple(index.tolist())]) == (word >= int(p * 2**32))


def test_probability_zero_keeps_everything() -> None:
    mask = dropout_mask(torch.tensor(0.0), torch.tensor(1), torch.tensor(2), 3, (40, 40))
    assert bool(mask.all())


def test_share_of_kept_entries_is_one_minus_p() -> None:
    mask = dropout_mask(torch.tensor(0.2), torch.tensor(1), torch.tensor(2), 3, (400, 400))
    # Five standard deviations of the mean of 160000 independent bits.
    assert abs(float(mask.double().mean()) - 0.8) < 5 * (0.8 * 0.2 / 160000) ** 0.5
