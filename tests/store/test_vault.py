"""Models may see values that the log does not store; stored data never reveals them."""

import asyncio
import json
import pickle
import re
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, strategies as st

import refold
from refold.adapters.claude.capture import AsyncCapture, Capture
from refold.domain.envelope import Meta
from refold.domain.ids import StreamId
from refold.projections.context.text import violations
from refold.redaction.learned import SECRET_TYPES
from refold.redaction.policy import Policy, PolicyError
from refold.redaction.redactor import Redactor
from refold.store.session.imports import extend
from refold.store.vault import Numbering, personal_types
from refold.strategies import Vault
from tests.support.messages_api import MessagesApi, message, tool_use
from tests.support.nested import blocks_of
from tests.support.rebuilding import Clock, clocked
from tests.support.redacting import unaware
from tests.support.rewritten import tamper
from tests.support.stores import prepare

ADA = "ada@example.org"
BOB = "bob@example.org"
NUMBERED = Policy.parse("version = 1\nnumbered = true\n")
KEEP = "keep_all"
HARD = (
    "password: hunter2-Tr0ub4dor rest",
    "password=[SECRET_1]x9!kkR4z8",
    "Authorization: Bearer abcdefghijklmnop1234567890ABCDEF",
    "postgres://u:pa55w0rd!@h/db",
    f"mail {ADA},{BOB};{ADA} [EMAIL_1]{ADA}[EMAIL_7]",
    f'{{"password": "hunter2-Tr0ub4dor", "email": "{BOB}"}}',
    "tel 13912345670/13912345671",
)


@pytest.fixture
def db(store_url: str, tmp_path: Path) -> str:
    return prepare(store_url, tmp_path)


def opened(db: str, **how: Any) -> refold.SessionStore:
    return refold.open(db, policy=NUMBERED, **how)


def session_of(store: refold.SessionStore, name: str = "s") -> refold.Session:
    return store.session(user_id="ada", session_id=name)


@pytest.mark.each_engine
def test_later_findings_get_the_numbers_of_later_appends(db: str) -> None:
    with refold.open(db, redactor=unaware()) as store:
        session_of(store).append(
            user_inputs(f"{ADA} wrote", f"{BOB} and {ADA}", "[EMAIL_1]")
        )
    with opened(db) as store:
        (report,) = store.reredact()
        session_of(store).append(user_inputs(f"now {BOB}"))
        assert report.applied is not None
        assert texts(session_of(store)) == [
            "[EMAIL_2] wrote",
            "[EMAIL_3] and [EMAIL_2]",
            "[EMAIL_1]",
            "now [EMAIL_3]",
        ]
        assert texts(session_of(store), reveal=True)[2:] == ["[EMAIL_1]", f"now {BOB}"]
        assert [v.problems for _, v in store.verify()] == [[]]
        assert [rechecked.exposures for rechecked in store.recheck()] == [[]]


def test_placeholders_in_values_from_the_caller_reveal_nothing(db: str) -> None:
    with opened(db) as store:
        session = session_of(store)
        session.append(user_inputs(f"I am {ADA}"))
        text = "[EMAIL_1] likes tea"
        handed: list[Any] = [{"memory": [text]}, {"evidence": [text]}, {"system": text}]
        for parts in handed:
            view = session.context(KEEP, reveal=True, **parts)
            assert "[~EMAIL_1] likes tea" in str((view.system, view.messages))
        view = session.context(KEEP, state={"guest": "[EMAIL_1]"})
        assert "[EMAIL_1]" in str(view.messages)


def texts(session: refold.Session, *, reveal: bool = False) -> list[str]:
    view = session.context(KEEP, reveal=reveal)
    return [
        block["text"] for block in blocks_of(view.messages) if block["type"] == "text"
    ]


def payload(event: refold.Envelope) -> Any:
    return event.payload


def user_inputs(*texts: str) -> list[refold.UserInput]:
    return [refold.UserInput(text=text) for text in texts]


@pytest.mark.each_engine
def test_a_value_has_one_number_in_a_session_across_restarts(db: str) -> None:
    with opened(db) as store:
        session_of(store).append(user_inputs(f"from {ADA} to {BOB}"))
    with opened(db) as store:
        session = session_of(store)
        session.append(
            user_inputs(f"again {BOB}", "and eve@example.org, Ada@Example.org")
        )

        stored = [payload(event).text for event in session.events()]

    assert stored == [
        "from [EMAIL_1] to [EMAIL_2]",
        "again [EMAIL_2]",
        # Another letter case is another spelling of the same value.
        "and [EMAIL_3], [EMAIL_1.2]",
    ]


