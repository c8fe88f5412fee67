"""The tables, read as tables: every column with its type and its meaning.

Names carry units (`*_seconds`, `*_bytes`, `*_gflops`); a column's meaning also travels in the Parquet files, as field
metadata under the key "doc". What cannot be derived is stored, and nothing else: features and loop nests are recomputed
from a sketch's text and a program's choices.

Versions. A new nullable column needs none: parts written before it read as NULL. A change of meaning raises the table's
`version`, which every part carries in its file metadata as `tilewright.schema`, and adds a row to MIGRATIONS; parts of
an older version are rewritten when a store is opened, and a store with parts of a newer version is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

TABLE_KEY = b"tilewright.table"
VERSION_KEY = b"tilewright.schema"

TEXT = pa.string()
TEXTS = pa.list_(pa.string())
INT = pa.int32()
LONG = pa.int64()
INTS = pa.list_(pa.int32())
REAL = pa.float64()
REALS = pa.list_(pa.float64())
BOOL = pa.bool_()
TIME = pa.timestamp("us", tz="UTC")
LEVELS = pa.list_(pa.struct([("level", TEXT), ("bytes", LONG), ("gb_per_second", REAL)]))

SECONDS_LIMIT = 1e9  # thirty years: a larger "time" is a sentinel such as 1e10, and those are what NULL is for
POSITIVE = frozenset({"best_seconds", "score", "incumbent_seconds"})  # zero here would be a sentinel too

Row = Mapping[str, Any]
Migration = Callable[[pa.Table], pa.Table]


class StoreError(Exception):
    """The store cannot do what was asked. The message is one line, fit to be shown as it is."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `null`: may be absent, and NULL then has a meaning of its own (failed, unknown, not yet)."""

    name: str
    type: pa.DataType
    doc: str
    null: bool = False

    @property
    def field(self) -> pa.Field:
        return pa.field(self.name, self.type, nullable=self.null, metadata={"doc": self.doc})


@dataclass(frozen=True, slots=True)
class Table:
    """One table. `version` rises when the meaning of a column changes, not when a nullable column is added."""

    name: str
    doc: str
    columns: tuple[Column, ...]
    version: int = 1

    @property
    def arrow(self) -> pa.Schema:
        """The Arrow schema, with the table's name and version as a part carries them."""
        return pa.schema(
            [column.field for column in self.columns],
            metadata={TABLE_KEY: self.name.encode(), VERSION_KEY: str(self.version).encode()},
        )


NULL = True
CREATED = Column(
    "created", TIME, "when the row was written (UTC), rows of a batch in their order; filled in when left out"
)

WORKLOADS = Table("workloads", "A fused subgraph that was tuned. Rows of one key describe the same computation.", (
    Column("key",        TEXT,  "canonical key: names, constant values and the order of inputs do not matter"),
    Column("name",       TEXT,  "for people, such as conv2d_1x56x56x64_add_relu"),
    Column("dag_text",   TEXT,  "the compute DAG; parses back"),
    Column("flops",      REAL,  "floating-point operations of one call"),
    Column("bytes",      REAL,  "bytes of inputs and outputs of one call, each counted once"),
    Column("space_size", REAL,  "programs in the search space, all sketches together", NULL),
    Column("inputs",     TEXT,  "signature of the inputs: names, shapes, dtypes"),
    Column("outputs",    TEXT,  "signature of the outputs: names, shapes, dtypes"),
    Column("model",      TEXT,  "the model it came from", NULL),
    Column("weight",     INT,   "times it occurs in that model"),
    Column("origin",     TEXTS, "graph nodes it was made of", NULL),
    CREATED,
))  # fmt: skip

SKETCHES = Table("sketches", "A schedule with holes: the structure that programs share.", (
    Column("key",      TEXT,  "hash of the text"),
    Column("workload", TEXT,  "workloads.key"),
    Column("text",     TEXT,  "DAG and steps; parses back"),
    Column("rules",    TEXTS, "names of the rules that made its steps, in order"),
    Column("holes",    TEXT,  "JSON: name and domain of every hole, in the order of the columns of choices"),
    CREATED,
))  # fmt: skip

