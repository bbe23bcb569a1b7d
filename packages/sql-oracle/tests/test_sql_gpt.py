"""The GPT in SQL, judged; and faults on either side, caught."""

from dataclasses import replace

import pytest
import sql_resident
from sql_oracle import (
    GPT,
    AdamWOptions,
    GPTConfig,
    PhiloxMasks,
    check,
    decay_matrices,
    gpt_mapping,
    warmup_cosine,
)
from sql_oracle.batches import synthetic_batches
from sql_oracle.mutations import MUTATIONS, Judge, mutation
from sql_oracle.sessions import Recipe, build_session, default_loss_sql
from sql_resident import AdamW, BatchInput

# A head of 5 channels: no other number of the query is sqrt(5.0). A short warm-up, so that every
# fault of an update is larger than float32's noise.
CONFIG = GPTConfig(layers=1, heads=2, width=10, context=6, vocabulary=11)
RECIPE = Recipe(CONFIG, batch_size=2, seed=7, warmup=2, total=50)


class LargerWeights(Recipe):
    """Matrices larger than at the start of training, so that attention is far from uniform."""

    def initial_tables(self):
        tables = Recipe.initial_tables(self)
        return {n: a if n.startswith("ln_") else 8.0 * a for n, a in tables.items()}


def larger(recipe: Recipe) -> Recipe:
    return LargerWeights(**{name: getattr(recipe, name) for name in Recipe.__dataclass_fields__})


def fresh_judge() -> Judge:
    return Judge(
        GPT(CONFIG),
        AdamWOptions(RECIPE.betas, RECIPE.eps, decay_matrices(0.1)),
        lambda step: PhiloxMasks(RECIPE.dropout, RECIPE.seed, step),
    )


def run(precision="float64", *, recipe=RECIPE, sql=None, session=None, judge=None, steps=1):
    judge = judge or fresh_judge()
    session = session or build_session(
        larger(recipe), sql or default_loss_sql(), precision=precision, device="cpu"
    )
    return check(
        session,
        judge.module,
        gpt_mapping(CONFIG),
        synthetic_batches(CONFIG, RECIPE.batch_size, steps, RECIPE.seed),
        learning_rate=warmup_cosine(RECIPE.peak, RECIPE.floor, RECIPE.warmup, RECIPE.total),
        clip_norm=RECIPE.clip_norm,
        precision=precision,
        **judge.options(),
    )


@pytest.fixture(scope="module")
def correct_session():
    """One session for all faults of the judge: a check starts from whatever state it is in."""
    return build_session(larger(RECIPE), default_loss_sql(), precision="float64", device="cpu")


@pytest.mark.parametrize(
    "precision",
    [
        "float32",
        pytest.param("tf32", marks=pytest.mark.slow),
        pytest.param("bfloat16", marks=pytest.mark.slow),
    ],
)
def test_the_gpt_in_sql_agrees_in_lower_precisions(precision):
    result = run(precision, steps=4)
    assert result.passed, result.first_breach and result.first_breach.describe()


@pytest.mark.slow
def test_a_hundred_steps_do_not_drift():
    result = run(steps=100)
    assert result.passed, result.first_breach and result.first_breach.describe()
    assert max(c.difference.norm for c in result.comparisons) < 1e-8


@pytest.mark.parametrize("entry", MUTATIONS, ids=lambda entry: entry.name)
def test_a_fault_of_the_judge_is_caught_and_named(entry, correct_session):
    entry.verify(run(session=correct_session, judge=entry.apply(fresh_judge())))


def test_the_gpt_in_sql_agrees_in_float64_wherever_it_has_got_to(correct_session):
    result = run(session=correct_session, steps=4)
    assert result.passed, result.first_breach and result.first_breach.describe()


def changed(old: str, new: str):
    """The GPT's query with one thing changed, wherever it occurs first."""

    def write(config: GPTConfig) -> str:
        text = default_loss_sql()(config)
        assert old in text, old
        return text.replace(old, new, 1)

    return write


