import json
import shutil
import sys

import pytest

from services.builtin import target_folder
from services.data.dataset import DatasetInfo, Fingerprint, Segment, write_dataset
from services.data.held_out import num_needed
from services.data.shards import Sample, write_shard
from services.data.tokenizer_files import read_tokenizer_facts
from services.preflight import check_run
from shared.errors import ConfigError, DataError, DrafterError, TargetModelError
from shared.tiny_target import model_folder
from tests.helpers.mesh_contexts import tiny_config


@pytest.fixture
def target(tmp_path):
    """A copy of the shipped target that a test may spoil."""
    return shutil.copytree(model_folder(), tmp_path / "target")


def check(**overrides):
    return check_run(tiny_config({key.replace("__", "."): v for key, v in overrides.items()}))


def test_a_good_run_is_counted():
    found = check()
    assert (found.num_prompts, found.num_training_prompts, found.num_held_out) == (25, 24, 1)
    assert found.drafter.hidden_size == found.target.hidden_size
    assert found.num_samples == found.num_bad_rows == 0


def test_it_loads_neither_torch_nor_transformers():
    import subprocess

    code = (
        "import sys; from tests.helpers.mesh_contexts import TINY; "
        "from shared.config import resolve_config; from services.preflight import check_run; "
        "check_run(resolve_config(TINY)); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers')))"
    )
    # The helper imports no torch either; what counts is what check_run needs.
    subprocess.run([sys.executable, "-c", code], check=True, timeout=50)


def spoil(folder, action):
    if action == "config.json":
        (folder / "config.json").write_text("{")
    elif action == "template":
        (folder / "chat_template.jinja").unlink()
    else:
        for path in folder.glob(action):
            path.unlink()


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("tokenizer.json", "has no tokenizer"),
        ("template", "has no chat template"),
        ("*.safetensors", "has no weights"),
        ("config.json", "not valid JSON"),
    ],
)
def test_a_spoiled_target_folder_is_named(target, action, message):
    spoil(target, action)
    with pytest.raises(TargetModelError, match=message) as caught:
        check(target__path=str(target))
    assert str(target) in caught.value.detail


def test_a_missing_target_folder(tmp_path):
    with pytest.raises(TargetModelError, match="does not exist"):
        check(target__path=str(tmp_path / "none"))
    with pytest.raises(TargetModelError, match="the only built-in target"):
        check(target__path="builtin:huge")


def test_a_template_inside_the_tokenizer_settings_counts(target):
    template = (target / "chat_template.jinja").read_text()
    (target / "chat_template.jinja").unlink()
    settings = json.loads((target / "tokenizer_config.json").read_text())
    (target / "tokenizer_config.json").write_text(
        json.dumps({**settings, "chat_template": template})
    )
    assert check(target__path=str(target)).num_prompts == 25
    assert read_tokenizer_facts(target).template_sha256


def test_a_drafter_that_does_not_fit():
    with pytest.raises(DrafterError, match="99"):
        check(drafter__target_layer_ids=[1, 99])


def test_prompts_missing_empty_or_broken(tmp_path):
    path = tmp_path / "prompts.jsonl"
    with pytest.raises(DataError, match="does not exist"):
        check(data__prompts=str(path))
    path.write_text("")
    with pytest.raises(DataError, match="holds no prompts"):
        check(data__prompts=str(path))
    path.write_bytes(b'{"prompt": "a"}\n{"prompt": "\xff"}\n{\n')
    with pytest.raises(DataError, match=r"2 rows are broken: line 2: not UTF-8.*line 3: not JSON"):
        check(data__prompts=str(path))
    path.write_bytes(path.read_bytes() + b'{"prompt": "b"}\n')
    found = check(
        data__prompts=str(path),
        data__bad_rows="quarantine",
        data__num_prompts=None,
        data__held_out_share=0.5,
    )
    assert (found.num_prompts, found.num_bad_rows) == (2, 2)


