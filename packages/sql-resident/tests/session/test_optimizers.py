"""Every optimizer against an independent one: torch.optim, or its paper's formula in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sql_resident import SGD, AdamW, Lion, SessionError

RATE = 0.03
STEPS = 4
TOLERANCE = {"float64": 1e-12, "float32": 3e-5}


class DecoupledSGD:
    """torch's SGD, after a decay of the weights by themselves."""

    def __init__(self, parameters, decay, **options):
        self.parameters, self.decay = list(parameters), decay
        self.inner = torch.optim.SGD(self.parameters, lr=RATE, **options)

    def step(self):
        with torch.no_grad():
            for parameter in self.parameters:
                parameter.mul_(1 - RATE * self.decay)
        self.inner.step()


class NumpyLion:
    """Algorithm 2 of Chen et al. 2023."""

    def __init__(self, parameters, betas, decay):
        self.parameters, self.betas, self.decay = list(parameters), betas, decay
        self.momenta = [np.zeros(tuple(p.shape)) for p in self.parameters]

    def step(self):
        b1, b2 = self.betas
        for i, p in enumerate(self.parameters):
            g, w = p.grad.numpy().astype(float), p.detach().numpy().astype(float)
            update = np.sign(b1 * self.momenta[i] + (1 - b1) * g)
            with torch.no_grad():
                p.copy_(torch.from_numpy(w - RATE * (update + self.decay * w)))
            self.momenta[i] = b2 * self.momenta[i] + (1 - b2) * g


CASES = {
    "adamw": (
        AdamW((0.9, 0.99), 1e-8, 0.1),
        lambda p: torch.optim.AdamW(p, RATE, (0.9, 0.99), 1e-8, 0.1),
    ),
    "adamw without decay": (
        AdamW((0.8, 0.95), 1e-6, 0.0),
        lambda p: torch.optim.AdamW(p, RATE, (0.8, 0.95), 1e-6, 0.0),
    ),
    "sgd": (SGD(momentum=0.0), lambda p: DecoupledSGD(p, 0.0)),
    "momentum": (SGD(0.9, weight_decay=0.2), lambda p: DecoupledSGD(p, 0.2, momentum=0.9)),
    "nesterov": (
        SGD(0.9, nesterov=True),
        lambda p: DecoupledSGD(p, 0.0, momentum=0.9, nesterov=True),
    ),
    "lion": (Lion((0.9, 0.99), 0.1), lambda p: NumpyLion(p, (0.9, 0.99), 0.1)),
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["linear", "mlp", "embedding"])
def test_updates_equal_the_reference(name, case, dtype, problems):
    problem, (optimizer, reference) = problems[name], CASES[case]
    session = problem.session(
        optimizer=optimizer,
        learning_rate=RATE,
        precision=dtype,
        clip_norm=0.5,
        parameters=problem.parameters(dtype),
    )
    weights = {n: torch.from_numpy(a).requires_grad_() for n, a in problem.weights(dtype).items()}
    other = reference(weights.values())
    for position in range(STEPS):
        batch = problem.batch_of(position)
        loss = problem.torch_loss(weights, batch, getattr(torch, dtype))
        for weight in weights.values():
            weight.grad = None
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(weights.values(), 0.5)
        other.step()
        report = session.step(batch)
        assert report.loss == pytest.approx(loss.item(), rel=TOLERANCE[dtype])
        assert report.grad_norm == pytest.approx(norm.item(), rel=TOLERANCE[dtype])
    state = session.weights()
    for table, weight in weights.items():
        expected = weight.detach().numpy()
        error = np.linalg.norm(state[table] - expected) / np.linalg.norm(expected)
        assert error < TOLERANCE[dtype], table


def test_a_decay_by_table_is_that_of_parameter_groups(mlp):
    session = mlp.session(
        optimizer=AdamW((0.9, 0.99), 1e-8, {"w1": 0.3, "w2": 0.1}), learning_rate=RATE
    )
    weights = {n: torch.from_numpy(a).requires_grad_() for n, a in mlp.weights().items()}
    groups = [
        {"params": [weights[n]], "weight_decay": d}
        for n, d in (("w1", 0.3), ("bias", 0.0), ("w2", 0.1))
    ]
    other = torch.optim.AdamW(groups, RATE, (0.9, 0.99), 1e-8)
    for position in range(2):
        batch = mlp.batch_of(position)
        other.zero_grad()
        mlp.torch_loss(weights, batch).backward()
        other.step()
        session.step(batch)
    for table, array in session.weights().items():
        np.testing.assert_allclose(array, weights[table].detach().numpy(), rtol=1e-12)


