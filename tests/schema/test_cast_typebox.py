"""Casts compared with those of TypeBox: recorded answers, and the real TypeBox where it is installed."""

from __future__ import annotations

import pytest
from tests.schema.typebox import (
    as_json,
    ask_typebox,
    cases,
    corpora,
    our_answer,
    random_questions,
    without_engine_messages,
)


@pytest.mark.parametrize("corpus", corpora())
def test_a_cast_gives_what_typebox_gave(corpus: str) -> None:
    wrong = [case for case in cases(corpus) if as_json(our_answer(case.schema, case.value)) != as_json(case.answer)]
    assert wrong == []


def test_the_recorded_casts_cover_every_kind_of_case() -> None:
    kinds = [case.id.partition(":")[0] for case in cases("recorded")]
    assert {kind: kinds.count(kind) > 200 for kind in kinds} == {"handwritten": True, "plain": True, "random": True}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_cast_gives_what_typebox_gives(seed: int) -> None:
    questions = random_questions(seed, 150)
    for question, reply in zip(questions, ask_typebox(questions), strict=True):
        for value, expected in zip(question["values"], reply["answers"], strict=True):
            found = without_engine_messages(our_answer(reply["schema"], value))
            assert as_json(found) == as_json(without_engine_messages(expected)), (reply["schema"], value)
