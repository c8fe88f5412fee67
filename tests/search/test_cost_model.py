"""Labels, quality figures, training, saving."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.cost_model import (
    Prior,
    Rows,
    Schema,
    SchemaMismatch,
    Training,
    fit,
    hold_out,
    indifferent,
    load,
    no_rows,
    quality,
    recall_at,
    rows,
    spearman,
    throughput_labels,
)

SCHEMA = Schema(3, tuple("abcdefgh"))


def known(n: int, seed: int = 0) -> Rows:
    """Labels that two features explain, a little noise, a tenth failed."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 9, size=(n, len(SCHEMA.names))).astype(np.float32)
    label = np.clip(x[:, 0] / 16 + x[:, 1] * x[:, 2] / 128 + rng.normal(0, 0.02, n), 0.01, 1)
    label[x[:, 3] == 0] = 0
    return rows(x, label, np.arange(n))


def test_labels_are_relative_to_the_best_of_the_workload() -> None:
    seconds = np.array([2.0, 1.0, np.nan, 10.0, 40.0, np.nan])
    labels = throughput_labels(seconds, np.array([7, 7, 7, 3, 3, 5]))
    assert labels.tolist() == [0.5, 1.0, 0.0, 1.0, 0.25, 0.0]
    assert throughput_labels(np.empty(0), np.empty(0, dtype=np.int64)).shape == (0,)


def test_the_model_ranks_what_it_has_not_seen() -> None:
    model, unseen = fit(known(512), SCHEMA), known(1000, seed=1)
    predicted = model.predict(unseen.features)
    assert predicted.dtype == np.float64 and predicted.shape == (1000,)
    rank = spearman(predicted, unseen.labels)
    assert rank is not None and rank > 0.9
    assert recall_at(predicted, unseen.labels, 100) > 0.6
    q = model.quality
    assert q is not None and q.rank is not None and q.rank > 0.85
    assert q.slope == pytest.approx(1, abs=0.2) and q.bias == pytest.approx(0, abs=0.05)


def test_training_is_deterministic_whatever_the_threads() -> None:
    data = known(300)
    first, second = fit(data, SCHEMA).save(), fit(data, SCHEMA).save()
    assert first == second
    x = known(50, seed=2).features
    two = fit(data, SCHEMA, Training(threads=2))
    assert np.array_equal(fit(data, SCHEMA).predict(x), two.predict(x))


def test_a_saved_model_is_the_model() -> None:
    model, x = fit(known(300), SCHEMA), known(20, seed=5).features
    again = load(model.save(), SCHEMA)
    assert np.array_equal(again.predict(x), model.predict(x))
    assert again.quality == model.quality and again.save() == model.save()


def test_another_schema_is_refused_in_words() -> None:
    stored = fit(known(100), SCHEMA).save()
    with pytest.raises(SchemaMismatch, match="schema 3, this is 4"):
        load(stored, replace(SCHEMA, version=4))
    with pytest.raises(SchemaMismatch, match="other names: h, z"):
        load(stored, replace(SCHEMA, names=tuple("abcdefgz")))
    with pytest.raises(SchemaMismatch, match="another order"):
        load(stored, replace(SCHEMA, names=tuple("hgfedcba")))
    with pytest.raises(SchemaMismatch, match="8 columns"):
        load(stored, SCHEMA).predict(np.zeros((2, 5), dtype=np.float32))


def test_a_model_that_says_nothing_of_its_schema_is_refused() -> None:
    booster = fit(known(100), SCHEMA).booster.copy()
    booster.set_attr(schema=None)
    with pytest.raises(SchemaMismatch, match="does not say"):
        load(bytes(booster.save_raw("json")), SCHEMA)


def test_the_prior_is_a_heuristic_over_features() -> None:
    x = known(4).features
    assert Prior(lambda x: x[:, 0]).predict(x).tolist() == x[:, 0].tolist()
    assert not Prior(indifferent).predict(x).any()


def test_rows_join() -> None:
    both = known(5).join(no_rows(SCHEMA)).join(known(3))
    assert len(both) == 8 and both.features.shape == (8, 8) and both.weights.tolist() == [1.0] * 8


def test_nothing_to_predict_is_no_error() -> None:
    assert fit(known(100), SCHEMA).predict(np.empty((0, 8), dtype=np.float32)).shape == (0,)


def test_all_failed_is_a_model_of_failure() -> None:
    data = known(64)
    model = fit(replace(data, labels=np.zeros(64)), SCHEMA)
    assert model.predict(data.features) == pytest.approx(np.zeros(64), abs=1e-6)


def test_few_judges_judge_nothing_and_do_not_stop_the_training() -> None:
    assert fit(known(20), SCHEMA).quality is None
    judged = fit(known(100), SCHEMA, held=np.arange(100) < 12)
    assert judged.quality is not None and judged.quality.rows == 12
    assert judged.booster.num_boosted_rounds() == Training().trees


def test_held_out_rows_stop_the_training() -> None:
    noise = known(400)
    noise = replace(noise, labels=np.random.default_rng(0).random(400))
    assert fit(noise, SCHEMA, held=np.arange(400) < 60).booster.num_boosted_rounds() < 60


def test_groups_stay_whole_and_on_their_side() -> None:
    groups = np.repeat(np.arange(200), 3)
    held = hold_out(groups, 0.125, seed=1)
    assert (held.reshape(200, 3).all(axis=1) == held.reshape(200, 3).any(axis=1)).all()
    assert 10 <= held[::3].sum() <= 45
    assert np.array_equal(hold_out(groups[:90], 0.125, seed=1), held[:90])
    assert not np.array_equal(hold_out(groups, 0.125, seed=2), held)


def test_heavier_rows_win() -> None:
    x = np.zeros((200, 8), dtype=np.float32)
    label = np.repeat([0.2, 0.8], 100)
    weights = np.repeat([1.0, 1e-3], 100)
    model = fit(Rows(x, label, np.arange(200), weights), SCHEMA, held=np.zeros(200, dtype=bool))
    assert model.predict(x[:1])[0] == pytest.approx(0.2, abs=0.01)


def test_rank_correlation_by_hand() -> None:
    assert spearman(np.array([1.0, 2, 3]), np.array([10.0, 20, 40])) == pytest.approx(1)
    assert spearman(np.array([1.0, 2, 3]), np.array([3.0, 2, 1])) == pytest.approx(-1)
    assert spearman(np.array([1.0, 1, 2, 3]), np.array([1.0, 2, 3, 4])) == pytest.approx(0.9486833)
    assert spearman(np.array([1.0, 1, 1]), np.array([1.0, 2, 3])) is None


def test_recall_by_hand() -> None:
    assert recall_at(np.array([4.0, 3, 2, 1]), np.array([1.0, 4, 3, 2]), 2) == 0.5


@given(st.lists(st.tuples(st.floats(-1, 2), st.floats(0, 1)), max_size=30))
def test_quality_is_always_a_number_or_unknown(pairs: list[tuple[float, float]]) -> None:
    q = quality(np.array([p for p, _ in pairs]), np.array([x for _, x in pairs]))
    for value in (q.rank, q.recall, q.slope, q.bias):
        assert value is None or np.isfinite(value)
    assert q.rank is None or -1.0001 < q.rank < 1.0001
    assert q.recall is None or 0 <= q.recall <= 1