@pytest.mark.parametrize("clip", [None, 1e3, 1e-2])
def test_clipping_is_that_of_clip_grad_norm(clip, linear):
    session = linear.session(clip_norm=clip)
    weight = torch.from_numpy(linear.weights()["w"]).requires_grad_()
    batch = linear.batch_of(0)
    linear.torch_loss({"w": weight}, batch).backward()
    raw = torch.linalg.norm(weight.grad).item()
    if clip is not None:
        torch.nn.utils.clip_grad_norm_([weight], clip)
    report = session.step(batch)
    assert report.grad_norm == pytest.approx(raw, rel=1e-13)
    expected = weight.detach() - 0.1 * weight.grad
    np.testing.assert_allclose(session.weights()["w"], expected.numpy(), rtol=1e-13)


class AdaGrad:
    """A user's optimizer: Duchi et al. 2011, s ← s + g², w ← w - lr g / (√s + ε)."""

    slots = ("s",)

    def statements(self, parameters):
        statements = {}
        for p in parameters:
            statements[p.next("s")] = f"""SELECT {p.keys("s")}s.val + g.val * g.val AS val
{p.source(p.slot("s"), "s")} {p.join(p.gradient, "g", "s")}"""
            statements[p.next()] = f"""
SELECT {p.keys("w")}w.val - h.lr * g.val / (SQRT(s.val) + 1e-10) AS val
{p.source(p.name, "w")} {p.join(p.gradient, "g", "w")} {p.join(p.next("s"), "s", "w")}
CROSS JOIN hyper h"""
        return statements

    def to_json(self):
        return {"kind": "adagrad"}


def test_a_users_optimizer_is_sql(mlp):
    session = mlp.session(optimizer=AdaGrad(), learning_rate=RATE)
    weights = {n: torch.from_numpy(a).requires_grad_() for n, a in mlp.weights().items()}
    other = torch.optim.Adagrad(weights.values(), RATE, eps=1e-10)
    for position in range(3):
        batch = mlp.batch_of(position)
        other.zero_grad()
        mlp.torch_loss(weights, batch).backward()
        other.step()
        session.step(batch)
    state = session.state()
    for table, weight in weights.items():
        np.testing.assert_allclose(state[table], weight.detach().numpy(), rtol=1e-12)
        sums = other.state[weight]["sum"].numpy()
        np.testing.assert_allclose(state[f"{table}.s"], sums, rtol=1e-12)


class Changed(AdaGrad):
    """The user's optimizer with its statements changed."""

    def __init__(self, change, slots=("s",)):
        self.change = change
        self.slots = slots

    def statements(self, parameters):
        statements = super().statements(parameters)
        self.change(statements)
        return statements


def drop_slot(statements):
    del statements["w_s_next"]


def take_name(statements):
    statements["grad_norm"] = "SELECT 1.0 AS val"


def lose_key(statements):
    statements["w_next"] = "SELECT SUM(val) AS val FROM w"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop_slot, "optimizer Changed: it has no statement 'w_s_next', the next state of 'w'"),
        (take_name, "'grad_norm' has the name of one of the step's own"),
        (lose_key, "'w_next' has the key columns .*; they must be those of its parameter"),
    ],
)
def test_a_users_optimizer_that_is_wrong_is_named(change, message, linear):
    with pytest.raises(SessionError, match=message):
        linear.session(optimizer=Changed(change))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AdamW(betas=(1.0, 0.9)), r"AdamW: betas\[0\] is 1.0"),
        (lambda: AdamW(eps=-1.0), "AdamW: eps is -1.0"),
        (lambda: SGD(momentum=1.5), "SGD: momentum is 1.5"),
        (lambda: Lion(weight_decay={"w": -0.1}), r"Lion: weight_decay\['w'\] is -0.1"),
    ],
)
def test_numbers_out_of_range_are_refused(make, message):
    with pytest.raises(SessionError, match=message):
        make()


def test_a_decay_for_an_unknown_table_is_refused(linear):
    with pytest.raises(SessionError, match="names 'v', which is no parameter table"):
        linear.session(optimizer=AdamW(weight_decay={"v": 0.1}))
