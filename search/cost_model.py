"""Learning which programs are fast: gradient-boosted trees over features.

The label of a program is its throughput relative to the best of its workload (0..1, a failed program 0), so that
programs of all workloads train one model; the features must say which workload they come from. The model knows
arrays and bytes, nothing of programs, files or compilers.

The environment variable OMP_WAIT_POLICY must be PASSIVE before the process loads libgomp (set it where the process
starts, not here): with the default policy the threads of XGBoost spin and training on busy cores is five times
slower.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    import xgboost


# -- rows ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Schema:
    """What the columns of a feature matrix mean. Models and rows of another schema do not mix."""

    version: int
    names: tuple[str, ...]

    def check(self, features: np.ndarray) -> None:
        if features.ndim != 2 or features.shape[1] != len(self.names):
            raise SchemaMismatch(f"features are {features.shape}, schema {self.version} has {len(self.names)} columns")


class SchemaMismatch(ValueError):
    """Features, rows or a stored model follow another schema than the one in use."""


@dataclass(frozen=True)
class Rows:
    """Training rows.

    features: float32 (n x width). labels: float64 (n), 0..1. groups: int64 (n): rows of one group stay together on
    one side of the held-out split. weights: float64 (n), how much a row counts besides its label.
    """

    features: np.ndarray
    labels: np.ndarray
    groups: np.ndarray
    weights: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: np.ndarray) -> Rows:
        return Rows(self.features[rows], self.labels[rows], self.groups[rows], self.weights[rows])

    def join(self, other: Rows) -> Rows:
        pairs = ((getattr(self, c), getattr(other, c)) for c in self.__dataclass_fields__)
        return Rows(*(np.concatenate(p) for p in pairs))


def rows(features: np.ndarray, labels: np.ndarray, groups: np.ndarray, weight: float = 1.0) -> Rows:
    """Rows that all count alike."""
    return Rows(features, labels, groups, np.full(len(labels), weight))


def no_rows(schema: Schema) -> Rows:
    return rows(np.empty((0, len(schema.names)), dtype=np.float32), np.empty(0), np.empty(0, dtype=np.int64))


def throughput_labels(seconds: np.ndarray, workloads: np.ndarray) -> np.ndarray:
    """Seconds (n; NaN where a program failed) -> best of the workload / seconds (n), 0 where failed.

    workloads: int64 (n), any numbering.
    """
    _, which = np.unique(workloads, return_inverse=True)
    best = np.full(int(which.max()) + 1 if len(which) else 0, np.inf)
    np.fmin.at(best, which, seconds)
    return np.where(np.isfinite(seconds), best[which] / seconds, 0.0)


# -- quality ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Quality:
    """How well held-out rows are predicted. None: cannot be said (too few rows, or all alike).

    rank:   Spearman's correlation of predictions and labels
    recall: share of the `k` best rows that are among the k best predictions (k = a quarter of the rows)
    slope:  of labels on predictions by least squares: 1 is calibrated, below 1 overconfident
    bias:   mean of prediction - label
    """

    rows: int
    k: int
    rank: float | None
    recall: float | None
    slope: float | None
    bias: float | None


def quality(predicted: np.ndarray, labels: np.ndarray) -> Quality:
    """Both float (n)."""
    n, k = len(labels), max(1, len(labels) // 4)
    if n < 2:
        return Quality(n, k, None, None, None, None)
    return Quality(
        n,
        k,
        spearman(predicted, labels),
        recall_at(predicted, labels, k),
        _ratio(np.cov(predicted, labels)[0, 1], np.var(predicted, ddof=1)),
        float(np.mean(predicted - labels)),
    )


def spearman(left: np.ndarray, right: np.ndarray) -> float | None:
    """Rank correlation, ties sharing their mean rank; None when one side is constant."""
    a, b = _ranks(left), _ranks(right)
    a, b = a - a.mean(), b - b.mean()
    return _ratio(float(a @ b), float(np.sqrt((a @ a) * (b @ b))))


def recall_at(predicted: np.ndarray, labels: np.ndarray, k: int) -> float:
    """Share of the k highest labels among the k highest predictions; ties in the order of the rows."""
    top = [set(np.argsort(-x, kind="stable")[:k].tolist()) for x in (predicted, labels)]
    return len(top[0] & top[1]) / k


def _ranks(x: np.ndarray) -> np.ndarray:
    _, which, times = np.unique(x, return_inverse=True, return_counts=True)
    below = np.cumsum(times) - times
    return np.asarray((below + (times - 1) / 2)[which])


def _ratio(above: float, below: float) -> float | None:
    return float(above / below) if below > 0 else None


# -- models -------------------------------------------------------------------------------------------------------


class Predictor(Protocol):
    """Anything that ranks programs: features (n x width) -> float64 (n), higher is better."""

    def predict(self, features: np.ndarray) -> np.ndarray: ...


@dataclass(frozen=True, slots=True)
class Prior:
    """What is believed before anything was measured: a heuristic over features."""

    heuristic: Callable[[np.ndarray], np.ndarray]

    def predict(self, features: np.ndarray) -> np.ndarray:
        return np.asarray(self.heuristic(features), dtype=np.float64)


def indifferent(features: np.ndarray) -> np.ndarray:
    """The heuristic of those who have none: all programs alike."""
    return np.zeros(len(features))


@dataclass(frozen=True, slots=True)
class Training:
    """How a model is trained.

    depth, eta, trees, max_bin: XGBoost with histograms; 80 trees of depth 6 over 64 bins cost 0.05 s for 512 rows and
        rank a thousand unseen programs with 0.86-0.89 (measured on matrix product and convolution). Ansor's depth
        10, eta 0.2 and up to 10,000 trees stopped on the training set itself are not followed.
    leaf:     weight of a leaf at least, in average rows; ours: the trees cost half as much and rank no worse.
    patience: trees without improvement on held-out rows before stopping.
    held:     share of the groups held out; fewer than `judges` rows judge nothing and all rows are trained on.
    stoppers: fewer held-out rows than this do not stop the training: a dozen stop it after three trees by chance.
    floor:    weight of a label-0 row: weight = label + floor (Ansor: weight = label, so failures teach nothing).
    least:    fewer rows than this are no model.
    threads:  of XGBoost; the trees are the same for any number.
    seed:     of the held-out split.
    """

    trees: int = 80
    depth: int = 6
    eta: float = 0.15
    max_bin: int = 64
    leaf: float = 3.0
    patience: int = 20
    held: float = 0.125
    judges: int = 8
    stoppers: int = 32
    floor: float = 0.05
    least: int = 16
    threads: int = 1
    seed: int = 43


@dataclass(frozen=True)
class Model:
    """Trained trees. `quality` is of held-out rows, None when none were held out.

    The held-out rows also choose the number of trees, so the quality is slightly kind.
    """

    booster: xgboost.Booster
    schema: Schema
    quality: Quality | None

    def predict(self, features: np.ndarray) -> np.ndarray:
        """Features float32 (n x width) -> predicted label float64 (n). Batch: a call costs as much as 500 rows."""
        self.schema.check(features)
        if not len(features):
            return np.empty(0)
        return np.asarray(self.booster.inplace_predict(np.ascontiguousarray(features)), dtype=np.float64)

    def save(self) -> bytes:
        """UBJSON with the schema and the quality inside."""
        return bytes(self.booster.save_raw("ubj"))


def fit(known: Rows, schema: Schema, training: Training = Training(), held: np.ndarray | None = None) -> Model:
    """Weighted least squares over the rows that are not held out; the number of trees is chosen on those that are.

    held: bool (n); by default a share of the groups, drawn by the seed.
    """
    schema.check(known.features)
    held = hold_out(known.groups, training.held, training.seed) if held is None else held
    if held.sum() < training.judges or (~held).sum() < training.judges:
        held = np.zeros(len(known), dtype=bool)
    inside, outside = known.take(np.flatnonzero(~held)), known.take(np.flatnonzero(held))
    booster = _train(inside, outside, training)
    found = Model(booster, schema, None)
    measured = quality(found.predict(outside.features), outside.labels) if len(outside) else None
    said = asdict(measured) if measured else None
    booster.set_attr(schema=json.dumps(asdict(schema)), quality=json.dumps(said))
    return Model(booster, schema, measured)


def load(model: bytes, schema: Schema) -> Model:
    """A saved model, if it was trained on this schema; SchemaMismatch otherwise."""
    import xgboost

    booster = xgboost.Booster()
    booster.load_model(bytearray(model))
    stored = json.loads(booster.attr("schema") or "null")
    if stored is None:
        raise SchemaMismatch("the model does not say what it was trained on")
    theirs = Schema(stored["version"], tuple(stored["names"]))
    if theirs != schema:
        raise SchemaMismatch(f"the model is of feature {_difference(theirs, schema)}; train it again")
    said = json.loads(booster.attr("quality") or "null")
    return Model(booster, schema, Quality(**said) if said else None)


def hold_out(groups: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Bool (n): the groups held out, int64 (n). A group's own number and the seed decide, so it stays as rows come."""
    state = groups.astype(np.uint64) + np.uint64(seed * 0x9E3779B97F4A7C15 % 2**64)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray((state >> np.uint64(11)) < np.uint64(share * 2**53))


