"""Store the results of builds by their content hash, in one SQLite file, so that no build of a sweep runs twice."""

from __future__ import annotations

import json
import sqlite3
import time
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from toolchain.errors import CompileError
from toolchain.sweep.build_job import Result
from toolchain.sweep.points import Job

_APPLICATION = 0x4E505553  # the application id of the file: NPUS, source of its value
_COMMIT_SECONDS = 1.0  # a killed command loses the builds of so long, and a commit costs 10 ms (docs/sweeps.md)
_COLUMNS = "key text primary key, status text, reason text, metrics text, report blob, cpu_seconds real, limits text"
_KEPT_FOR_ANY_LIMITS = ("built", "refused", "bug")


class Store:
    """A store of results by key, to be used in a `with` block. One command at a time may write."""

    def __init__(self, path: Path) -> None:
        """Open or make the file. Raise CompileError where it is no store or cannot be written."""
        self.path = path
        self._committed = time.monotonic()
        with self._as_faults():
            self._database = sqlite3.connect(path, timeout=30)
            (application,) = self._database.execute("pragma application_id").fetchone()
            self._is_new = not self._database.execute("select 1 from sqlite_master").fetchone()
            if not self._is_new and application != _APPLICATION:
                raise sqlite3.DatabaseError("is another program's file")
            if self._is_new:
                self._database.execute(f"pragma application_id = {_APPLICATION}")
                self._database.execute(f"create table results ({_COLUMNS}) without rowid")

    @contextmanager
    def _as_faults(self) -> Generator[None]:
        """Turn faults of SQLite in the block into CompileError."""
        try:
            yield
        except sqlite3.Error as fault:
            raise CompileError(f"--store {self.path}: cannot be used as a store of results: {fault}") from None

    def find(self, job: Job) -> Result | None:
        """Return the result of a build without its report, or None where it must be built.

        A build that ran out of time or memory is built again under other limits; one that died is built again always.
        """
        query = "select status, reason, metrics, cpu_seconds, limits from results where key = ?"
        with self._as_faults():
            row = self._database.execute(query, [job.key]).fetchone()
        if row is None:
            return None
        status, reason, metrics, cpu_seconds, limits = row
        if status not in _KEPT_FOR_ANY_LIMITS and (status == "died" or limits != json.dumps(job.limits)):
            return None
        return Result(status, reason, json.loads(metrics), "", cpu_seconds)

    def add(self, job: Job, result: Result) -> None:
        """Store a result in the place of an earlier one of the same key. It is on disk with the next commit, about one a
        second."""
        report = zlib.compress(result.report.encode(errors="backslashreplace"))
        values = (job.key, result.status, result.reason, json.dumps(result.metrics), report, result.cpu_seconds)
        with self._as_faults():
            self._database.execute("insert or replace into results values (?,?,?,?,?,?,?)", [*values, json.dumps(job.limits)])
        if time.monotonic() - self._committed > _COMMIT_SECONDS:
            self.commit()

    def read_report(self, key: str) -> str:
        """Return the report of the build whose key begins with `key`, "" where it has none.

        Raise CompileError where no build, or several, begin so.
        """
        with self._as_faults():
            rows = self._database.execute("select report from results where key >= ? and key < ? limit 2", [key, f"{key}~"])
            reports = rows.fetchall()
        if len(reports) != 1:
            count = "several builds have" if reports else "no build has"
            raise CompileError(f"report {key}: {count} a key that begins so; the column key of results.csv lists them")
        return zlib.decompress(reports[0][0]).decode()

    def commit(self) -> None:
        """Write to the disk what was added."""
        with self._as_faults():
            self._database.commit()
        self._committed = time.monotonic()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *fault: object) -> None:
        """Write what was added, whatever ended the block. A file that this store made is removed if it is still empty."""
        self.commit()
        is_empty = self._database.execute("select 1 from results").fetchone() is None
        self._database.close()
        if self._is_new and is_empty:
            self.path.unlink(missing_ok=True)