def test_a_placeholder_reveals_the_spelling_that_it_replaced(db: str) -> None:
    with opened(db) as store:
        session = session_of(store)
        first = ["Call 13812345678", f"{ADA} wrote"]
        session.append(user_inputs(*first))
        assert texts(session, reveal=True) == first

        later = ["Call 138 1234 5678", f"{ADA.title()} wrote", "Call 13812345678"]
        session.append(user_inputs(*later))

        assert texts(session, reveal=True) == [*first, *later]
        assert texts(session)[0] == texts(session)[4] == "Call [PHONE_1]"


EVERY_TYPE = personal_types() | SECRET_TYPES


@pytest.mark.parametrize("first", ["postgres://app:{url}@db/shop", "token={base64}"])
def test_a_secret_has_one_number_in_all_encodings(db: str, first: str) -> None:
    secret = 'Tr0ub4&dor"x77'
    spelled = {
        "url": quote(secret, safe=""),
        "base64": b64encode(secret.encode()).decode(),
        "json": json.dumps(secret)[1:-1],
    }
    with opened(db, vault=Vault(types=EVERY_TYPE)) as store:
        session = session_of(store)
        written = [
            first.format(**spelled),
            f"password is {secret}",
            f"postgres://app:{spelled['url']}@db/shop",
            json.dumps({"n": 1, "password": secret}),
            json.dumps({"text": json.dumps({"password": secret})}),
            f"password is {secret}",
        ]
        for text in written:
            session.append(user_inputs(text))

        assert texts(session, reveal=True) == written
        stored = "".join(texts(session))
        assert len(set(re.findall(r"\[([A-Z_]+_[0-9]+)", stored))) == 1
        assert not any(text in stored for text in (secret, *spelled.values()))
        assert session.verify().problems == []
        assert [rechecked.exposures for rechecked in store.recheck()] == [[]]


def test_equal_secrets_of_two_types_have_one_placeholder(db: str) -> None:
    secret = "q7Zt0Kx3Vb9Lm2Np5Rs8Wd1Y"
    with opened(db) as store:
        session = session_of(store)
        session.append(user_inputs(f"Authorization: Bearer {secret} token={secret}"))

        assert texts(session) == [
            "Authorization: Bearer [AUTH_TOKEN_1] token=[AUTH_TOKEN_1]"
        ]


def test_a_number_is_revealed_as_a_number(db: str) -> None:
    values: dict[str, Any] = {"pin": 4821, "phone": 13812345678.0, "n": 7}
    text = json.dumps({"inner": json.dumps(values), **values}, indent=1)
    with opened(db, vault=Vault(types=EVERY_TYPE)) as store:
        session = session_of(store)
        call = refold.ToolCall(call_id="c", tool_name="t", arguments=values)
        session.append(user_inputs(text, "pin: 4821"))
        session.append([refold.AgentResponse(text="I call"), call])
        view = session.context(KEEP, reveal=True)

        assert texts(session, reveal=True)[:2] == [text, "pin: 4821"]
        assert json.loads(texts(session)[0])["pin"].startswith("[SECRET_")
        assert "4821" not in "".join(texts(session))
        assert view.messages[1]["content"][1]["input"] == values


NESTED = json.dumps({"b": json.dumps({"pin": 4821, "password": 'q"x7Zt0Kx'})})


@pytest.mark.parametrize(
    "text",
    [
        '{"pin": 4821, "x": 1.10}',
        '{"phone": -13812345678, "phones": [-13812345678, 13912345670]}',
        "out: {'pin': 4821, 'password': 'bear-77Qx!9'}",
        "out: {'phone': -13812345678}",
        json.dumps({"a": "out: {'pin': 4821}"}),
        json.dumps({"a": 'out: {"phones": [13812345678, 13912345671, 1]}'}),
        json.dumps({"a": f"out: {NESTED}"}),
        json.dumps({"a": json.dumps({"c": f"out: {NESTED}"})}),
    ],
)
def test_a_number_has_one_number_wherever_it_stands_in_json(db: str, text: str) -> None:
    with opened(db, vault=Vault(types=EVERY_TYPE)) as store:
        session = session_of(store)
        session.append(user_inputs(text))

        (stored,) = texts(session)
        assert texts(session, reveal=True) == [text]
        # No number is left out, and the first spelling has no suffix.
        for kind in ("PHONE", "SECRET"):
            numbers = set(re.findall(rf"\[{kind}_([0-9.]+)\]", stored))
            assert numbers == {str(number + 1) for number in range(len(numbers))}
        assert NUMBERS_IN_JSON.search(stored) is None


NUMBERS_IN_JSON = re.compile("4821|13[89]12345")


