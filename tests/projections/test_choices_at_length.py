"""A message that chooses an option is shown with it, however long the message is.

The labelled messages are made up.  Half of them only look like a choice.
"""

from __future__ import annotations

from typing import Final

import pytest

import refold
from refold.domain.events import AgentResponse, UserInput
from refold.projections.context.choices import may_answer, subject_of
from refold.projections.context.limits import LONGEST_ANSWER, LONGEST_CHOICE
from refold.projections.context.strategies import spec
from tests.projections.test_choices import LETTERS, NUMBERS
from tests.projections.test_protected import STRATEGIES, messages, sent_text

HEADINGS: Final = """\
There are two ways to store it.

### Option A (recommended): one table
One migration, simple queries.

### Option B: a table for each tenant
Slower to deploy.

Which one do you prefer?"""
INLINE: Final = "Should I (A) rewrite the parser or (B) patch the old one?"
CHINESE: Final = """\
有三个方案：
方案A：重写解析器
方案B：修补旧代码
方案C：换一个库

你想用哪个？"""
CHINESE_NUMBERS: Final = """\
可以这样做：
1. 加一个缓存
2. 改成异步
3. 保持不变

选哪个？"""
CHINESE_HEADINGS: Final = "方案一：加锁\n方案二：用队列\n\n你选哪一个？"

A = "A) Silently skip it"
B = "B) Prompt the user"
C = "C) Add a `--force` flag"

