"""The commands. Thin: they parse, call `toolchain.api`, print; the only place that prints or exits."""

from __future__ import annotations


def build() -> None:
    from toolchain.cli.build import main

    main()


def sim() -> None:
    from toolchain.cli.sim import main

    main()


def dis() -> None:
    from toolchain.cli.dis import main

    main()


def hw() -> None:
    from toolchain.cli.hw import main

    main()