@pytest.mark.parametrize(
    ("written", "revealed"),
    [
        ("4821", 4821),
        ("1e+22", 1e22),
        ("48215", 48215),
        ("36893488147419103232", 36893488147419103232),
        ("1.50", "1.50"),
        ("1e5", "1e5"),
        ("007", "007"),
    ],
)
def test_a_number_is_revealed_with_all_its_characters(
    written: str, revealed: object
) -> None:
    stream = StreamId("ada", "s")
    numbering = Numbering(lambda: b"k" * 32, "s", {}, EVERY_TYPE)
    first_tag = numbering("SECRET", written)
    tag = numbering.respelled(first_tag, written, is_number=True)
    stored = numbering.with_numbers(f"[REDACTED:SECRET#{tag}]", ours=False)
    vault = Vault(types=EVERY_TYPE)
    vault.put(stream, numbering.values)

    def shown(value: Any) -> Any:
        return vault.reveal(stream, numbering.known, value).value

    assert shown({"pin": stored}) == {"pin": revealed}
    assert type(shown(stored)) is type(revealed)
    for quote_of_text in ('"', "'", '\\"'):
        text = f"pin: {quote_of_text}{stored}{quote_of_text}"
        assert shown(text) == f"pin: {written}"


def test_numbers_of_earlier_versions_stay(db: str) -> None:
    # Earlier versions gave each encoding its own number.
    secret = "Tr0ub4&dor!x"
    redactor = Redactor(NUMBERED.plan())
    kinds = redactor.plan.numbered_types
    numbering = Numbering(lambda: b"k" * 32, "s", {}, kinds)
    for number, spelling in enumerate((secret, quote(secret, safe="")), start=1):
        entry = f"SECRET:{numbering('SECRET', spelling)}"
        numbering.known = {
            name: at for name, at in numbering.known.items() if at < number
        } | {entry: number}

    again = Numbering(lambda: b"k" * 32, "s", numbering.known, kinds)
    tags = [again("SECRET", text) for text in (secret, quote(secret, safe=""))]

    texts_with_tags = " ".join(f"[REDACTED:SECRET#{tag}]" for tag in tags)
    assert again.with_numbers(texts_with_tags, ours=False) == "[SECRET_1] [SECRET_2]"
    assert again.known == numbering.known


SECRETS = st.text(
    st.characters(codec="utf-8", categories=("L", "N", "P", "S")), min_size=6
).map(lambda text: f"aB3{text}7Z")


@given(st.lists(SECRETS, min_size=1, max_size=3), st.data())
def test_every_encoding_is_revealed_in_its_original_spelling(
    secrets: list[str], data: st.DataObject
) -> None:
    store = refold.open("memory://", policy=NUMBERED, vault=Vault(types=EVERY_TYPE))
    session = session_of(store)
    written: list[str] = []
    for secret in secrets:
        forms = [
            json.dumps({"password": secret}),
            json.dumps({"password": secret}, ensure_ascii=False),
            json.dumps({"a": json.dumps({"password": secret, "pin": 4821})}),
            f"postgres://app:{quote(secret, safe='')}@db/shop",
            f'password="{secret}"',
        ]
        written += data.draw(st.lists(st.sampled_from(forms), max_size=4))
    for text in ["hello", *written]:
        session.append(user_inputs(text))

    assert texts(session, reveal=True) == ["hello", *written]
    store.close()


@pytest.mark.each_engine
def test_two_writers_never_use_a_number_twice(db: str) -> None:
    with opened(db) as store, opened(db) as other_store:
        first = session_of(store)
        second = session_of(other_store)
        first.append(user_inputs("hello"))
        second.append(user_inputs("hello"))
        first.append(user_inputs(f"mine {ADA}"))
        second.append(user_inputs(f"mine {BOB}"))
        first.append(user_inputs(f"both {ADA} {BOB}"))

        stored = [payload(event).text for event in first.events(after=2)]

        assert stored == [
            "mine [EMAIL_1]",
            "mine [EMAIL_2]",
            "both [EMAIL_1] [EMAIL_2]",
        ]
        assert texts(second, reveal=True)[-1] == f"both [EMAIL_1] {BOB}"


def test_numbers_stay_when_keys_are_replaced(db: str) -> None:
    with opened(db) as store:
        session = session_of(store)
        session.append(user_inputs(f"from {ADA}"))
        store.keys.rotate_session("ada", session_id="s")
        store.keys.rotate_user("ada")
        session.append(user_inputs(f"{BOB} to {ADA}"))

        assert payload(session.events()[-1]).text == "[EMAIL_2] to [EMAIL_1]"
        assert not session.verify().problems


def test_a_recomputed_head_never_uses_a_number_twice(db: str) -> None:
    with opened(db) as store:
        session_of(store).append(user_inputs(f"from {ADA} to {BOB}"))
    tamper(db, "DELETE FROM @heads WHERE session_id='s' AND stream='main'")
    with opened(db) as store:
        list(store.repair(apply=True))
        session = session_of(store)
        session.append(user_inputs(f"again {BOB}"))

        assert payload(session.events()[-1]).text == "again [EMAIL_3]"
        assert texts(session, reveal=True)[0] == "from [EMAIL_1] to [EMAIL_2]"


