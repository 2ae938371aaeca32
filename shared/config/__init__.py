"""The run configuration: one frozen pydantic tree, TOML in, resolved JSON stored with the run.

`schema` holds the sections, `loading` turns a preset, a TOML file and dotted overrides into a
`RunConfig` and reports every wrong field at once.
"""

from shared.config.loading import load_preset, parse_config, preset_names, resolve_config
from shared.config.schema import RunConfig

__all__ = ["RunConfig", "load_preset", "parse_config", "preset_names", "resolve_config"]