def _train(inside: Rows, outside: Rows, training: Training) -> xgboost.Booster:
    import xgboost

    matrix = _matrix(inside, training, None)
    options = {
        "objective": "reg:squarederror",
        "max_depth": training.depth,
        "eta": training.eta,
        "max_bin": training.max_bin,
        "min_child_weight": training.leaf,
        "nthread": training.threads,
        "seed": training.seed,
        "base_score": float(np.average(inside.labels, weights=_weights(inside, training))),
    }
    if len(outside) < training.stoppers:
        return xgboost.train(options, matrix, num_boost_round=training.trees)
    stop = xgboost.callback.EarlyStopping(rounds=training.patience)
    watched = [(_matrix(outside, training, matrix), "held")]
    booster = xgboost.train(
        options, matrix, num_boost_round=training.trees, evals=watched, callbacks=[stop], verbose_eval=False
    )
    return booster[: booster.best_iteration + 1]


def _matrix(known: Rows, training: Training, like: xgboost.QuantileDMatrix | None) -> xgboost.QuantileDMatrix:
    import xgboost

    weight = _weights(known, training)
    return xgboost.QuantileDMatrix(
        known.features, known.labels, weight=weight, max_bin=training.max_bin, nthread=training.threads, ref=like
    )


def _weights(known: Rows, training: Training) -> np.ndarray:
    """Fast programs count more; the mean is 1, so that `leaf` counts rows."""
    weight = known.weights * (known.labels + training.floor)
    return np.asarray(weight / weight.mean())


def _difference(theirs: Schema, ours: Schema) -> str:
    if theirs.version != ours.version:
        return f"schema {theirs.version}, this is {ours.version}"
    odd: Sequence[str] = sorted(set(theirs.names) ^ set(ours.names))
    return f"schema {ours.version} with other names: {', '.join(odd[:5]) or 'in another order'}"