def test_an_import_continues_the_numbers(db: str) -> None:
    with opened(db) as store:
        session = session_of(store)
        drafts = [
            refold.Draft(
                refold.UserInput(text=text),
                meta=Meta.of({"source": {"format": "x", "n": n}}),
            )
            for n, text in enumerate((f"from {ADA}", f"to {BOB}"))
        ]
        for _ in range(2):
            extend(session, drafts, where="x")
        session.append(user_inputs(f"{BOB}, eve@example.org"))

        stored = [payload(event).text for event in session.events()]

    assert stored == ["from [EMAIL_1]", "to [EMAIL_2]", "[EMAIL_2], [EMAIL_3]"]


def test_a_retry_with_its_key_is_the_same_append(db: str) -> None:
    with opened(db) as store:
        session = session_of(store)
        session.append(user_inputs(f"to {ADA}"), idempotency_key="k")

        assert session.append(user_inputs(f"to {ADA}"), idempotency_key="k").duplicate


def test_a_placeholder_in_input_never_resolves(db: str) -> None:
    with opened(db) as store:
        session = session_of(store)
        session.append(
            user_inputs(f"I am {ADA}", "send all to [EMAIL_1] and [EMAIL_2]")
        )
        session.append(user_inputs(f"and {BOB}; see [FIGURE_1], [~EMAIL_1]"))

        assert texts(session, reveal=True) == [
            f"I am {ADA}",
            "send all to [~EMAIL_1] and [~EMAIL_2]",
            f"and {BOB}; see [FIGURE_1], [~EMAIL_1]",
        ]


def test_a_call_and_its_result_keep_one_id_that_looks_like_a_placeholder(
    db: str,
) -> None:
    with opened(db) as store:
        session = session_of(store)
        session.append(user_inputs(f"I am {ADA}"))
        call = refold.ToolCall(call_id="c[EMAIL_1]", tool_name="t", arguments={})
        session.append([refold.AgentResponse(text=""), call])
        session.append(refold.ToolResult(call_id="c[EMAIL_1]", content="[EMAIL_1]"))

        assert session.history.open_calls() == []
        assert session.verify().problems == []
        assert "[~EMAIL_1]" in [*session.events()][-1].model_dump_json()


@pytest.mark.parametrize("alike", ["[SECRET_1]", "[~SECRET_1]"])
def test_a_secret_that_looks_like_a_placeholder_is_still_redacted(
    db: str, alike: str
) -> None:
    with opened(db) as store:
        session = session_of(store)
        session.append(user_inputs(f"password={alike}x9!kkR4z8"))

        assert payload(session.events()[0]).text == "password=[~SECRET_1][SECRET_1]"


def test_numbers_stay_the_same_in_a_second_pass() -> None:
    redactor = Redactor(NUMBERED.plan())
    kinds = redactor.plan.numbered_types
    for text in HARD:
        first = Numbering(lambda: b"k" * 32, "s", {}, kinds)
        once = first.with_numbers(redactor.text(text, tag=first)[0], ours=False)
        again = Numbering(lambda: b"k" * 32, "s", first.known, kinds)

        twice = again.with_numbers(redactor.text(str(once), tag=again)[0], ours=True)

        assert (twice, again.known) == (once, first.known)


def test_no_json_in_a_result_hides_a_placeholder(db: str) -> None:
    with opened(db) as store:
        session = session_of(store)
        session.append(user_inputs(f"I am {ADA}"))
        call = refold.ToolCall(call_id="c", tool_name="read", arguments={})
        hidden = f'{{"a": "\\u005bEMAIL_1]", "b": "{BOB}", "[EMAIL_1]": 1}}'
        result = refold.ToolResult(call_id="c", content=hidden)
        session.append([call, result])

        revealed = str(session.context(KEEP, reveal=True).messages[1:])

    assert ADA not in revealed
    assert BOB in revealed


def test_a_value_in_a_response_gets_the_same_placeholder(db: str) -> None:
    vault = Vault(arguments={"mail": ["EMAIL"]})
    with opened(db, vault=vault) as store:
        session = session_of(store)
        session.append(user_inputs(f"I am {ADA}"))
        session.append(refold.AgentResponse(text=f"{ADA} or [EMAIL_1], not [EMAIL_9]"))
        wanted: dict[str, Any] = {"to": "[EMAIL_1]", "cc": [ADA, "[EMAIL_9]"]}

        recorded = payload(session.events()[-1]).text

        assert recorded == "[EMAIL_1] or [EMAIL_1], not [~EMAIL_9]"
        assert session.vault.reveal(wanted, tool="mail") == {
            "to": ADA,
            "cc": [ADA, "[EMAIL_9]"],
        }
        assert session.vault.reveal(wanted, tool="search")["to"] == "[EMAIL_1]"


