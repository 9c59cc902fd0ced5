"""A matrix on a Ray cluster, with the records of a local run, bit for bit.

    import ray, tiderace_lab.cluster
    ray.init("auto")
    tiderace_lab.cluster.matrix("matrix-rtt-load", seeds=30)

Workers need this package. They get the manifest and the numbers of runs, and return lines; the driver appends them to its file as
they come, so a driver that is ended goes on where it was, here or with `tiderace lab resume`.
"""

import pathlib

import ray

from . import Plan, _journal, lines_of, parts


@ray.remote(max_retries=5)
def _lines(manifest: str, numbers: list[int]) -> list[str]:
    return lines_of(manifest, numbers)


def matrix(scenario: str, *, seeds: int | None = None, seed: int | None = None, out="lab-out", size: int = 8, progress=None):
    """Run a whole matrix on the cluster that Ray is connected to; returns the path of its records.

    `size` runs are handed out together. `progress`, if given, is called with the number of runs stored and of all runs.
    """
    plan = Plan(scenario, seeds=seeds, seed=seed)
    journal = _journal(plan, out)
    waiting = parts(journal.missing(), size)
    manifest = ray.put(plan.manifest)
    stored = len(plan) - sum(map(len, waiting))
    # As many tasks as keep every core busy: a queue of a million tasks would fill the memory of the driver.
    limit = max(4, 3 * int(ray.cluster_resources().get("CPU", 1)))
    running = []
    while waiting or running:
        while waiting and len(running) < limit:
            running.append(_lines.remote(manifest, waiting.pop(0)))
        done, running = ray.wait(running, num_returns=1)
        for lines in ray.get(done):
            for line in lines:
                journal.append(line)
            stored += len(lines)
        if progress:
            progress(stored, len(plan))
    return pathlib.Path(journal.close())
