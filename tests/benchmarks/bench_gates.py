"""Speed of `data check` and of judging again, beside the bare tokenizer.

    python -m tests.benchmarks.bench_gates [--samples 20000] [--target FOLDER] [--log 100000]
        [--memory 1000000]

Samples are conversations of one question and one answer, 500 characters together, of English words
drawn at their natural frequency. Measured over the file, reading included: without a tokenizer, and
with the target's beside `encode_batch_fast` alone on the same texts. Rounds alternate; the best of
each counts, and the median of the rounds' ratios. `--log` judges that many completions of 150
tokens as a restarted batcher does. CPU seconds stand beside wall seconds, since a busy machine only
shows in the latter.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics
from statistics import median

import msgspec
import numpy as np

from services.data.check import check_files
from services.data.check_rows import ConversationBatcher
from services.data.dataset import DatasetInfo, Fingerprint, Segment
from services.data.tokenizer_files import read_tokenizer
from shared.config.schema import GateSection
from shared.gates import CandidateBatch, Gatekeeper, GateTokens
from shared.gates.ngrams import offsets_of
from shared.layout import RunFolder
from shared.messages import Completion
from workers.batcher.builder import DatasetBuilder

CHARACTERS = 500
BATCH = 1024
BARE, CHECKED = "bare tokenizer (encode_batch_fast)", "data check with the tokenizer"
SHIPPED = Path(__file__).parents[2] / "shared" / "tiny_target" / "model"


def english_words() -> list[str]:
    """The words of Python's own manual, each as often as it occurs."""
    return " ".join(topics.values()).split()


def conversation(rng: random.Random, words: list[str]) -> list[dict[str, str]]:
    text = " ".join(rng.choices(words, k=CHARACTERS // 4))[:CHARACTERS]
    return [
        {"role": "user", "content": text[:100]},
        {"role": "assistant", "content": text[100:]},
    ]


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU seconds of this process and its threads."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall_s, time.process_time() - cpu_s


def check(path: Path, batcher: ConversationBatcher, *, near: bool) -> Gatekeeper:
    gates = GateSection(near_duplicates=near)
    keeper = Gatekeeper(gates, GateTokens(), num_prompts=0)
    check_files([str(path)], keeper, batcher)
    return keeper


def report(name: str, count: int, times: list[tuple[float, float]]) -> None:
    wall_s, cpu_s = min(wall for wall, _ in times), min(cpu for _, cpu in times)
    print(f"{name:52} {count / wall_s:9,.0f} samples/s {1e6 * cpu_s / count:7.1f} us CPU each")


def bench_files(count: int, target: Path, rounds: int) -> None:
    rng = random.Random(0)
    words = english_words()
    rows = [conversation(rng, words) for _ in range(count)]
    tokenizer = read_tokenizer(target)
    texts = [message["content"] for messages in rows for message in messages]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        path.write_text("".join(json.dumps({"messages": one}) + "\n" for one in rows))

        def bare() -> None:
            for first in range(0, len(texts), 2 * BATCH):
                tokenizer.encode_batch_fast(
                    texts[first : first + 2 * BATCH], add_special_tokens=False
                )

        plain, token = ConversationBatcher(), ConversationBatcher(tokenizer)
        cases: dict[str, Callable[[], object]] = {
            "data check, no tokenizer": lambda: check(path, plain, near=True),
            "data check, no tokenizer, near duplicates off": lambda: check(path, plain, near=False),
            BARE: bare,
            CHECKED: lambda: check(path, token, near=True),
        }
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
        for _, (name, work) in itertools.product(range(rounds), cases.items()):
            times[name].append(timed(work))
        for name, one in times.items():
            report(name, count, one)
        rounds_of = [times[name] for name in (BARE, CHECKED)]
        shares = [alone[0] / checked[0] for alone, checked in zip(*rounds_of, strict=True)]
        print(f"with the tokenizer at {median(shares):.0%} of the bare tokenizer (median round)")


def random_completions(count: int) -> Iterator[list[bytes]]:
    """Lines of a log, a batch at a time."""
    rng = np.random.default_rng(0)
    for first in range(0, count, BATCH):
        ids = rng.integers(100, 50_000, (min(BATCH, count - first), 150)).tolist()
        yield [
            msgspec.json.encode(
                Completion(
                    seq=first + at,
                    prompt_index=first + at,
                    prompt_sha256=f"{first + at:064x}",
                    occurrence=0,
                    prompt_ids=row[:30],
                    output_ids=row[30:],
                    finish_reason="stop",
                    thinking=None,
                    text=f"answer {first + at} of the usual kind " * 16,
                    sampling={},
                )
            )
            for at, row in enumerate(ids)
        ]


def bench_log(count: int) -> None:
    """A batcher that has restarted behind its last sealed segment and judges the log again."""
    gates = GateSection()
    fingerprint = Fingerprint("t", "c", None, 3072, 64, 0, gates.model_dump(mode="json"))
    sealed = Segment(0, "shard_000000.arrow", "", 0, count, 0, 0, count, {})
    info = DatasetInfo(fingerprint, num_prompts=count, segments=[sealed])
    keeper = Gatekeeper(gates, GateTokens(), num_prompts=count)
    decode = msgspec.json.Decoder(Completion).decode
    wall_s = cpu_s = 0.0
    with tempfile.TemporaryDirectory() as folder:
        builder = DatasetBuilder(RunFolder(Path(folder)), info, keeper)

        def take(lines: list[bytes]) -> None:
            builder.take_some([decode(line) for line in lines], stop_when_blocked=True)

        for lines in random_completions(count):
            wall, cpu = timed(partial(take, lines))
            wall_s, cpu_s = wall_s + wall, cpu_s + cpu
    assert builder.caught_up, "the log was judged to its end"
    report("a log judged again, decoding included", count, [(wall_s, cpu_s)])
    print(f"one million completions: {1e6 * cpu_s / count / 60:.1f} minutes of CPU")


def bench_memory(count: int) -> None:
    """Accepted samples of 150 tokens, straight into the gates."""
    rng = np.random.default_rng(0)
    keeper = Gatekeeper(GateSection(), GateTokens(), num_prompts=count)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    offsets = offsets_of(np.full(BATCH, 150))
    judge_s = 0.0
    for first in range(0, count, BATCH):
        batch = CandidateBatch.of_tokens(
            seqs=range(first, first + BATCH),
            ids=rng.integers(100, 50_000, BATCH * 150),
            supervised=np.ones(BATCH * 150, bool),
            offsets=offsets,
        )
        start_s = time.process_time()
        keeper.judge_batch(batch)
        judge_s += time.process_time() - start_s
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"{keeper.ledger.num_accepted:,} accepted samples: peak {(peak - before) / 1024:,.0f} MiB "
        f"above the start ({peak / 1024:,.0f} in all), {1e6 * judge_s / count:.1f} us CPU each"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--target", type=Path, default=SHIPPED)
    parser.add_argument("--log", type=int, default=0)
    parser.add_argument("--memory", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.samples:
        bench_files(arguments.samples, arguments.target, arguments.rounds)
    if arguments.log:
        bench_log(arguments.log)
    if arguments.memory:
        bench_memory(arguments.memory)


if __name__ == "__main__":
    main()
