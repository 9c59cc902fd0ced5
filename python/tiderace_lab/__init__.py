"""The tiderace laboratory: real QUIC code over modelled paths, in virtual time.

    import tiderace_lab as lab
    table = lab.run("mobile", seed=1)             # every contender once, a row each
    table.to_pandas()                             # or polars.from_arrow(table)
    lab.matrix("matrix-rtt-load", seeds=1)        # a file of records, on all cores
    lab.read("lab-out/….jsonl").to_pandas()       # the runs of a file

The same scenario and seed give the same packets and records on every machine. `tiderace_lab.cluster` runs a matrix on Ray.
"""

import concurrent.futures
import os
import pathlib

import pyarrow

from .native import LAB, Journal, Plan, lines_of, to_parquet
from .native import read as _read

__all__ = ["LAB", "Journal", "Plan", "lines_of", "matrix", "parts", "read", "run", "to_parquet"]


def _table(stream: bytes) -> pyarrow.Table:
    return pyarrow.ipc.open_stream(stream).read_all()


def run(scenario: str, seed: int) -> pyarrow.Table:
    """Run every contender of a scenario with one seed, at every point of its matrix.

    `scenario` is the name of a preset, a path, or the text of a scenario file. The table has a row for each run: a column per
    factor and figure (null where there is no value), and `record`, the line that a file of records has for it. Columns without a
    unit in their name are in base units: bit/s, seconds, shares of 1.
    """
    plan = Plan(scenario, seeds=1, seed=seed)
    return _table(plan.batch(plan.with_seed(seed)))


def read(path: str | os.PathLike) -> pyarrow.Table:
    """The runs of a file of records, a row each. `.to_pandas()` and `polars.from_arrow()` make data frames of it."""
    return _table(_read(pathlib.Path(path)))


def parts(numbers: list[int], size: int) -> list[list[int]]:
    """Run numbers in groups that are handed out together."""
    return [numbers[start : start + size] for start in range(0, len(numbers), size)]


def matrix(scenario: str, *, seeds: int | None = None, seed: int | None = None, out="lab-out", threads: int | None = None):
    """Run a whole matrix on this machine; returns the path of its records.

    The file is the one that `tiderace lab matrix` writes, byte for byte. What is there already is not run again.
    """
    plan = Plan(scenario, seeds=seeds, seed=seed)
    journal = _journal(plan, out)
    # Runs are made outside the interpreter: threads are enough.
    with concurrent.futures.ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        for lines in pool.map(plan.lines, parts(journal.missing(), 8)):
            for line in lines:
                journal.append(line)
    return pathlib.Path(journal.close())


def _journal(plan: Plan, out) -> Journal:
    directory = pathlib.Path(out)
    directory.mkdir(parents=True, exist_ok=True)
    return Journal(directory / plan.name, plan)
