"""What the package promises. Runs with pytest, or as a program that prints a line of JSON for each value."""

import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import tiderace_lab as lab

SCENARIO = """
name = "python"
title = "For the test of the package"
about = "Short runs."
[path.down]
rate = "10 Mbit/s"
queue = "50 kB"
delay = "20 ms"
loss = "0.5 %"
[traffic]
workload = "bulk"
connections = 2
[run]
duration = "300 ms"
seeds = 4
[contenders]
congestion = ["newreno", "cubic"]
[factors]
"path.rtt" = ["10 ms", "40 ms"]
"profile.acks.every" = [1, 2, 4, 8]
"""


def digest(path) -> str:
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


def test_run():
    table = lab.run(SCENARIO, 3)
    assert table.num_rows == 16 and set(table["seed"].to_pylist()) == {3}
    assert min(table["goodput"].to_pylist()) > 0
    assert lab.run(SCENARIO, 3).equals(table)
    assert not lab.run(SCENARIO, 4)["trace_hash"].equals(table["trace_hash"])


def test_frames(tmp_path):
    import pandas
    import polars

    path = lab.matrix(SCENARIO, out=tmp_path)
    lab.to_parquet(path, tmp_path / "runs.parquet")
    by_pandas = pandas.read_parquet(tmp_path / "runs.parquet")
    by_polars = polars.read_parquet(tmp_path / "runs.parquet")
    table = lab.read(path)
    assert len(by_pandas) == len(by_polars) == table.num_rows == 64
    assert by_pandas["goodput"].tolist() == by_polars["goodput"].to_list() == table["goodput"].to_pylist()
    assert polars.from_arrow(table).height == 64


def test_mistakes(tmp_path):
    import pytest

    with pytest.raises(ValueError, match="did you mean"):
        lab.run(SCENARIO.replace("newreno", "newrno"), 1)
    with pytest.raises(IndexError):
        lab.Plan(SCENARIO).lines([64])
    path = tmp_path / lab.Plan(SCENARIO).name
    path.write_text("something else")
    with pytest.raises(OSError):
        lab.matrix(SCENARIO, out=tmp_path)


def test_cluster(tmp_path):
    values = cluster(tmp_path, os.environ.get("TIDERACE"))
    assert len(set(values["digests"].values())) == 1, values
    assert len(values["workers"]) == 2, values


def cluster(directory, program=None) -> dict:
    """The same matrix by threads, on a local Ray of two workers, and by the program if there is one."""
    import ray

    import tiderace_lab.cluster

    directory = pathlib.Path(directory)
    digests = {"threads": digest(lab.matrix(SCENARIO, out=directory / "threads"))}
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
    try:
        digests["ray"] = digest(tiderace_lab.cluster.matrix(SCENARIO, out=directory / "ray", size=2))

        @ray.remote
        def who() -> int:
            import time

            time.sleep(0.5)
            return os.getpid()

        workers = sorted(set(ray.get([who.remote() for _ in range(4)])))
    finally:
        ray.shutdown()
    if program:
        (directory / "scenario.toml").write_text(SCENARIO)
        command = [program, "lab", "matrix", str(directory / "scenario.toml"), "--out", str(directory / "program")]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        digests["program"] = digest(next((directory / "program").glob("*.jsonl")))
    return {"digests": digests, "workers": workers, "runs": len(lab.Plan(SCENARIO))}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        values = cluster(pathlib.Path(scratch), sys.argv[1] if len(sys.argv) > 1 else None)
        import pandas
        import polars

        path = next((pathlib.Path(scratch) / "threads").glob("*.jsonl"))
        lab.to_parquet(path, pathlib.Path(scratch) / "runs.parquet")
        values["pandas"] = len(pandas.read_parquet(pathlib.Path(scratch) / "runs.parquet"))
        values["polars"] = len(polars.read_parquet(pathlib.Path(scratch) / "runs.parquet"))
        print(json.dumps(values))
