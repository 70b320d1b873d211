"""Clean text: English and Chinese prose about programs, and installed Python code."""

from __future__ import annotations

import functools
import random
import re
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

EN_THINGS = (
    "scheduler|parser|connection pool|retry loop|cache|worker|queue|compiler|linker|"
    "index|transaction|snapshot|replica|checkpoint|buffer|iterator|decorator|closure|"
    "context manager|event loop|socket|file descriptor|allocator|garbage collector|"
    "type checker|test runner|fixture|migration|schema|view|trigger|lock|semaphore|"
    "leaky bucket|rate limiter|load balancer|gateway|proxy|resolver|certificate chain|"
    "hash ring|form field|session table|access log|metric|dashboard|alert|trace|"
    "span|exporter|build cache|artifact|container image|volume|namespace|ingress|"
    "config map|object store|feature flag|rollout|canary|backfill|batch job|stream|"
    "partition|consumer group|offset|watermark|window|join|projection|reducer|prompt|"
    "segmenter|embedding table|context window|tool call|transcript|summary|planner"
).split("|")
EN_ACTS = (
    "waits for|copies|invalidates|rebuilds|drops|holds|flushes|reorders|retries|"
    "serialises|validates|rejects|splits|merges|compresses|streams|replays|locks|"
    "releases|schedules|polls|wraps|unwraps|shadows|traces|counts|samples|truncates|"
    "rewrites|parses|escapes|normalises|resolves|caches|evicts|promotes|rotates|signs"
).split("|")
EN_HOW = (
    "lazily|in one pass|on every request|behind a lock|without copying|at start-up|"
    "in the background|only when asked|once per process|after a timeout|in order|"
    "before the commit|as a last resort|under heavy load|for each row|on shutdown"
).split("|")
EN_QUALITIES = (
    "slow|stale|idempotent|bounded|eager|lazy|opaque|immutable|shared|nested|sparse|"
    "dense|noisy|flaky|deterministic|portable|experimental|deprecated|generic|partial|"
    "recursive|monotonic|atomic|durable|ephemeral|redundant|speculative|optional"
).split("|")
EN_SENTENCES = (
    "The {q} {t} {a} the {t2} {h}, which is why the {t3} stays {q2}.",
    "If the {t} is {q}, the {t2} {a} it {h}; otherwise nothing happens.",
    "Since version {v}, a {t} may be {q} — see the notes on the {t2}.",
    "We measured {p}% fewer misses once the {t} {a} the {t2} {h}.",
    "A {t} that {a} its {t2} needs at least {n} MB and {m} threads.",
    "Don't confuse the {t} (a {q} {t2}) with the {t3} it {a}.",
    "On {d} the team replaced the {t}; latency fell from {n} ms to {m} ms.",
    "Set `{s}_{s2}` to {n} when the {t} {a} more than {m} entries {h}.",
    "Returns a {q} {t}, or None when the {t2} has not been built yet.",
    "The default of {n} suits a {q} {t}; a {q2} one may want {m} or more.",
    "What the {t} {a} {h} is described in section {x}: “{t2} and {t3}”.",
    "Each {t} has an id, a {q} {t2} and a size between {m} and {n} bytes.",
    "See {s}/{s2}.py, lines {m}–{n}, for how a {t} {a} the {t2}.",
    "At {c} the {t} reported {n} errors, {m} of them from a {q} {t2}.",
    "It is {q} by design: a {t} without a {t2} must not fail {h}.",
    "The {t} is documented at https://docs.example.net/{s}/{s2} (in part).",
    "With `@{s}.{s2}` a {t} {a} the {t2} {h}, up to {n} KB — no more.",
    "Rows {k} to {k2} of the {t} were {q}; the {t2} kept {p}% of them.",
)
# One sentence in thirty: words that give context to nothing.
EN_RARE = (
    "Users who forget a password are shown the {t}; the {t2} {a} nothing.",
    "The e-mail step is skipped when a {t} is {q}, as is the phone call.",
    "An API key is never part of the {t}, and no token reaches the {t2}.",
    "A token bucket {a} the {t} {h}; a secret of the {t2} is its size.",
    "The primary key of the {t} is {q}; a foreign key names the {t2}.",
    "Each key maps to a {t}, so that equal keys share one {q} {t2}.",
    "The card shows the id of the {t}, the account and the {q} {t2}.",
)
ZH_THINGS = (
    "调度器|解析器|连接池|重试逻辑|缓存|工作进程|消息队列|编译器|索引|事务|快照|副本|检查点|缓冲区|"
    "迭代器|装饰器|闭包|事件循环|套接字|内存分配器|垃圾回收器|类型检查|测试框架|数据迁移|表结构|视图|"
    "触发器|分布式锁|信号量|漏桶|限流器|负载均衡|网关|代理|域名解析|证书链|哈希环|表单字段|会话表|"
    "访问日志|监控指标|仪表盘|告警规则|链路追踪|导出器|构建缓存|制品库|容器镜像|存储卷|命名空间|"
    "配置中心|特性开关|灰度发布|回填任务|批处理作业|数据流|分区|消费组|偏移量|水位线|滑动窗口|投影|"
    "提示词|分词器|向量表|上下文窗口|工具调用|对话记录|摘要|规划模块|会议系统|消息模板|权限模块"
).split("|")
ZH_ACTS = (
    "等待|复制|失效|重建|丢弃|持有|刷新|重排|重试|序列化|校验|拒绝|拆分|合并|压缩|流式读取|回放|"
    "锁定|释放|轮询|包装|采样|截断|改写|解析|转义|归一化|缓存|淘汰|轮换|签名|覆盖|预热"
).split("|")
ZH_HOW = (
    "按需|一次性|在每个请求里|在锁内|零拷贝地|启动时|在后台|超时之后|按顺序|提交之前|"
    "高负载下|逐行|关闭时|增量地|异步地|在事务中"
).split("|")
ZH_QUALITIES = (
    "缓慢的|过期的|幂等的|有界的|惰性的|不透明的|不可变的|共享的|嵌套的|稀疏的|嘈杂的|不稳定的|"
    "确定性的|可移植的|实验性的|已废弃的|通用的|局部的|递归的|单调的|原子的|持久的|临时的|冗余的"
).split("|")
ZH_SENTENCES = (
    "{q}{t}会{h}{a}{t2}，因此{t3}始终是{q2}。",
    "如果{t}已经过期，{t2}就{h}{a}它；否则什么都不做。",
    "从 {v} 版本开始，{t}可以是{q}——详见“{t2}”一节。",
    "实测表明，{t}{h}{a}{t2}之后，未命中率下降了 {p}%。",
    "{t}在{a}{t2}时至少需要 {n} MB 内存和 {m} 个线程。",
    "不要把{t}（一种{q}{t2}）与它{a}的{t3}混为一谈。",
    "{d}，团队替换了{t}，延迟从 {n} 毫秒降到 {m} 毫秒。",
    "当{t}{h}{a}超过 {m} 条记录时，请把 `{s}_{s2}` 设为 {n}。",
    "返回一个{q}{t}；若{t2}尚未构建，则返回 None。",
    "默认值 {n} 适合{q}{t}，而{q2}{t}可能需要 {m} 甚至更多。",
    "{t}如何{h}{a}，参见第 {x} 节：「{t2}与{t3}」。",
    "每个{t}都有编号、{q}{t2}以及 {m} 到 {n} 字节的大小。",
    "凌晨 {c}，{t}报告了 {n} 个错误，其中 {m} 个来自{q}{t2}。",
    "这是有意为之：没有{t2}的{t}，{h}{a}也不应失败。",
    "总之，先{a}{t}，再{a}{t2}，最后{h}检查{t3}。",
    "{t}的文档见 https://docs.example.net/{s}/{s2}（部分）。",
    "第 {k} 到 {k2} 行的{t}是{q}，{t2}保留了其中的 {p}%。",
)
ZH_RARE = (
    "忘记密码的用户会看到{t}，{t2}不会{a}任何内容。",
    "{t}是{q}时会跳过发送邮件这一步，也不会拨打电话。",
    "密钥从不写入{t}，令牌也不会进入{t2}。",
    "身份证和银行卡的照片由{t}{h}{a}，{t2}只保存编号。",
    "手机端的{t}会{h}{a}{t2}，网页端则不会。",
)
SYMBOLS = (
    "max retry pool cache queue worker batch index token window page limit flush "
    "shard buffer stream replica trace depth size count timeout backoff level mode"
).split()
GIVEN = (
    "Ada Bruno Chiara Dmitri Elif Farid Greta Hugo Ines Jonas Katya Liam Mei Nadia "
    "Oscar Priya Quentin Rosa Stefan Tomas Uma Viktor Wanda Xavier Yuki Zora"
).split()
FAMILY = (
    "Almeida Berger Costa Dubois Eriksen Fischer Garcia Hansen Ivanova Jansen Keller "
    "Lindqvist Moreau Novak Okafor Petrov Quist Romero Schmidt Tanaka Ueda Vogel "
    "Weber Yilmaz Zhang"
).split()
ZH_FAMILY = "王李张刘陈杨黄赵吴周徐孙马朱胡林郭何高罗"
ZH_GIVEN = "伟芳娜敏静丽强磊军洋勇艳杰娟涛明超秀霞平刚桂英华文慧建国佳欣怡宇航"
DOMAINS = (
    "northgate-mail.com qq.com 163.com gmail.com harbour.co.uk werk-post.de "
    "outlook.com laposte-nord.fr corp.bluefern.io mail.tsukuba-lab.jp yahoo.com.br"
).split()