def test_arguments_reveal_only_the_types_that_a_tool_may_have(db: str) -> None:
    vault = Vault(arguments={"*": ["PHONE"]})
    with opened(db, vault=vault) as store:
        session = session_of(store)
        session.append(user_inputs(f"{ADA}, call 139-1234-5670"))

        revealed = session.vault.reveal({"a": "[EMAIL_1]", "b": "[PHONE_1]"}, tool="x")

    assert revealed == {"a": "[EMAIL_1]", "b": "139-1234-5670"}


def test_a_placeholder_resolves_only_where_it_was_issued(db: str) -> None:
    with opened(db) as store:
        parent = session_of(store)
        parent.append(user_inputs(f"I am {ADA}"))
        fork = parent.fork(1, session_id="fork")
        fork.append(user_inputs(f"meet {BOB}"))
        other = session_of(store, "other")
        other.append(user_inputs("nothing"))

        assert texts(fork, reveal=True) == ["I am [EMAIL_1]", f"meet {BOB}"]
        assert payload(fork.events()[-1]).text == "meet [EMAIL_2]"
        assert other.vault.reveal({"a": "[EMAIL_1]"}, tool="x") == {"a": "[EMAIL_1]"}
        assert texts(parent, reveal=True) == [f"I am {ADA}"]


def test_a_placeholder_without_its_value_is_shown_unchanged(db: str) -> None:
    with opened(db) as store:
        session_of(store).append(user_inputs(f"I am {ADA}"))
    with opened(db) as store:
        session = session_of(store)

        assert texts(session, reveal=True) == ["I am [EMAIL_1]"]

        session.append(user_inputs(f"again {ADA}"))

        assert texts(session, reveal=True) == [f"I am {ADA}", f"again {ADA}"]


def test_closing_and_erasing_remove_the_values(db: str) -> None:
    with opened(db, vault=(vault := Vault())) as store:
        for name in ("a", "b"):
            session_of(store, name).append(user_inputs(f"I am {ADA}"))
        session_of(store, "a").end()

        assert len(vault) == 1

        store.erase("ada", "asked for it")

        assert len(vault) == 0


def test_a_secret_is_kept_only_if_the_policy_names_it(db: str) -> None:
    text = "password: hunter2-Tr0ub4dor, " + ADA
    for types, size in ((None, 1), ({"SECRET"}, 1)):
        vault = Vault() if types is None else Vault(types=types)
        with opened(db, vault=vault) as store:
            session = session_of(store)
            session.append(user_inputs(text))

            revealed = texts(session, reveal=True)[-1]

        assert len(vault) == size
        assert ("hunter2" in revealed, ADA in revealed) == (bool(types), not types)


def test_a_vault_is_bounded_and_drops_the_least_recently_used_value() -> None:
    stream = StreamId("ada", "s")
    vault = Vault(most=2, most_bytes=20)
    vault.put(stream, {"EMAIL:a": "1", "EMAIL:b": "2"})
    vault.get(stream, "EMAIL:a")
    vault.put(stream, {"EMAIL:c": "3"})

    assert [vault.get(stream, f"EMAIL:{n}") for n in "abc"] == ["1", None, "3"]

    vault.put(stream, {"EMAIL:d": "x" * 20})

    assert [vault.get(stream, f"EMAIL:{n}") for n in "acd"] == [None, None, "x" * 20]
    with pytest.raises(TypeError, match="stays in memory"):
        pickle.dumps(vault)


def test_a_request_counts_revealed_values_without_the_values(db: str) -> None:
    with opened(db) as store:
        session = session_of(store)
        session.append(user_inputs(f"{ADA}, {BOB}, 139-1234-5670"))
        plain = session.context(KEEP)
        revealed = session.context(KEEP, reveal=True)
        session.record_request(revealed)

        request = payload(session.events()[-1])

        assert (revealed.digest, revealed.tokens) == (plain.digest, plain.tokens)
        assert request.digest == plain.digest
        assert request.revealed == {"EMAIL": 2, "PHONE": 1}
        assert re.fullmatch("[0-9a-f]{64}", request.revealed_mac)
        assert request.revealed_mac == revealed.revealed_mac
        assert not session.verify().problems


def test_values_that_the_caller_adds_reveal_nothing(db: str) -> None:
    with opened(db) as store:
        session = session_of(store)
        session.append(user_inputs(f"I am {ADA}"))

        view = session.context(KEEP, reveal=True, evidence=["write to [EMAIL_1]"])

    assert str(view.messages).count(ADA) == 1


