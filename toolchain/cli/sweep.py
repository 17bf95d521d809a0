"""Define the command npu-sweep: build many points of machines, networks and options, and write a table, pictures and a page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolchain.cli import exit_on_interrupt
from toolchain.cli.application import (
    CUSTOM_OPS,
    CUSTOM_OPS_FORM,
    CUSTOM_OPS_HELP,
    PLUGIN,
    PLUGIN_FORM,
    PLUGIN_HELP,
    Version,
    application,
    as_options,
    load_plugin_option,
    report_errors,
    require_folder,
    require_writable,
    say,
    use_custom_ops_option,
    warn,
)
from toolchain.cli.progress import make_progress_bar
from toolchain.errors import CompileError, format_count

if TYPE_CHECKING:
    from toolchain.sweep import Engine, Objective, Store, Sweep, SweepRun

RUN, SEARCH, OUTPUT = "Running", "Searching", "Output"
EXAMPLES = {
    RUN: "npu-sweep sweep.yaml --scheduler tcp://10.0.0.1:8786",
    SEARCH: "npu-sweep sweep.yaml --objectives cycles,energy --trials 200",
    OUTPUT: "npu-sweep sweep.yaml -o results --parquet",
}
MOST_FRONT_LINES = 20  # of a network's front on the terminal; the page and the table have all (docs/sweeps.md)


def main() -> None:
    """Run the command on the process's arguments and exit."""
    application(sweep_command, EXAMPLES)()


def sweep_command(
    sweep: Annotated[Path, typer.Argument(metavar="SWEEP", help="The sweep, a YAML file: docs/sweeps.md.")],
    jobs: Annotated[
        int | None, typer.Option(help="Builds at a time on this machine. Default: its cores.", rich_help_panel=RUN)
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Builds on the dask cluster of this scheduler instead.", rich_help_panel=RUN),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(help="The file of results, which are not built again. Default: SWEEP.store.", rich_help_panel=RUN),
    ] = None,
    plugins: Annotated[list[str] | None, typer.Option(PLUGIN, metavar=PLUGIN_FORM, help=PLUGIN_HELP, rich_help_panel=RUN)] = None,
    custom_ops: Annotated[
        list[str] | None, typer.Option(CUSTOM_OPS, metavar=CUSTOM_OPS_FORM, help=CUSTOM_OPS_HELP, rich_help_panel=RUN)
    ] = None,
    objectives: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="What is compared, for example cycles,energy,sram_bytes (the default). Maximized: mac_utilization, sqnr_db.",
            rich_help_panel=SEARCH,
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(help="Searches with so many builds a network. Default: the full grid.", rich_help_panel=SEARCH),
    ] = None,
    batch: Annotated[int, typer.Option(help="Builds between two steps of the search.", rich_help_panel=SEARCH)] = 16,
    seed: Annotated[int, typer.Option(help="The same seed and batch give the same search.", rich_help_panel=SEARCH)] = 0,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", help="The folder of table, pictures and page. Default: SWEEP.results.", rich_help_panel=OUTPUT
        ),
    ] = None,
    parquet: Annotated[bool, typer.Option("--parquet", help="Writes the table as Parquet too.", rich_help_panel=OUTPUT)] = False,
    report: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Prints a stored report and builds nothing.", rich_help_panel=OUTPUT),
    ] = None,
    version: Version = False,
) -> None:
    """Builds every point of a sweep, or searches it; what is in the store is not built again. A failed build is a row.

    Exit code 1 where no build succeeded. Exit code 2 where a file is wrong or the cluster is lost; the same command goes on then.
    """
    with report_errors():
        with exit_on_interrupt():
            from toolchain.sweep import DEFAULT_OBJECTIVES, Store, find_objectives, read_sweep
            from toolchain.sweep.extra import import_extra

            if parquet:
                import_extra("pyarrow", "--parquet")
        with as_options():
            targets = find_objectives(objectives or DEFAULT_OBJECTIVES)
        if sweep.is_dir():  # `.` has no name to put a suffix on
            raise CompileError(f"{sweep}: is a directory, not a sweep's YAML file")
        store_path, folder = store or sweep.with_suffix(".store"), output or sweep.with_suffix(".results")
        _require_counts(jobs, scheduler, trials, batch)
        if report is not None:
            _print_report(store_path, report)
            return
        with exit_on_interrupt():
            load_plugin_option(plugins)
            use_custom_ops_option(custom_ops)
            description = read_sweep(sweep, plugins or (), custom_ops or ())
        require_writable({"--store": store_path}, {"the sweep": sweep})
        require_folder("--output", folder)
        with exit_on_interrupt():
            engine = _engine(jobs, scheduler)
        with Store(store_path) as results:
            run = _run(description, results, engine, targets, trials, batch, seed)
            _write(sweep.stem, run, targets, results, folder, parquet)


