"""The check of a run before anything starts: target folder, prompts, data set, shapes.

Called by the control plane when a run is submitted, so it loads neither torch nor transformers. It
reads the prompts once, without keeping them, since a broken row should be known now and not in an
hour. What is wrong is collected, so that one answer names the target's and the data's problems
together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from services.builtin import target_folder
from services.data import held_out
from services.data.dataset import DatasetInfo, read_dataset
from services.data.source import PromptCounts, count_prompts, require_location
from services.data.tokenizer_files import TokenizerFacts, read_tokenizer_facts
from services.target_models.drafter_shape import drafter_config
from shared.config import RunConfig
from shared.dflash.config import DrafterConfig
from shared.dflash.target_shape import TargetShape
from shared.errors import ConfigError, DataError, FieldError, TargetModelError, UserError
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


def check_run(config: RunConfig, *, known: Sequence[tuple[str, UserError]] = ()) -> Preflight:
    """Check files and shapes that `config` names.

    `known`: (field, problem) of what the caller has found already. A single problem is raised as
    it is (TargetModelError, DataError, DrafterError); several as one ConfigError that lists each
    with its field.
    """
    problems = list(known)

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
    counts: PromptCounts | None = PromptCounts(0, 0, 0, 0, 0)
    reads_prompts = Stage.GENERATE in config.stages or will_evaluate(config)
    if reads_prompts and config.data.prompts is not None:
        counts = attempt("data.prompts", lambda: _count_prompts(config))
    elif will_evaluate(config):
        attempt("data.prompts", lambda: held_out.require_prompts(config))
    info: DatasetInfo | None = None
    if config.data.dataset is not None:
        where = Path(config.data.dataset).expanduser().absolute()
        info = attempt("data.dataset", lambda: _read_dataset(where, facts))
    if len(problems) == 1:
        raise problems[0][1]
    if problems:
        raise ConfigError(
            f"the run cannot start: {len(problems)} problems",
            errors=[one for field, error in problems for one in _fields(field, error)],
        )
    assert shape is not None and counts is not None
    return Preflight(
        shape,
        drafter,
        num_prompts=counts.usable,
        num_training_prompts=counts.training,
        num_held_out=counts.held_out,
        num_bad_rows=counts.bad_rows,
        num_samples=info.num_samples if info else 0,
    )


def missing_inputs(tree: Mapping[str, Any]) -> list[FieldError]:
    """Files that a configuration names and that are not there, though it is not valid yet."""
    checks: dict[str, Callable[[str], object]] = {
        "target.path": lambda path: TargetShape.read(target_folder(path)),
        "data.prompts": require_location,
        "data.dataset": lambda path: read_dataset(Path(path).expanduser()),
    }
    found: list[FieldError] = []
    for field, check in checks.items():
        table, _, name = field.partition(".")
        given = tree.get(table)
        path = given.get(name) if isinstance(given, Mapping) else None
        if isinstance(path, str):
            try:
                check(path)
            except UserError as error:
                found += _fields(field, error)
            except OSError as error:
                found.append(FieldError(field, f"cannot be read: {error.strerror}"))
    return found


def will_evaluate(config: RunConfig) -> bool:
    """Whether the run itself evaluates: after training, or at checkpoints."""
    return Stage.EVALUATE in config.stages or (
        Stage.TRAIN in config.stages and config.evaluate.every_checkpoints > 0
    )


def _fields(field: str, error: UserError) -> Sequence[FieldError]:
    if isinstance(error, DataError) and error.errors:
        return error.errors  # which name fields of the configuration themselves
    return [FieldError(field, error.detail)]


def _read_shape(folder: Path) -> TargetShape:
    shape = TargetShape.read(folder)
    if not any(folder.glob("*.safetensors")):
        raise TargetModelError(f"target folder {folder} has no weights (*.safetensors)")
    return shape


def _count_prompts(config: RunConfig) -> PromptCounts:
    counts = count_prompts(config)
    if will_evaluate(config) and not counts.held_out:
        held_out.refuse(config, num_different=counts.contents)
    return counts


def _read_dataset(folder: Path, facts: TokenizerFacts | None) -> DatasetInfo:
    info = read_dataset(folder)
    if facts is not None:
        info.check_tokenizer(facts.sha256)
    return info