def test_placeholders_of_another_session_are_marked(db: str) -> None:
    layers = "turn_window:layers.user=true"
    with opened(db) as store:
        first = session_of(store, "one")
        other = session_of(store, "other")
        first.append(refold.StateUpdate(set={"user:mail": ADA}))
        other.append(user_inputs(f"I am {BOB}"))

        view = other.context(layers, reveal=True)

    assert "[~EMAIL_1]" in str(view.messages)
    assert str(view.messages).count(BOB) == 1


def test_arguments_named_as_signed_data_are_redacted_too(db: str) -> None:
    with opened(db) as store:
        session = session_of(store)
        arguments: dict[str, Any] = {"data": "x", "signature": "y", "to": ADA}
        session.append(refold.ToolCall(call_id="c", tool_name="t", arguments=arguments))

        assert payload(session.events()[-1]).arguments["to"] == "[EMAIL_1]"


def test_a_capture_reveals_values_to_the_model_and_its_tools(
    db: str, api: MessagesApi
) -> None:
    call = tool_use("mail", {"to": "[EMAIL_1]", "cc": BOB}, call_id="t-1")
    api.reply(message(call))
    with opened(db, vault=Vault(arguments={"mail": ["EMAIL"]})) as store:
        session = session_of(store)
        client = api.client(max_retries=0)
        ask = Capture(client, session, model="claude-x", max_tokens=99)

        answer: Any = ask.create(f"I am {ADA}")

        assert ADA in str(api.requests[0].body["messages"])
        assert answer.content[0].input == {"to": ADA, "cc": BOB}
        stored = str([event.to_json() for event in session.events()])
        assert ADA not in stored
        assert BOB not in stored
        assert payload(session.events()[1]).revealed == {"EMAIL": 1}
        assert payload(session.events()[-1]).arguments == {
            "to": "[EMAIL_1]",
            "cc": "[EMAIL_2]",
        }
        assert not session.verify().problems


def test_a_summary_keeps_the_numbers(db: str) -> None:
    with opened(db) as store:
        session = session_of(store)
        for turn in range(6):
            session.append(user_inputs(f"turn {turn}: write to {ADA}"))
            session.append(refold.AgentResponse(text=f"wrote to {ADA}"))
        window = "turn_window:full_turns=1,cached_turns=1"
        session.prepare(window)

        names = session.history.streams()
        stored = str(
            [entry.payload for name in names for entry in session.history.derived(name)]
        )

        assert ADA not in stored
        assert "~EMAIL" not in stored
        assert ADA in str(session.context(window, reveal=True).messages)


@pytest.mark.parametrize("more", ["pseudonyms = true\n", '[labels]\nEMAIL = "mail"\n'])
def test_a_policy_has_one_kind_of_placeholder(more: str) -> None:
    with pytest.raises(PolicyError, match="numbered"):
        Policy.parse(f"version = 1\nnumbered = true\n{more}")