def _require_counts(jobs: int | None, scheduler: str | None, trials: int | None, batch: int) -> None:
    """Raise CompileError where a number is below 1, or `--jobs` and `--scheduler` are both given."""
    for name, number in (("jobs", jobs), ("trials", trials), ("batch", batch)):
        if number is not None and number < 1:
            raise CompileError(f"--{name} {number}: must be 1 or more")
    if jobs is not None and scheduler is not None:
        raise CompileError(f"--jobs {jobs}: is for this machine; workers of --scheduler {scheduler} have threads of their own")


def _print_report(store_path: Path, key: str) -> None:
    """Print the stored report of the build whose key begins so. Raise CompileError where there is no such store or build."""
    from toolchain.sweep import Store

    if not store_path.is_file():
        raise CompileError(f"--store {store_path}: there is no such file; the sweep makes it")
    with Store(store_path) as results, as_options():
        say(results.read_report(key))


def _count_cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _engine(jobs: int | None, scheduler: str | None) -> Engine:
    """Return the engine that builds: on a cluster if a scheduler is given, else here with so many jobs or one a core."""
    from toolchain.sweep import run_here, run_on_cluster

    return run_here(jobs or _count_cores()) if scheduler is None else run_on_cluster(scheduler)


def _run(
    description: Sweep, store: Store, engine: Engine, targets: Sequence[Objective], trials: int | None, batch: int, seed: int
) -> SweepRun:
    """Run the grid, or a search where `trials` is given, with a progress bar."""
    from toolchain.sweep import run_grid, run_search

    with make_progress_bar() as progress:
        if trials is None:
            return run_grid(description, store, engine, progress)
        return run_search(description, store, engine, progress, targets, trials=trials, batch=batch, seed=seed)


def _write(name: str, run: SweepRun, targets: Sequence[Objective], store: Store, folder: Path, parquet: bool) -> None:
    """Write the folder of results, and print what came of the sweep. Exit with 1 where no build succeeded."""
    from toolchain.foundation.atomic_files import write_files
    from toolchain.sweep import csv_table, pareto_pictures, parquet_table, sweep_page
    from toolchain.sweep.page import summarize

    store.commit()
    networks = list(dict.fromkeys(row.point.network for row in run.rows))
    files = {"results.csv": csv_table(run.rows)}
    if parquet:
        files["results.parquet"] = parquet_table(run.rows)
    for network in networks:
        pictures = pareto_pictures(run, network, targets)
        files |= {f"{network}-{pair}.svg": picture.encode(errors="backslashreplace") for pair, picture in pictures.items()}
    files["report.html"] = sweep_page(f"Sweep {name}", run, targets, store).encode(errors="backslashreplace")
    write_files({folder / file: data for file, data in files.items()}, [folder])
    for network in networks:
        say(_front_text(run, network, targets))
    say(f"{summarize(run)}; {format_count(run.new, 'new result')} in {run.new_cpu_seconds:,.1f} CPU s, kept in {store.path}")
    say(f"wrote {folder}: {', '.join(files)}")
    warn(_failure_sentences(run, folder))
    if not any(row.result.status == "built" for row in run.rows):
        builds = format_count(len(run.rows), "build")
        say(f"no build succeeded, of {builds}; {folder / 'results.csv'} has the reasons", is_fault=True)
        raise SystemExit(1)


def _front_text(run: SweepRun, network: str, targets: Sequence[Objective]) -> str:
    """Return a network's Pareto front as a table of at most MOST_FRONT_LINES lines."""
    from toolchain.report.report_text import table
    from toolchain.sweep.pareto_picture import describe_point

    front = run.front(network, targets)
    if not front:
        return f"Pareto front of {network}: no point has all of {', '.join(target.title for target in targets)}\n"
    lines = [
        (describe_point(row), *(f"{row.result.metrics[target.metric]:,.6g}" for target in targets))
        for row in front[:MOST_FRONT_LINES]
    ]
    more = f"\n... and {format_count(len(front) - len(lines), 'point')} more, in report.html" if len(front) > len(lines) else ""
    heads = ("point", *(target.title for target in targets))
    return f"Pareto front of {network}:\n{table(heads, lines, range(1, len(heads)))}{more}\n"


def _failure_sentences(run: SweepRun, folder: Path) -> list[str]:
    """Return a warning for each reason that builds failed for, the most frequent first, at most ten and one that says how many
    more."""
    counts: dict[str, int] = {}
    for row in run.rows:
        if row.result.status != "built":
            counts[row.result.reason] = counts.get(row.result.reason, 0) + 1
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    sentences = [f"{format_count(count, 'build')} failed: {reason}" for reason, count in ordered[:10]]
    return (
        sentences if len(ordered) <= 10 else [*sentences, f"{len(ordered) - 10:,} more reasons are in {folder / 'results.csv'}"]
    )
