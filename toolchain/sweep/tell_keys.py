"""Tell where a sweep takes what a refusal of npu-build advises: by a key of the sweep's file, or not at all."""

from __future__ import annotations

import re

KEY_BY_OPTION = {
    "--plugin": "plugins",
    "--custom-ops": "custom_ops",
    "--calib": "networks.NAME.calib",
    "--quant": "networks.NAME.quant",
    "--shape": "networks.NAME.shapes",
    "--value": "networks.NAME.values",
    "--state": "networks.NAME.states",
    "--type": "networks.NAME.types",
    "--host-node": "networks.NAME.host_nodes",
    "--hw": "machines.NAME.file",
    "--repair": "options.repair",
    "--observer": "options.observer",
    "--samples": "options.samples",
    "--optimize": "options.optimize",
    "--sram-budget": "options.sram_budget",
    "--static-ranges": "options.static_ranges",
}
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def tell_keys(reason: str) -> str:
    """Return a refusal with the keys of the sweep's file that stand for the options it names."""
    options = dict.fromkeys(_OPTION.findall(reason))
    keys = [f"{option} is {KEY_BY_OPTION[option]}" for option in options if option in KEY_BY_OPTION]
    others = [option for option in options if option not in KEY_BY_OPTION]
    parts = [f"in the sweep's file {', '.join(keys)}"] if keys else []
    parts += [f"npu-sweep does not take {', '.join(others)}: npu-build does"] if others else []
    return "; ".join([reason, *parts])
