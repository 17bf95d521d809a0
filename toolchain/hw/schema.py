"""The JSON schema that lets an editor complete and check a machine's YAML while it is written."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

from toolchain.hw.chip import Chip


def chip_schema() -> str:
    """The schema of `hw_configs/*.yaml`, as the text of `hw_configs/chip.schema.json`."""
    return schema_text(Chip, "machine")


def schema_text(model: type[BaseModel], title: str) -> str:
    schema: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2020-12/schema", **model.model_json_schema()}
    schema["title"] = title
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"
