"""Keys that say by their first characters who issued them."""

from __future__ import annotations

from typing import NamedTuple

from refold.redaction.credentials import WORD
from refold.redaction.rule import Rule
from refold.redaction.secret import random_looking

_MIXED = "q7Zt0Kx3Vb9Lm2Np5Rs8Wd1Yf4Hj6CgTuEaXoIiGkMzPnQvSyBwDcFrJhLeUt5A8" * 3
_LOWER = "7f3a9c1e5b8d2046ace8137f95bd0462" * 6
_UPPER = "Q7ZT4KX3VB6LM2NP5RSW" * 3


class _Vendor(NamedTuple):
    """``tail`` follows one of ``prefixes``; ``sample`` is one, made up.

    ``gate`` are what the prefixes start with, if they have that in common.
    """

    name: str
    prefixes: tuple[str, ...]
    tail: str
    sample: str
    gate: tuple[str, ...] = ()


_ALNUM, _TOKEN, _HEX = "[A-Za-z0-9]", r"[A-Za-z0-9_\-]", "[A-Fa-f0-9]"

_VENDORS = (
    _Vendor("aws", ("AKIA", "ASIA"), "[A-Z0-9]{16}", _UPPER[:16]),
    _Vendor(
        "github",
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"),
        f"{_ALNUM}{{30,255}}",
        _MIXED[:36],
    ),
    _Vendor("github.fine", ("github_pat_",), "[A-Za-z0-9_]{22,255}", _MIXED[:60]),
    _Vendor(
        "gitlab",
        ("glpat-", "gldt-", "glrt-", "glptt-"),
        f"{_TOKEN}{{20,128}}",
        _MIXED[:20],
    ),
    _Vendor(
        "slack",
        ("xoxb-", "xoxp-", "xoxa-", "xoxe-", "xoxr-", "xoxs-", "xapp-"),
        r"[A-Za-z0-9\-]{10,255}",
        "17-2839-" + _MIXED[:24],
        gate=("xox", "xapp-"),
    ),
    _Vendor(
        "slack.webhook",
        ("hooks.slack.com/services/",),
        "[A-Za-z0-9/]{20,128}",
        f"T{_UPPER[:9]}/B{_UPPER[:9]}/{_MIXED[:24]}",
    ),
    _Vendor(
        "anthropic",
        ("sk-ant-",),
        f"{_TOKEN}{{20,255}}",
        "api03-" + _MIXED[:60],
        gate=("sk-",),
    ),
    _Vendor(
        "openai",
        ("sk-proj-", "sk-svcacct-", "sk-admin-", "sk-or-"),
        f"{_TOKEN}{{20,255}}",
        _MIXED[:60],
        gate=("sk-",),
    ),
    # Also what many others issue that speak its protocol.
    _Vendor("openai.plain", ("sk-",), f"{_ALNUM}{{20,255}}", _MIXED[:48]),
    _Vendor("google", ("AIza",), f"{_TOKEN}{{35}}", _MIXED[:35]),
    _Vendor("google.oauth", ("ya29.", "GOCSPX-"), f"{_TOKEN}{{20,255}}", _MIXED[:40]),
    _Vendor(
        "stripe",
        ("sk_live_", "sk_test_", "rk_live_", "rk_test_"),
        f"{_ALNUM}{{10,255}}",
        _MIXED[:24],
    ),
    _Vendor("stripe.webhook", ("whsec_",), "[A-Za-z0-9+/=]{24,128}", _MIXED[:32]),
    _Vendor("npm", ("npm_",), f"{_ALNUM}{{36}}", _MIXED[:36]),
    _Vendor("pypi", ("pypi-",), f"{_TOKEN}{{50,255}}", "AgEI" + _MIXED[:60]),
    _Vendor("hugging-face", ("hf_",), f"{_ALNUM}{{30,64}}", _MIXED[:34]),
    _Vendor(
        "sendgrid",
        ("SG.",),
        rf"{_TOKEN}{{16,32}}\.{_TOKEN}{{16,64}}",
        f"{_MIXED[:22]}.{_MIXED[:43]}",
    ),
    _Vendor("alibaba", ("LTAI",), f"{_ALNUM}{{12,24}}", _MIXED[:20]),
    _Vendor("tencent", ("AKID",), f"{_ALNUM}{{13,48}}", _MIXED[:32]),
    _Vendor(
        "digitalocean", ("dop_v1_", "doo_v1_", "dor_v1_"), f"{_HEX}{{64}}", _LOWER[:64]
    ),
    _Vendor(
        "shopify",
        ("shpat_", "shpca_", "shppa_", "shpss_"),
        f"{_HEX}{{32}}",
        _LOWER[:32],
        gate=("shp",),
    ),
    _Vendor("xai", ("xai-",), f"{_ALNUM}{{40,128}}", _MIXED[:80]),
    _Vendor("groq", ("gsk_",), f"{_ALNUM}{{40,64}}", _MIXED[:52]),
    _Vendor("perplexity", ("pplx-",), f"{_ALNUM}{{32,64}}", _MIXED[:48]),
    _Vendor("replicate", ("r8_",), f"{_ALNUM}{{36,40}}", _MIXED[:37]),
    _Vendor("supabase", ("sbp_",), f"{_HEX}{{40}}", _LOWER[:40]),
    _Vendor("databricks", ("dapi",), f"{_HEX}{{32}}(?:-[0-9])?", _LOWER[:32]),
    _Vendor("docker", ("dckr_pat_",), f"{_TOKEN}{{20,64}}", _MIXED[:27]),
    _Vendor("atlassian", ("ATATT3",), r"[A-Za-z0-9_\-=]{40,255}", _MIXED[:60]),
    _Vendor("linear", ("lin_api_",), f"{_ALNUM}{{32,64}}", _MIXED[:40]),
    _Vendor("notion", ("ntn_",), f"{_ALNUM}{{40,64}}", _MIXED[:46]),
    _Vendor("tavily", ("tvly-",), r"[A-Za-z0-9\-]{20,64}", _MIXED[:32]),
    _Vendor(
        "postman",
        ("PMAK-",),
        f"{_HEX}{{24}}-{_HEX}{{34}}",
        f"{_LOWER[:24]}-{_LOWER[:34]}",
    ),
    _Vendor(
        "square",
        ("sq0atp-", "sq0csp-"),
        f"{_TOKEN}{{22,64}}",
        _MIXED[:22],
        gate=("sq0",),
    ),
    _Vendor("mailgun", ("key-",), f"{_HEX}{{32}}", _LOWER[:32]),
    _Vendor("age", ("AGE-SECRET-KEY-1",), "[A-Z0-9]{58}", _UPPER[:58]),
)


def _rule(vendor: _Vendor) -> Rule:
    prefixes = "|".join(prefix.replace(".", r"\.") for prefix in vendor.prefixes)
    return Rule(
        id=f"key.{vendor.name}",
        type="API_KEY",
        gate=vendor.gate or tuple(prefix.lower() for prefix in vendor.prefixes),
        pattern=rf"{WORD}(?:{prefixes}){vendor.tail}(?![A-Za-z0-9])",
        validator=random_looking,
        priority=80,
        examples=tuple(f"is «{prefix}{vendor.sample}»." for prefix in vendor.prefixes),
        counter_examples=(
            f"x{vendor.prefixes[0]}{vendor.sample}",
            vendor.prefixes[0] + "x" * len(vendor.sample),
            vendor.prefixes[0] + "EXAMPLE" + vendor.sample[7:],
        ),
    )


VENDORS = tuple(_rule(vendor) for vendor in _VENDORS)