# The message, the text of the agent before it, and the words that it is about.
CHOICES: Final = [
    (
        "let's go with A, but please make sure that we log every summary that is "
        "skipped, with its id and the reason.",
        LETTERS,
        A,
    ),
    (
        "Let's go with A because it is the least intrusive, and we can still add the "
        "flag later when somebody needs it.",
        LETTERS,
        A,
    ),
    (
        "Thanks, that is a good overview of the trade-offs. I would pick C. Document "
        "it in the readme and add a test.",
        LETTERS,
        C,
    ),
    (
        "I read through all three and thought about how people run this in CI. Let's "
        "do C, it is explicit there.",
        LETTERS,
        C,
    ),
    (
        "I prefer B over C since most of the people here run it by hand, and they "
        "would never find a flag.",
        LETTERS,
        f"{B}; {C}",
    ),
    (
        "We have had bad experiences with prompts in scripts before, so option C it "
        "is. Please keep the name short.",
        LETTERS,
        C,
    ),
    (
        "Hmm, what would option B do if there is no terminal attached? I would not "
        "want it to hang in a pipeline.",
        LETTERS,
        B,
    ),
    (
        "Do not do option B, I do not want any prompts in this tool, ever. Everything "
        "else you propose is fine.",
        LETTERS,
        B,
    ),
    (
        "A, and please write the skipped ones to the log at info level so that I can "
        "find them afterwards.",
        LETTERS,
        A,
    ),
    (
        "C - but call it `--overwrite`, because `--force` means something else in "
        "the other commands already.",
        LETTERS,
        C,
    ),
    (
        "Both make sense to me. Combine option A and C: skip by default and overwrite "
        "when the flag is there.",
        LETTERS,
        f"{A}; {C}",
    ),
    (
        "The second option is what our users expect, they know it from the other "
        "tools. Please keep the text short.",
        LETTERS,
        B,
    ),
    (
        "Let's go with the last one. It should also work together with the dry run, "
        "so please add a test for that.",
        LETTERS,
        C,
    ),
    (
        "go with b? no: I changed my mind, and my choice is C. Everything else stays "
        "as we discussed it this morning.",
        LETTERS,
        C,
    ),
    (
        "let's go with 2, and wrap the whole thing in a retry, since the database "
        "drops connections now and then.",
        NUMBERS,
        "2. Use a transaction",
    ),
    (
        "Approach 2 is right for us, but keep the transaction short so that it does "
        "not block the nightly job.",
        NUMBERS,
        "2. Use a transaction",
    ),
    (
        "I want the third option, because the callers have the value already and it "
        "costs us nothing to hand it over.",
        NUMBERS,
        "3. Pass it on",
    ),
    (
        "Please implement option 1 first and measure it. If it is slower than before, "
        "go back to what we have.",
        NUMBERS,
        "1. Inline it",
    ),
    (
        "We should start with 1. If the benchmark does not improve we can think about "
        "the others next week.",
        NUMBERS,
        "1. Inline it",
    ),
    (
        "I agree with you about the costs of deploys. Use option A, and write the "
        "migration so that it can be undone.",
        HEADINGS,
        "Option A (recommended): one table",
    ),
    (
        "our tenants must never see each other's rows, so I am going with option B "
        "even if deploys become slower.",
        HEADINGS,
        "Option B: a table for each tenant",
    ),
    (
        "Let's go with B. I know that it is not what you recommend, but legal asked "
        "us for separate tables.",
        HEADINGS,
        "Option B: a table for each tenant",
    ),
    (
        "option 2 please, since we need to be able to drop a tenant quickly when a "
        "contract ends without a long delete",
        HEADINGS,
        "Option B: a table for each tenant",
    ),
    (
        "Let's go with B, we do not have the time for a rewrite before the release, "
        "and the old one works mostly.",
        INLINE,
        "(B) patch the old one",
    ),
    (
        "I would rather take A: the old parser has cost us two weeks already, and "
        "nobody understands it any more.",
        INLINE,
        "(A) rewrite the parser",
    ),
    (
        "ok, let us drop this branch then and begin a new one from main, and there "
        "please add a fix for 2",
        NUMBERS,
        "2. Use a transaction",
    ),
    (
        "Can you explain the difference between the second and third option for "
        "somebody who has never seen this code?",
        NUMBERS,
        "2. Use a transaction; 3. Pass it on",
    ),
    (
        "Address 1 and 3 now. The transaction can wait until we have upgraded the "
        "database, which is planned for May.",
        NUMBERS,
        "1. Inline it; 3. Pass it on",
    ),
    ("就用方案A，记得把迁移脚本也写好。", CHINESE, "方案A：重写解析器"),
    ("我觉得方案B更稳妥，先修补，下个版本再说。", CHINESE, "方案B：修补旧代码"),
    ("不要方案C，我不想再多一个依赖。", CHINESE, "方案C：换一个库"),
    ("选第二个，改完以后跑一遍测试。", CHINESE_NUMBERS, "2. 改成异步"),
    ("我想了一下，还是用第三个方案吧。", CHINESE_NUMBERS, "3. 保持不变"),
    ("性能最重要，选 1，缓存时间设成五分钟。", CHINESE_NUMBERS, "1. 加一个缓存"),
    ("我们之前遇到过死锁，所以用方案二。", CHINESE_HEADINGS, "方案二：用队列"),
    ("好的，就用B吧，别改公共接口。", CHINESE, "方案B：修补旧代码"),
    (
        "Yes, please do that. While you are there, also fix the typo in the header of "
        "the second table of the page.",
        "The docs are out of date.\n\nShould I update them?",
        "Should I update them?",
    ),
    (
        "No, leave the docs alone for now. First I want to see the numbers of the "
        "last run, then we can decide.",
        "The docs are out of date.\n\nShould I update them?",
        "Should I update them?",
    ),
    (
        "I talked to the team, and we would like to use option C, with the flag named"
        " as you said, but only on the new command.",
        LETTERS,
        C,
    ),
    (
        "B it is. People who run this by hand expect to be asked, and scripts can "
        "pass yes on standard input anyway.",
        LETTERS,
        B,
    ),
    (
        "Sounds reasonable. I'd go for A here, since the summary that exists was "
        "reviewed by somebody and should not change.",
        LETTERS,
        A,
    ),
    (
        "My vote is C, as the others hide what happens; document that flag in the "
        "help text as well please.",
        LETTERS,
        C,
    ),
    (
        "approach 3 looks cleanest to me, the value is already there in the caller, "
        "so let us not compute it twice",
        NUMBERS,
        "3. Pass it on",
    ),
    (
        "Could you try number 2 and see if the deadlock goes away? If it does not, "
        "then we will think about it again.",
        NUMBERS,
        "2. Use a transaction",
    ),
    (
        "The first approach is fine for now. Keep in mind that we will have to change"
        " it when the second database arrives.",
        NUMBERS,
        "1. Inline it",
    ),
    (
        "ok, go ahead with option A, and open a ticket for the other one so that we "
        "do not forget about it later on.",
        HEADINGS,
        "Option A (recommended): one table",
    ),
    (
        "Given the deadline I think patching is enough, so (B) please, and leave a "
        "comment that says why we did it so.",
        INLINE,
        "(B) patch the old one",
    ),
    ("还是按方案A来做吧，测试也要一起补上。", CHINESE, "方案A：重写解析器"),
    ("第三个方案最简单，先这样。", CHINESE_NUMBERS, "3. 保持不变"),
    ("我选B。", CHINESE, "方案B：修补旧代码"),
    ("采用方案一，加锁的粒度尽量小。", CHINESE_HEADINGS, "方案一：加锁"),
    ("就选第一个，先把缓存加上。", CHINESE_NUMBERS, "1. 加一个缓存"),
    (
        "Please take option A for the nightly run. For everything else we can think "
        "about it again after the release.",
        LETTERS,
        A,
    ),
    (
        "We discussed it in the meeting and decided on option B, because the support "
        "team does not want any silent behaviour.",
        LETTERS,
        B,
    ),
    (
        "It's not worth more time. Go with 1, and note in the commit message that the"
        " others were considered as well.",
        NUMBERS,
        "1. Inline it",
    ),
    (
        "The third approach would break the plugins that call this function, would it"
        " not? They cannot pass the value.",
        NUMBERS,
        "3. Pass it on",
    ),
    (
        "Option B sounds like more work, but it is what the auditors want to see. "
        "Plan two more days for the migration.",
        HEADINGS,
        "Option B: a table for each tenant",
    ),
    (
        "I'd rather not touch the old code again; start with A and keep the interface"
        " as it is so that nobody notices.",
        INLINE,
        "(A) rewrite the parser",
    ),
    ("方案C听起来不错，但是许可证没问题吗？", CHINESE, "方案C：换一个库"),
    ("走第二种方案，异步化之后再压测一次。", CHINESE_NUMBERS, "2. 改成异步"),
    ("那就A吧，记得更新文档。", CHINESE, "方案A：重写解析器"),
]
REPORT: Final = """\
Done:
1. Fixed the parser
2. Removed the cache

Which part should I do next, or do you prefer a release?"""
PAD: Final = (
    " It has to work on every machine that we support, also on the oldest ones."
)
NO_OPTION: Final = [
    (f"Please use option 0 because it is best.{PAD}", LETTERS),
    (f"就用方案0吧，它最简单。{PAD}", LETTERS),
]
NEAR_MISSES: Final = [
    (
        "Let's go with a simpler approach: keep the file, print a warning, and exit "
        "with a code that scripts can check.",
        LETTERS,
    ),
    (
        "Please take a look at how the other command does this, and do it in the same "
        "way, with the same words.",
        LETTERS,
    ),
    (
        "I want a short summary of the trade-offs in the readme before we decide "
        "anything about this, please.",
        LETTERS,
    ),
    (
        "A test fails on my machine when I run the whole suite. Can you look at it "
        "before we talk about this?",
        LETTERS,
    ),
    (
        "Use A records for the hosts and not aliases, as the other zone does, and set "
        "a short lifetime on them.",
        LETTERS,
    ),
    (
        "The team in building B wants the same feature, so please keep the code "
        "general enough for both of us.",
        LETTERS,
    ),
    (
        "Add a C extension for the hot loop only if the profile says that it is worth "
        "it; I doubt that it is.",
        LETTERS,
    ),
    (
        "The error says `go with A because` in the log, which makes no sense to me. "
        "Where does this text come from?",
        LETTERS,
    ),
    (
        'Our manual says "choose option B" in the second chapter, and that page is '
        "wrong since the last release.",
        LETTERS,
    ),
    (
        "> let's go with A because it is simple\n\nSomebody wrote this in the ticket, "
        "and I do not know what it means.",
        LETTERS,
    ),
    (
        "None of these convince me. Think about what happens if two people run it at "
        "the same time, then come back.",
        LETTERS,
    ),
    (
        "I do not know yet, I have to ask the others first. Please go on with the "
        "tests and the documentation.",
        LETTERS,
    ),
    (
        "Before we choose anything: is the optional argument documented anywhere, and "
        "do the options have defaults?",
        LETTERS,
    ),
    (
        "Please do 2 more runs of the benchmark and show me the median, I do not trust "
        "the first number at all.",
        NUMBERS,
    ),
    (
        "use 3 workers for the import and 2 for the index, more than that would starve "
        "the rest of the machine",
        NUMBERS,
    ),
    (
        "The first test fails and the second one hangs. Both did work yesterday "
        "evening, so look at the last change.",
        NUMBERS,
    ),
    (
        "We need python 3 here, version 2 has been gone for years, and the image does "
        "not even contain it now.",
        NUMBERS,
    ),
    (
        "Set the option 1.5 in the configuration to true, then start the service again "
        "and show me the log.",
        NUMBERS,
    ),
    (
        "1. rename the module\n2. move the tests with it\n3. push it to a branch and "
        "open a pull request for me",
        NUMBERS,
    ),
    (
        "In step 2 of the pipeline there is an error about a missing variable. Set it "
        "in the settings of the job.",
        NUMBERS,
    ),
    (
        "The last commit broke the build, please revert it first and then find out why "
        "nobody saw that coming.",
        REPORT,
    ),
    (
        "I want 2 reviewers on each change from now on, and the second one should not "
        "be from our own team.",
        REPORT,
    ),
    (
        "No tests fail any more, which is great. Go on with the release notes, and "
        "keep them as short as you can.",
        REPORT,
    ),
    (
        "Ok so the parser is fixed. How long does a run take now compared with last "
        "week, on the same machine?",
        REPORT,
    ),
    (
        "Right now it fails in the second stage on the runner, with an error that I "
        "have never seen before.",
        REPORT,
    ),
    (
        "Rename the class to PlanB and the module to plan_b, since this is what the "
        "product is called from now on.",
        HEADINGS,
    ),
    (
        "How do both behave with a hundred tenants and a million rows each? I would "
        "like to see numbers first.",
        HEADINGS,
    ),
    (
        "Grant A and B the same role in the test, so that we notice when one of them "
        "reads the other's rows.",
        HEADINGS,
    ),
    (
        "I do not want to rewrite anything before the release; just tell me why the "
        "old one fails on tabs.",
        INLINE,
    ),
    (
        "Fix 2 tests at a time and push after each of them, otherwise nobody can "
        "review what you have changed there.",
        NUMBERS,
    ),
    (
        "Look at the first and second line of the log, they do not belong to the "
        "same request if I read it correctly.",
        NUMBERS,
    ),
    ("先别动代码，告诉我这个接口现在是谁在用，多久调用一次。", CHINESE),
    ("请用A记录配置域名，不要用别名，有效期设短一点。", CHINESE),
    ("还有没有别的方案？我想先看看性能数据。", CHINESE),
    ("第二个测试失败了，先看看是不是环境的问题。", CHINESE_NUMBERS),
    ("用3个线程跑导入，再多机器就卡住了。", CHINESE_NUMBERS),
    ("第一次运行很慢，第二次就正常了，为什么？", CHINESE_NUMBERS),
    (
        "Which of these have you tried already? I remember that somebody had a "
        "problem with one of them last year.",
        LETTERS,
    ),
    (
        "Do all of the imports at the top of the file, and do not use a star import "
        "anywhere in the package please.",
        LETTERS,
    ),
    (
        "In C we would write this with a macro, but here a small function is clearer."
        " Please keep it in the module.",
        LETTERS,
    ),
    (
        "Start with the 3 failing tests, then look at the 2 that are slow, and report"
        " what you find before any change.",
        NUMBERS,
    ),
    (
        "Please take the second parameter out of the function, nobody passes it, and "
        "adapt the callers and the tests.",
        NUMBERS,
    ),
    (
        "It is fine with 2 workers. With 8 it fails after 1 minute, so there must be "
        "a race in the pool somewhere.",
        NUMBERS,
    ),
    (
        "I prefer a table, but please explain first how the tenants are isolated in "
        "the backups and the replicas.",
        HEADINGS,
    ),
    (
        "The plan A team meets on Friday, so the build has to be green on Thursday "
        "evening at the very latest.",
        HEADINGS,
    ),
    (
        "A parser that fails on tabs is no parser. Why was this never tested, and who"
        " wrote the grammar for it?",
        INLINE,
    ),
    ("这个方案的风险是什么？先列出来。", CHINESE),
    ("选择一个合适的名字，别太长。", CHINESE),
    ("按第二行的格式输出。", CHINESE_NUMBERS),
    ("要2个副本，不要3个。", CHINESE_NUMBERS),
    ("先跑一下测试，看看缓存有没有用。", CHINESE_NUMBERS),
    (
        "So A and the rest of the team will be away next week, please do not wait for"
        " any review from them until Monday.",
        LETTERS,
    ),
    (
        "I want C code in the examples as well, because half of our users do not know"
        " any Python at all, sadly.",
        LETTERS,
    ),
    (
        "Do not use a prompt for anything, people run this in cron, and it would hang"
        " there until somebody kills it.",
        LETTERS,
    ),
    (
        "Then 2 minutes later it crashed again, with the same trace as before. Is "
        "this the same bug or another one?",
        NUMBERS,
    ),
    (
        "Go with the flow of the old code where you can, and do not restructure what "
        "you do not need to touch now.",
        NUMBERS,
    ),
    (
        "There should be one option for each format, and the default option should be"
        " what we have at the moment.",
        HEADINGS,
    ),
    (
        "B2 is the name of the bucket. It is in the other region, so the first "
        "request takes longer than the rest.",
        INLINE,
    ),
    ("方案还没定，先把日志打出来看看。", CHINESE),
    ("A服务器挂了，先重启再说。", CHINESE),
    ("第一步先备份，第二步再迁移。", CHINESE_NUMBERS),
]
# Choices that are not recognized.
# Options that a message rejects are shown, too: both need the text of the option.
MIXED: Final = [
    (f"I don't like A because of the noise; go with B.{PAD}", LETTERS, f"{A}; {B}"),
    (f"Please use anything but option 1.{PAD}", NUMBERS, "1. Inline it"),
    (f"Why not option 2?{PAD}", NUMBERS, "2. Use a transaction"),
    (f"I can't decide so go with B.{PAD}", LETTERS, B),
    (
        f"就用方案一和二吧，它们都很简单。{PAD}",
        CHINESE_HEADINGS,
        "方案一：加锁; 方案二：用队列",
    ),
]
MISSED: Final = [
    (
        "I had a look at the code of the other tools and they all overwrite with a "
        "flag. Pick C and copy their wording.",
        LETTERS,
        C,
    ),
]
_LEAST: Final = 0.9


