"""Define the common behaviour of all commands: parsing, printing, reporting faults, and checking where they may write."""

from __future__ import annotations

import io
import os
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand

from toolchain import __version__
from toolchain.cli import interruptible
from toolchain.cli.memory_limit import end_for_memory, lacks_memory
from toolchain.errors import CompileError, ToolchainError, first_line, printable_lines, printable_strings, system_cause
from toolchain.foundation.atomic_files import is_stream

Paths = str | Path | Sequence[str | Path] | None


def _print_version(requested: bool) -> None:
    """Print the version and exit, where --version was given."""
    if requested:
        say(f"npu-toolchain {__version__}")
        raise typer.Exit


# A parameter of every command; its callback has acted before the command runs.
Version = Annotated[bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True)]


PLUGIN, PLUGIN_FORM = "--plugin", "FILE.py"
PLUGIN_HELP = "A plug-in with operators from outside: a file, or the name of an installed one. Repeatable."
Plugins = Annotated[list[str] | None, typer.Option(PLUGIN, metavar=PLUGIN_FORM, help=PLUGIN_HELP)]


class GroupedCommand(TyperCommand):
    """A command whose `--help` lists options by group, in plain lines.

    `examples`: by group of options, a command line that stands below the group.
    """

    examples: Mapping[str, str] = MappingProxyType({})

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then each group of options in the order of declaration, with its example. Options without a
        group are last."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            is_argument = parameter.param_type_name == "argument"
            group = "Arguments" if is_argument else getattr(parameter, "rich_help_panel", None) or "Options"
            if row is not None:
                groups.setdefault(group, []).append(row)
        for group in sorted(groups, key=lambda name: (name != "Arguments", name == "Options")):
            with formatter.section(group):
                formatter.write_dl(groups[group])
            if group in self.examples:
                formatter.write(f"  Example: {self.examples[group]}\n")


def application(
    command: Callable[..., Any] | None = None, examples: Mapping[str, str] = MappingProxyType({}), **options: Any
) -> typer.Typer:
    """Return a typer application without panels and colours, whose usage errors are a few plain lines and exit code 2.

    `command`: the only command; None for an application to which the caller adds commands.
    `examples`: by group of options, a command line for --help.
    """
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, **options)
    if command is not None:
        app.command(cls=type("Command", (GroupedCommand,), {"examples": examples}))(command)
    return app


def say(text: str, *, is_fault: bool = False, end: str = "\n") -> None:
    """Print text for a person on stdout, a fault on stderr. Control characters are spelled out, since names in files hold any.

    Everything that commands print for a person goes through here.
    """
    print(printable_lines(text), end=end, file=sys.stderr if is_fault else sys.stdout)


INTERRUPTED = 130  # 128 + SIGINT, as shells have it


@contextmanager
def report_errors() -> Generator[None]:
    """Turn faults into a message on stderr and exit code 2, Ctrl-C into 130, and a closed stdout into exit code 1 without a
    message.

    The faults are a ToolchainError, a file that cannot be read or written, and missing memory. Other exceptions pass.
    For the rest of the process, numpy's RuntimeWarnings are silent, and stdout and stderr escape what they cannot encode.
    """
    # numpy warns of NaN and overflow at the line where they arise; what comes of them is checked and reported.
    warnings.simplefilter("ignore", RuntimeWarning)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names of the model that the terminal cannot show
            stream.reconfigure(errors="backslashreplace")
    try:
        with interruptible(), _threads_reported():
            yield
        sys.stdout.flush()
    except ToolchainError as fault:
        if lacks_memory(fault):
            end_for_memory(fault)
        _end(str(fault))
    except KeyboardInterrupt:
        _end("interrupted", INTERRUPTED)
    except OSError as fault:
        if lacks_memory(fault):
            end_for_memory(fault)
        end_for_file(fault)
    except Exception as fault:
        if lacks_memory(fault):
            end_for_memory(fault)
        raise


@contextmanager
def _threads_reported() -> Generator[None]:
    """Print one line for each thread that ends with an exception inside the block. Only a user's Python starts such threads."""
    usual, threading.excepthook = threading.excepthook, _report_thread
    try:
        yield
    finally:
        threading.excepthook = usual


def _report_thread(ended: threading.ExceptHookArgs) -> None:
    reason = "" if ended.exc_value is None else f": {first_line(ended.exc_value)}"
    say(f"WARNING: a thread of the Python file ended with {ended.exc_type.__name__}{reason}; mend it", is_fault=True)


def _end(message: str, code: int = 2) -> NoReturn:
    """Print a fault and exit with `code`."""
    say(message, is_fault=True)
    raise SystemExit(code) from None


