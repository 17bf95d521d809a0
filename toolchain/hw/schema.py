"""The JSON schema that lets an editor complete and check a machine's YAML while it is written."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

from toolchain.hw.chip import Chip
from toolchain.hw.formats import MACHINE_FORMAT


def chip_schema() -> str:
    """The schema of `hw_configs/*.yaml`, as the text of `hw_configs/chip.schema.json`."""
    return schema_text(Chip, "machine", MACHINE_FORMAT)


def format_schema(newest: int) -> dict[str, Any]:
    """Return the schema of the key `format`, which is read before all others (`toolchain.hw.formats`)."""
    return {"description": "The format of this file; 1 where not given.", "type": "integer", "minimum": 1, "maximum": newest}


def schema_text(model: type[BaseModel], title: str, newest: int | None = None) -> str:
    """Return the JSON schema of a model. `newest`: the newest format of files that say theirs."""
    schema: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2020-12/schema", **model.model_json_schema()}
    schema["title"] = title
    if newest is not None:
        schema["properties"] = {**schema["properties"], "format": format_schema(newest)}
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"