def test_long_choices_are_recognized_and_near_misses_are_not() -> None:
    recognized = [
        subject_of(text, offer, at_length=True) == subject
        for text, offer, subject in (*CHOICES, *MIXED, *MISSED)
    ]
    mistaken = [
        bool(subject_of(text, offer, at_length=True))
        for text, offer in (*NEAR_MISSES, *NO_OPTION)
    ]

    recall = sum(recognized) / len(recognized)
    precision = sum(recognized) / (sum(recognized) + sum(mistaken))

    assert len(recognized) >= 30
    assert len(mistaken) >= 30
    assert recall >= _LEAST
    assert precision >= _LEAST


@pytest.mark.parametrize(("text", "offer", "subject"), [*CHOICES, *MIXED])
def test_a_choice_has_the_option_that_it_names(
    text: str, offer: str, subject: str
) -> None:
    assert may_answer(text)
    assert subject_of(text, offer, at_length=True) == subject


@pytest.mark.parametrize(("text", "offer"), [*NEAR_MISSES, *NO_OPTION])
def test_a_message_without_a_choice_is_about_nothing(text: str, offer: str) -> None:
    assert subject_of(text, offer, at_length=True) == ""


@pytest.mark.parametrize("spec_text", STRATEGIES)
@pytest.mark.parametrize("is_late", [True, False])
def test_every_compaction_keeps_the_option_that_a_long_message_chose(
    spec_text: str, is_late: bool
) -> None:
    chosen = CHOICES[0][0]
    with refold.open("memory://") as store:
        session = store.session(user_id="ada", session_id="choice")
        session.append([UserInput(text="How?"), AgentResponse(text=LETTERS)])
        session.append([UserInput(text=chosen), AgentResponse(text="I begin.")])
        for _ in range(3):
            session.append(messages(6))
            if not is_late:
                session.prepare(spec_text)

        text = sent_text(session.prepare(spec_text))

    assert len(chosen) > LONGEST_ANSWER
    assert f"[2, in answer to: {A}] {chosen}\n" in text


def test_an_earlier_version_shows_a_long_choice_alone() -> None:
    params = {"full_turns": 1, "cached_turns": 1}
    before = spec.parse({"name": "turn_window", "version": 7, "params": params})
    with refold.open("memory://") as store:
        session = store.session(user_id="ada", session_id="choice")
        session.append([UserInput(text="How?"), AgentResponse(text=LETTERS)])
        session.append([UserInput(text=CHOICES[0][0]), *messages(12)])

        text = sent_text(session.prepare(before))

    assert f"[2] {CHOICES[0][0]}\n" in text


def test_a_document_that_was_pasted_is_no_answer() -> None:
    text = CHOICES[0][0] + " and so on" * (LONGEST_CHOICE // 8)

    assert not may_answer(text)