def test_no_byte_on_disk_has_a_value_of_the_vault(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    db = f"sqlite:///{tmp_path / 'r.db'}"
    keys = f"sqlite:///{tmp_path / 'keys.db'}"
    with opened(db, keys=keys, access_log="table") as store:
        session = session_of(store)
        session.append(user_inputs(f"I am {ADA}, call 139-1234-5670"))
        for _ in range(4):
            session.append(refold.AgentResponse(text=f"hello {ADA}"))
            session.append(user_inputs(f"write to {ADA}"))
        view = session.prepare("turn_window:full_turns=1,cached_turns=1")
        session.record_request(session.vault.reveal_view(view))
        store.export_user("ada", tmp_path / "export")
        revealed = session.vault.reveal_view(view)
        shown = f"{store!r} {session!r} {session.writer!r} {revealed!r}"

        data = b"".join(path.read_bytes() for path in files(tmp_path))

        assert ADA in str(session.vault.reveal_view(view).messages)
        assert (tmp_path / "r.db-wal").exists()
    for word in (ADA, "139-1234-5670", "13912345670"):
        assert word.encode() not in data
        assert word not in shown + caplog.text


def files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


SEALED = Policy.parse(
    'version = 1\nnumbered = true\n[vault]\ntypes = ["EMAIL"]\ndays = 30\n'
)


@pytest.mark.each_engine
def test_a_kept_value_is_revealed_after_a_restart(db: str) -> None:
    with refold.open(db, policy=SEALED) as store:
        session_of(store).append(user_inputs(f"I am {ADA}, call 139-1234-5670"))

    with refold.open(db, policy=SEALED) as store:
        session = session_of(store)

        assert texts(session, reveal=True) == [f"I am {ADA}, call [PHONE_1]"]
        assert texts(session) == ["I am [EMAIL_1], call [PHONE_1]"]
        assert session.prepare(KEEP, reveal=True).revealed == {"EMAIL": 1}
        assert not session.verify().problems
    with refold.open(db, policy=NUMBERED) as store:
        assert ADA not in str(texts(session_of(store), reveal=True))


@pytest.mark.each_engine
@pytest.mark.parametrize("goes", ["end", "erase", "policy"])
def test_a_kept_value_is_removed_at_the_end_by_erasure_or_by_policy(
    db: str, goes: str
) -> None:
    with refold.open(db, policy=SEALED) as store:
        session = session_of(store)
        session.append(user_inputs(f"I am {ADA}"))
        if goes == "end":
            session.end()
        elif goes == "erase":
            store.erase("ada", "asked", session_id="s")
            session = session_of(store, "other")
            session.append(user_inputs("[EMAIL_1]"))
    with refold.open(db, policy=NUMBERED if goes == "policy" else SEALED) as store:
        if goes == "policy":
            session_of(store).append(user_inputs("more"))
        name = "other" if goes == "erase" else "s"
        assert store.log.head(StreamId("ada", name, "main")).state.kept == {}
        assert ADA not in str(texts(session_of(store, name), reveal=True))


@pytest.mark.each_engine
def test_a_kept_value_that_is_too_old_is_not_revealed_and_is_swept(db: str) -> None:
    with refold.open(db, policy=SEALED) as store:
        session_of(store).append(user_inputs(f"I am {ADA}"))
    with refold.open(db, policy=SEALED) as store:
        clock = Clock()
        clock.time = datetime.now(UTC) + timedelta(days=29)
        later = clocked(store, clock)
        session = session_of(later)
        assert ADA in str(texts(session, reveal=True))
        clock.time += timedelta(days=2)

        assert ADA not in str(texts(session, reveal=True))
        assert session.head().state.kept
        later.erasures.retain(refold.RetentionPolicy(audit=None))

        assert not session.head().state.kept
        assert not session.verify().problems


def test_a_session_keeps_at_most_500_values(db: str) -> None:
    with refold.open(db, policy=SEALED) as store:
        session = session_of(store)
        for at in range(0, 600, 60):
            mails = [f"p{n}@example.org" for n in range(at, at + 60)]
            session.append(user_inputs(" ".join(mails)))

        values = {value for value, _ in session.head().state.kept.values()}

        assert len(values) == 500
        assert values > {f"p{n}@example.org" for n in range(160, 600)}


def test_no_byte_and_no_export_has_a_kept_value_in_clear(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    keys = f"sqlite:///{tmp_path / 'keys.db'}"
    url = f"sqlite:///{tmp_path / 'r.db'}"
    with refold.open(url, policy=SEALED, keys=keys, access_log="table") as store:
        session = session_of(store)
        session.append(user_inputs(f"I am {ADA}"))
        child = session.fork(1, session_id="fork")
        other = session.delegation.begin(f"write to {ADA}", session_id="helper")
        store.export_user("ada", tmp_path / "export")
        assert next(store.recheck("ada")).exposures == []
        [*store.repair(apply=True)]

        data = b"".join(path.read_bytes() for path in files(tmp_path))
        assert ADA in str(texts(session, reveal=True))
        assert ADA not in str(texts(child, reveal=True))
        assert child.head().state.kept == {}
        assert ADA in str(texts(other, reveal=True))
        shown = f"{session.head()!r} {session!r}"
    assert ADA.encode() not in data
    assert ADA not in shown + caplog.text


@pytest.mark.parametrize(
    ("more", "wrong"),
    [
        ('[vault]\ntypes = ["EMAIL"]\n', "numbered"),
        ('numbered = true\n[vault]\ntypes = ["MAIL"]\n', "no type MAIL"),
    ],
)
def test_the_values_that_a_policy_keeps_are_checked(more: str, wrong: str) -> None:
    with pytest.raises(PolicyError, match=wrong):
        Policy.parse(f"version = 1\n{more}")


def test_a_capture_has_a_vault_by_default(db: str, api: MessagesApi) -> None:
    api.reply(message(f"I write to {ADA}."), message("done"))
    with refold.open(db) as store, api.client(max_retries=0) as client:
        session = session_of(store)
        ask = Capture(client, session, model="x", max_tokens=99)
        ask.create(f"I am {ADA}, the key is ghp_{'a1B2' * 9}")
        ask.create("Again.")

        sent = [str(request.body["messages"]) for request in api.requests]
        assert ADA in sent[0]
        assert ADA in sent[1]
        assert "a1B2" not in str(sent)
        assert ADA not in str([event.to_json() for event in session.events()])
        assert "[EMAIL_1]" in payload(session.events()[0]).text
        session.append(user_inputs(f"beside it {BOB}"))
        assert payload(session.events()[-1]).text == "beside it [REDACTED:EMAIL]"


def test_arguments_of_a_stream_are_revealed_and_recorded_unrevealed(
    db: str, api: MessagesApi
) -> None:
    call = tool_use("mail", {"to": "[EMAIL_1]"}, call_id="t-1")
    api.reply(message(call), message(call | {"id": "t-2"}))
    with opened(db, vault=Vault(arguments={"mail": ["EMAIL"]})) as store:
        session = session_of(store)
        session.append(user_inputs(f"I am {ADA}"))
        options: dict[str, Any] = {"model": "x", "max_tokens": 99}
        with (
            api.client() as client,
            Capture(client, session, **options).stream() as stream,
        ):
            answer: Any = stream.get_final_message()
        assert answer.content[0].input == {"to": ADA}
        result = refold.ToolResult(call_id="t-1", content="sent")
        session.append(result)
        again = asyncio.run(request_body(api, session, options))
        assert again.content[0].input == {"to": ADA}
        calls: list[Any] = [
            event.payload for event in session.events() if event.type == "tool_call"
        ]
        assert [call.arguments for call in calls] == [{"to": "[EMAIL_1]"}] * 2
        assert not session.verify().problems


async def request_body(api: MessagesApi, session: refold.Session, how: Any) -> Any:
    async with (
        api.async_client() as client,
        AsyncCapture(client, session, **how).stream() as stream,
    ):
        return await stream.get_final_message()


MAILS = [f"{name}@example.org" for name in ("ada", "bob", "eve", "kim")]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["user", "model", "typed", "restart", "fork"]),
            st.sampled_from(MAILS),
        ),
        max_size=12,
    )
)
def test_one_value_has_one_number_and_only_its_session_reveals_it(
    steps: list[tuple[str, str]],
) -> None:
    store = refold.open("memory://", policy=SEALED)
    session = session_of(store)
    written = ["hello"]
    session.append(user_inputs("hello"))
    for number, (step, mail) in enumerate(steps):
        if step == "restart":
            store.writer.vault.forget("ada")
        elif step == "fork":
            child = session.fork(session.head().seq, session_id=f"f{number}")
            for mail_address in MAILS:
                assert mail_address not in str(texts(child, reveal=True))
        elif step == "typed":
            session.append(user_inputs("I type [EMAIL_1] and [EMAIL_2]"))
            written.append("I type [~EMAIL_1] and [~EMAIL_2]")
        elif step == "model":
            session.append(refold.AgentResponse(text=f"I write to {mail}"))
            written.append(f"I write to {mail}")
        else:
            session.append(user_inputs(f"I am {mail}"))
            written.append(f"I am {mail}")
    shown = "\n".join(texts(session, reveal=True))
    stored = "\n".join(texts(session))
    assert shown == "\n".join(written)
    order = list(dict.fromkeys(re.findall(r"[a-z]+@example\.org", shown)))
    for number, mail in enumerate(order, start=1):
        shown = shown.replace(mail, f"[EMAIL_{number}]")
    assert stored == shown
    assert not session.verify().problems
    store.close()


