"""The check of a run before anything starts: target folder, prompts, data set, shapes.

Called by the control plane when a run is submitted, so it loads neither torch nor transformers. It
reads the prompts file once, since a broken row should be known now and not in an hour. What is
wrong is collected, so that one answer names the target's and the data's problems together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from services.builtin import target_folder
from services.data.dataset import DatasetInfo, read_dataset
from services.data.source import load_prompts, split_run_prompts
from services.data.tokenizer_files import TokenizerFacts, read_tokenizer_facts
from services.target_models.drafter_shape import drafter_config
from shared.config import RunConfig
from shared.dflash.config import DrafterConfig
from shared.dflash.target_shape import TargetShape
from shared.errors import ConfigError, FieldError, TargetModelError, UserError
from shared.states import Stage

T = TypeVar("T")


@dataclass(frozen=True)
class Preflight:
    """What is known of a run before it starts.

    The prompt counts are 0 without the generate stage, `num_samples` is 0 with it; `drafter` is
    None without the train stage.
    """

    target: TargetShape
    drafter: DrafterConfig | None
    num_prompts: int
    num_training_prompts: int
    num_held_out: int
    num_bad_rows: int
    num_samples: int


def check_run(config: RunConfig) -> Preflight:
    """Check files and shapes that `config` names.

    A single problem is raised as it is (TargetModelError, DataError, DrafterError); several as one
    ConfigError that lists each with its field.
    """
    problems: list[tuple[str, UserError]] = []

    def attempt(field: str, check: Callable[[], T]) -> T | None:
        try:
            return check()
        except UserError as error:
            problems.append((field, error))
            return None

    folder = attempt("target.path", lambda: target_folder(config.target.path))
    shape: TargetShape | None = None
    facts: TokenizerFacts | None = None
    drafter: DrafterConfig | None = None
    if folder is not None:
        shape = attempt("target.path", lambda: _read_shape(folder))
        facts = attempt("target.path", lambda: read_tokenizer_facts(folder)) if shape else None
        if shape and facts and Stage.TRAIN in config.stages:
            drafter = attempt("drafter", lambda: drafter_config(config, folder))
    counts: tuple[int, int, int, int] | None = (0, 0, 0, 0)
    reads_prompts = Stage.GENERATE in config.stages or Stage.EVALUATE in config.stages
    if reads_prompts and config.data.prompts is not None:
        counts = attempt("data.prompts", lambda: _count_prompts(config))
    info: DatasetInfo | None = None
    if config.data.dataset is not None:
        where = Path(config.data.dataset).expanduser()
        info = attempt("data.dataset", lambda: _read_dataset(where, facts))
    if len(problems) == 1:
        raise problems[0][1]
    if problems:
        raise ConfigError(
            f"the run cannot start: {len(problems)} problems",
            errors=[FieldError(field, error.detail) for field, error in problems],
        )
    assert shape is not None and counts is not None
    return Preflight(shape, drafter, *counts, num_samples=info.num_samples if info else 0)


def _read_shape(folder: Path) -> TargetShape:
    shape = TargetShape.read(folder)
    if not any(folder.glob("*.safetensors")):
        raise TargetModelError(f"target folder {folder} has no weights (*.safetensors)")
    return shape


def _count_prompts(config: RunConfig) -> tuple[int, int, int, int]:
    prompts = load_prompts(config)
    split = split_run_prompts(config, prompts)
    return len(prompts.rows), len(split.training), len(split.held_out), len(prompts.bad)


def _read_dataset(folder: Path, facts: TokenizerFacts | None) -> DatasetInfo:
    info = read_dataset(folder)
    if facts is not None:
        info.check_tokenizer(facts.sha256)
    return info
