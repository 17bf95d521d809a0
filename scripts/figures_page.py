"""Print docs/figures.md: every key of a build's figures, from the types of `toolchain.report.figure_types`.

python scripts/figures_page.py > docs/figures.md
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, get_type_hints

from typing_extensions import is_typeddict

from toolchain.report import figure_types

HEAD = """# Figures of a build

`built.figures` and the file of `npu-build --json` have these keys. `scripts/figures_page.py` writes this page from
`toolchain/report/figure_types.py`, whose classes are TypedDicts: a type checker knows each key of `built.typed_figures`.
"""


def page() -> str:
    """Return the Markdown of docs/figures.md: a table for each type, those of the complete report first."""
    types = [t for t in vars(figure_types).values() if is_typeddict(t) and t.__module__ == figure_types.__name__]
    first = [figure_types.BuildFigures, figure_types.EntriesFigures]
    return HEAD + "".join(_section(t) for t in [*first, *(t for t in types if t not in first)])


def _section(figure_type: Any) -> str:
    return f"\n## {figure_type.__name__}\n\n{figure_type.__doc__}\n\n| key | type | meaning |\n|---|---|---|\n" + "".join(
        f"| `{key}` | {_link(text)} | {meaning} |\n" for key, text, meaning in _rows(figure_type)
    )


def _rows(figure_type: Any) -> Iterator[tuple[str, str, str]]:
    """Yield (key, type, meaning) of each key of a TypedDict."""
    for key, hint in get_type_hints(figure_type, include_extras=True).items():
        annotated = hint if hasattr(hint, "__metadata__") else hint.__args__[0]  # NotRequired
        yield key, _type_text(annotated.__origin__), annotated.__metadata__[0]


def _type_text(hint: Any) -> str:
    """Return a type hint as the page shows it, without modules and with null for None."""
    if isinstance(hint, type) and not hasattr(hint, "__args__"):
        return hint.__name__
    text = re.sub(r"[\w.]*\.(\w+)", r"\1", str(hint))
    return text.replace("NoneType", "null").replace("None", "null")


def _link(text: str) -> str:
    """Return the text with links to the page's sections on its types."""
    linked = re.sub(r"\b([A-Z]\w+)\b", lambda m: f"[{m[1]}](#{m[1].lower()})", text)
    return linked.replace("|", r"\|")


if __name__ == "__main__":
    print(page(), end="")
