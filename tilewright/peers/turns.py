"""The processes of a bench, the order in which they are timed, and what the right answer is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import numpy as np

from tilewright.peers.answers import deviation
from tilewright.peers.contender import Array, Case, Given
from tilewright.peers.house import work_of
from tilewright.peers.process import TURN_SECONDS, PeerError, Process
from tilewright.peers.registry import DEFINED, EXACT, HOUSE, REFERENCE, missing

ROUNDS = 9
LOAD_SECONDS = 180.0  # for a peer to read, convert and compile a model
HOUSE_SECONDS = 1800.0  # for us to compile a network; for NumPy to go through one


@dataclass
class Crew:
    """A process for each contender, started when it is first needed, and anew after it has ended.

    They stay from case to case, because loading a library takes longer than timing an operator. folder: for what they
    write.
    """

    threads: int
    folder: Path
    names: Sequence[str] = ()  # of the inputs given last
    processes: dict[str, Process] = field(default_factory=dict)

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for p in self.processes.values():
            p.close()

    def load(self, who: str, case: Case) -> Process:
        """A process that is ready to run the case on the inputs that were given. Raises PeerError with the reason."""
        if why := missing(who):
            raise PeerError(why)
        process = self.processes.get(who)
        if process is None or not process.alive:
            process = Process(who, self.threads, self.folder / f"{who}.log", work_of(case.store))
            self.processes[who] = process
        process.load(case, self.inputs, self.names, HOUSE_SECONDS if who in HOUSE else LOAD_SECONDS)
        return process

    def outputs(self, who: str, case: Case) -> Sequence[Array]:
        """Raises PeerError."""
        return self.load(who, case).outputs(self.folder, HOUSE_SECONDS)

    @property
    def inputs(self) -> Path:
        return self.folder / "inputs.npz"

    def give(self, inputs: Given) -> None:
        """What every contender that is loaded from now on will run on."""
        self.names = list(inputs)
        np.savez(self.inputs, *inputs.values())


def interleaved(
    processes: Sequence[Process], rounds: int = ROUNDS, seconds: float = TURN_SECONDS
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Contender -> seconds a call of every sample; contender -> how it failed, with no samples.

    The bench walks rounds x contenders, so that whatever disturbs the machine disturbs all alike. Who begins changes from
    round to round.
    """
    samples: dict[str, list[float]] = {p.who: [] for p in processes}
    failed: dict[str, str] = {}
    for r in range(rounds):
        at = r % len(processes) if processes else 0
        for p in (*processes[at:], *processes[:at]):
            if p.who in failed:
                continue
            try:
                samples[p.who] += p.samples(seconds)
            except PeerError as error:
                failed[p.who] = str(error)
    return {who: s for who, s in samples.items() if who not in failed}, failed


def agreed(crew: Crew, case: Case, found: Mapping[str, Sequence[Array]], allowed: float) -> tuple[str, Sequence[Array]]:
    """Who said so, and the right outputs: ONNX Runtime where it is installed and can, else our NumPy definitions.

    Where anyone of `found` differs from ONNX Runtime by more than `allowed`, double precision decides: on sums of a
    million terms in single precision ONNX Runtime is itself off by 1e-3. Raises PeerError.
    """
    try:
        right = found.get(REFERENCE) or crew.outputs(REFERENCE, case)
    except PeerError:  # it is not here, or has fewer operators than we do
        return DEFINED, crew.outputs(DEFINED, case)
    if all(deviation(o, right) <= allowed for o in found.values()):
        return REFERENCE, right
    return EXACT, crew.outputs(EXACT, case)