PROGRAMS = Table("programs", "A sketch plus choices: one row per program proposed for measurement.", (
    Column("key",        TEXT,  "hash of sketch and choices"),
    Column("workload",   TEXT,  "workloads.key"),
    Column("sketch",     TEXT,  "sketches.key"),
    Column("choices",    INTS,  "an index into the domain of each hole"),
    Column("run",        TEXT,  "runs.key of the run that proposed it"),
    Column("round",      INT,   "round of that run, from 0"),
    Column("parents",    TEXTS, "programs.key of what it was mutated or crossed from; empty: sampled", NULL),
    Column("mutation",   TEXT,  "names of the operators that made it, a space between; NULL: sampled", NULL),
    Column("prediction", REAL,  "the cost model's score when it was proposed, higher is better; NULL: no model", NULL),
    Column("seed",       LONG,  "seed of the round: (workload, history, seed) replays it"),
    Column("target",     TEXT,  "what it was proposed for: kind, ISA and thread count in one stable text"),
    CREATED,
))  # fmt: skip

MEASUREMENTS = Table("measurements", "What came back from the hardware, failures included. The only timing there is.", (
    Column("program",       TEXT,  "programs.key"),
    Column("workload",      TEXT,  "workloads.key"),
    Column("run",           TEXT,  "runs.key"),
    Column("round",         INT,   "round of that run, from 0"),
    Column("target",        TEXT,  "kind, ISA and thread count in one stable text; records of two targets never mix"),
    Column("threads",       INT,   "threads the program ran with"),
    Column("compiler",      TEXT,  "compiler and version"),
    Column("flags",         TEXT,  "what the compiler was told"),
    Column("seconds_warm",  REALS, "every sample, inputs and outputs where the last call left them [s a call]; empty: none"),
    Column("seconds_cold",  REALS, "every sample after the caches were flushed [s a call]; empty: none, it was slow"),
    Column("best_seconds",  REAL,  "smallest warm sample [s a call]; NULL: failed", NULL),
    Column("score",         REAL,  "drift-corrected time [s a call], lower is better: the ratio to the incumbent of the "
                                   "same batch times the incumbent's own score; NULL: failed or no incumbent", NULL),
    Column("verified",      BOOL,  "compared with the independent oracle, and equal within error_bound"),
    Column("max_error",     REAL,  "largest deviation from the oracle; NULL: not compared", NULL),
    Column("error_bound",   REAL,  "deviation that was allowed at that element", NULL),
    Column("error_kind",    TEXT,  "compile, crash, timeout, wrong, memory; NULL: none", NULL),
    Column("error_message", TEXT,  "one line: the compiler's first error, the signal, the deviation", NULL),
    Column("peak_gflops",   REAL,  "attained by the peak probe beside this batch [1e9 flop/s]", NULL),
    Column("build_seconds", REAL,  "wall time to build it [s]"),
    Column("measure_seconds", REAL, "wall time to run and verify it [s]"),
    Column("confirmed",     BOOL,  "from the finalists' round: rebuilt, shuffled, repeated"),
    Column("far_bytes",     LONG,  "constants that the model reads between two calls: that far away a call of the warm "
                                   "samples found its own; NULL: not known, 0: they stayed in cache", NULL),
    Column("device",        TEXT,  "devices.key"),
    CREATED,
))  # fmt: skip

