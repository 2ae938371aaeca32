"""Steps of the drafter: whole-step sums, skipped steps, and a restart that changes no bit."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from shared.config import RunConfig
from shared.config.loading import resolve_config
from shared.dflash.batch import collate
from shared.dflash.export import load_drafter
from shared.dflash.objective import training_terms
from shared.errors import ConflictError
from shared.layout import RunFolder
from workers.drafter_trainer.checkpoints import CheckpointStore
from workers.drafter_trainer.training import DrafterTraining, StepResult


def train(training: DrafterTraining, make_item, numbers: range) -> list[StepResult]:
    results = [training.apply(make_item(number)) for number in numbers]
    return [result for result in results if result is not None]


def weights(training: DrafterTraining) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in training.model.state_dict().items()}


def assert_same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name


def test_a_step_divides_by_the_weights_of_all_its_micro_batches(config, shape, target, make_item):
    training = DrafterTraining(config, shape, target)
    reference = DrafterTraining(config, shape, target)
    samples = [sample for number in range(3) for sample in make_item(number).samples()]
    batch = collate(samples, num_anchors=6, run_seed=config.seed, epoch=0, length_multiple=16)
    terms = training_terms(reference.model, reference._head, batch, reference._objective)
    (terms.loss_sum / terms.weight_sum).backward()

    recorded: dict[str, torch.Tensor] = {}

    def spy(rate: float, divisor: torch.Tensor) -> float:
        for name, parameter in training.model.named_parameters():
            assert parameter.grad is not None
            recorded[name] = parameter.grad / divisor
        return 1.0

    training._optimizer.step = spy  # type: ignore[method-assign]
    [result] = train(training, make_item, range(3))
    assert result.loss == pytest.approx(terms.loss, rel=1e-6)
    for name, parameter in reference.model.named_parameters():
        torch.testing.assert_close(recorded[name], parameter.grad, rtol=1e-4, atol=1e-6)


def test_training_lowers_the_loss(config, shape, target, make_item):
    training = DrafterTraining(config, shape, target)
    items = [make_item(number) for number in range(3)]
    losses = []
    for _ in range(30):
        for item in items:
            result = training.apply(item)
        assert result is not None and result.loss is not None
        losses.append(result.loss)
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_restart_changes_no_bit(dtype, tmp_path: Path, target, shape, make_item):
    config = settings(target, dtype)
    shape = replace(shape, dtype=dtype)
    whole = DrafterTraining(config, shape, target)
    series = train(whole, make_item, range(24))

    first = DrafterTraining(config, shape, target)
    head = train(first, make_item, range(13))  # one micro-batch into the fifth step
    store = CheckpointStore(RunFolder(tmp_path), keep=3)
    snapshot = first.snapshot()
    train(first, make_item, range(13, 18))  # the snapshot must not follow
    store.write(snapshot.step, snapshot.state, snapshot.tensors, snapshot.save_drafter)

    second = DrafterTraining(config, shape, target)
    newest = store.newest()
    assert newest is not None
    second.restore(newest)
    assert (second.step, second.next_micro_batch_id) == (4, 12)
    tail = train(second, make_item, range(12, 24))
    assert head[:4] + tail == series
    assert_same(weights(second), weights(whole))


def test_a_checkpoint_holds_the_exported_drafter(tmp_path: Path, config, shape, target, make_item):
    training = DrafterTraining(config, shape, target)
    train(training, make_item, range(3))
    store = CheckpointStore(RunFolder(tmp_path), keep=1)
    snapshot = training.snapshot()
    written = store.write(1, snapshot.state, snapshot.tensors, snapshot.save_drafter)
    exported = load_drafter(written.folder.drafter)
    assert_same(dict(exported.state_dict()), weights(training))


def test_another_shape_is_refused_with_the_fields(tmp_path, config, shape, target, make_item):
    training = DrafterTraining(config, shape, target)
    train(training, make_item, range(3))
    store = CheckpointStore(RunFolder(tmp_path), keep=1)
    snapshot = training.snapshot()
    written = store.write(1, snapshot.state, snapshot.tensors, snapshot.save_drafter)
    other = DrafterTraining(config, replace(shape, block_size=8), target)
    with pytest.raises(ConflictError, match=r"block_size: checkpoint 4, configuration 8"):
        other.restore(written)


def test_a_nonfinite_step_changes_nothing_and_does_not_advance_the_schedule(
    config, shape, target, make_item
):
    training = DrafterTraining(config, shape, target)
    plain = DrafterTraining(config, shape, target)
    [first] = train(training, make_item, range(3))
    train(plain, make_item, range(3))
    before = weights(training)
    broken = make_item(4)
    broken.target_hidden_states[:] = math.inf
    for item in (make_item(3), broken, make_item(5)):
        result = training.apply(item)
    assert result is not None and result.loss is None and result.grad_norm is None
    assert (result.step, training.next_micro_batch_id) == (2, 6)
    assert_same(weights(training), before)
    after_skip = train(training, make_item, range(6, 9))[0]
    second = train(plain, make_item, range(3, 6))[0]
    assert after_skip.lr == second.lr != first.lr


def test_too_many_nonfinite_steps_are_fatal(shape, target, make_item):
    config = settings(target, "float32", **{"trainer.nonfinite_steps_limit": 2})
    training = DrafterTraining(config, shape, target)
    results = []
    for number in range(6):
        item = make_item(number)
        item.target_hidden_states[:] = math.nan
        results.append(training.apply(item))
    assert results[2] is not None and results[2].fatal is None
    assert results[5] is not None and "trainer.nonfinite_steps_limit" in (results[5].fatal or "")


def test_named_nonfinite_samples_carry_no_weight(config, shape, target, make_item):
    training = DrafterTraining(config, shape, target)
    item = make_item(0, num_in_step=1, bad=(0,))
    item.target_hidden_states[: item.micro_batch.lengths[0]] = math.nan
    result = training.apply(item)
    assert result is not None and result.loss is not None


def test_a_step_of_nonfinite_samples_alone_is_skipped(config, shape, target, make_item):
    training = DrafterTraining(config, shape, target)
    before = weights(training)
    result = training.apply(make_item(0, num_in_step=1, bad=(0, 1)))
    assert result is not None and result.loss is None
    assert_same(weights(training), before)


def test_the_plan_s_last_micro_batch_finishes(config, shape, target, make_item):
    training = DrafterTraining(config, shape, target)
    for number in range(3):
        training.apply(make_item(number, last_id=2))
    assert training.is_finished


def settings(target: Path, dtype: str, **overrides: object) -> RunConfig:
    base: dict[str, object] = {
        "target.path": str(target),
        "data.prompts": "prompts.jsonl",
        "trainer.dtype": dtype,
        "trainer.num_anchors": 6,
        "trainer.lr": 1e-2,
        "drafter.num_hidden_layers": 2,
        "drafter.block_size": 4,
    }
    return resolve_config(overrides={**base, **overrides})