SQL_FAULTS = {
    "scale": changed("sqrt(5.0)", "sqrt(5.1)"),
    "mask site": changed("h.step, 3, x.b", "h.step, 9, x.b"),
    # The value stays; the gradient of one entry grows by a thousandth.
    "gradient entry": changed(
        "SELECT x.b, x.t, w.f, SUM(x.val * w.val) AS val",
        "SELECT x.b, x.t, w.f, SUM(x.val * (w.val + CASE WHEN w.f = 3 AND w.c = 2 THEN 0.001 "
        "ELSE 0.0 END * (w.val - ddx_stop_gradient(w.val)))) AS val",
    ),
    # Half of the output layer no longer reaches the embedding.
    "untied embedding": changed(
        "SELECT x.b, x.t, w.v, SUM(x.val * w.val) AS val",
        "SELECT x.b, x.t, w.v, SUM(x.val * (0.5 * w.val + 0.5 * ddx_stop_gradient(w.val))) AS val",
    ),
}


@pytest.mark.parametrize("name", SQL_FAULTS)
def test_a_fault_of_the_query_is_caught_and_named(name):
    mutation(name).verify(run(sql=SQL_FAULTS[name]))


OPTION_FAULTS = {
    "beta2": replace(RECIPE, betas=(0.9, 0.991)),
    "decay on a norm weight": replace(
        RECIPE, weight_decay={**RECIPE.weight_decay, "ln_final": 0.1}
    ),
}


@pytest.mark.parametrize("name", OPTION_FAULTS)
def test_a_fault_of_the_options_is_caught_and_named(name):
    mutation(name).verify(run(recipe=OPTION_FAULTS[name]))


class DecayBeforeClip(AdamW):
    """AdamW that adds the decay to the gradients, clips their sum, and decays nothing after."""

    def statements(self, parameters):
        given = AdamW.statements(replace(self, weight_decay=0.0), parameters)
        decay = {table: str(rate) for table, rate in self.weight_decay.items()}
        added = {}
        for p in parameters:
            added[f"{p.name}_decayed"] = f"""SELECT {p.keys("w")}
       g.val + {decay[p.name]} * w.val AS val
{p.source(p.name, "w")} {p.join(p.gradient, "g", "w")}"""
        squares = " UNION ALL ".join(f"SELECT SUM(val * val) AS val FROM {t}" for t in added)
        added[
            "clip_late"
        ] = f"""SELECT LEAST(1.0, {RECIPE.clip_norm} / (SQRT(SUM(val)) + 1e-6)) AS val
FROM ({squares})"""
        for name, text in given.items():
            for p in parameters:
                if name in (p.next("m"), p.next("v")):
                    text = text.replace(p.gradient, f"{p.name}_decayed")
                    text = text.replace("CROSS JOIN clip c", "CROSS JOIN clip_late c")
            added[name] = text
        return added


def test_a_fault_of_the_optimizer_is_caught_and_named():
    """The order of clip and decay. The session's own norm is that of the raw gradients still."""
    session = build_session(larger(RECIPE), default_loss_sql(), precision="float64", device="cpu")
    faulty = sql_resident.TrainingSession(
        loss=default_loss_sql()(CONFIG),
        parameters=dict(session.dataset().data_vars),
        batch={
            name: BatchInput(("b", "t"), (RECIPE.batch_size, CONFIG.context), "token", 11)
            for name in ("tokens", "targets")
        },
        optimizer=DecayBeforeClip(RECIPE.betas, RECIPE.eps, dict(RECIPE.weight_decay)),
        clip_norm=RECIPE.clip_norm,
        learning_rate=session.learning_rate,
        hyper=session.hyper,
        seed=session.seed,
        precision="float64",
    )
    late = replace(mutation("decay before clip"), first=frozenset({"moment of wte.m"}))
    late.verify(run(session=faulty))


def test_every_mutation_is_tried_on_the_sql_session():
    tried = {*SQL_FAULTS, *OPTION_FAULTS, "decay before clip"}
    assert tried == {entry.name for entry in MUTATIONS}