ROUNDS = Table("rounds", "One propose, build, measure, record, learn turn of one workload.", (
    Column("run",                    TEXT, "runs.key"),
    Column("round",                  INT,  "from 0"),
    Column("workload",               TEXT, "workloads.key"),
    Column("proposed",               INT,  "programs the search asked for"),
    Column("measured",               INT,  "programs that came back, failures included"),
    Column("failed",                 INT,  "of those, without a verified time"),
    Column("search_seconds",         REAL, "wall time to propose [s]"),
    Column("train_seconds",          REAL, "wall time to fit the cost model [s]"),
    Column("build_seconds",          REAL, "wall time to build the batch [s]"),
    Column("measure_seconds",        REAL, "wall time to run and verify the batch [s]"),
    Column("model_rank_correlation", REAL, "Spearman, prediction against measurement on a hold-out; NULL: no model", NULL),
    Column("model_recall",           REAL, "share of the true top found in the predicted top; NULL: no model", NULL),
    Column("best_seconds",           REAL, "best verified time of the workload so far [s a call]; NULL: none yet", NULL),
    Column("incumbent_seconds",      REAL, "the incumbent, measured again in this batch [s a call]", NULL),
    CREATED,
))  # fmt: skip

RUNS = Table("runs", "One run of the flow. A run adds a row when it starts and one when it ends; the last row counts.", (
    Column("key",            TEXT, "names the run"),
    Column("model",          TEXT, "what was tuned"),
    Column("target",         TEXT, "kind, ISA and thread count in one stable text"),
    Column("threads",        INT,  "threads of the tuned programs"),
    Column("seed",           LONG, "seed of every choice the run makes"),
    Column("trials",         INT,  "measurements it may spend"),
    Column("budget_seconds", REAL, "wall time it may spend [s]; NULL: no limit", NULL),
    Column("started",        TIME, "UTC"),
    Column("finished",       TIME, "UTC; NULL: not yet, or killed", NULL),
    Column("state",          TEXT, "running, finished, stopped or failed"),
    Column("latency_before", REAL, "of the model before tuning [s a call]", NULL),
    Column("latency_after",  REAL, "of the model with the best programs [s a call]", NULL),
    Column("version",        TEXT, "of Tilewright"),
    Column("settings",       TEXT, "JSON: every setting of the run"),
    Column("environment",    TEXT, "environments.key; NULL: not recorded", NULL),
    CREATED,
))  # fmt: skip

DEVICES = Table("devices", "A machine as it was probed. Says what it can do, never what it is called.", (
    Column("key",          TEXT,   "hash of what a measurement depends on"),
    Column("isa",          TEXTS,  "instruction-set features, such as avx512f"),
    Column("vector_bytes", INT,    "width of a vector register"),
    Column("cores",        INT,    "physical cores"),
    Column("peak_gflops",  REAL,   "attained by the peak probe, one core, float32 [1e9 flop/s]", NULL),
    Column("memory",       LEVELS, "L1, L2, L3, memory: bytes (of one core where private) and bandwidth [1e9 B/s]"),
    Column("compiler",     TEXT,   "compiler and version"),
    Column("measured",     TIME,   "when it was probed (UTC)"),
    CREATED,
))  # fmt: skip

SOURCES = Table("sources", "Generated code worth keeping: a record stays usable without the search that found it.", (
    Column("program",  TEXT, "programs.key"),
    Column("target",   TEXT, "what the code was written for"),
    Column("language", TEXT, "c or cuda"),
    Column("entry",    TEXT, "name of the function to call"),
    Column("text",     TEXT, "the whole translation unit"),
    Column("sketch",   TEXT, "sketches.key of the program; NULL: not recorded", NULL),
    Column("choices",  INTS, "as in programs, among millions of which it need not be looked for; NULL: not recorded", NULL),
    CREATED,
))  # fmt: skip

ENVIRONMENTS = Table("environments", "What a time depends on besides the machine. Keys are hashes of the other columns.", (
    Column("key",       TEXT, "hash of the rest"),
    Column("compiler",  TEXT, "compiler and version a program was built with"),
    Column("flags",     TEXT, "what the compiler was told"),
    Column("code",      TEXT, "of Tilewright, as it wrote the program: version, digest of the sources that write C"),
    Column("kernel",    TEXT, "of the operating system, release and build, when the program ran"),
    Column("microcode", TEXT, "of the processor, as the kernel states it"),
    Column("libraries", TEXT, "that programs are linked with: version, or name and digest"),
    Column("probe",     TEXT, "digest of the peak probe's binary: rates of two probes are not compared"),
    CREATED,
))  # fmt: skip