def end_for_file(fault: OSError) -> NoReturn:
    """Print that a file or stdout cannot be read or written, and exit with code 2; with 1 and no message for a closed stdout."""
    if isinstance(fault, BrokenPipeError):
        # The reader of stdout is gone (`npu-dis m.npu | head`): nothing is wrong, and nobody would read why.
        _drop_output()
        raise SystemExit(1) from None
    if fault.filename is None:  # all files are read and written by name
        _drop_output()
    _end(f"{fault.filename or 'standard output'}: {system_cause(fault)}")


def _drop_output() -> None:
    """Discard the rest of stdout, so that Python does not complain of it at its end."""
    with suppress(OSError):  # in a test or a notebook it is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def as_options() -> Generator[None]:
    """Put `--` in front of the text of a CompileError from inside the block.

    Functions name options without dashes (`samples 0: ...`), as callers in Python write them.
    """
    try:
        yield
    except CompileError as fault:
        raise CompileError(f"--{fault}") from None


def warn(sentences: Iterable[str]) -> None:
    """Print warnings on stderr, after flushing stdout."""
    sys.stdout.flush()
    for sentence in printable_strings([*sentences]):
        say(f"WARNING: {sentence}", is_fault=True)


CUSTOM_OPS, CUSTOM_OPS_FORM = "--custom-ops", "LIBRARY"
CUSTOM_OPS_HELP = "A library of onnxruntime's custom operators, for the host. Repeatable."
CustomOps = Annotated[list[str] | None, typer.Option(CUSTOM_OPS, metavar=CUSTOM_OPS_FORM, help=CUSTOM_OPS_HELP)]


def use_custom_ops_option(libraries: Sequence[str] | None) -> None:
    """Make onnxruntime load the libraries of --custom-ops. Raise CompileError where it cannot load one."""
    if libraries:
        from toolchain.foundation.inference import use_custom_ops

        with as_options():
            use_custom_ops(libraries)


def load_plugin_option(plugins: Sequence[str] | None) -> None:
    """Load the plug-ins of --plugin. Raise CompileError where one cannot be used."""
    if plugins:
        from toolchain.plugin_loading import load_plugins

        with as_options():
            load_plugins(plugins)


def require_host(host: str) -> None:
    """Raise CompileError where onnxruntime cannot run on this host, cpu or cuda.

    It is called before long work, also for models without host nodes, since float models and host subgraphs run there.
    """
    from toolchain.foundation.inference import host_providers

    with as_options():
        host_providers(host)


def require_writable(outputs: Mapping[str, str | Path | None], inputs: Mapping[str, Paths]) -> None:
    """Raise CompileError where an output cannot be written, or is an input or another output. It is called before long work.

    `outputs`: path by option, None where it is not requested. A stream, such as /dev/stdout, is always accepted.
    `inputs`: paths by what a message calls them.
    """
    for option, path in outputs.items():
        reason = None if path is None else _unwritable(Path(path))
        if reason is not None:
            raise CompileError(f"{option} {path}: {reason}")
    require_distinct_files(outputs, inputs)


def require_distinct_files(outputs: Mapping[str, str | Path | None], inputs: Mapping[str, Paths]) -> None:
    """Raise CompileError where an output is an input or another output. Whether it can be written is not checked."""
    name_by_path = {os.path.realpath(path): name for name, paths in inputs.items() for path in _each(paths)}
    for option, path in outputs.items():
        if path is None or is_stream(path):
            continue
        other = name_by_path.setdefault(os.path.realpath(path), option)
        if other != option:
            raise CompileError(f"{option} {path}: is the same file as {other}; it would be overwritten")


def _each(paths: Paths) -> Sequence[str | Path]:
    return () if paths is None else (paths,) if isinstance(paths, str | Path) else paths


def _unwritable(path: Path) -> str | None:
    """Return why a file cannot be written, None where it can."""
    if path.is_dir():
        return "is a directory, give the name of a file"
    if is_stream(path):
        return None
    folder = Path(os.path.realpath(path)).parent
    if not folder.exists():
        return f"there is no directory {path.parent}; make it first"
    if not folder.is_dir():
        return f"{path.parent} is not a directory"
    return None if os.access(folder, os.W_OK | os.X_OK) else f"the directory {path.parent} cannot be written to"


def require_new_folder(option: str, directory: Path | None) -> None:
    """Raise CompileError where the directory cannot be made or is not empty. It is not made. None, for no directory, is
    accepted."""
    if directory is None:
        return
    require_folder(option, directory)
    if directory.is_dir() and any(directory.iterdir()):
        raise CompileError(f"{option} {directory}: is not empty, and nothing in it is overwritten; give a new folder")


def require_folder(option: str, directory: Path) -> None:
    """Raise CompileError where the directory neither exists nor can be made, or cannot be written to. It is not made."""
    existing_parent = next(d for d in (directory, *directory.absolute().parents) if d.exists())
    if not existing_parent.is_dir() or not os.access(existing_parent, os.W_OK):
        raise CompileError(
            f"{option} {directory}: {existing_parent} is {'not writable' if existing_parent.is_dir() else 'not a directory'}"
        )
