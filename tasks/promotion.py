"""Who stands for a workload: a challenger takes the place only if it is clearly faster, side by side with what stands."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec

from codegen.toolchain import Binary
from data.query import connect
from data.query import run as question
from tasks import record
from tasks.command import Answer
from tasks.diary import DUEL, Decision, record_checks, record_decisions
from tasks.kept import keep
from tasks.lease import leased
from tasks.night import Document, Night
from tasks.regression import RULE, clearly_faster
from tasks.standing import AFRESH, Contest, Role, Row, Watched, folder_of, measured, watched
from tasks.workbench import Workbench

ROUNDS = 7 * AFRESH  # a challenger that is faster in each of seven processes is so with 1 - 1/128
NOBODY = "the first that stands"
LIBRARY = "onnxruntime"
BEHIND = 0.95  # of the model's standing beside the library: below, tonight's promotions go back


@dataclass(frozen=True, slots=True)
class Duel:
    """A standing program and the one that the search, or a hand, has found since."""

    standing: Watched
    challenger: Watched

    @property
    def binaries(self) -> dict[Role, Binary]:
        return {self.standing.role: self.standing.current, "challenger": self.challenger.current}

    def who(self, night: Night) -> dict[Role, Row]:
        def of(w: Watched) -> Row:
            return {"program": w.key, "environment": w.ran_in(night.now).key}

        return {self.standing.role: of(self.standing), "challenger": of(self.challenger)}


def decide(night: Night, bench: Workbench) -> list[Decision]:
    """What the last finalists' round found takes the place of what stands only if it is clearly faster beside it."""
    rivals = _rivals(night, bench)
    able = {key: w for key, w in night.watched.items() if w.failure is None}
    duels = [Duel(able[key], rival) for key, rival in rivals.items() if key in able]
    _fight(night, bench, duels)
    walkovers = [_unopposed(night, key, w) for key, w in rivals.items() if key not in able]
    firsts = [
        Decision(key, w.workload.name, w.key, None, True, None, None, NOBODY)
        for key, w in able.items() if key not in night.decided and key not in rivals
    ]  # fmt: skip
    return [*firsts, *walkovers, *(_fought(d) for d in duels)]


def _rivals(night: Night, bench: Workbench) -> dict[str, Watched]:
    """Workload -> the best that is known now, where something else stands."""
    with connect(night.store) as source:
        best = record.confirmed(source, bench)
        stands = {key: w.key for key, w in night.watched.items()}
        others = {key: row for key, row in best.items() if row["program"] != stands.get(key)}
        return watched(source, bench, night.model, others, night.now)


def _unopposed(night: Night, key: str, w: Watched) -> Decision:
    before = night.decided.get(key)
    reason = NOBODY if before is None else "the one that stood fails, or is no longer made"
    return Decision(key, w.workload.name, w.key, before, True, None, None, reason)


def _fight(night: Night, bench: Workbench, duels: list[Duel]) -> None:
    """Side by side; who wins is kept as it ran here."""
    for d in duels:
        d.standing.failed = {}
    measured(bench, [Contest(d.standing, DUEL, d.binaries, ROUNDS) for d in duels], DUEL)
    who = [(d.standing, d.who(night)) for d in duels]
    record.record_environments(night.store, [d.challenger.ran_in(night.now) for d in duels])
    record_checks(night.store, night.place, DUEL, who)
    for d in duels:
        if d.challenger.built is not None:
            keep(folder_of(bench, d.challenger.key), d.challenger.built, night.now)


def _fought(d: Duel) -> Decision:
    old, new = d.standing, d.challenger
    about = (old.workload.key, old.workload.name)
    if failure := old.failed.get("challenger"):
        return Decision(*about, old.key, new.key, False, None, None, f"the challenger failed: {failure.kind}")
    before, now = ([s.seconds for s in old.samples(DUEL, role)] for role in d.binaries)
    shift = clearly_faster(before, now, AFRESH) if not old.failed else None
    if shift is None:
        return Decision(*about, old.key, new.key, False, None, None, "they could not be measured side by side")
    if shift.ratio < 1 and shift.p <= RULE.alpha:
        return Decision(*about, new.key, old.key, True, shift.ratio, 1 - shift.p, "clearly faster side by side")
    return Decision(*about, old.key, new.key, False, shift.ratio, 1 - shift.p, "not clearly faster side by side")


# ---------------------------------------------------------------------------------------------- the whole model


def weigh(night: Night) -> Night:
    """The whole model and a library in turns, where one is installed. A kernel alone is not the network: if promoted
    parts left the model further behind the library than the night before, they go back."""
    if find_spec(LIBRARY) is None:
        return night
    with leased(f"the night of {night.registration.key}", night.environ, night.say):
        answer = night.compare(_bench_words(night), night.environ)
    night.weighed = _weighed(answer) if answer else {}
    promoted = [d for d in night.decisions if d.promoted and d.rival]
    before, ratio = _last_ratio(night) if promoted else None, _ratio(night.weighed)
    if before and ratio and ratio < BEHIND * before:
        back = [_taken_back(d, ratio / before) for d in promoted]
        record_decisions(night.store, night.place, back)
        night.decisions += back
    return night


def _bench_words(night: Night) -> list[str]:
    r = night.registration
    words = ["bench", r.model, "--against", LIBRARY, "--threads", str(r.threads), "--batch", str(r.batch)]
    words += ["--seq", str(r.seq)] if r.seq is not None else []
    words += [w for name, extent in (r.dims or {}).items() for w in ("--dim", f"{name}={extent}")]
    return [*words, "--store", str(night.store.root), "--json"]


def _weighed(answer: Answer) -> Document:
    case = answer["cases"][0]
    right = case["verified"] and LIBRARY not in case["unverified_peers"]
    seconds = case["peers"].get(LIBRARY) if right else None
    said = f"{LIBRARY} {version(LIBRARY)}" if seconds else None
    return {"model_seconds": case["seconds"], "library": said, "library_seconds": seconds}


def _ratio(row: Row) -> float | None:
    """How many times as fast as the library."""
    return row["library_seconds"] / row["model_seconds"] if row.get("library_seconds") else None


def _last_ratio(night: Night) -> float | None:
    """Of the latest night that was weighed against the same version of the library, on this device."""
    rows = question(night.store, "weighed", registration=night.registration.key, device=night.place.device).to_pylist()
    same = [row for row in rows if row["library"] == night.weighed.get("library")]
    return _ratio(same[0]) if same else None


def _taken_back(d: Decision, ratio: float) -> Decision:
    assert d.rival is not None
    reason = f"taken back: with tonight's programs the model has {ratio:.2f} times its speed beside {LIBRARY}"
    return Decision(d.workload, d.name, d.rival, d.program, False, d.ratio, d.confidence, reason)