REGISTRATIONS = Table("registrations", "A model that is tuned every night. The last row of a key counts.", (
    Column("key",            TEXT, "the model with its shapes, and its threads"),
    Column("model",          TEXT, "what to load: a name, or the path of an ONNX file"),
    Column("label",          TEXT, "what its runs are called: runs.model"),
    Column("threads",        INT,  "threads of the tuned programs"),
    Column("batch",          INT,  "size of a batch, where the name of the model leaves it open"),
    Column("seq",            INT,  "length of a text; NULL: the model's own", NULL),
    Column("dims",           TEXT, "JSON: extents of an ONNX file's symbolic dimensions; NULL: none", NULL),
    Column("trials",         INT,  "programs to measure each night, at most"),
    Column("budget_seconds", REAL, "wall time to tune each night, at most [s]; NULL: no limit", NULL),
    Column("active",         BOOL, "false: no longer"),
    CREATED,
))  # fmt: skip

CHECKS = Table("checks", "A program measured again on a night: one row a round. Rounds of one look are side by side.", (
    Column("night",       TEXT, "nights.key"),
    Column("workload",    TEXT, "workloads.key"),
    Column("program",     TEXT, "programs.key"),
    Column("role",        TEXT, "kept: the binary of an earlier night; built: made anew; challenger: may take its place"),
    Column("look",        INT,  "1: of every program; 2: again, of those that looked changed; 3: against a challenger"),
    Column("round",       INT,  "of that look, from 0"),
    Column("seconds",     REAL, "smallest sample of the round [s a call]"),
    Column("peak_gflops", REAL, "attained by the peak probe beside this round [1e9 flop/s]"),
    Column("target",      TEXT, "kind, ISA and thread count in one stable text"),
    Column("device",      TEXT, "devices.key"),
    Column("environment", TEXT, "environments.key: that it was built in, and that it ran in"),
    CREATED,
))  # fmt: skip

SHIFTS = Table("shifts", "A standing program that takes another time than before, beyond doubt; or that failed.", (
    Column("night",              TEXT, "nights.key of the night that found it"),
    Column("workload",           TEXT, "workloads.key"),
    Column("program",            TEXT, "programs.key"),
    Column("target",             TEXT, "kind, ISA and thread count in one stable text"),
    Column("device",             TEXT, "devices.key"),
    Column("ratio",              REAL, "time now over time before, drift taken out; above 1: slower; NULL: it failed", NULL),
    Column("confidence",         REAL, "probability that chance does not do this, for all looks of the night together; "
                                       "NULL: it failed", NULL),
    Column("changed",            TEXT, "columns of environments that differ; time: none of them; or the kind of the failure"),
    Column("before_seconds",     REAL, "median of the rounds before [s a call]; NULL: not known", NULL),
    Column("seconds",            REAL, "median of the rounds now [s a call]; NULL: it failed", NULL),
    Column("rounds",             INT,  "on which this stands, the smaller side"),
    Column("before_environment", TEXT, "environments.key; NULL: not known", NULL),
    Column("environment",        TEXT, "environments.key"),
    CREATED,
))  # fmt: skip

PROMOTIONS = Table("promotions", "What decided which program stands for a workload. The last row counts, and a later "
                                 "finalists' round.", (
    Column("night",      TEXT, "nights.key"),
    Column("workload",   TEXT, "workloads.key"),
    Column("program",    TEXT, "programs.key of what stands from now on"),
    Column("rival",      TEXT, "programs.key of the other one; NULL: there was none", NULL),
    Column("promoted",   BOOL, "whether the program is new in its place"),
    Column("ratio",      REAL, "time of the challenger over that of the standing one, side by side; NULL: not measured", NULL),
    Column("confidence", REAL, "probability that the challenger is faster; NULL: not measured", NULL),
    Column("reason",     TEXT, "in words"),
    Column("target",     TEXT, "kind, ISA and thread count in one stable text"),
    Column("device",     TEXT, "devices.key"),
    CREATED,
))  # fmt: skip