CHUNK = 1800
_RARE = 1 / 30
# Possible personal data or secrets, found by plain patterns and by no rule of Refold.
_SUSPICIOUS = re.compile(
    r"[\w.+-]@[\w-]"
    r"|\d{7}|\d[ .()/-]{1,2}\d{3,4}[ .()/-]{1,2}\d{3,4}|\+\d{2}"
    r"|-----BEGIN|\beyJ|://[^/\s]*:[^/\s]*@"
    r"|(?i:passw|passphrase|secret|token|bearer|api.?key|credential|\bauth)"
    r"[\w\"']{0,12}\s{0,3}(?:[:=]|=>)\s{0,3}\S"
    r"|[A-Za-z0-9+/_-]{32}"
)

# Personal data and secrets as such.  A name of a variable next to a word is neither,
# and long numbers in a library belong to nobody.
_PERSONAL = re.compile(
    r"[\w.+-]@[\w-]+\.[a-z]|-----BEGIN|\beyJ|://[^/\s:]*:[^/\s@]{3,}@"
    r"|(?i:passwo?r?d|secret)\w*[\"']?\s?[:=]\s?[\"'b]"
)


def english(rng: random.Random, size: int) -> str:
    """About ``size`` bytes of English documentation in paragraphs."""
    return _prose(rng, size, _english, " ", "\n\n")