def test_several_problems_come_together(tmp_path):
    with pytest.raises(ConfigError) as caught:
        check(target__path=str(tmp_path / "none"), data__prompts=str(tmp_path / "no.jsonl"))
    assert [error.field for error in caught.value.errors] == ["target.path", "data.prompts"]


@pytest.mark.parametrize(
    ("prompts", "settings", "expected"),
    [
        (1, {}, ["data.prompts", "stages"]),
        (3, {}, ["data.prompts", "data.held_out_share", "stages"]),
        (3, {"stages": ["generate", "tokenise", "train"]}, None),
        (
            3,
            {
                "stages": ["generate", "tokenise", "train"],
                "evaluate.every_checkpoints": 2,
                "data.max_held_out": 0,
            },
            ["data.max_held_out", "stages"],
        ),
        (1, {"data.held_out_share": 0}, ["data.held_out_share", "data.prompts", "stages"]),
    ],
)
def test_a_run_that_could_not_be_evaluated_is_refused(tmp_path, prompts, settings, expected):
    path = tmp_path / "prompts.jsonl"
    # Repeats of a prompt are one prompt.
    path.write_text("".join(f'{{"prompt": "number {n % prompts}"}}\n' for n in range(6)))
    config = tiny_config({"data.prompts": str(path), **settings})
    if expected is None:
        assert check_run(config).num_held_out == 0
        return
    with pytest.raises(DataError, match="cannot be evaluated") as caught:
        check_run(config)
    assert [error.field for error in caught.value.errors] == expected


@pytest.mark.parametrize("share", [0.05, 0.08, 0.3, 0.5])
def test_the_remedies_of_a_run_without_held_out_prompts_work(tmp_path, share):
    def run(count, share):
        path = tmp_path / "prompts.jsonl"
        path.write_text("".join(f'{{"prompt": "number {n}"}}\n' for n in range(count)))
        return check_run(tiny_config({"data.prompts": str(path), "data.held_out_share": share}))

    needed = num_needed(share)
    assert run(needed, share).num_held_out == 1
    if needed > 2:
        with pytest.raises(DataError) as caught:
            run(needed - 1, share)
        [remedy] = [e for e in caught.value.errors if e.field == "data.held_out_share"]
        assert run(needed - 1, float(remedy.message.split()[-1])).num_held_out == 1


def test_an_evaluation_needs_prompts_beside_a_data_set(tmp_path, target):
    sha256 = read_tokenizer_facts(target).sha256
    dataset(tmp_path / "data", sha256)
    given = {"data.prompts": None, "data.dataset": str(tmp_path / "data")}
    with pytest.raises(DataError, match=r"data\.prompts is not set"):
        check_run(tiny_config({**given, "stages": ["train", "evaluate"]}))
    assert check_run(tiny_config({**given, "stages": ["train"]})).num_samples == 1


def dataset(folder, tokenizer_sha256):
    samples = [Sample(seq=0, prompt_sha256="a", input_ids=[1, 2], loss_mask=[0, 1])]
    sha256, num_bytes = write_shard(folder / "shard_00000.arrow", samples, 0)
    segment = Segment(0, "shard_00000.arrow", sha256, num_bytes, 1, 2, 1, 1, {})
    fingerprint = Fingerprint(tokenizer_sha256, "c", 3, 400, 5, 3, {})
    write_dataset(folder, DatasetInfo(fingerprint, [segment], complete=True))
    return folder


def test_a_data_set_is_checked_against_the_target(tmp_path):
    facts = read_tokenizer_facts(target_folder("builtin:tiny"))
    options = {"stages": ["train"], "data__prompts": None}
    good = dataset(tmp_path / "good", facts.sha256)
    found = check(data__dataset=str(good), **options)
    assert (found.num_samples, found.num_prompts) == (1, 0)
    other = dataset(tmp_path / "other", "f" * 64)
    with pytest.raises(DataError, match="another tokenizer"):
        check(data__dataset=str(other), **options)
    with pytest.raises(DataError, match="does not exist"):
        check(data__dataset=str(tmp_path / "none"), **options)