NIGHTS = Table("nights", "One night of one registered model on one device.", (
    Column("key",             TEXT, "names the night of the model"),
    Column("registration",    TEXT, "registrations.key"),
    Column("model",           TEXT, "what its runs are called: runs.model"),
    Column("run",             TEXT, "runs.key of the tuning of that night; NULL: there was none", NULL),
    Column("target",          TEXT, "kind, ISA and thread count in one stable text"),
    Column("device",          TEXT, "devices.key"),
    Column("environment",     TEXT, "environments.key"),
    Column("started",         TIME, "UTC"),
    Column("finished",        TIME, "UTC"),
    Column("trials",          INT,  "programs measured by the tuning"),
    Column("watched",         INT,  "workloads with a standing program"),
    Column("slower",          INT,  "of those, slower than before; failures count"),
    Column("faster",          INT,  "of those, faster than before"),
    Column("promoted",        INT,  "workloads with a new standing program"),
    Column("latency_seconds", REAL, "weighted sum over the standing programs [s a call]; NULL: one has no time", NULL),
    Column("model_seconds",   REAL, "the model as a whole, beside the library [s a call]; NULL: not measured", NULL),
    Column("library",         TEXT, "what it was compared with, and its version; NULL: none is installed", NULL),
    Column("library_seconds", REAL, "that library's time, in turns with ours [s a call]; NULL: not measured", NULL),
    CREATED,
))  # fmt: skip

IMPORTS = Table("imports", "What other tuners recorded, elsewhere and unverified. For comparison: never the best of anything.", (
    Column("key",           TEXT,  "hash of the record as it came: a second import adds nothing"),
    Column("tool",          TEXT,  "ansor, autotvm or metaschedule"),
    Column("version",       TEXT,  "of the record's format; empty: it says none"),
    Column("file",          TEXT,  "name of the file it came from, without its folder"),
    Column("line",          INT,   "of that file, from 1"),
    Column("task",          TEXT,  "what was computed, as the tool calls it"),
    Column("arguments",     TEXT,  "JSON: the task's arguments, as they came"),
    Column("target",        TEXT,  "where, as the tool calls it"),
    Column("configuration", TEXT,  "JSON: the schedule in the tool's terms; nothing here runs it"),
    Column("seconds",       REALS, "every sample [s a call]; empty: it failed"),
    Column("best_seconds",  REAL,  "smallest sample [s a call]; NULL: it failed", NULL),
    Column("error_kind",    TEXT,  "compile, crash, timeout, wrong; NULL: none", NULL),
    Column("recorded",      TIME,  "when the tool wrote it (UTC); NULL: it does not say", NULL),
    Column("workload",      TEXT,  "workloads.key of the same computation; NULL: not mapped", NULL),
    Column("flops",         REAL,  "floating-point operations of one call of that; NULL: not mapped", NULL),
    Column("unmapped",      TEXT,  "why there is no workload; NULL: there is one", NULL),
    CREATED,
))  # fmt: skip

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        WORKLOADS, SKETCHES, PROGRAMS, MEASUREMENTS, ROUNDS, RUNS, DEVICES, SOURCES, ENVIRONMENTS, REGISTRATIONS, CHECKS,
        SHIFTS, PROMOTIONS, NIGHTS, IMPORTS,
    )
}  # fmt: skip

# (table, version) -> the function that turns rows of that version into rows of the next one.
MIGRATIONS: dict[tuple[str, int], Migration] = {}


def table_named(name: str) -> Table:
    """The table of that name. StoreError: there is none."""
    if name not in TABLES:
        raise StoreError(f"no table named {name!r}; there are {', '.join(TABLES)}")
    return TABLES[name]


