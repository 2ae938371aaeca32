"""From a request to a run that may start: resolve, check the files it names, forecast.

Reading prompts and a target's configuration blocks, so it runs in a thread. Nothing is stored
here.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from control_plane.destinations import writable_destination
from control_plane.settings import Settings
from services.builtin import target_folder
from services.preflight import Preflight, check_run, missing_inputs
from shared.api.plan import PlanRequest
from shared.api.runs import RunRequest
from shared.config import RunConfig, resolve_config
from shared.config.loading import merge, preset_names
from shared.errors import ConfigError, FieldError, TargetModelError, UserError
from shared.forecast import Forecast, Gpu, TargetShape, forecast, gpu_named

_DESTINATION = "archive.destination"


@dataclass(frozen=True)
class CheckedRun:
    """A configuration whose files and shapes are all there."""

    config: RunConfig
    preflight: Preflight


def resolve(request: RunRequest) -> RunConfig:
    """The configuration of a request; ConfigError lists everything that is wrong with it."""
    if request.preset is None and request.config is None:
        raise ConfigError(
            "the request names neither a preset nor a configuration",
            errors=[FieldError("preset", 'missing; give {"preset": "demo"} or {"config": {...}}')],
        )
    return resolve_config(request.config, preset=request.preset, overrides=request.overrides)


def check(request: RunRequest, settings: Settings) -> CheckedRun:
    """Resolve and check everything a run needs. Blocks; raises what `check_run` raises.

    Everything that is wrong comes in one answer, wrong keys together with missing files.
    """
    try:
        config = resolve(request)
    except ConfigError as error:
        more = _problems_of_values(request, settings, {one.field for one in error.errors})
        if not more:
            raise
        num_problems = len(error.errors) + len(more)
        raise ConfigError(
            f"the configuration has {num_problems} fields to correct",
            errors=[*error.errors, *more],
        ) from error
    known: list[tuple[str, UserError]] = []
    if config.archive.destination is not None:
        try:
            writable_destination(settings, config.archive.destination)
        except UserError as problem:
            known.append((_DESTINATION, problem))
    return CheckedRun(config, _preflight(config, known))


def forecast_of(checked: CheckedRun, settings: Settings) -> Forecast:
    """Sizes of a checked run, against the free disk of the data folder."""
    preflight = checked.preflight
    return forecast(
        checked.config,
        TargetShape.from_config(_target_config(checked.config)),
        num_prompts=preflight.num_training_prompts or preflight.num_samples,
        free_disk_bytes=shutil.disk_usage(settings.data).free,
    )


def plan(request: PlanRequest, folder: Path) -> list[Forecast]:
    """A forecast for each accelerator asked for, with the free disk of `folder`. Blocks.

    The target may lie elsewhere (`target_config`), and prompts need not exist (`num_prompts`).
    """
    config = resolve(request)
    shape = TargetShape.from_config(request.target_config or _target_config(config))
    num_prompts = request.num_prompts
    if num_prompts is None:
        preflight = _preflight(config)
        num_prompts = preflight.num_training_prompts or preflight.num_samples
    gpus: list[Gpu | None] = []
    for name in request.gpus:
        gpu = gpu_named(name)
        price = request.usd_per_hour.get(name)
        gpus.append(gpu if price is None else replace(gpu, usd_per_hour=price))
    return [
        forecast(
            config,
            shape,
            num_prompts=num_prompts,
            gpu=gpu,
            tokens_per_sample=request.tokens_per_sample,
            free_disk_bytes=shutil.disk_usage(folder).free,
        )
        for gpu in gpus or [None]
    ]


def _problems_of_values(
    request: RunRequest, settings: Settings, known_fields: set[str]
) -> list[FieldError]:
    """What else is wrong with a request that is not valid: files and the destination it names."""
    is_known_preset = request.preset is None or request.preset in preset_names()
    tree, _ = merge(
        request.config,
        preset=request.preset if is_known_preset else None,
        overrides=request.overrides,
    )
    found = missing_inputs(tree)
    archive = tree.get("archive")
    destination = archive.get("destination") if isinstance(archive, dict) else None
    if isinstance(destination, str):
        try:
            writable_destination(settings, destination)
        except UserError as error:
            found.append(FieldError(_DESTINATION, error.detail))
    return [one for one in found if one.field not in known_fields]


def _preflight(config: RunConfig, known: Sequence[tuple[str, UserError]] = ()) -> Preflight:
    try:
        return check_run(config, known=known)
    except OSError as error:  # a name that is too long, a loop of links, a folder of others
        name = str(error.filename or "")[:200]
        raise ConfigError(
            f"a file that the configuration names cannot be read: {error.strerror}: {name!r}; "
            "correct target.path, data.prompts or data.dataset"
        ) from error


def _target_config(config: RunConfig) -> dict[str, Any]:
    path = target_folder(config.target.path) / "config.json"
    try:
        tree = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise TargetModelError(
            f"{path} cannot be read: {error.strerror}; check target.path (plan --target-config "
            "takes the config.json of a target that lies elsewhere)"
        ) from error
    except ValueError as error:
        raise TargetModelError(f"{path} is not JSON: {error}") from error
    if not isinstance(tree, dict):
        raise TargetModelError(f"{path} is not a JSON object")
    return tree