def chinese(rng: random.Random, size: int) -> str:
    """About ``size`` bytes of Chinese technical prose in paragraphs."""
    return _prose(rng, size, _chinese, "", "\n")


def code(size: int) -> str:
    """Return up to ``size`` bytes of the standard library, without suspicious lines."""
    kept: list[str] = []
    total = 0
    for _, text in library():
        lines = [line for line in text.splitlines(True) if not suspicious(line)]
        kept.extend(lines)
        total += sum(map(len, lines))
        if total >= size:
            break
    return "".join(kept)[:size]


@functools.cache
def library() -> tuple[tuple[str, str], ...]:
    """Name and text of the modules of the running standard library, in one order."""
    root = Path(sysconfig.get_paths()["stdlib"])
    modules = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if {"test", "tests", "site-packages", "dist-packages"} & {*name.parts}:
            continue
        if text := _decoded(path):
            modules.append((str(name), text))
    return tuple(modules)


def suspicious(line: str) -> bool:
    """Whether a line might hold personal data or a secret."""
    return bool(_SUSPICIOUS.search(line))


def personal(text: str) -> bool:
    """Whether a text might hold personal data or a secret, less strictly."""
    return bool(_PERSONAL.search(text))


def chunks(text: str, size: int = CHUNK) -> list[str]:
    """Cut ``text`` into pieces of about ``size`` bytes in UTF-8, at ends of lines."""
    pieces = []
    lines = []
    length = 0
    for line in text.splitlines(True):
        lines.append(line)
        length += len(line.encode())
        if length >= size:
            pieces.append("".join(lines))
            lines = []
            length = 0
    return [*pieces, "".join(lines)] if lines else pieces


def _decoded(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _prose(
    rng: random.Random,
    size: int,
    sentence: Callable[[random.Random], str],
    space: str,
    end: str,
) -> str:
    parts: list[str] = []
    total = 0
    while total < size:
        paragraph = space.join(sentence(rng) for _ in range(rng.randint(2, 6)))
        paragraph = paragraph + end
        parts.append(paragraph)
        total += len(paragraph.encode())
    return "".join(parts)


def _english(rng: random.Random) -> str:
    sentences = EN_RARE if rng.random() < _RARE else EN_SENTENCES
    return rng.choice(sentences).format_map(
        _Slots(rng, EN_THINGS, EN_ACTS, EN_HOW, EN_QUALITIES)
    )


def _chinese(rng: random.Random) -> str:
    sentences = ZH_RARE if rng.random() < _RARE else ZH_SENTENCES
    return rng.choice(sentences).format_map(
        _Slots(rng, ZH_THINGS, ZH_ACTS, ZH_HOW, ZH_QUALITIES)
    )


class _Slots(dict[str, str]):
    """Fills a template's slots with words and numbers, each drawn when needed."""

    def __init__(
        self,
        rng: random.Random,
        things: Sequence[str],
        acts: Sequence[str],
        how: Sequence[str],
        qualities: Sequence[str],
    ) -> None:
        super().__init__()
        self._rng = rng
        self._words = {"t": things, "a": acts, "h": how, "q": qualities}
        self._words["s"] = SYMBOLS

    def __missing__(self, slot: str) -> str:
        if bank := self._words.get(slot[0]):
            return self._rng.choice(bank)
        return _number(self._rng, slot)


def _number(rng: random.Random, slot: str) -> str:
    r = rng.randint
    match slot:
        case "v":
            return f"{r(0, 9)}.{r(0, 30)}" + rng.choice(("", f".{r(0, 20)}", "rc1"))
        case "p":
            return rng.choice((f"{r(1, 99)}", f"{r(1, 99)}.{r(0, 9)}"))
        case "d":
            return f"{r(2009, 2026)}-{r(1, 12):02}-{r(1, 28):02}"
        case "c":
            return f"{r(0, 23):02}:{r(0, 59):02}:{r(0, 59):02}"
        case "x":
            return f"{r(1, 12)}.{r(1, 9)}"
        case "k" | "k2":
            return str(r(10_000, 400_000))
        case "n":
            return rng.choice((f"{r(2, 999)}", f"{r(1, 64)},{r(0, 999):03}", "65536"))
        case _:
            return f"{r(2, 64)}"
