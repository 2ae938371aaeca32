"""Make the tiny target from nothing: `python -m shared.tiny_target.train --out DIR`.

Data flow: seed -> corpus -> tokenizer -> Qwen3ForCausalLM, trained from random weights on the
replies -> DIR (bfloat16 weights, tokenizer, template) -> loaded again from DIR and scored on fresh
problems -> TRAINING.json and README.md in DIR.

The seed fixes problems, order of batches and first weights. Sums on a GPU are not taken in a fixed
order, so two runs give models that differ in the last digits and score alike.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from shared.tiny_target.corpus import Example, batches, encode_examples, training_texts
from shared.tiny_target.evaluate import generate_answers, load_target, score_by_kind
from shared.tiny_target.problems import make_problems
from shared.tiny_target.report import write_report
from shared.tiny_target.tokenizer import END_OF_TEXT, IM_END, save_tokenizer, train_tokenizer

logger = logging.getLogger(__name__)

MODEL_MAX_LENGTH = 1024
VOCAB_SIZE = 512
ROPE_THETA = 1e6
MOST_EXAMPLES = 300_000
TOKENIZER_TEXTS = 8_000
SAVE_EVERY = 500
_IGNORED = -100


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """What the run depends on; stored in TRAINING.json."""

    seed: int = 0
    steps: int = 3600
    batch_size: int = 512
    lr: float = 3e-3
    warmup_steps: int = 200
    weight_decay: float = 0.05
    num_score_problems: int = 720


def model_config(tokenizer: Tokenizer) -> Qwen3Config:
    """A Qwen3 of 8 layers and hidden size 192, about 3.6 million parameters, embeddings tied."""
    end = tokenizer.token_to_id(IM_END)
    return Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=MODEL_MAX_LENGTH,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        tie_word_embeddings=True,
        eos_token_id=end,
        pad_token_id=tokenizer.token_to_id(END_OF_TEXT),
        bos_token_id=None,
    )


def example_table(
    examples: Sequence[Example], pad_id: int, device: str
) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """All examples on the device: ids and labels [N, longest] int16, and their lengths.

    Labels are ignored in the prompt and in the padding, which is on the right.
    """
    lengths = [len(example.ids) for example in examples]
    shape = (len(examples), max(lengths))
    inputs = np.full(shape, pad_id, dtype=np.int16)
    labels = np.full(shape, _IGNORED, dtype=np.int16)
    for row, example in enumerate(examples):
        inputs[row, : lengths[row]] = example.ids
        labels[row, example.num_prompt_tokens : lengths[row]] = example.ids[
            example.num_prompt_tokens :
        ]
    return torch.from_numpy(inputs).to(device), torch.from_numpy(labels).to(device), lengths


def learning_rate(step: int, options: TrainingOptions) -> float:
    """Linear warm-up, then a cosine to zero at the last step."""
    if step < options.warmup_steps:
        return options.lr * (step + 1) / options.warmup_steps
    rest = (step - options.warmup_steps) / max(1, options.steps - options.warmup_steps)
    return options.lr * 0.5 * (1 + math.cos(math.pi * rest))


def train_model(
    tokenizer: Tokenizer,
    examples: Sequence[Example],
    options: TrainingOptions,
    *,
    device: str,
    out: Path,
) -> Qwen3ForCausalLM:
    """A model trained for `options.steps` steps on the examples; float32 weights on `device`.

    Every SAVE_EVERY steps the model so far is written to `out`, so a run that is cut short leaves
    a usable folder.
    """
    torch.manual_seed(options.seed)
    pad_id = tokenizer.token_to_id(END_OF_TEXT)
    assert pad_id is not None, "the tokenizer was made with this token"
    all_inputs, all_labels, lengths = example_table(examples, pad_id, device)
    model: Any = Qwen3ForCausalLM(model_config(tokenizer))
    model = model.to(device).train()
    parameters: list[torch.nn.Parameter] = list(model.parameters())
    decayed = [p for p in parameters if p.dim() > 1]
    plain = [p for p in parameters if p.dim() == 1]
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": options.weight_decay},
        {"params": plain},
    ]
    optimizer = torch.optim.AdamW(
        groups,
        lr=options.lr,
        betas=(0.9, 0.98),
        weight_decay=0.0,
        fused=True,
    )
    order = batches(
        lengths, batch_size=options.batch_size, num_batches=options.steps, seed=options.seed
    )
    started = time.monotonic()
    for step, batch in enumerate(order):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, options)
        rows, longest = torch.tensor(batch, device=device), max(lengths[row] for row in batch)
        inputs, labels = (table[rows, :longest].long() for table in (all_inputs, all_labels))
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device != "cpu"):
            # Padding is on the right, so the causal mask alone keeps it out of every real position.
            logits = model(input_ids=inputs, use_cache=False).logits
        loss = F.cross_entropy(
            logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten(), ignore_index=_IGNORED
        )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0 or step + 1 == options.steps:
            rate = (step + 1) / (time.monotonic() - started)
            logger.info(
                "step %d/%d: loss %.4f, %.1f steps/s", step + 1, options.steps, loss.item(), rate
            )
        if (step + 1) % SAVE_EVERY == 0:
            save_model(model, tokenizer, out)
    return model


def save_model(model: Qwen3ForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    """Write weights in bfloat16, config, generation config, tokenizer and template to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    end_ids = [tokenizer.token_to_id(IM_END), tokenizer.token_to_id(END_OF_TEXT)]
    model.generation_config = GenerationConfig(
        do_sample=False, eos_token_id=end_ids, pad_token_id=end_ids[1]
    )
    half: Any = copy.deepcopy(model)
    half.to(torch.bfloat16).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    # Servers built on older libraries read rope_theta alone and would fall back to 10000.
    config["rope_theta"] = ROPE_THETA
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    (folder / "model.safetensors").chmod(0o644)
    save_tokenizer(tokenizer, folder, model_max_length=MODEL_MAX_LENGTH)


def score_folder(
    folder: Path, options: TrainingOptions, device: str
) -> dict[str, dict[str, float]]:
    """Score of the saved folder on fresh problems, thinking on and off, by kind."""
    model, tokenizer = load_target(folder, device=device)
    problems = make_problems(options.seed, options.num_score_problems)
    scores = {}
    for name, thinking in (("thinking", True), ("no_thinking", False)):
        answers = generate_answers(model, tokenizer, problems, thinking=thinking, batch_size=240)
        scores[name] = score_by_kind(problems, answers)
        logger.info("%s: %s", name, scores[name])
    return scores


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, save, score; returns the exit status."""
    defaults = TrainingOptions()
    parser = argparse.ArgumentParser(prog="python -m shared.tiny_target.train")
    parser.add_argument("--out", type=Path, required=True, help="folder to write the model to")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for name, value in asdict(defaults).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    given = vars(parser.parse_args(arguments))
    out, device = given.pop("out"), given.pop("device")
    options = TrainingOptions(**given)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)

    count = max(options.batch_size, min(options.steps * options.batch_size, MOST_EXAMPLES))
    texts = training_texts(options.seed, max(count, TOKENIZER_TEXTS))
    tokenizer = train_tokenizer((whole for _, whole in texts[:TOKENIZER_TEXTS]), VOCAB_SIZE)
    examples = encode_examples(tokenizer, texts[:count])
    model = train_model(tokenizer, examples, options, device=device, out=out)
    save_model(model, tokenizer, out)
    scores = score_folder(out, options, device)
    write_report(out, asdict(options), num_parameters=model.num_parameters(), scores=scores)
    return 0


if __name__ == "__main__":
    sys.exit(main())