def conform(table: Table, rows: Iterable[Row] | pa.Table) -> pa.Table:
    """Rows in the table's schema: columns in order, types exact, `created` filled in.

    StoreError: an unknown column, a missing value where none may be, a value of another type, or a time that is not
    one (not finite, negative, a sentinel).
    """
    columns = _columns_of(table, rows)
    arrays = [_typed(table, column, columns[column.name]) for column in table.columns]
    return pa.Table.from_arrays(arrays, schema=table.arrow)


def aligned(table: Table, rows: pa.Table) -> pa.Table:
    """Rows read from a part, in the table's order of columns; columns we do not know are kept, behind the others."""
    known = [column.name for column in table.columns if column.name in rows.column_names]
    unknown = [name for name in rows.column_names if name not in known]
    return rows.select(known + unknown)


def migrate(table: Table, version: int, rows: pa.Table) -> pa.Table:
    """Rows of an older `version` as rows of the current one. StoreError: no way leads there."""
    for step in range(version, table.version):
        if (table.name, step) not in MIGRATIONS:
            raise StoreError(f"no migration of {table.name} from version {step} to {step + 1}")
        rows = MIGRATIONS[table.name, step](rows)
    return rows


def _columns_of(table: Table, rows: Iterable[Row] | pa.Table) -> dict[str, Any]:
    """Column name -> values, every column of the table present. StoreError: a column that the table does not have."""
    names = [column.name for column in table.columns]
    if isinstance(rows, pa.Table):
        _refuse_unknown(table, rows.column_names)
        columns = {name: rows[name] for name in rows.column_names}
        columns |= {name: [None] * rows.num_rows for name in names if name not in columns}
    else:
        rows = list(rows)
        _refuse_unknown(table, {name for row in rows for name in row})
        columns = {name: [row.get(name) for row in rows] for name in names}
    if "created" in columns:
        columns["created"] = _filled(columns["created"], datetime.now(UTC))
    return columns


def _refuse_unknown(table: Table, names: Iterable[str]) -> None:
    unknown = sorted(set(names) - {column.name for column in table.columns})
    if unknown:  # a misspelt name would otherwise lose its values without a word
        raise StoreError(f"{table.name} has no column {unknown[0]!r}")


def _filled(values: Any, now: datetime) -> Any:
    """The values of a column, the time in place of what is missing: a microsecond more each row, so that rows of one
    batch keep their order in every question that sorts by time."""
    if isinstance(values, list):
        return [now + timedelta(microseconds=i) if value is None else value for i, value in enumerate(values)]
    start = int(now.timestamp() * 1e6)
    times = pa.array(range(start, start + len(values)), LONG).cast(TIME)
    return pc.if_else(pc.is_valid(values), values.cast(TIME), times)


def _typed(table: Table, column: Column, values: Any) -> pa.ChunkedArray:
    """The values as one array of the column's type. StoreError: they are not of that type, or not allowed."""
    try:
        array = pa.chunked_array([pa.array(values, column.type)]) if isinstance(values, list) else values
        array = array.cast(column.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise StoreError(f"{table.name}.{column.name}: {str(error).splitlines()[0]}") from error
    if array.null_count and not column.null:
        raise StoreError(f"{table.name}.{column.name}: a value is missing")
    if "seconds" in column.name or column.name == "score":
        _check_times(table, column, array)
    return array


def _check_times(table: Table, column: Column, array: pa.ChunkedArray) -> None:
    """StoreError: a time that no clock can show."""
    flat = pc.list_flatten(array) if pa.types.is_list(column.type) else array
    low_enough = pc.less(flat, SECONDS_LIMIT)  # false for NaN and infinity too
    high_enough = pc.greater(flat, 0.0) if column.name in POSITIVE else pc.greater_equal(flat, 0.0)
    if pc.all(pc.and_(low_enough, high_enough)).as_py() is False:
        raise StoreError(f"{table.name}.{column.name}: not a time in seconds; a program without one has NULL")
