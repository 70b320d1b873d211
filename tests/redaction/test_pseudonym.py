"""A pseudonym is the same for equal values of a user, and says nothing elsewhere."""

import re
from functools import partial

import pytest
from hypothesis import given, strategies as st

import refold
from refold.adapters.keys.master import LocalMasterKey
from refold.adapters.keys.ring import KeyRing
from refold.adapters.log import EncryptedLog
from refold.adapters.sql.keystore import SqlKeyStore
from refold.domain.errors import KeyUnavailable
from refold.domain.events import UserInput
from refold.redaction.guard import Limits
from refold.redaction.plan import Plan, plain, tag, tag_reading_key, tagger
from refold.redaction.policy import Policy
from refold.redaction.redactor import Redactor
from refold.store import SessionStore
from refold.testing import memory_recorder

KEY = b"k" * 32
OTHER = b"o" * 32
PSEUDONYMS = "version = 1\npseudonyms = true\n"
CALL = "call 139-1234-5670 or +86 13912345670, not 13912345671"


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (
            "PHONE",
            [
                "13912345670",
                "139 1234 5670",
                "+86 139-1234-5670",
                "0086-13912345670",
                "8613912345670",
                "１３９１２３４５６７０",
            ],
        ),
        ("PHONE_NUMBER", ["+1 (415) 555-0132", "14155550132"]),
        ("EMAIL", ["Ada@Example.org", "ada@example.org", "ada%40example.org"]),
        ("BANK_CARD", ["4111 1111 1111 1111", "4111-1111-1111-1111"]),
        ("ID_CARD", ["11010119900307461x", "110101 19900307 461X"]),
    ],
)
def test_one_value_has_one_tag_however_it_is_written(
    kind: str, values: list[str]
) -> None:
    assert len({tag(KEY, kind, value) for value in values}) == 1


def test_other_values_types_and_users_have_other_tags() -> None:
    tags = [
        tag(KEY, "PHONE", "13912345670"),
        tag(KEY, "PHONE", "13912345671"),
        tag(KEY, "BANK_CARD", "13912345670"),
        tag(OTHER, "PHONE", "13912345670"),
    ]

    assert len(set(tags)) == 4


def test_86_is_no_country_where_no_mobile_number_follows() -> None:
    assert plain("PHONE", "8612345678") == "8612345678"


@given(st.text(st.characters(codec="utf-16")), st.sampled_from(["PHONE", "SECRET"]))
def test_a_tag_is_what_a_placeholder_takes(value: str, kind: str) -> None:
    assert re.fullmatch("[a-z2-7]{8}", tag(KEY, kind, value))
    assert tag(KEY, kind, plain(kind, value)) == tag(KEY, kind, value)


def test_a_secret_keeps_its_case_and_its_marks() -> None:
    assert tag(KEY, "SECRET", "Hunter-2") != tag(KEY, "SECRET", "hunter2")


def test_a_key_is_asked_for_only_if_there_is_a_value() -> None:
    asked = []

    def key() -> bytes:
        asked.append(1)
        return KEY

    tagged = partial(tag_reading_key, key)
    before = list(asked)

    assert tagged("PHONE", "1") == tag(KEY, "PHONE", "1")
    assert tagged("PHONE", "2") != tagged("PHONE", "1")
    assert before == [] != asked


def test_a_placeholder_carries_the_tag_and_is_left_alone_after() -> None:
    redactor = Redactor(Policy.parse(PSEUDONYMS).plan())
    number = "13912345670"

    once, _ = redactor.text(f"tel {number}", tag=tagger(KEY))

    assert once == f"tel [REDACTED:PHONE#{tag(KEY, 'PHONE', number)}]"
    assert redactor.text(once, tag=tagger(OTHER))[0] == once


def tags_of_inputs(store: SessionStore, user: str, session: str) -> list[str]:
    """Return the tags of the user's inputs in that session."""
    store.session(user_id=user, session_id=session).append([UserInput(text=CALL)])
    (envelope,) = store.session(user_id=user, session_id=session).events()
    assert isinstance(envelope.payload, UserInput)
    return re.findall("#([a-z2-7]{8})]", envelope.payload.text)


def test_a_user_has_one_tag_across_sessions_and_others_have_other_tags() -> None:
    with refold.open("memory://", policy=Policy.parse(PSEUDONYMS)) as store:
        first = tags_of_inputs(store, "ada", "a")
        again = tags_of_inputs(store, "ada", "b")
        other = tags_of_inputs(store, "bob", "a")

    assert first[0] == first[1] != first[2]
    assert again == first
    assert not set(other) & set(first)


def test_tags_need_a_policy_with_pseudonyms() -> None:
    with refold.open("memory://") as store:
        assert tags_of_inputs(store, "ada", "a") == []


def test_a_lost_key_is_not_replaced_for_a_pseudonym() -> None:
    recorder = memory_recorder()
    master = LocalMasterKey(KEY, origin="a test")
    plan = Plan(pseudonyms=True)

    def store() -> SessionStore:
        ring = KeyRing(SqlKeyStore("memory://"), master)
        return SessionStore(EncryptedLog(recorder, ring), Redactor(plan), Limits())

    tags_of_inputs(store(), "ada", "a")

    with pytest.raises(KeyUnavailable):
        store().session(user_id="ada", session_id="b").append([UserInput(text=CALL)])
