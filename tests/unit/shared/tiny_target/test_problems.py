import re
from dataclasses import replace
from itertools import islice, pairwise

import pytest

from shared.tiny_target import DEMO_KINDS, demo_prompts, make_problems, score
from shared.tiny_target.problems import (
    KINDS,
    draw_problems,
    portion_of,
    problem_id,
    visible_text,
)

EQUATION = re.compile(r"(?<![\d,.:/-])(\d+(?: [+x-] \d+)+) = (\d+)\b")


@pytest.fixture(scope="module")
def problems():
    return make_problems(11, 600)


def one_of(problems, kind):
    return next(problem for problem in problems if problem.kind == kind)


def test_the_seed_decides_the_problems(problems):
    assert make_problems(11, 600) == problems
    assert make_problems(12, 600) != problems


def test_problems_stay_the_same_from_version_to_version():
    # The shipped model was trained on one portion: were ids to change, it would have seen others.
    first, second = make_problems(0, 2)
    assert (first.id, first.question) == ("subtraction-a521079b87f4a400", "What is 419 - 62?")
    assert second.id == "story-87168ba22ba34604"
    assert second.question.startswith("There are 44 coins in Nils's box.")


def test_a_longer_list_begins_with_the_shorter_one(problems):
    assert make_problems(11, 50) == problems[:50]
    assert make_problems(11, 0) == []


def test_no_problem_comes_twice(problems):
    assert len({problem.id for problem in problems}) == len(problems)
    assert len({problem.question for problem in problems}) == len(problems)


def test_kinds_come_equally_often(problems):
    counts = [sum(problem.kind == kind for problem in problems) for kind in KINDS]
    assert sum(counts) == len(problems)
    assert max(counts) - min(counts) <= 10


def test_questions_of_a_kind_differ_in_wording(problems):
    for kind in KINDS:
        wordings = {
            re.sub(r"\d+|[A-Z][a-z]+", "*", problem.question)
            for problem in problems
            if problem.kind == kind
        }
        assert len(wordings) >= 3, kind


def test_training_and_fresh_problems_never_meet(problems):
    training = {problem.id for problem in islice(draw_problems(11, portion="training"), 3000)}
    assert {portion_of(name) for name in training} == {"training"}
    assert training.isdisjoint(problem.id for problem in problems)


def test_an_id_names_the_content_not_the_wording():
    by_id = {}
    for problem in islice(draw_problems(5, portion="training"), 20_000):
        by_id.setdefault(problem.id, set()).add((problem.question, problem.answer))
    reworded = [group for group in by_id.values() if len(group) > 1]
    assert reworded
    # A story about coins and one about shells are the same problem; its number is what counts.
    assert all(len({answer.split()[0] for _, answer in group}) == 1 for group in reworded)


def test_content_of_another_kind_has_another_id():
    assert problem_id("addition", "1 + 2") != problem_id("subtraction", "1 + 2")


@pytest.mark.parametrize("thinking", [True, False])
def test_gold_answers_are_right(problems, thinking):
    assert all(score(problem, problem.gold(thinking=thinking)) for problem in problems)
    assert all(
        score(problem, problem.gold(thinking=thinking) + "<|im_end|>\n") for problem in problems
    )


def test_every_equation_in_a_gold_answer_holds(problems):
    checked = 0
    for problem in problems:
        for left, right in EQUATION.findall(problem.gold()):
            assert eval(left.replace("x", "*")) == int(right), problem
            checked += 1
    assert checked > 2 * len(problems)


def test_results_are_those_of_the_questions(problems):
    """Worked out again from the question's numbers, without the generator's steps."""
    rules = {
        "addition": lambda n: n[0] + n[1],
        "subtraction": lambda n: abs(n[0] - n[1]),
        "multiplication": lambda n: n[0] * n[1],
        "running_sum": sum,
        "spread": lambda n: max(n) - min(n),
        "series": lambda n: 2 * n[-1] - n[-2],
    }
    for problem in problems:
        numbers = [int(number) for number in re.findall(r"\d+", problem.question)]
        if problem.kind in rules:
            assert problem.answer == str(rules[problem.kind](numbers)), problem
        elif problem.kind == "division":
            quotient, remainder = divmod(max(numbers), min(numbers))
            assert problem.answer == f"{quotient} remainder {remainder}", problem
        elif problem.kind == "sorting":
            down = "large to small" in problem.question
            assert problem.answer == ", ".join(map(str, sorted(numbers, reverse=down)))


def test_the_answer_of_another_problem_is_wrong(problems):
    for problem, other in pairwise(problems):
        if problem.answer != other.answer and not other.answer.endswith(problem.answer):
            assert not score(problem, other.gold())


def test_a_result_inside_a_longer_one_is_wrong(problems):
    addition = replace(one_of(problems, "addition"), answer="45")
    assert score(addition, "20 + 25 = 45.")
    assert score(addition, "45")
    for text in ("20 + 125 = 145.", "It is 1,45.", "It is 2.45", "It is -45", "45 or so", ""):
        assert not score(addition, text), text
    sorting = replace(one_of(problems, "sorting"), answer="5, 7")
    assert score(sorting, "In order: 5, 7.")
    assert not score(sorting, "In order: 3, 5, 7.")


def test_thinking_must_be_closed_and_does_not_count(problems):
    problem = one_of(problems, "addition")
    assert not score(problem, f"<think>\n{problem.thinking}")
    assert not score(problem, f"<think>\n{problem.answer_text}\n</think>\n\nI do not know.")
    assert score(problem, f"<think>\nno idea\n</think>\n\n{problem.answer_text}")
    assert visible_text("<think>\nso\n</think>\n\nIt\nis 4.<|im_end|>\n<|im_start|>") == "It is 4."


def test_more_problems_than_there_are_is_an_error(monkeypatch):
    with pytest.raises(ValueError, match="must not be negative"):
        make_problems(0, -1)
    with pytest.raises(ValueError, match=r"unknown kinds \['cooking'\]"):
        make_problems(0, 3, kinds=("addition", "cooking"))
    monkeypatch.setattr("shared.tiny_target.problems._DRAWS_PER_PROBLEM", 1)
    with pytest.raises(ValueError, match="ask for fewer"):
        make_problems(0, 20_000)


def test_demo_prompts_are_rows_of_a_prompts_file():
    problems = make_problems(11, 40, kinds=DEMO_KINDS)
    rows = demo_prompts(40, 11)
    assert [row["id"] for row in rows] == [problem.id for problem in problems]
    for row, problem in zip(rows, problems, strict=False):
        assert row["messages"] == [{"role": "user", "content": problem.question}]
        assert (row["kind"], row["answer"]) == (problem.kind, problem.answer)
        assert problem.thinking not in str(row)
