"""Recall on carriers collected before their rules never falls below its figures."""

import hashlib

from refold.redaction.redactor import Redactor
from tests.redaction.second_corpus import CARRIERS, Figures, documents, measure

FROZEN = "376d7c8ea4335d7e78eb7003873fe35e7819fd63df4f00f14d022beda7355b3b"


def figures() -> Figures:
    redactor = Redactor()
    return measure(lambda text: redactor.text(text)[0])


def test_the_corpus_is_the_frozen_one() -> None:
    digest = hashlib.sha256()

    for document in documents():
        digest.update(repr(document).encode())

    assert digest.hexdigest() == FROZEN
    assert len(CARRIERS) == 38


def test_recall_is_not_below_the_recorded_figures() -> None:
    measured = figures()

    assert measured.recall(personal=False) >= 0.92
    assert measured.recall(personal=True) >= 0.99
    assert len(measured.changed) <= 6