def test_a_restarted_loop_always_sends_a_valid_request(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    db = f"sqlite:///{tmp_path / 'r.db'}"
    random = Random(7)  # no secret
    thorough = pytestconfig.getoption("hypothesis_profile") == "thorough"
    strategy = "turn_window:full_turns=2,cached_turns=1"
    for _ in range(1_000 if thorough else 60):
        with refold.open(db, policy=SEALED) as store:
            session = session_of(store)
            waiting = session.history.open_calls() if store.sessions("ada") else []
            for call in waiting:  # open when the loop died
                content = f"done for {random.choice(MAILS)}"
                session.append(refold.ToolResult(call_id=call.call_id, content=content))
            for _ in range(random.randrange(1, 4)):
                session.append(user_inputs(f"Write to {random.choice(MAILS)}. " * 8))
                view = session.prepare(strategy, reveal=True)
                assert violations(view.messages) == []
                session.record_request(view)
                name = f"c{session.head().seq}"
                arguments: Any = {"to": random.choice(MAILS)}
                call = refold.ToolCall(call_id=name, tool_name="t", arguments=arguments)
                text = f"I write to {random.choice(MAILS)}."
                session.append([refold.AgentResponse(text=text), call])
                if random.random() < 0.4:
                    break  # it dies between the call and its result
                session.append(refold.ToolResult(call_id=name, content="sent"))
                session.append(refold.AgentResponse(text="done"))
    with refold.open(db, policy=SEALED) as store:
        assert not session_of(store).verify().problems
        assert not any(
            mail in event.model_dump_json()
            for mail in MAILS
            for event in session_of(store).events()
        )
